// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/discard.hpp"

#include <array>
#include <cerrno>
#include <cstddef>

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "preload/base/system.hpp"
#include "preload/path/segment.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/passing.hpp"

namespace preload::descriptors {

namespace {

constexpr size_t stack_bytes = size_t{8} << 10;
constexpr size_t max_rights = 253; // SCM_MAX_FD of Linux

enum Verdict : uint32_t { none = 0, harmless_ones = 1, harmful_ones = 2 };

} // namespace

// What is only read by the child is written before it starts.
struct Child {
    pid_t pid = 0;
    int socket = -1;
    uint32_t verdict = none; // a futex
    uint32_t ends = 0;       // a futex
    timespec patience{};     // should this process end
    msghdr message{};
    iovec part{};
    char byte = 0;
    struct stat about {};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(max_rights * sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control{};
    alignas(16) std::array<char, stack_bytes> stack{};
};

namespace {

constinit std::array<Child, 8> children;

// A child has the stack of none of the program's threads, and the thread pointer of one: it makes system calls only,
// and no sanitizer may look.
#define PRELOAD_CHILD __attribute__((no_sanitize("thread", "address", "undefined")))

PRELOAD_CHILD void wait_and_exit(Child& child) {
    while (__atomic_load_n(&child.ends, __ATOMIC_ACQUIRE) == 0 &&
           sys::invoke(SYS_futex, reinterpret_cast<unsigned long>(&child.ends), FUTEX_WAIT_PRIVATE, 0,
                       reinterpret_cast<unsigned long>(&child.patience)) != -ETIMEDOUT) {
    }
    sys::invoke(SYS_exit_group, 0);
}

PRELOAD_CHILD int hold(void* argument) {
    wait_and_exit(*static_cast<Child*>(argument));
    return 0;
}

PRELOAD_CHILD bool is_harmless(Child& child, int fd) {
    const auto number = static_cast<unsigned long>(fd);
    const long seals = sys::invoke(SYS_fcntl, number, F_GET_SEALS); // only memory files have any
    if (seals >= 0) {
        constexpr long block = 512;
        return (seals & F_SEAL_GROW) != 0 &&
               sys::invoke(SYS_fstat, number, reinterpret_cast<unsigned long>(&child.about)) == 0 &&
               child.about.st_blocks * block <= static_cast<long>(path::file_bytes);
    }
    return sys::invoke(SYS_fcntl, number, F_GETPIPE_SZ) > 0;
}

PRELOAD_CHILD Verdict inspect(Child& child) {
    if (sys::invoke(SYS_recvmsg, static_cast<unsigned long>(child.socket),
                    reinterpret_cast<unsigned long>(&child.message), MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0 ||
        (child.message.msg_flags & MSG_CTRUNC) != 0) {
        return harmful_ones;
    }
    size_t found = 0;
    for (size_t at = 0; at + sizeof(cmsghdr) <= child.message.msg_controllen;) {
        const auto* header = reinterpret_cast<const cmsghdr*>(child.control.data() + at);
        if (header->cmsg_len < sizeof(cmsghdr)) {
            break;
        }
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
            const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            const int* fds = reinterpret_cast<const int*>(child.control.data() + at + CMSG_LEN(0));
            for (size_t i = 0; i < count; ++i) {
                if (++found > rendezvous::max_passed || !is_harmless(child, fds[i])) {
                    return harmful_ones;
                }
            }
        }
        at += CMSG_ALIGN(header->cmsg_len);
    }
    return harmless_ones;
}

PRELOAD_CHILD int inspect_and_hold(void* argument) {
    auto& child = *static_cast<Child*>(argument);
    // Makes space in its table, and keeps nothing of the program's open.
    constexpr unsigned long last = ~0U;
    const auto number = static_cast<unsigned long>(child.socket);
    if (number != 0) {
        sys::invoke(SYS_close_range, 0, number - 1);
    }
    sys::invoke(SYS_close_range, number + 1, last);
    __atomic_store_n(&child.verdict, inspect(child), __ATOMIC_RELEASE);
    sys::invoke(SYS_futex, reinterpret_cast<unsigned long>(&child.verdict), FUTEX_WAKE_PRIVATE, 1);
    wait_and_exit(child);
    return 0;
}

// libc's own: ThreadSanitizer takes its `clone` for a fork.
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...) noexcept;

bool has_ended(const Child& child) {
    return child.pid <= 0 || sys::call(SYS_wait4, child.pid, nullptr, WNOHANG | __WALL, nullptr) != 0;
}

// Emulated processes (valgrind) end at a clone(2) with these flags. They have no clone3(2) either, which Linux has had
// since 5.3, and which fails here in another way.
bool can_start() { return sys::call(SYS_clone3, nullptr, 0) != -ENOSYS; }

// The program does not see the child: it raises no signal, and only __WALL waits for it. Null: none can be made.
Child* start(int (*run)(void*), int socket) {
    if (!can_start()) {
        return nullptr;
    }
    for (Child& child : children) {
        if (!has_ended(child)) {
            continue;
        }
        constexpr time_t seconds = 10;
        child.socket = socket;
        child.verdict = none;
        child.ends = 0;
        child.patience = {seconds, 0};
        child.part = {&child.byte, sizeof(child.byte)};
        child.message = {};
        child.message.msg_iov = &child.part;
        child.message.msg_iovlen = 1;
        child.message.msg_control = child.control.data();
        child.message.msg_controllen = child.control.size();
        child.pid = __clone(run, static_cast<void*>(child.stack.data() + stack_bytes), CLONE_VM, &child);
        return child.pid > 0 ? &child : nullptr;
    }
    return nullptr;
}

void let_exit(Child* child) {
    if (child != nullptr) {
        __atomic_store_n(&child->ends, 1U, __ATOMIC_RELEASE);
        sys::call(SYS_futex, &child->ends, FUTEX_WAKE_PRIVATE, 1);
    }
}

} // namespace

void discard(int socket) {
    if (socket < 0) {
        return;
    }
    Child* child = start(hold, socket);
    close(socket);
    let_exit(child);
}

Inspection::Inspection(int socket) : child_(start(inspect_and_hold, socket)) {
    constexpr uint64_t timeout_ns = 1000000000; // it only waits for a processor
    const uint64_t end = sys::now_ns() + timeout_ns;
    const timespec step{0, 10000000};
    while (child_ != nullptr && __atomic_load_n(&child_->verdict, __ATOMIC_ACQUIRE) == none && sys::now_ns() < end) {
        sys::call(SYS_futex, &child_->verdict, FUTEX_WAIT_PRIVATE, none, &step);
    }
}

Inspection::~Inspection() { let_exit(child_); }

bool Inspection::harmless() const {
    return child_ != nullptr && __atomic_load_n(&child_->verdict, __ATOMIC_ACQUIRE) == harmless_ones;
}

void forget_children() {
    for (Child& child : children) {
        child.pid = 0;
    }
}

} // namespace preload::descriptors
