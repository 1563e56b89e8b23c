// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The kernel makes, connects, accepts and shuts down sockets. The library records it.
#include "preload/base/lowest_fd.hpp"
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/io.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/made_sockets.hpp"
#include "preload/connection/stream.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/explain.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/wakeup.hpp"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

using namespace preload;

namespace {

bool is_tcp(int fd) {
    int protocol = 0;
    int domain = 0;
    socklen_t length = sizeof(int);
    socklen_t other = sizeof(int);
    return sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 && protocol == IPPROTO_TCP &&
           sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &other) == 0 &&
           (domain == AF_INET || domain == AF_INET6);
}

int accepted(int fd, int listener) {
    if (fd < 0) {
        return fd;
    }
    const sys::ErrnoKept kept;
    if (lifecycle::in_vfork_child()) {
        return fd;
    }
    if (table::find(fd) != 0) {
        lifecycle::forget(fd);
    }
    // For a listener made elsewhere, each accepted socket is queried; this process's listeners are tracked.
    const Connection* known = table::connection(listener);
    if ((known != nullptr && known->role == Role::listen) || is_tcp(fd)) {
        service::note_signal_mask();
        lifecycle::began(fd, Role::accept);
    }
    return fd;
}

struct KernelOption {
    int level;
    int name;
    int greatest_harmless;
};
// Options that change how bytes are received or sent in a way that only the kernel implements. See
// rendezvous/upgrade.cpp for those set before the connection was tracked. SO_ZEROCOPY only allows a flag
// (kernel_send_flags), and SO_TIMESTAMP a control message of recvmsg(): some programs set them wherever they can.
constexpr KernelOption kernel_options[] = {
    {SOL_SOCKET, SO_OOBINLINE, 0},  {SOL_SOCKET, SO_RCVLOWAT, 1},  {SOL_SOCKET, SO_ATTACH_FILTER, 0},
    {SOL_SOCKET, SO_ATTACH_BPF, 0}, {SOL_SOCKET, SO_PEEK_OFF, -1}, {SOL_SOCKET, SO_TIMESTAMPING, 0},
    {IPPROTO_TCP, TCP_ULP, 0},      {IPPROTO_TCP, TCP_REPAIR, 0},  {IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0},
};

bool needs_kernel(int level, int name, const void* value, socklen_t length) {
    for (const KernelOption& option : kernel_options) {
        if (option.level != level || option.name != name) {
            continue;
        }
        int number = 1;
        if (length >= sizeof(number) && value != nullptr && name != SO_ATTACH_FILTER && name != TCP_ULP) {
            memcpy(&number, value, sizeof(number));
        }
        return number > option.greatest_harmless;
    }
    return false;
}

bool is_time_limit(int name) {
    return name == SO_RCVTIMEO_OLD || name == SO_SNDTIMEO_OLD || name == SO_RCVTIMEO_NEW || name == SO_SNDTIMEO_NEW;
}

// The socket may be connected again, to any peer: nothing of the connection may be left by then.
int disconnect(int fd, const sockaddr* nobody, socklen_t length) {
    Connection* c = table::connection(fd);
    if (c->role != Role::listen) {
        const sys::ErrnoKept kept;
        stream::hand_over(*c, fd, Reason::option);
        stream::announce_reset(*c, fd);
    }
    const int result = real::connect(fd, nobody, length);
    if (result != 0 && c->role != Role::listen) {
        stream::undo_reset(*c);
    }
    if (result == 0 && table::connection(fd) == c) {
        const sys::ErrnoKept kept;
        lifecycle::disconnected(*c);
    }
    return result;
}

// The program's value of an option whose value in the kernel differs while the connection is careful.
std::atomic<int>* kept_option(int fd, int level, int name) {
    Connection* c = level == IPPROTO_TCP && (name == TCP_NODELAY || name == TCP_CORK) ? table::connection(fd) : nullptr;
    if (c == nullptr || (c->state.load()->gate.load() & gate::careful) == 0) {
        return nullptr;
    }
    return name == TCP_NODELAY ? &c->state.load()->nodelay : &c->state.load()->cork;
}

// The library's copy of an option that the kernel has as the program wants it.
std::atomic<int>* noted_option(int fd, int level, int name) {
    const bool inq = level == IPPROTO_TCP && name == TCP_INQ;
    const bool timestamp = level == SOL_SOCKET && (name == SO_TIMESTAMP || name == SO_TIMESTAMPNS);
    Connection* c = inq || timestamp ? table::connection(fd) : nullptr;
    return c == nullptr ? nullptr : inq ? &c->state.load()->inq : &c->state.load()->timestamp;
}

} // namespace

PRELOAD_EXPORT int socket(int domain, int type, int protocol) noexcept {
    const int fd = [&] {
        const lowest_fd::ProgramCall call_of_program(lifecycle::in_vfork_child); // the lowest free fd
        return real::socket(domain, type, protocol);
    }();
    if (fd >= 0 && table::find(fd) != 0 && !lifecycle::in_vfork_child()) [[unlikely]] {
        const sys::ErrnoKept kept;
        lifecycle::forget(fd); // closed without the library's knowledge
    }
    if (fd >= 0) {
        made_sockets::note(fd, (domain == AF_INET || domain == AF_INET6) &&
                                   (type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_STREAM &&
                                   (protocol == 0 || protocol == IPPROTO_TCP));
    }
    return fd;
}

PRELOAD_EXPORT int accept(int fd, struct sockaddr* address, socklen_t* length) {
    return accepted(real::accept(fd, address, length), fd);
}

PRELOAD_EXPORT int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
    return accepted(real::accept4(fd, address, length, flags), fd);
}

