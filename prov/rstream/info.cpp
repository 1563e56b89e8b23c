// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/info.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/core.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

bool named(std::string_view list, std::string_view name, char separator) {
    while (!list.empty()) {
        const size_t end = std::min(list.find(separator), list.size());
        if (list.substr(0, end) == name) {
            return true;
        }
        list.remove_prefix(std::min(end + 1, list.size()));
    }
    return false;
}

// A request that names no endpoint type is for this provider only if the user selected it by other means: a program
// that uses the first info must not end up on a stream.
bool meant_for_us(const fi_info* hints) {
    if (hints != nullptr) {
        if (hints->ep_attr != nullptr && hints->ep_attr->protocol == FI_PROTO_RSTREAM) {
            return true;
        }
        if (hints->fabric_attr != nullptr && hints->fabric_attr->prov_name != nullptr &&
            named(hints->fabric_attr->prov_name, "rstream", ';')) {
            return true;
        }
    }
    const char* chosen = getenv("FI_PROVIDER");
    return chosen != nullptr && named(chosen, "rstream", ',');
}

// RDMA devices have native addresses too; streams connect by Internet addresses only.
bool is_internet(uint32_t addr_format) {
    return addr_format == FI_SOCKADDR || addr_format == FI_SOCKADDR_IN || addr_format == FI_SOCKADDR_IN6;
}

// Requested attributes that a stream does not have, decided as in libfabric's own providers: one line each.
// `since_1_5`: whether the program's API version has the members added in 1.5.
const char* domain_refusal(const fi_domain_attr& domain, bool since_1_5) {
    if (domain.threading > FI_THREAD_ENDPOINT) {
        return "an unknown threading model";
    }
    if (domain.data_progress != FI_PROGRESS_UNSPEC && domain.data_progress != FI_PROGRESS_MANUAL) {
        return "data progress that is not manual";
    }
    if (domain.cq_data_size != 0) {
        return "data with completions";
    }
    if (!since_1_5) {
        return nullptr;
    }
    if (domain.cntr_cnt != 0) {
        return "counters";
    }
    if (domain.mr_cnt != 0 || domain.mr_iov_limit != 0) {
        return "memory regions";
    }
    if ((domain.caps & ~stream_domain_caps) != 0) {
        return "capabilities of a domain beyond FI_LOCAL_COMM and FI_REMOTE_COMM";
    }
    if (domain.max_err_data != 0) {
        return "error data of completions";
    }
    return nullptr;
}

const char* endpoint_refusal(const fi_ep_attr& ep) {
    if (ep.protocol != FI_PROTO_UNSPEC && ep.protocol != FI_PROTO_RSTREAM && ep.protocol != FI_PROTO_IWARP) {
        return "a protocol other than FI_PROTO_RSTREAM or FI_PROTO_IWARP";
    }
    if (ep.protocol_version > stream_protocol_version) {
        return "a newer protocol version";
    }
    if (ep.tx_ctx_cnt > 1 || ep.rx_ctx_cnt > 1) {
        return "more than one context an endpoint";
    }
    if (ep.auth_key_size != 0) {
        return "an authorization key";
    }
    return nullptr;
}

template <class Attributes> bool is_beyond_stream(const Attributes& attr) {
    return (attr.caps & ~stream_caps) != 0 || (attr.op_flags & ~stream_op_flags) != 0 ||
           (attr.msg_order & ~FI_ORDER_SAS) != 0 || attr.comp_order != 0 || attr.iov_limit > stream_iov_limit;
}

