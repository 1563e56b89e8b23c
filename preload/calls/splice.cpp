// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// splice(2). A connection returns to the kernel with its first one, and stays there; but what a peer that has gone has
// left in memory is copied.
#include <cstdint>

#include <fcntl.h>

#include "preload/base/cancellation.hpp"
#include "preload/base/system.hpp"
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/stream.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"

using namespace preload;

namespace {

bool may_wait(int fd, unsigned flags) {
    const long mode = sys::call(SYS_fcntl, fd, F_GETFL, 0);
    return (flags & SPLICE_F_NONBLOCK) == 0 && mode >= 0 && (mode & O_NONBLOCK) == 0;
}

// A step that is not done yet. False, with errno: the call must be repeated. A call that may block waits, as in the
// kernel.
bool pause(Connection& c, bool waits, uint64_t begin) {
    constexpr uint64_t surely_soon_ns = 100000000U;
    if (!waits) {
        watches_refused(c);
        errno = EAGAIN;
        return false;
    }
    return cancellable([] { return real::poll(nullptr, 0UL, stream::give_back_pause_ms); }, [] {}) >= 0 ||
           sys::now_ns() - begin <= surely_soon_ns; // else by a signal
}

enum class Left : uint8_t {
    to_kernel,
    refused,   // errno says why
    in_memory, // what the peer has left, which the kernel cannot have any more
};

Left leave_to_splice(Connection& c, int fd, unsigned flags) {
    const uint64_t begin = sys::now_ns();
    for (;;) {
        const ssize_t result = [&] {
            const sys::ErrnoKept kept;
            return stream::begin_to_hand_over(c, fd, Reason::spliced);
        }();
        if (result == stream::last_bytes) {
            return Left::in_memory;
        }
        if (result != -EAGAIN && result != stream::interrupted) {
            return Left::to_kernel; // which reports an error
        }
        if ((c.state.load()->gate.load() & gate::careful) == 0) {
            continue; // the service has just finished
        }
        if (!pause(c, result != stream::interrupted && may_wait(fd, flags), begin)) {
            return Left::refused;
        }
    }
}

// 0: there is nothing, the kernel has what follows; else the call's result.
ssize_t splice_from_memory(Connection& c, int in, int out, size_t count, unsigned flags) {
    const uint64_t begin = sys::now_ns();
    while (c.segment.load() != nullptr && stream::has_last_bytes(c, in)) {
        const ssize_t moved = [&] {
            const sys::ErrnoKept kept;
            return stream::splice_last_bytes(c, in, out, count);
        }();
        if (moved > 0) {
            return moved;
        }
        if (moved == stream::not_yet) {
            if (!pause(c, may_wait(in, flags), begin)) {
                return -1;
            }
        } else if (moved == -EAGAIN && may_wait(out, flags)) {
            pollfd space{out, POLLOUT, 0};
            if (cancellable([&] { return real::poll(&space, 1UL, -1); }, [] {}) < 0) {
                return -1; // by a signal
            }
        } else if (moved == 0 || moved <= stream::gone) {
            return 0;
        } else {
            errno = static_cast<int>(-moved);
            return -1;
        }
    }
    return 0;
}

// Into a connection whose peer has ended its own direction, and has left bytes in memory: those stay where they are.
bool leave_writing_to_splice(Connection& c, int fd, unsigned flags) {
    const uint64_t begin = sys::now_ns();
    while (!stream::writes_by_kernel(c, fd)) {
        if (!pause(c, may_wait(fd, flags), begin)) {
            return false;
        }
    }
    return true;
}

bool is_pipe(int fd, int other_mode) {
    const long mode = sys::call(SYS_fcntl, fd, F_GETFL, 0);
    return mode >= 0 && (mode & O_ACCMODE) != other_mode && sys::call(SYS_fcntl, fd, F_GETPIPE_SZ, 0) > 0;
}

bool stays_with_kernel(const Connection& c) {
    return (c.state.load()->gate.load() & (gate::careful | gate::pinned)) == gate::pinned;
}

} // namespace

// Pages move between the kernel's socket and the kernel's pipe.
PRELOAD_EXPORT ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t count, unsigned flags) {
    Connection* source = table::connection(in);
    Connection* sink = table::connection(out);
    const auto kernel = [&] {
        const ssize_t moved = real::splice(in, in_offset, out, out_offset, count, flags);
        if (moved > 0 && source != nullptr) {
            stats::moved_by_kernel(*source, *source->state.load(), true, static_cast<uint64_t>(moved));
        }
        if (moved > 0 && sink != nullptr) {
            stats::moved_by_kernel(*sink, *sink->state.load(), false, static_cast<uint64_t>(moved));
        }
        return moved;
    };
    const Connection* own = source != nullptr ? source : sink;
    if (own == nullptr || stays_with_kernel(*own) || count == 0 || in_offset != nullptr || out_offset != nullptr ||
        !(source != nullptr ? is_pipe(out, O_RDONLY) : is_pipe(in, O_WRONLY))) {
        return kernel(); // which moves nothing of a connection that it has not
    }
    if (sink != nullptr) {
        const Left left = leave_to_splice(*sink, out, flags);
        if (left == Left::refused || (left == Left::in_memory && !leave_writing_to_splice(*sink, out, flags))) {
            return -1;
        }
        const ssize_t moved = kernel();
        if (left == Left::in_memory && moved > 0) {
            const sys::ErrnoKept kept;
            stream::count_written_by_kernel(*sink, out, static_cast<uint64_t>(moved));
        }
        return moved;
    }
    const uint64_t begin = sys::now_ns();
    for (;;) {
        if (const ssize_t result = splice_from_memory(*source, in, out, count, flags); result != 0) {
            return result;
        }
        const Left left = leave_to_splice(*source, in, flags);
        if (left == Left::to_kernel) {
            return kernel();
        }
        if (left == Left::refused || !pause(*source, may_wait(in, flags), begin)) {
            return -1;
        }
    }
}
