// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The program must not see a child that it has not made: no SIGCHLD, and no result of wait(2). So a first process,
// which raises no signal and is waited for by its pid, makes the worker, and exits. Until then both share this
// process's memory, as after vfork, so the size of the program does not matter; they make only system calls.
#include "preload/fabric/spawn.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/fabric/control.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/settings.hpp"

#ifndef RSPRELOAD_FABRIC_WORKER // set by the build
#define RSPRELOAD_FABRIC_WORKER "/usr/lib/rsocket-ofi/rspreload-fabric"
#endif

namespace preload::fabric {

namespace {

constexpr size_t stack_bytes = size_t{16} << 10;

struct Child {
    const char* path = nullptr;
    int socket = -1;
    alignas(16) std::array<char, stack_bytes> stack{};
    alignas(16) std::array<char, stack_bytes> worker_stack{};
};

// Variables for the worker alone, which gets them without this prefix.
constexpr const char* prefix = "RSPRELOAD_WORKER_";

bool begins_with(const char* text, const char* beginning) { return strncmp(text, beginning, strlen(beginning)) == 0; }

// Not for the worker: the library's settings, LD_PRELOAD, and the provider for the program's own use of libfabric.
bool is_for_worker(const char* variable) {
    return !begins_with(variable, "LD_PRELOAD=") && !begins_with(variable, "RSPRELOAD_") &&
           !begins_with(variable, "FI_PROVIDER=");
}

// A copy of the environment at program start: later the program may be changing its own, and servers overwrite it with
// their titles (setproctitle).
constinit std::array<char*, 1024> environment{};

__attribute__((constructor(103))) void keep_environment() {
    if (!policy::fabric_allowed() || environ == nullptr) {
        return;
    }
    size_t length = 1;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        length += strlen(*variable) + 1;
    }
    void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return; // the worker starts with an empty environment, and so with the defaults
    }
    auto* next = static_cast<char*>(memory);
    size_t count = 0;
    const auto keep = [&](const char* variable) {
        if (count + 1 < environment.size()) {
            environment[count++] = next;
            next = stpcpy(next, variable) + 1;
        }
    };
    for (char** variable = environ; *variable != nullptr; ++variable) {
        if (begins_with(*variable, prefix)) {
            keep(*variable + strlen(prefix));
        }
    }
    const size_t own = count;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const size_t name = strcspn(*variable, "=");
        const bool replaced = std::any_of(environment.begin(), environment.begin() + own, [&](const char* one) {
            return strcspn(one, "=") == name && strncmp(one, *variable, name) == 0;
        });
        if (is_for_worker(*variable) && !replaced) {
            keep(*variable);
        }
    }
}

// libc's own: ThreadSanitizer takes its `clone` for a fork, although the child shares this memory and only exits.
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...) noexcept;

__attribute__((no_sanitize("thread"))) int run_worker(void* argument) {
    const Child& child = *static_cast<const Child*>(argument);
    // A terminal's signals are for the program. Not a session: it would be scheduled as a group (sched(7), autogroup),
    // and on a busy machine wait for seconds.
    sys::call(SYS_setpgid, 0, 0);
    const long null = sys::call(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
    if (child.socket != control_fd) {
        sys::call(SYS_dup3, child.socket, control_fd, 0);
    } else {
        sys::call(SYS_fcntl, control_fd, F_SETFD, 0);
    }
    for (int fd = 0; fd < control_fd && null >= 0; ++fd) {
        sys::call(SYS_dup3, null, fd, 0);
    }
    if (sys::call(SYS_close_range, control_fd + 1, ~0U, 0) != 0) { // Linux 5.9
        constexpr int many = 65536;
        for (int fd = control_fd + 1; fd < many; ++fd) {
            sys::call(SYS_close, fd);
        }
    }
    const char* const arguments[] = {"rspreload-fabric", nullptr};
    sys::call(SYS_execve, child.path, arguments, environment.data());
    sys::call(SYS_exit_group, 127);
    return 127;
}

__attribute__((no_sanitize("thread"))) int run_first(void* argument) {
    auto& child = *static_cast<Child*>(argument);
    // The worker is this process's child, and is reparented when this process has ended.
    const long made = __clone(run_worker, static_cast<void*>(child.worker_stack.data() + stack_bytes),
                              CLONE_VM | CLONE_VFORK, argument);
    sys::call(SYS_exit_group, made > 0 ? 0 : 1);
    return 1;
}

} // namespace

int spawn_worker() {
    static constinit Child child; // on the service's thread only
    std::array<int, 2> sockets{};
    {
        const numbers::Making making;
        if (sys::call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()) != 0) {
            return -1;
        }
        for (int& one : sockets) {
            one = descriptors::keep(one);
        }
    }
    const char* given = settings::fabric_worker();
    child.path = given != nullptr ? given : RSPRELOAD_FABRIC_WORKER;
    child.socket = sockets[1];
    int status = 0;
    const long first =
        sockets[0] >= 0 && sockets[1] >= 0 && sys::call(SYS_access, child.path, X_OK) == 0
            ? __clone(run_first, static_cast<void*>(child.stack.data() + stack_bytes), CLONE_VM | CLONE_VFORK, &child)
            : -1;
    const bool made = first > 0 && sys::call(SYS_wait4, first, &status, __WALL, nullptr) == first && status == 0;
    descriptors::close(sockets[1]);
    if (!made) {
        descriptors::close(sockets[0]);
        return -1;
    }
    return sockets[0];
}

} // namespace preload::fabric
