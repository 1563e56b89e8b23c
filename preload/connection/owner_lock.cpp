// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/owner_lock.hpp"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "preload/base/lowest_fd.hpp"
#include "preload/base/system.hpp"
#include "preload/calls/real.hpp"

namespace preload {

namespace {

// An owner: `forks`, its PID namespace, and the ids of process and thread there, which are below 2^22 (PID_MAX_LIMIT of
// the kernel).
constexpr uint64_t forks = uint64_t{1} << 63; // has made a child since it holds the lock
constexpr unsigned id_bits = 22;
constexpr uint64_t id_mask = (uint64_t{1} << id_bits) - 1;
constexpr uint64_t space_mask = (uint64_t{1} << (63 - 2 * id_bits)) - 1;

uint64_t space_of(uint64_t word) { return word >> 2 * id_bits & space_mask; }
pid_t process_of(uint64_t word) { return static_cast<pid_t>(word >> id_bits & id_mask); }
pid_t thread_of(uint64_t word) { return static_cast<pid_t>(word & id_mask); }

// Distinguishes the PID namespace of this process from those of its ancestors and their children. 0: where the first
// of those that share its locks began.
constinit uint64_t space = 0;

uint64_t space_of_namespace() {
    struct stat found {};
    const long failed = sys::call(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &found, 0);
    const uint64_t got = (failed == 0 ? found.st_ino : sys::now_ns()) & space_mask;
    return got != 0 && got != space ? got : (space + 1) & space_mask;
}

constinit thread_local uint64_t self = 0;

[[gnu::noinline, gnu::cold]] uint64_t find_own_word() {
    self = space << 2 * id_bits | static_cast<uint64_t>(getpid()) << id_bits |
           static_cast<uint64_t>(real::syscall(SYS_gettid));
    return self;
}

inline uint64_t own_word() {
    const uint64_t known = self;
    return known != 0 ? known : find_own_word();
}

// Of a child of an interrupted thread, which may wait for the child in its signal handler: the child does not wait long
// for that thread. A thread that does not wait continues within microseconds.
constinit std::atomic<bool> parent_is_interrupted{false};
constinit std::atomic<bool> parent_waits{false}; // it was given up once

// A process that has ended exists until its parent has waited for it, and the parent may wait for the lock.
bool has_ended(pid_t process) {
    const lowest_fd::Opening opening; // polling the fd takes no longer than moving it away
    const int fd = static_cast<int>(real::syscall(SYS_pidfd_open, process, 0));
    if (fd < 0) {
        return false;
    }
    pollfd one{fd, POLLIN, 0};
    const bool ended = sys::poll(&one, 1, 0) > 0;
    real::syscall(SYS_close, fd);
    return ended;
}

bool is_alive(uint64_t word) {
    if (space_of(word) != space) {
        return true; // its ids name another process here, or none
    }
    const int saved = errno;
    const pid_t process = process_of(word);
    const bool exists = real::syscall(SYS_tgkill, process, thread_of(word), 0) == 0 || errno != ESRCH;
    const bool alive = exists && !has_ended(process);
    errno = saved;
    return alive;
}

// Whether the calling thread has left the section that it has acquired with the frame `section`, by longjmp, and not
// just interrupted it, by a signal handler. Both calls are acquire()'s: two of one caller have equal frames. On one
// stack, a handler runs below the frame that it has interrupted. Frames of two stacks say nothing: if in doubt, the
// section is interrupted, since it would otherwise continue without the lock.
bool is_left(uintptr_t section, uintptr_t caller) {
    stack_t alternate{};
    sys::call(SYS_sigaltstack, nullptr, &alternate);
    const auto begin = reinterpret_cast<uintptr_t>(alternate.ss_sp);
    const bool caller_handles = caller - begin < alternate.ss_size;
    const bool section_handled = section - begin < alternate.ss_size;
    if (caller_handles != section_handled) {
        return section_handled; // by a handler that has not returned, and is not running either
    }
    // A handler with SS_AUTODISARM finds no alternate stack. The thread's own stack ends with its local storage, which
    // pthread_self() refers to.
    const auto end = static_cast<uintptr_t>(pthread_self());
    return section <= caller && !(section < end && end <= caller);
}

// Whether the calling thread, whose word names this process, is in a child that shares its parent's memory (vfork).
bool shares_memory(uint64_t word) { return sys::call(SYS_getpid) != process_of(word); }

constexpr int spins = 200;
constexpr int yields = 100; // before each check whether the owner is alive
// For an owner that a handler has interrupted. It may handle the same signal every few milliseconds.
constexpr uint64_t patience_ns = 2000000;

} // namespace

pid_t thread_id() { return thread_of(own_word()); }
bool forget_thread_id() {
    self = 0;
    const bool is_elsewhere = sys::call(SYS_getppid) == 0;
    if (is_elsewhere) [[unlikely]] {
        space = space_of_namespace();
    }
    return !is_elsewhere;
}
void note_interrupted_parent() { parent_is_interrupted = true; }

bool OwnerLock::is_own() const { return (word_.load(std::memory_order_relaxed) & ~forks) == own_word(); }

bool OwnerLock::note_fork() {
    if (!is_own()) {
        return false;
    }
    word_.fetch_or(forks, std::memory_order_relaxed);
    return true;
}

bool OwnerLock::try_acquire(uintptr_t frame) {
    uint64_t none = 0;
    if (!word_.compare_exchange_strong(none, own_word(), std::memory_order_acquire, std::memory_order_relaxed)) {
        return false;
    }
    frame_ = frame;
    return true;
}

bool OwnerLock::try_acquire() { return try_acquire(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))); }

bool OwnerLock::acquire() {
    const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (try_acquire(frame)) [[likely]] {
        return true;
    }
    return wait(frame);
}

void OwnerLock::give_way() {
    waited_.store(0, std::memory_order_relaxed); // threads that still wait set it again
    sched_yield();
}

bool OwnerLock::wait(uintptr_t frame) {
    uint64_t gives_up_at = 0;
    for (int round = 0;; ++round) {
        uint64_t owner = word_.load(std::memory_order_relaxed);
        if (owner == 0) {
            if (try_acquire(frame)) {
                return true;
            }
            continue;
        }
        if ((owner & ~forks) == own_word()) {
            if (!is_left(frame_, frame) || shares_memory(owner)) {
                return false;
            }
            frame_ = frame;
            return true;
        }
        waited_.store(1, std::memory_order_relaxed);
        if (round < spins) {
            __builtin_ia32_pause();
            continue;
        }
        if ((round - spins) % yields != yields - 1) {
            sched_yield();
            continue;
        }
        if (!is_alive(owner)) {
            if (word_.compare_exchange_strong(owner, own_word(), std::memory_order_acquire)) {
                frame_ = frame;
                return true;
            }
            continue;
        }
        if ((owner & forks) != 0 && parent_is_interrupted) {
            const uint64_t now = sys::now_ns();
            gives_up_at = gives_up_at != 0 ? gives_up_at : now + patience_ns;
            if (parent_waits || now >= gives_up_at) {
                parent_waits = true;
                return false;
            }
        }
        const timespec pause{0, 100000};
        sys::call(SYS_nanosleep, &pause, nullptr); // no cancellation point
    }
}

} // namespace preload
