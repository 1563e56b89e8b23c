// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/common/fabric.hpp"

#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

namespace fabtests {

namespace {
// Longest time without a byte moved, in a call that waits.
constexpr std::chrono::milliseconds longest_wait{30000};

const char* or_null(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }
} // namespace

Info get_info(const Request& request) {
    Info hints(fi_allocinfo());
    hints->ep_attr->type = request.type;
    if (request.type == FI_EP_MSG) {
        hints->caps = FI_MSG | FI_RMA;
    }
    if (request.iwarp) {
        hints->ep_attr->protocol = FI_PROTO_IWARP;
    }
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->mode = FI_CONTEXT | FI_RX_CQ_DATA;
    const std::string provider =
        request.core.empty() || request.type == FI_EP_MSG ? request.provider : request.core + ";" + request.provider;
    hints->fabric_attr->prov_name = strdup(provider.c_str());
    if (!request.domain.empty()) {
        hints->domain_attr->name = strdup(request.domain.c_str());
    }
    fi_info* info = nullptr;
    check("fi_getinfo", fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), or_null(request.node),
                                   or_null(request.service), request.source ? FI_SOURCE : 0, hints.get(), &info));
    return Info(info);
}

Host::Host(Info i, fi_wait_obj wait) : info(std::move(i)) {
    fid_fabric* f = nullptr;
    check("fi_fabric", fi_fabric(info->fabric_attr, &f, nullptr));
    fabric.reset(f);
    fid_domain* d = nullptr;
    check("fi_domain", fi_domain(f, info.get(), &d, nullptr));
    domain.reset(d);
    fi_eq_attr attr{};
    attr.wait_obj = wait;
    fid_eq* e = nullptr;
    check("fi_eq_open", fi_eq_open(f, &attr, &e, nullptr));
    eq.reset(e);
}

Event Host::next_event(int timeout_ms) {
    union {
        fi_eq_cm_entry entry;
        std::byte bytes[sizeof(fi_eq_cm_entry) + 512];
    } buffer;
    Event event;
    const auto begin = Clock::now();
    ssize_t got = -FI_EINTR; // a signal, or a pause (SIGSTOP)
    for (int left = timeout_ms; got == -FI_EINTR && left >= 0;
         left = timeout_ms -
                static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count())) {
        got = fi_eq_sread(eq.get(), &event.type, &buffer, sizeof(buffer), left, 0);
    }
    if (got == -FI_EAVAIL) {
        fi_eq_err_entry error{};
        check("fi_eq_readerr", fi_eq_readerr(eq.get(), &error, 0));
        event.error = true;
        event.subject = error.fid;
        event.err = error.err;
        event.context = error.context;
        const auto* data = static_cast<const std::byte*>(error.err_data);
        event.data.assign(data, data + error.err_data_size);
        return event;
    }
    if (got == -FI_EAGAIN || got == -FI_EINTR) {
        throw Error("no event in time", -FI_ETIMEDOUT);
    }
    check("fi_eq_sread", got);
    event.subject = buffer.entry.fid;
    event.info = buffer.entry.info;
    event.data.assign(buffer.bytes + sizeof(fi_eq_cm_entry), buffer.bytes + got);
    return event;
}

Event Host::expect(uint32_t type, const fid* subject, int timeout_ms) {
    Event event = next_event(timeout_ms);
    if (event.error) {
        throw Error(std::string("instead of ") + fi_tostr(&type, FI_TYPE_EQ_EVENT), -event.err);
    }
    if (event.type != type || event.subject != subject) {
        throw std::runtime_error("event " + std::to_string(event.type) + " instead of " + std::to_string(type) +
                                 (event.subject != subject ? ", about another fid" : ""));
    }
    return event;
}

Stream::Stream(Host& h, fi_info* info) : host(h) {
    fid_ep* e = nullptr;
    check("fi_endpoint", fi_endpoint(host.domain.get(), info != nullptr ? info : host.info.get(), &e, this));
    ep.reset(e);
    check("fi_ep_bind", fi_ep_bind(e, &host.eq->fid, 0));
}

void Stream::set_option(int option, size_t value) {
    check("fi_setopt", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, option, &value, sizeof(value)));
}

size_t Stream::get_option(int option) const {
    size_t value = 0;
    size_t length = sizeof(value);
    check("fi_getopt", fi_getopt(&ep->fid, FI_OPT_ENDPOINT, option, &value, &length));
    return value;
}

void Stream::set_buffers(size_t bytes) {
    if (bytes != 0) {
        set_option(FI_OPT_SEND_BUF_SIZE, bytes);
        set_option(FI_OPT_RECV_BUF_SIZE, bytes);
    }
}

void Stream::connect(const void* address, const std::string& data) {
    check("fi_connect", fi_connect(ep.get(), address, data.data(), data.size()));
}

void Stream::accept(const std::string& data) { check("fi_accept", fi_accept(ep.get(), data.data(), data.size())); }

