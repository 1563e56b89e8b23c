// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/core.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>

#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

constexpr uint32_t api_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);

// For the strings inside a fi_info, which fi_freeinfo releases.
int assign(char*& field, const std::string& value) {
    field = strdup(value.c_str());
    return field != nullptr ? 0 : -FI_ENOMEM;
}

} // namespace

FabricName FabricName::parse(const char* text) {
    const std::string whole = text != nullptr ? text : "";
    const size_t at = whole.find('@');
    if (at == std::string::npos) {
        return {"", whole};
    }
    return {whole.substr(0, at), whole.substr(at + 1)};
}

Info core_hints() {
    Info hints(fi_allocinfo());
    if (!hints) {
        return nullptr;
    }
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    // A message announces the write before it, and must not overtake it.
    hints->tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
    hints->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
    return hints;
}

int core_getinfo(const std::string& core, const char* node, const char* service, uint64_t flags, Info hints,
                 Info& out) {
    if (!hints || assign(hints->fabric_attr->prov_name, core) != 0) {
        return -FI_ENOMEM;
    }
    fi_info* list = nullptr;
    const int ret = fi_getinfo(api_version, node, service, flags | core_request, hints.get(), &list);
    out.reset(ret == 0 ? list : nullptr);
    return ret;
}

bool has_core(const std::string& core) {
    fi_info* list = nullptr;
    if (fi_getinfo(api_version, nullptr, nullptr, FI_PROV_ATTR_ONLY, nullptr, &list) != 0) {
        return false;
    }
    const Info all(list);
    while (list != nullptr && (list->fabric_attr == nullptr || list->fabric_attr->prov_name == nullptr ||
                               core != list->fabric_attr->prov_name)) {
        list = list->next;
    }
    return list != nullptr;
}

int core_domain_info(const std::string& core, const std::string& fabric, const char* domain, uint32_t addr_format,
                     Info& out) {
    // The second request is for the wildcard address, for which some cores have a separate fabric and domain. Without
    // an address it means the wildcard of IPv4, so the third request names that of IPv6.
    enum class Ask : uint8_t { any, wildcard, wildcard6 };
    for (const Ask ask : {Ask::any, Ask::wildcard, Ask::wildcard6}) {
        const uint64_t flags = ask == Ask::wildcard ? FI_SOURCE : 0;
        Info hints = core_hints();
        if (!hints || (!fabric.empty() && assign(hints->fabric_attr->name, fabric) != 0) ||
            (domain != nullptr && assign(hints->domain_attr->name, domain) != 0)) {
            return -FI_ENOMEM;
        }
        hints->addr_format = addr_format;
        if (ask == Ask::wildcard6) {
            if (addr_format != FI_SOCKADDR_IN6) {
                continue;
            }
            auto* any = static_cast<sockaddr_in6*>(calloc(1, sizeof(sockaddr_in6)));
            if (any == nullptr) {
                return -FI_ENOMEM;
            }
            any->sin6_family = AF_INET6;
            hints->src_addr = any;
            hints->src_addrlen = sizeof(*any);
        }
        Info list;
        if (core_getinfo(core, nullptr, flags != 0 ? "0" : nullptr, flags, std::move(hints), list) != 0) {
            continue;
        }
        for (const fi_info* one = list.get(); one != nullptr; one = one->next) {
            if (is_of(*one, fabric.empty() ? nullptr : fabric.c_str(), domain, addr_format)) {
                out.reset(fi_dupinfo(one));
                return out ? 0 : -FI_ENOMEM;
            }
        }
    }
    return -FI_ENODATA;
}

bool is_of(const fi_info& info, const char* fabric, const char* domain, uint32_t addr_format) {
    const auto same = [](const char* wanted, const char* got) {
        return wanted == nullptr || (got != nullptr && strcasecmp(wanted, got) == 0);
    };
    const bool any_socket =
        addr_format == FI_SOCKADDR && (info.addr_format == FI_SOCKADDR_IN || info.addr_format == FI_SOCKADDR_IN6);
    return same(fabric, info.fabric_attr->name) && same(domain, info.domain_attr->name) &&
           (addr_format == FI_FORMAT_UNSPEC || addr_format == info.addr_format || any_socket);
}

bool is_internet_address(const void* address, size_t length) {
    if (address == nullptr || length < sizeof(sockaddr_in)) {
        return false;
    }
    const auto family = static_cast<const sockaddr*>(address)->sa_family;
    return family == AF_INET || (family == AF_INET6 && length >= sizeof(sockaddr_in6));
}

int aim_at(fi_info& info, const void* address) {
    size_t length = std::max(info.src_addrlen, info.dest_addrlen); // for an address family of the core's own
    switch (static_cast<const sockaddr*>(address)->sa_family) {
    case AF_INET:
        length = sizeof(sockaddr_in);
        break;
    case AF_INET6:
        length = sizeof(sockaddr_in6);
        break;
    default:
        break;
    }
    if (length == 0) {
        return -FI_EINVAL;
    }
    void* copy = malloc(length);
    if (copy == nullptr) {
        return -FI_ENOMEM;
    }
    memcpy(copy, address, length);
    free(info.dest_addr);
    info.dest_addr = copy;
    info.dest_addrlen = length;
    return 0;
}

int give_address(const void* from, size_t from_length, void* to, size_t* length) {
    const size_t capacity = *length;
    *length = from_length;
    if (from_length != 0 && capacity != 0) {
        memcpy(to, from, std::min(capacity, from_length));
    }
    return capacity < from_length ? -FI_ETOOSMALL : 0;
}

CoreTraits::CoreTraits(const fi_info& info, bool use_immediates)
    : immediates(use_immediates && info.domain_attr->cq_data_size >= 4),
      consumes_recv(((info.mode | info.rx_attr->mode) & FI_RX_CQ_DATA) != 0),
      local_mr((info.domain_attr->mr_mode & FI_MR_LOCAL) != 0),
      virtual_address((info.domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0),
      provider_keys((info.domain_attr->mr_mode & FI_MR_PROV_KEY) != 0),
      endpoint_mr((info.domain_attr->mr_mode & FI_MR_ENDPOINT) != 0),
      contexts((info.mode & (FI_CONTEXT | FI_CONTEXT2)) != 0), inject_size(info.tx_attr->inject_size),
      max_message(info.ep_attr->max_msg_size) {}

} // namespace rstream
