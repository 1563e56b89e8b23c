// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/wakeup_pipe.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "preload/base/system.hpp"

namespace preload::wakeup_pipe {

namespace {

#ifndef RWF_NOSIGNAL
#define RWF_NOSIGNAL 0x100 // since Linux 6.18
#endif

constexpr mode_t others_only_write = S_IRUSR | S_IWUSR | S_IWGRP | S_IWOTH;
constexpr uint64_t sigpipe = uint64_t{1} << (SIGPIPE - 1);

constinit std::atomic<bool> knows_no_nosignal{false}; // this kernel has no RWF_NOSIGNAL

// The capacity of a pipe, unless a peer has enlarged it. Its contents are discarded.
constinit std::array<char, 65536> rubbish{};

struct PipePath {
    explicit PipePath(int fd) { snprintf(text.data(), text.size(), "/proc/self/fd/%d", fd); }
    std::array<char, 32> text{};
};

// Opening anything else might have side effects, or block. The target of a file would begin with a slash.
bool is_pipe(const PipePath& path) {
    std::array<char, 32> target{};
    const long length = sys::call(SYS_readlinkat, AT_FDCWD, path.text.data(), target.data(), target.size() - 1);
    return length > 0 && strncmp(target.data(), "pipe:[", 6) == 0;
}

// Checked because the giver of a read end may not be allowed to write, while this process is.
bool is_writer(int fd) {
    const long flags = sys::call(SYS_fcntl, fd, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) == O_WRONLY;
}

bool is_woken(long written) { return written == 1 || written == -EAGAIN; }

} // namespace

Ends make() {
    std::array<int, 2> ends{-1, -1};
    if (sys::call(SYS_pipe2, ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
        return {};
    }
    sys::call(SYS_fchmod, ends[1], others_only_write); // else other users cannot open it, and wake by frames
    return {ends[0], ends[1]};
}

int open_writer(int given) {
    const PipePath path(given);
    return is_writer(given) && is_pipe(path)
               ? static_cast<int>(
                     sys::call(SYS_openat, AT_FDCWD, path.text.data(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0))
               : -1;
}

bool notify(int writer) {
    if (!knows_no_nosignal.load(std::memory_order_relaxed)) {
        char byte = 1;
        const iovec part{&byte, 1};
        constexpr long at_its_end = -1;
        const long written = sys::call(SYS_pwritev2, writer, &part, 1, at_its_end, at_its_end, RWF_NOSIGNAL);
        if (written != -EOPNOTSUPP && written != -ENOSYS) {
            return is_woken(written);
        }
        knows_no_nosignal.store(true, std::memory_order_relaxed);
    }
    return notify_with_signal_blocked(writer);
}

bool notify_with_signal_blocked(int writer) {
    uint64_t before = 0;
    uint64_t pending = 0;
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, &sigpipe, &before, sizeof(before));
    if ((before & sigpipe) != 0) {
        sys::call(SYS_rt_sigpending, &pending, sizeof(pending)); // a pending SIGPIPE is the program's
    }
    const char byte = 1;
    const long written = sys::call(SYS_write, writer, &byte, 1);
    if (written == -EPIPE && (pending & sigpipe) == 0) {
        const timespec at_once{};
        sys::call(SYS_rt_sigtimedwait, &sigpipe, nullptr, &at_once, sizeof(sigpipe));
    }
    sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof(before));
    return is_woken(written);
}

void drain(int reader) { sys::call(SYS_read, reader, rubbish.data(), rubbish.size()); }

} // namespace preload::wakeup_pipe