// Null, or why the request cannot be served.
const char* refusal(const fi_info* hints, uint32_t api_version) {
    if (hints == nullptr) {
        return nullptr;
    }
    if ((hints->caps & ~stream_caps) != 0) {
        return "capabilities beyond FI_MSG, FI_SEND, FI_RECV, FI_LOCAL_COMM and FI_REMOTE_COMM";
    }
    if (hints->addr_format != FI_FORMAT_UNSPEC && !is_internet(hints->addr_format)) {
        return "an address format other than those of IPv4 and IPv6";
    }
    if (hints->fabric_attr != nullptr && hints->fabric_attr->prov_version > provider.version) {
        return "a newer version of the provider";
    }
    const char* reason = hints->ep_attr != nullptr ? endpoint_refusal(*hints->ep_attr) : nullptr;
    if (reason == nullptr && hints->domain_attr != nullptr) {
        reason = domain_refusal(*hints->domain_attr, FI_VERSION_GE(api_version, FI_VERSION(1, 5)));
    }
    if (reason != nullptr) {
        return reason;
    }
    if (const auto* tx = hints->tx_attr; tx != nullptr && (is_beyond_stream(*tx) || tx->rma_iov_limit != 0)) {
        return "transmit attributes that a stream does not have";
    }
    if (const auto* rx = hints->rx_attr; rx != nullptr && (is_beyond_stream(*rx) || rx->total_buffered_recv != 0)) {
        return "receive attributes that a stream does not have";
    }
    return nullptr;
}

struct Address {
    const void* bytes = nullptr;
    size_t length = 0;

    [[nodiscard]] bool given() const { return bytes != nullptr && length != 0; }
    [[nodiscard]] uint32_t format() const {
        return static_cast<const sockaddr*>(bytes)->sa_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    }
};

// What a program asks for, with those addresses of its hints that count: fi_getinfo(3).
struct Request {
    Request(const char* node, const char* service, uint64_t flags, const fi_info* hints)
        : node(node), service(service), flags(flags), hints(hints) {
        const bool source_named = (flags & FI_SOURCE) != 0;
        if (hints != nullptr && !source_named) {
            source = {hints->src_addr, hints->src_addrlen};
        }
        if (hints != nullptr && (source_named || (node == nullptr && service == nullptr))) {
            destination = {hints->dest_addr, hints->dest_addrlen};
        }
    }
    // Whether the addresses are whole ones.
    [[nodiscard]] bool valid() const {
        return (!source.given() || is_internet_address(source.bytes, source.length)) &&
               (!destination.given() || is_internet_address(destination.bytes, destination.length));
    }
    // The hints need not name the format of the addresses in them; cores answer that they do not know it either.
    [[nodiscard]] uint32_t format() const {
        uint32_t format = hints != nullptr ? hints->addr_format : uint32_t{FI_FORMAT_UNSPEC};
        for (const Address& address : {source, destination}) {
            if (format == FI_FORMAT_UNSPEC && address.given()) {
                format = address.format();
            }
        }
        return format;
    }

    const char* node;
    const char* service;
    uint64_t flags;
    const fi_info* hints;
    Address source;
    Address destination;
};