bool Stream::wait(int timeout_ms) {
    fid* fids[] = {&ep->fid};
    const int ready = fi_trywait(host.fabric.get(), fids, 1);
    if (ready == -FI_EAGAIN) {
        return true;
    }
    check("fi_trywait", ready);
    pollfd fd{-1, POLLIN, 0};
    check("fi_control", fi_control(&ep->fid, FI_GETWAIT, &fd.fd));
    return poll(&fd, 1, timeout_ms) != 0;
}

void Stream::pass_time(Clock::time_point& since) {
    if (mode == Wait::spin) {
        return;
    }
    const auto now = Clock::now();
    if (since == Clock::time_point{}) {
        since = now;
    }
    if (now - since > longest_wait || !wait(static_cast<int>(longest_wait.count()))) {
        throw Error("the stream stands still", -FI_ETIMEDOUT);
    }
}

void Stream::send_all(const void* data, size_t length) {
    const auto* at = static_cast<const char*>(data);
    Clock::time_point since;
    while (length != 0) {
        const ssize_t sent = fi_send(ep.get(), at, length, nullptr, FI_ADDR_UNSPEC, nullptr);
        if (sent == -FI_EAGAIN) {
            pass_time(since);
            continue;
        }
        check("fi_send", sent);
        since = {};
        at += sent;
        length -= static_cast<size_t>(sent);
    }
}

ssize_t Stream::recv_some(void* data, size_t length) {
    for (Clock::time_point since;;) {
        const ssize_t got = fi_recv(ep.get(), data, length, nullptr, FI_ADDR_UNSPEC, nullptr);
        if (got != -FI_EAGAIN) {
            return got;
        }
        pass_time(since);
    }
}

size_t Stream::recv_all(void* data, size_t length) {
    auto* at = static_cast<char*>(data);
    size_t total = 0;
    while (total < length) {
        const ssize_t got = check("fi_recv", recv_some(at + total, length - total));
        if (got == 0) {
            break;
        }
        total += static_cast<size_t>(got);
    }
    return total;
}

std::vector<std::byte> Stream::name() const {
    std::vector<std::byte> address(64);
    size_t length = address.size();
    check("fi_getname", fi_getname(&ep->fid, address.data(), &length));
    address.resize(length);
    return address;
}

Listener::Listener(Host& h, int backlog) : host(h) {
    fid_pep* p = nullptr;
    check("fi_passive_ep", fi_passive_ep(host.fabric.get(), host.info.get(), &p, nullptr));
    pep.reset(p);
    check("fi_pep_bind", fi_pep_bind(p, &host.eq->fid, 0));
    if (backlog > 0) {
        check("fi_control(FI_BACKLOG)", fi_control(&p->fid, FI_BACKLOG, &backlog));
    }
    check("fi_listen", fi_listen(p));
}

std::vector<std::byte> Listener::name() const {
    std::vector<std::byte> address(64);
    size_t length = address.size();
    check("fi_getname", fi_getname(&pep->fid, address.data(), &length));
    address.resize(length);
    return address;
}

uint16_t Listener::port() const { return port_of(name()); }

Event Listener::request(int timeout_ms) { return host.expect(FI_CONNREQ, &pep->fid, timeout_ms); }

BareEndpoint::BareEndpoint(Host& host, fi_info* info) {
    fi_cq_attr attr{};
    attr.format = FI_CQ_FORMAT_DATA;
    attr.wait_obj = FI_WAIT_FD;
    fid_cq* q = nullptr;
    check("fi_cq_open", fi_cq_open(host.domain.get(), &attr, &q, nullptr));
    cq.reset(q);
    fid_ep* e = nullptr;
    check("fi_endpoint", fi_endpoint(host.domain.get(), info != nullptr ? info : host.info.get(), &e, nullptr));
    ep.reset(e);
    check("fi_ep_bind", fi_ep_bind(e, &q->fid, FI_TRANSMIT | FI_RECV));
    check("fi_ep_bind", fi_ep_bind(e, &host.eq->fid, 0));
    check("fi_enable", fi_enable(e));
}

uint16_t port_of(const std::vector<std::byte>& address) {
    const auto* any = reinterpret_cast<const sockaddr*>(address.data());
    return ntohs(any->sa_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(any)->sin6_port
                                            : reinterpret_cast<const sockaddr_in*>(any)->sin_port);
}

Pair::Pair(const std::string& core, size_t buffers, const std::string& node) {
    Request request;
    request.core = core;
    request.node = node;
    request.source = true;
    own_host = std::make_unique<Host>(request);
    connect(*own_host, buffers);
}

Pair::Pair(Host& host, size_t buffers) { connect(host, buffers); }

Pair::~Pair() {
    client.reset();
    server.reset();
}

void Pair::connect(Host& host, size_t buffers) {
    const Listener listener(host);
    client = std::make_unique<Stream>(host);
    client->set_buffers(buffers);
    client->connect(listener.name().data());
    const Event request = host.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(request.info);
    server = std::make_unique<Stream>(host, info.get());
    server->set_buffers(buffers);
    server->accept();
    // The two events may come in either order: both ends share the queue.
    for (int i = 0; i < 2; ++i) {
        const Event event = host.next_event();
        if (event.error || event.type != FI_CONNECTED) {
            throw Error("not connected", event.error ? -event.err : -FI_EOTHER);
        }
    }
}

} // namespace fabtests
