// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/discard.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include "preload/base/lowest_fd.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/table.hpp"
#include "preload/path/segment.hpp"
#include "preload/rendezvous/descriptors.hpp"

namespace preload::descriptors {

namespace {

constexpr size_t stack_bytes = size_t{8} << 10;
constexpr size_t max_fds = 256; // SCM_MAX_FD of Linux is 253

// A thread closes what is in its list, and ends.
struct Closer {
    uint32_t busy = 0; // the kernel clears it when the thread uses no memory any more
    pid_t id = 0;      // of the last one: the kernel still counts it for a moment
    size_t count = 0;
    int fds[max_fds]{}; // plain arrays: the functions of others would have a sanitizer's code
    table::Slot* slots[max_fds]{};
    alignas(16) std::array<char, stack_bytes> stack{};
};

constinit std::array<Closer, 8> closers;
constinit std::array<int, 64> parked{};
constinit size_t parked_count = 0;

bool is_free(Closer& closer) { return __atomic_load_n(&closer.busy, __ATOMIC_ACQUIRE) == 0; }

// The process has no such thread any more.
bool has_gone(Closer& closer) {
    if (!is_free(closer)) {
        return false;
    }
    if (closer.id != 0 && sys::call(SYS_tgkill, sys::call(SYS_getpid), closer.id, 0) == -ESRCH) {
        closer.id = 0;
    }
    return closer.id == 0;
}

// It has a stack of its own, and the thread pointer of another thread: it makes system calls only, and no sanitizer may
// look. Until a number is free, the table says that it is not the program's.
__attribute__((no_sanitize("thread", "address", "undefined"))) int run(void* argument) {
    const auto& closer = *static_cast<const Closer*>(argument);
    for (size_t i = 0; i < closer.count; ++i) {
        if (closer.slots[i] != nullptr) {
            __atomic_store_n(reinterpret_cast<uintptr_t*>(closer.slots[i]), uintptr_t{0}, __ATOMIC_RELEASE);
        }
        sys::invoke(SYS_close, static_cast<unsigned long>(closer.fds[i]));
    }
    sys::invoke(SYS_exit, 0);
    return 0;
}

// libc's own: ThreadSanitizer takes its `clone` for a fork.
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...) noexcept;

bool start(Closer& closer) {
    constexpr int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                          CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    const uint64_t all = ~uint64_t{0};
    uint64_t before = 0;
    closer.busy = 1;
    sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof(all)); // inherited: it runs no handler
    const int made = __clone(run, static_cast<void*>(closer.stack.data() + stack_bytes), flags, &closer, &closer.id,
                             nullptr, &closer.busy);
    sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof(before));
    if (made <= 0) {
        closer.busy = 0;
    }
    return made > 0;
}

// The number of them that a thread closes; 0: there is no thread for them now.
size_t close_by_thread(std::span<const int> fds) {
    const auto closer = std::find_if(closers.begin(), closers.end(), is_free);
    if (closer == closers.end()) {
        return 0;
    }
    closer->count = std::min(fds.size(), max_fds);
    for (size_t i = 0; i < closer->count; ++i) {
        closer->fds[i] = fds[i];
        closer->slots[i] = table::place_of(fds[i]);
    }
    return start(*closer) ? closer->count : 0;
}

} // namespace

void discard_more() {
    if (parked_count != 0) {
        const size_t closed = close_by_thread({parked.data(), parked_count});
        std::copy(parked.begin() + static_cast<ptrdiff_t>(closed),
                  parked.begin() + static_cast<ptrdiff_t>(parked_count), parked.begin());
        parked_count -= closed;
    }
}

void discard(std::span<const int> fds) {
    std::array<int, max_fds> open{};
    const auto end = std::copy_if(fds.begin(), fds.begin() + std::min(fds.size(), max_fds), open.begin(),
                                  [](int fd) { return fd >= 0; });
    std::span<const int> left(open.data(), static_cast<size_t>(end - open.begin()));
    if (left.empty()) {
        return;
    }
    left = left.subspan(close_by_thread(left));
    for (const int fd : left) {
        if (parked_count < parked.size()) {
            parked[parked_count++] = fd;
        } else {
            close(fd);
        }
    }
}

void await_discarded() {
    constexpr uint64_t timeout_ns = 200000000;
    sys::wait_for(timeout_ns, [] {
        sys::call(SYS_sched_yield);
        return std::all_of(closers.begin(), closers.end(), has_gone);
    });
}

bool is_harmless(int fd) {
    const long seals = sys::call(SYS_fcntl, fd, F_GET_SEALS); // only memory files have any
    if (seals >= 0) {
        struct stat about {};
        return (seals & F_SEAL_GROW) != 0 && sys::call(SYS_fstat, fd, &about) == 0 &&
               about.st_size <= static_cast<off_t>(path::file_bytes);
    }
    return sys::call(SYS_fcntl, fd, F_GETPIPE_SZ) > 0;
}

void forget_discarded() {
    for (Closer& closer : closers) {
        closer.busy = 0;
        closer.id = 0;
    }
    parked_count = 0;
}

} // namespace preload::descriptors