// A name may have addresses of both families, of which a core takes the first, and so has this host: the node as an
// address of the requested format. Empty if the core need not be told, or there is none.
std::string node_in_format(const Request& request) {
    const uint32_t format = request.format();
    if ((format != FI_SOCKADDR_IN && format != FI_SOCKADDR_IN6) ||
        (request.node == nullptr && request.service == nullptr)) {
        return {};
    }
    const bool six = format == FI_SOCKADDR_IN6;
    if (request.node == nullptr) {
        if ((request.flags & FI_SOURCE) != 0) {
            return six ? "::" : ""; // without a node, a core takes the wildcard of IPv4
        }
        return six ? "::1" : "127.0.0.1";
    }
    addrinfo wanted{};
    wanted.ai_family = six ? AF_INET6 : AF_INET;
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = (request.flags & FI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0;
    addrinfo* found = nullptr;
    if (getaddrinfo(request.node, nullptr, &wanted, &found) != 0) {
        return {};
    }
    char text[NI_MAXHOST] = "";
    const int ret = getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
    return ret == 0 ? text : "";
}

// The cores that the provider hint names besides this provider ("tcp;rstream"). None: those of FI_RSTREAM_CORE count.
std::vector<std::string> cores_of(const fi_info* hints) {
    std::vector<std::string> cores;
    if (hints != nullptr && hints->fabric_attr != nullptr && hints->fabric_attr->prov_name != nullptr) {
        std::string_view list = hints->fabric_attr->prov_name;
        while (!list.empty()) {
            const size_t end = std::min(list.find(';'), list.size());
            if (end != 0 && list.substr(0, end) != "rstream") {
                cores.emplace_back(list.substr(0, end));
            }
            list.remove_prefix(std::min(end + 1, list.size()));
        }
    }
    return cores;
}

// A program sees only that nothing can be reached. Once: it may ask for each connection.
void warn_if_unknown(const std::string& core, const Params& params) {
    static std::atomic<bool> warned{false};
    const auto known = known_cores();
    if (warned || std::find(known.begin(), known.end(), core) != known.end() || has_core(core) ||
        warned.exchange(true)) {
        return;
    }
    RSTREAM_WARN(FI_LOG_CORE, "FI_RSTREAM_CORE=%s: there is no core provider %s; known are %s\n",
                 list_of(params.cores).c_str(), core.c_str(), list_of(known).c_str());
}

int copy(char*& to, const char* from) {
    if (from == nullptr) {
        return 0;
    }
    to = strdup(from);
    return to != nullptr ? 0 : -FI_ENOMEM;
}

int copy_address(void*& to, size_t& to_length, const void* from, size_t length) {
    if (from == nullptr || length == 0) {
        return 0;
    }
    to = malloc(length);
    if (to == nullptr) {
        return -FI_ENOMEM;
    }
    memcpy(to, from, length);
    to_length = length;
    return 0;
}

// The caller's hints that a core has to meet. -FI_ENODATA if they name another core.
int hints_for_core(const std::string& core, const Request& request, Info& out) {
    const fi_info* hints = request.hints;
    out = core_hints();
    if (!out) {
        return -FI_ENOMEM;
    }
    if (hints == nullptr) {
        return 0;
    }
    out->addr_format = request.format();
    if (copy_address(out->src_addr, out->src_addrlen, request.source.bytes, request.source.length) != 0 ||
        copy_address(out->dest_addr, out->dest_addrlen, request.destination.bytes, request.destination.length) != 0) {
        return -FI_ENOMEM;
    }
    if (hints->ep_attr != nullptr && hints->ep_attr->protocol == FI_PROTO_IWARP) {
        out->ep_attr->protocol = FI_PROTO_IWARP;
    }
    if (hints->domain_attr != nullptr && copy(out->domain_attr->name, hints->domain_attr->name) != 0) {
        return -FI_ENOMEM;
    }
    if (hints->fabric_attr != nullptr && hints->fabric_attr->name != nullptr) {
        const FabricName wanted = FabricName::parse(hints->fabric_attr->name);
        if (!wanted.core.empty() && wanted.core != core) {
            return -FI_ENODATA;
        }
        if (copy(out->fabric_attr->name, wanted.name.c_str()) != 0) {
            return -FI_ENOMEM;
        }
    }
    return 0;
}

// Whether an info reaches the limits that the caller requests.
bool suffices(const fi_info& info, const fi_info* hints) {
    if (hints == nullptr) {
        return true;
    }
    return (hints->tx_attr == nullptr ||
            (hints->tx_attr->inject_size <= info.tx_attr->inject_size && hints->tx_attr->size <= info.tx_attr->size)) &&
           (hints->rx_attr == nullptr || hints->rx_attr->size <= info.rx_attr->size);
}

// Whether an info has the names and address format that the caller requests.
bool meets(const fi_info& core, const fi_info* hints) {
    if (hints == nullptr) {
        return true;
    }
    const char* fabric = hints->fabric_attr != nullptr ? hints->fabric_attr->name : nullptr;
    const FabricName wanted = FabricName::parse(fabric);
    return is_of(core, fabric != nullptr ? wanted.name.c_str() : nullptr,
                 hints->domain_attr != nullptr ? hints->domain_attr->name : nullptr, hints->addr_format);
}

// Restores the local port that the caller requests, which some cores drop for the wildcard address.
void keep_source_port(fi_info& info, const Address& source) {
    if (!source.given() || info.src_addr == nullptr || info.src_addrlen < sizeof(sockaddr_in)) {
        return;
    }
    // The port has the same offset in both structs.
    static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
    auto* given = static_cast<sockaddr_in*>(info.src_addr);
    if (given->sin_port == 0) {
        given->sin_port = static_cast<const sockaddr_in*>(source.bytes)->sin_port;
    }
}

// Attributes for which a stream satisfies any value are returned as requested: fi_getinfo(3).
void follow_hints(fi_info& info, const fi_info* hints) {
    if (hints == nullptr) {
        return;
    }
    info.handle = hints->handle;
    if (const auto* domain = hints->domain_attr) {
        const auto follow = [](auto& answer, auto wish) { answer = wish != decltype(wish){} ? wish : answer; };
        follow(info.domain_attr->threading, domain->threading);
        follow(info.domain_attr->control_progress, domain->control_progress);
        follow(info.domain_attr->data_progress, domain->data_progress);
        follow(info.domain_attr->av_type, domain->av_type);
    }
    if (hints->tx_attr != nullptr) {
        info.tx_attr->op_flags = hints->tx_attr->op_flags;
    }
    if (hints->rx_attr != nullptr) {
        info.rx_attr->op_flags = hints->rx_attr->op_flags;
    }
}

// Whether a request names an address, fabric or domain, so that each matching info of a domain is returned. On tcp a
// domain has one fabric for each subnet; a general query gets the domain once.
bool is_specific(const char* node, const char* service, const fi_info* hints) {
    return node != nullptr || service != nullptr ||
           (hints != nullptr &&
            (hints->addr_format != FI_FORMAT_UNSPEC || hints->src_addr != nullptr || hints->dest_addr != nullptr ||
             (hints->fabric_attr != nullptr && hints->fabric_attr->name != nullptr) ||
             (hints->domain_attr != nullptr && hints->domain_attr->name != nullptr)));
}

bool same_core_domain(const fi_info& a, const fi_info& b) {
    return strcmp(a.domain_attr->name, b.domain_attr->name) == 0 &&
           FabricName::parse(a.fabric_attr->name).core == FabricName::parse(b.fabric_attr->name).core;
}

bool same_domain(const fi_info& a, const fi_info& b) {
    const auto same_bytes = [](const void* x, size_t nx, const void* y, size_t ny) {
        return nx == ny && (nx == 0 || memcmp(x, y, nx) == 0);
    };
    return strcmp(a.domain_attr->name, b.domain_attr->name) == 0 &&
           strcmp(a.fabric_attr->name, b.fabric_attr->name) == 0 && a.addr_format == b.addr_format &&
           same_bytes(a.src_addr, a.src_addrlen, b.src_addr, b.src_addrlen) &&
           same_bytes(a.dest_addr, a.dest_addrlen, b.dest_addr, b.dest_addrlen);
}

int getinfo_checked(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
                    fi_info** info) {
    if ((flags & provider_request) != 0) {
        return -FI_ENODATA;
    }
    const auto type = hints != nullptr && hints->ep_attr != nullptr ? hints->ep_attr->type : FI_EP_UNSPEC;
    if (type != FI_RSTREAM_EP_STREAM && (type != FI_EP_UNSPEC || !meant_for_us(hints))) {
        return -FI_ENODATA;
    }
    if (const char* reason = refusal(hints, version)) {
        RSTREAM_INFO(FI_LOG_CORE, "cannot serve a request for %s\n", reason);
        return -FI_ENODATA;
    }
    const Request request(node, service, flags, hints);
    if (!request.valid()) {
        RSTREAM_INFO(FI_LOG_CORE, "cannot serve a request for an address that is none of IPv4 or IPv6\n");
        return -FI_ENODATA;
    }
    const std::string same_node = node_in_format(request);
    const Params params = Params::load();
    const bool specific = is_specific(node, service, hints);
    Info head;
    fi_info** tail = nullptr;
    int failure = -FI_ENODATA;
    const std::vector<std::string> hinted = cores_of(hints);
    for (const std::string& core : hinted.empty() ? params.cores : hinted) {
        Info core_hints;
        Info found;
        int ret = hints_for_core(core, request, core_hints);
        if (ret == 0) {
            ret = core_getinfo(core, same_node.empty() ? node : same_node.c_str(), service, flags,
                               std::move(core_hints), found);
        }
        if (ret != 0) {
            RSTREAM_INFO(FI_LOG_CORE, "core %s: %s\n", core.c_str(), fi_strerror(-ret));
            if (hinted.empty()) {
                warn_if_unknown(core, params);
            }
            failure = ret == -FI_ENOMEM ? ret : failure;
            continue;
        }
        for (const fi_info* one = found.get(); one != nullptr; one = one->next) {
            if (!is_internet(one->addr_format) || !meets(*one, hints)) {
                continue;
            }
            Info ours;
            if ((ret = info_over_core(*one, params, version, ours)) != 0) {
                return ret;
            }
            keep_source_port(*ours, request.source);
            follow_hints(*ours, hints);
            bool wanted = suffices(*ours, hints);
            for (const fi_info* seen = head.get(); wanted && seen != nullptr; seen = seen->next) {
                wanted = specific ? !same_domain(*seen, *ours) : !same_core_domain(*seen, *ours);
            }
            if (!wanted) {
                continue;
            }
            fi_info* added = ours.release();
            if (tail == nullptr) {
                head.reset(added);
            } else {
                *tail = added;
            }
            tail = &added->next;
        }
    }
    if (!head) {
        RSTREAM_INFO(FI_LOG_CORE, "no core provider serves this request; FI_RSTREAM_CORE lists those that are asked\n");
        return failure;
    }
    *info = head.release();
    return 0;
}

} // namespace

