// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sends and receives for the program: on the kernel's connection, which is counted, or by the path, with the blocking,
// timeouts, signals and cancellation of TCP sockets. kernel() makes the program's own call.
#pragma once

#include "preload/base/cancellation.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/parts.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/seen.hpp"

namespace preload::io {

// Counts a call that moved bytes; requests an upgrade when the connection is worth one. flags: of the call.
void count(Connection& c, ConnectionState& s, int flags);

// Careful calls. Results are those of system calls, with -errno; gone: look fd up again; elsewhere: see foreign().
ssize_t receive_careful(Connection& c, int fd, Parts& parts, int flags);
ssize_t send_careful(Connection& c, int fd, Parts& parts, int flags);
ssize_t send_file_careful(Connection& c, int fd, int file, off_t* offset, size_t count);
// Another process of this end has upgraded the connection, and this one does not have its memory: asks that process to
// return. False: it does not answer.
bool foreign(Connection& c);

// Flags that only the kernel can handle.
inline constexpr int kernel_receive_flags = MSG_OOB | MSG_ERRQUEUE;
inline constexpr int kernel_send_flags = stream::kernel_send_flags;

void pin_for(Connection& c, int fd, Reason reason); // stream::pin, out of line

inline ssize_t result_of(ssize_t n) {
    if (n < 0) {
        errno = static_cast<int>(-n);
        return -1;
    }
    return n;
}

template <bool receives, class Careful, class Kernel>
ssize_t move(Connection* c, int fd, int flags, Careful&& careful, Kernel&& kernel) {
    for (;; c = table::connection(fd)) {
        if (c == nullptr) {
            return kernel();
        }
        ConnectionState& s = *c->state.load(std::memory_order_acquire);
        switch (gate::enter(s)) {
        case gate::Way::kernel: {
            const ssize_t n = kernel();
            if (n > 0 && (!receives || (flags & MSG_PEEK) == 0)) {
                stats::moved_by_kernel(*c, s, receives, static_cast<uint64_t>(n));
            }
            return n;
        }
        case gate::Way::plain: {
            const ssize_t n = cancellable(kernel, [&] { gate::leave(*c, s, fd); });
            if (n > 0 && (!receives || (flags & MSG_PEEK) == 0)) {
                (receives ? s.received : s.sent).fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
                stats::moved_plain(*c, s, receives, static_cast<uint64_t>(n));
            }
            if (n < 0 && errno == EAGAIN) {
                wait::note_refused(*c);
            }
            gate::leave(*c, s, fd);
            if (n > 0) {
                count(*c, s, flags);
            }
            return n;
        }
        case gate::Way::careful:
            const ssize_t n = careful(*c);
            if (n == stream::elsewhere && foreign(*c)) {
                continue;
            }
            if (n != stream::gone) {
                return result_of(n == stream::interrupted ? -EAGAIN : n);
            }
        }
    }
}

// Whether the kernel would answer with EFAULT, as far as that can be detected.
inline bool is_fault(const iovec* parts, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        if (parts[i].iov_base == nullptr && parts[i].iov_len != 0) {
            return true;
        }
    }
    return false;
}

// kernel(): makes the program's call unchanged.
template <class Kernel> ssize_t receive(int fd, const iovec* parts, size_t count, int flags, Kernel&& kernel) {
    Connection* c = table::connection(fd);
    if (c == nullptr || (parts == nullptr && count != 0)) [[likely]] {
        return kernel();
    }
    if ((flags & kernel_receive_flags) != 0) [[unlikely]] {
        pin_for(*c, fd, (flags & MSG_OOB) != 0 ? Reason::urgent : Reason::option);
        return kernel();
    }
    return move<true>(
        c, fd, flags,
        [&](Connection& found) -> ssize_t {
            if ((flags & MSG_TRUNC) == 0 && is_fault(parts, count)) { // MSG_TRUNC copies nothing
                char byte = 0;
                const iovec instead{&byte, 1};
                Parts buffer(&instead, 1);
                const ssize_t n = receive_careful(found, fd, buffer, (flags & ~MSG_WAITALL) | MSG_PEEK);
                return n > 0 ? -EFAULT : n; // the kernel finds it last, when there are bytes to copy
            }
            Parts buffers(parts, count);
            return receive_careful(found, fd, buffers, flags);
        },
        kernel);
}

template <class Kernel> ssize_t send(int fd, const iovec* parts, size_t count, int flags, Kernel&& kernel) {
    Connection* c = table::connection(fd);
    if (c == nullptr || (parts == nullptr && count != 0)) [[likely]] {
        return kernel();
    }
    if ((flags & kernel_send_flags) != 0) [[unlikely]] {
        pin_for(*c, fd, (flags & MSG_OOB) != 0 ? Reason::urgent : Reason::option);
        // A careful call of no bytes sends what is due first; then the connection is the kernel's.
    }
    return move<false>(
        c, fd, flags,
        [&](Connection& found) -> ssize_t {
            if (is_fault(parts, count)) {
                Parts nothing(parts, 0);
                const ssize_t n = send_careful(found, fd, nothing, flags);
                return n < 0 ? n : -EFAULT;
            }
            Parts buffers(parts, count);
            return send_careful(found, fd, buffers, flags);
        },
        kernel);
}

} // namespace preload::io