PRELOAD_EXPORT int connect(int fd, const struct sockaddr* address, socklen_t length) {
    if (address != nullptr && length >= sizeof(address->sa_family) && address->sa_family == AF_UNSPEC &&
        table::connection(fd) != nullptr && !lifecycle::in_vfork_child()) [[unlikely]] {
        return disconnect(fd, address, length);
    }
    const int result = real::connect(fd, address, length);
    if ((result == 0 || errno == EINPROGRESS) && address != nullptr && table::connection(fd) == nullptr &&
        (address->sa_family == AF_INET || address->sa_family == AF_INET6) && !lifecycle::in_vfork_child()) {
        const sys::ErrnoKept kept;
        if (made_sockets::is_tcp(fd) || is_tcp(fd)) {
            service::note_signal_mask();
            if (Connection* c = lifecycle::began(fd, Role::connect); c != nullptr) {
                explain::note_peer(*c, address, length);
                made_sockets::note_connected(fd);
            }
        }
    }
    return result;
}
PRELOAD_ALIAS(__connect, connect);

PRELOAD_EXPORT int listen(int fd, int backlog) noexcept {
    const int result = real::listen(fd, backlog);
    if (result == 0 && table::connection(fd) == nullptr && !lifecycle::in_vfork_child()) {
        const sys::ErrnoKept kept;
        if (is_tcp(fd)) {
            if (const Connection* c = lifecycle::began(fd, Role::listen); c != nullptr) {
                c->state.load()->gate.fetch_or(gate::pinned);
            }
        }
    }
    return result;
}

PRELOAD_EXPORT int shutdown(int fd, int how) noexcept {
    if (Connection* c = table::connection(fd); c != nullptr && how >= SHUT_RD && how <= SHUT_RDWR) {
        if (how != SHUT_WR) {
            c->state.load()->read_shut = true;
        }
        std::atomic<WriteShut> other{};
        std::atomic<WriteShut>& write_shut = how != SHUT_RD ? c->state.load()->write_shut : other;
        write_shut = WriteShut::begun;
        const int now = [&] {
            const sys::ErrnoKept kept;
            return stream::prepare_shutdown(*c, fd, how);
        }();
        const int result = now >= 0 ? real::shutdown(fd, now) : 0;
        write_shut = result == 0 ? WriteShut::done : WriteShut::no;
        const sys::ErrnoKept kept_for_waking;
        wakeup::wake_own(c->guarded.load());
        if (result == 0 && c->watched && c->segment.load() != nullptr) {
            c->state.load()->blocked.fetch_add(1); // the kernel wakes all who poll a socket that is shut down
            watches_wake(*c);
        }
        return result;
    }
    return real::shutdown(fd, how);
}

PRELOAD_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
    if (Connection* c = table::connection(fd); c != nullptr && needs_kernel(level, name, value, length)) {
        io::pin_for(*c, fd, Reason::option);
    }
    if (Connection* c = level == SOL_SOCKET && is_time_limit(name) ? table::connection(fd) : nullptr; c != nullptr) {
        c->state.load()->time_limits = true;
    }
    if (std::atomic<int>* kept = kept_option(fd, level, name);
        kept != nullptr && value != nullptr && length >= sizeof(int)) {
        int number = 0;
        memcpy(&number, value, sizeof(number));
        kept->store(number != 0 ? 1 : 0);
        if ((name == TCP_CORK) == (number == 0)) { // TCP_NODELAY, too, lets go what was held back: tcp(7)
            const sys::ErrnoKept errno_kept;
            stream::push(*table::connection(fd), fd);
        }
        return 0;
    }
    const int result = real::setsockopt(fd, level, name, value, length);
    if (std::atomic<int>* noted = result == 0 && value != nullptr ? noted_option(fd, level, name) : nullptr;
        noted != nullptr) {
        int number = 0;
        memcpy(&number, value, sizeof(number));
        noted->store(number);
    }
    return result;
}

PRELOAD_EXPORT int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
    const int result = real::getsockopt(fd, level, name, value, length);
    if (Connection* c = level == SOL_SOCKET && name == SO_ERROR && result == 0 ? table::connection(fd) : nullptr;
        c != nullptr && *length >= sizeof(int)) {
        int number = 0;
        memcpy(&number, value, sizeof(number));
        const int pending = c->state.load()->pending_error.exchange(0);
        if (number == 0 && pending != 0) {
            memcpy(value, &pending, sizeof(pending));
        }
    }
    if (const std::atomic<int>* kept = result == 0 ? kept_option(fd, level, name) : nullptr;
        kept != nullptr && *length >= sizeof(int)) {
        const int number = kept->load();
        memcpy(value, &number, sizeof(number));
    }
    return result;
}
