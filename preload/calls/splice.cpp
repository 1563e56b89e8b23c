// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// splice(2). A connection returns to the kernel with its first one, and stays there.
#include <algorithm>

#include <fcntl.h>

#include "preload/base/cancellation.hpp"
#include "preload/base/system.hpp"
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/stream.hpp"
#include "preload/wait/epoll_set.hpp"

using namespace preload;

namespace {

// False, with errno: the call must be repeated. A call that may block waits for the peer, as in the kernel.
bool leave_to_splice(Connection& c, int fd, unsigned flags) {
    constexpr uint64_t surely_soon_ns = 100000000U;
    const uint64_t begin = sys::now_ns();
    for (;;) {
        const ssize_t result = [&] {
            const sys::ErrnoKept kept;
            return stream::begin_to_hand_over(c, fd, Reason::spliced);
        }();
        if (result != -EAGAIN && result != stream::interrupted) {
            return true; // the kernel reports an error
        }
        if ((c.state.load()->gate.load() & gate::careful) == 0) {
            continue; // the service has just finished
        }
        const long mode = sys::call(SYS_fcntl, fd, F_GETFL, 0);
        if ((flags & SPLICE_F_NONBLOCK) != 0 || mode < 0 || (mode & O_NONBLOCK) != 0 || result == stream::interrupted) {
            watches_refused(c);
            errno = EAGAIN;
            return false;
        }
        if (cancellable([] { return real::poll(nullptr, 0UL, stream::give_back_pause_ms); }, [] {}) < 0 &&
            sys::now_ns() - begin > surely_soon_ns) {
            return false; // by a signal
        }
    }
}

// Bytes that the kernel cannot have any more. 0: there are none; else the call's result.
ssize_t splice_from_memory(Connection& c, int in, int out, size_t count, unsigned flags) {
    while (c.segment.load() != nullptr && stream::has_last_bytes(c, in)) {
        const ssize_t moved = [&] {
            const sys::ErrnoKept kept;
            return stream::splice_last_bytes(c, in, out, count);
        }();
        if (moved == -EBADF) { // not a pipe: as the kernel says it here
            errno = EINVAL;
            return -1;
        }
        const bool waits = moved == -EAGAIN && (flags & SPLICE_F_NONBLOCK) == 0 &&
                           (sys::call(SYS_fcntl, out, F_GETFL, 0) & O_NONBLOCK) == 0;
        if (moved <= stream::gone) {
            return 0;
        }
        if (waits) {
            pollfd space{out, POLLOUT, 0};
            if (cancellable([&] { return real::poll(&space, 1UL, -1); }, [] {}) < 0) {
                return -1; // by a signal
            }
        } else if (moved != 0) {
            errno = moved < 0 ? static_cast<int>(-moved) : errno;
            return moved < 0 ? -1 : moved;
        }
    }
    return 0;
}

} // namespace

// Pages move between the kernel's socket and the kernel's pipe.
PRELOAD_EXPORT ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t count, unsigned flags) {
    const auto kernel = [&] { return real::splice(in, in_offset, out, out_offset, count, flags); };
    Connection* source = table::connection(in);
    Connection* sink = table::connection(out);
    if (source != nullptr && in_offset == nullptr && out_offset == nullptr && count != 0) {
        if (const ssize_t result = splice_from_memory(*source, in, out, count, flags); result != 0) {
            return result;
        }
    }
    for (const auto& [c, fd] : {std::pair{source, in}, std::pair{sink, out}}) {
        if (c != nullptr && !leave_to_splice(*c, fd, flags)) {
            return -1;
        }
    }
    return kernel();
}
