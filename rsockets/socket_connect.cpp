// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <shared_mutex>

#include <netinet/in.h>
#include <sys/epoll.h>

#include "include/rdma/fi_ext_rstream.h"
#include "rsockets/log.hpp"
#include "rsockets/provider.hpp"
#include "rsockets/setup_attendant.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

namespace {

// The routing error of the kernel for an address: an errno, or 0.
int routing_error(const Address& to) {
    const base::Descriptor probe(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    return !probe.open() || ::connect(probe.get(), to.get(), to.length) == 0 ? 0 : errno;
}

bool is_multicast(const Address& address) {
    if (address.family() == AF_INET) {
        sockaddr_in four;
        memcpy(&four, &address.storage, sizeof(four));
        return IN_MULTICAST(ntohl(four.sin_addr.s_addr)) || four.sin_addr.s_addr == htonl(INADDR_BROADCAST);
    }
    sockaddr_in6 six;
    memcpy(&six, &address.storage, sizeof(six));
    return IN6_IS_ADDR_MULTICAST(&six.sin6_addr);
}

int set_address(void*& field, size_t& field_length, const Address& address) {
    void* copy = malloc(address.length);
    if (copy == nullptr) {
        return ENOMEM;
    }
    memcpy(copy, address.get(), address.length);
    free(field);
    field = copy;
    field_length = address.length;
    return 0;
}

} // namespace

int Socket::connect(int fd, const sockaddr* address, socklen_t length) {
    if (address == nullptr) {
        return -EFAULT;
    }
    if (length < sizeof(sa_family_t)) {
        return -EINVAL;
    }
    if (address->sa_family == AF_UNSPEC) {
        return disconnect(fd);
    }
    Address to(address, length);
    Connections::List failed; // of earlier attempts
    Connections::List unreachable;
    const Connections::Handling handling(connections_);
    bool begins = false; // else it waits for the attempt of another thread
    uint64_t attempt = 0;
    {
        const Guard lock(mutex_);
        switch (state()) {
        case State::listening:
            return -EISCONN;
        case State::connected:
            return attempt_.reported() ? -EISCONN : (attempt_.report(), 0);
        case State::connecting:
            if (nonblocking()) {
                return -EALREADY;
            }
            attempt = attempt_.number();
            break;
        case State::closed:
            if (!attempt_.reported()) { // the result is reported once, then the socket may connect again
                attempt_.report();
                ending_.lost.store(false);
                moves_.fetch_add(1, std::memory_order_relaxed);
                wait_queue_.notify_all(); // by an edge, as in tcp_disconnect
                const int error = ending_.take_error();
                return error != 0 ? -error : -ECONNABORTED;
            }
            if (length < (family_ == AF_INET ? sizeof(sockaddr_in) : size_t{24})) {
                return -EINVAL; // 24: an IPv6 address without its scope, which the kernel accepts
            }
            if (to.family() != family_) {
                return -EAFNOSUPPORT;
            }
            ending_.begin_anew();
            ending_.error.store(0);
            stop_watching(fd, connections_.give_up());
            failed = connections_.take_failed();
            if (const std::unique_lock alone(polling_, std::try_to_lock); alone.owns_lock() && only_call()) {
                unreachable = connections_.take_unreachable();
                wait_queue_.let_go();
            }
            accepted_ = false;
            disconnects_.fetch_add(1);
            move_to(State::connecting);
            to = to.wildcard_as_loopback();
            peer_ = to.unmapped().wildcard_as_loopback().bare();
            if (const int error = options_.v6_only() && to.v4_mapped() ? ENETUNREACH : 0; error != 0) {
                move_to(State::closed);
                return -error;
            }
            begins = true;
            attempt = attempt_.begin();
            break;
        }
    }
    SetupAttendant attendant(library_.service());
    if (begins) {
        int error = ENOMEM;
        try {
            error = start_connect(fd, to.unmapped(), attempt, nonblocking() ? nullptr : &attendant);
        } catch (const std::bad_alloc&) { // the attempt must not stay under way
        }
        if (error != 0) {
            library_.info_cache().forget(); // the cached result may be stale
            abandon(fd, attempt);
            return -error;
        }
        if (nonblocking()) {
            return -EINPROGRESS;
        }
    }
    const auto result = [&]() -> ssize_t { return under_way(attempt) ? -EAGAIN : 0; };
    ssize_t ret = result();
    if (ret == -EAGAIN) {
        ret = keep_trying(Nanoseconds(cached_.send_timeout.load()), std::ref(result), {}, &attendant);
    }
    if (ret != 0) {
        return ret == -EAGAIN ? -EINPROGRESS : static_cast<int>(ret);
    }
    return connect_result(attempt);
}

bool Socket::under_way(uint64_t attempt) const { return state() == State::connecting && attempt_.number() == attempt; }

// Ends an attempt that could not begin, unless another thread has cancelled it and begun the next one.
void Socket::abandon(int fd, uint64_t attempt) {
    Connection* given_up = nullptr;
    {
        const Guard lock(mutex_);
        if (attempt_.number() != attempt) {
            return;
        }
        if (state() == State::connecting || state() == State::connected) { // the core may have gone on
            move_to(State::closed);
        }
        given_up = connections_.give_up();
        attempt_.report();
    }
    stop_watching(fd, given_up);
    abort_given_up(given_up);
    wait_queue_.notify_all(); // another thread may wait for it
}

int Socket::connect_result(uint64_t attempt) {
    const Guard lock(mutex_);
    if (attempt_.number() != attempt) {
        return -ECONNABORTED;
    }
    attempt_.report();
    if (state() == State::connected) {
        return 0;
    }
    ending_.lost.store(false); // the socket may connect again
    const int error = ending_.take_error();
    return error != 0 ? -error : -ECONNABORTED;
}

// An errno, or 0: the attempt is in progress.
int Socket::start_connect(int fd, const Address& to, uint64_t attempt, SetupAttendant* attendant) {
    if (is_multicast(to)) {
        return ENETUNREACH;
    }
    const base::Info hints = provider::hints();
    if (!hints) {
        return ENOMEM;
    }
    hints->addr_format = to.family() == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    if (int error = set_address(hints->dest_addr, hints->dest_addrlen, to); error != 0) {
        return error;
    }
    Address from;
    {
        const Guard lock(mutex_);
        if (bound_.held()) {
            from = bound_.name(family_).unmapped();
        }
    }
    if (from.set() && from.family() != to.family()) {
        const uint16_t port = from.port();
        from = from.wildcard() ? Address::any(to.family()) : from;
        from.set_port(port);
    }
    if (from.set() && !from.wildcard()) {
        if (int error = set_address(hints->src_addr, hints->src_addrlen, from); error != 0) {
            return error;
        }
    }
    const auto now = InfoCache::Clock::now();
    base::Info found = library_.info_cache().find(to, from, now);
    int ret = 0;
    if (!found) {
        if ((ret = provider::get_info(*hints, found)) != 0) {
            log(Level::info, "no way to connect: %s", fi_strerror(-ret));
            const int error = routing_error(to);
            return ret != -FI_ENODATA ? -ret : error != 0 ? error : ENETUNREACH;
        }
        library_.info_cache().keep(to, from, *found, now);
    }
    if (from.set()) {
        provider::set_source_port(*found, from.port());
    }
    Transport* transport = nullptr;
    if ((ret = library_.transport_for(*found, transport)) != 0) {
        return -ret;
    }
    std::unique_ptr<Connection> made;
    Sizes wanted;
    {
        const Guard lock(mutex_);
        wanted = options_.sizes();
    }
    if ((ret = Connection::open(*transport, *found, this, wanted, made)) != 0) {
        return -ret;
    }
    Connection& opened = *made;
    {
        const Guard lock(mutex_);
        if (!under_way(attempt)) {
            return ECONNABORTED; // another thread has cancelled it
        }
        apply_keepalive(opened);
        connections_.add(std::move(made));
        epoll_event event{};
        event.events = EPOLLIN;
        if (epoll_ctl(fd, EPOLL_CTL_ADD, opened.wait_fd(), &event) != 0) {
            return errno;
        }
        if (nonblocking()) { // programs may poll the kernel's descriptor for the result
            if (const int error = attempt_.show_in(fd); error != 0) {
                return error;
            }
        }
    }
    if (attendant != nullptr) {
        attendant->begin(*transport);
    } else {
        library_.service().end_rest(); // data may flow elsewhere
    }
    ret = opened.connect(to);
    if (ret == 0 && connection() != &opened) { // another thread has cancelled it before this connect
        opened.abort();
        return ECONNABORTED;
    }
    return ret < 0 ? -ret : 0;
}

} // namespace rsockets