int info_over_core(const fi_info& core, const Params& params, uint32_t api_version, Info& out) {
    Info info(fi_allocinfo());
    if (!info) {
        return -FI_ENOMEM;
    }
    const CoreTraits traits(core, params.immediates);
    info->caps = stream_caps;
    info->addr_format = core.addr_format;
    if (copy_address(info->src_addr, info->src_addrlen, core.src_addr, core.src_addrlen) != 0 ||
        copy_address(info->dest_addr, info->dest_addrlen, core.dest_addr, core.dest_addrlen) != 0) {
        return -FI_ENOMEM;
    }
    info->tx_attr->caps = FI_MSG | FI_SEND;
    info->tx_attr->msg_order = FI_ORDER_SAS;
    info->tx_attr->comp_order = 0;
    info->tx_attr->inject_size = params.send_buf_size;
    info->tx_attr->size = std::min(params.tx_size, core.tx_attr->size);
    info->tx_attr->iov_limit = stream_iov_limit;
    info->rx_attr->caps = FI_MSG | FI_RECV;
    info->rx_attr->msg_order = FI_ORDER_SAS;
    info->rx_attr->comp_order = 0;
    info->rx_attr->size =
        traits.consumes_recv || !traits.immediates ? std::min(params.rx_size, core.rx_attr->size) : params.rx_size;
    info->rx_attr->iov_limit = stream_iov_limit;

    info->ep_attr->type = FI_RSTREAM_EP_STREAM;
    info->ep_attr->protocol = FI_PROTO_RSTREAM;
    info->ep_attr->protocol_version = stream_protocol_version;
    info->ep_attr->max_msg_size = std::numeric_limits<size_t>::max();
    info->ep_attr->tx_ctx_cnt = 1;
    info->ep_attr->rx_ctx_cnt = 1;

    info->domain_attr->threading = FI_THREAD_SAFE;
    info->domain_attr->control_progress = FI_PROGRESS_AUTO;
    info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    info->domain_attr->resource_mgmt = FI_RM_ENABLED;
    info->domain_attr->av_type = FI_AV_UNSPEC;
    info->domain_attr->ep_cnt = core.domain_attr->ep_cnt;
    info->domain_attr->tx_ctx_cnt = core.domain_attr->tx_ctx_cnt;
    info->domain_attr->rx_ctx_cnt = core.domain_attr->rx_ctx_cnt;
    info->domain_attr->max_ep_tx_ctx = 1;
    info->domain_attr->max_ep_rx_ctx = 1;
    info->domain_attr->caps = stream_domain_caps;
    info->fabric_attr->prov_version = provider.version;
    info->fabric_attr->api_version = api_version;

    const FabricName name{core.fabric_attr->prov_name != nullptr ? core.fabric_attr->prov_name : "",
                          core.fabric_attr->name != nullptr ? core.fabric_attr->name : ""};
    if (copy(info->domain_attr->name, core.domain_attr->name != nullptr ? core.domain_attr->name : "") != 0 ||
        copy(info->fabric_attr->name, name.str().c_str()) != 0) {
        return -FI_ENOMEM;
    }
    out = std::move(info);
    return 0;
}

int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
            fi_info** info) {
    return guarded([&] { return getinfo_checked(version, node, service, flags, hints, info); });
}

} // namespace rstream
