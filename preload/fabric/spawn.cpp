// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The program must not see a child that it has not made: no SIGCHLD, and no result of wait(2). So a first process,
// which raises no signal and is waited for by its pid, makes the worker, and exits. Until then both share this
// process's memory, as after vfork, so the size of the program does not matter; they make only system calls.
//
// Where the kernel would give the worker to the program then, or to the server that has forked it, because that is
// process 1 or a subreaper, the first process
// stays as the worker's parent until that has ended. Calls that wait for children do not find it without __WALL: it
// raises no signal, and executes nothing, which would make it raise SIGCHLD. It has no descriptors, and keeps this
// process's memory alive, which matters only behind the end of the program while the worker delivers what is left.
#include "preload/fabric/spawn.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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
    // Of one that stays:
    pid_t pid = -1;
    Child* next = nullptr;
};
constinit Child* parents = nullptr; // on the service's thread only

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
// Orphans of this process's descendants become its children: known at program start, for the children of a server too.
constinit bool began_as_reaper = false;

bool is_reaper() {
    int subreaper = 0;
    return sys::call(SYS_getpid) == 1 ||
           (sys::call(SYS_prctl, PR_GET_CHILD_SUBREAPER, &subreaper, 0, 0, 0) == 0 && subreaper != 0);
}

__attribute__((constructor(103))) void keep_environment() {
    if (!policy::fabric_allowed()) {
        return;
    }
    began_as_reaper = is_reaper();
    if (environ == nullptr) {
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

__attribute__((no_sanitize("thread"))) void close_from(int first) {
    if (sys::call(SYS_close_range, first, ~0U, 0) != 0) { // Linux 5.9
        constexpr int many = 65536;
        for (int fd = first; fd < many; ++fd) {
            sys::call(SYS_close, fd);
        }
    }
}

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
    close_from(control_fd + 1);
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

bool make_orphan(Child& child) {
    int status = 0;
    const long first =
        __clone(run_first, static_cast<void*>(child.stack.data() + stack_bytes), CLONE_VM | CLONE_VFORK, &child);
    return first > 0 && sys::call(SYS_wait4, first, &status, __WALL, nullptr) == first && status == 0;
}

// It runs beside the program, in its memory and on the thread's local storage: it touches nothing but its Child.
__attribute__((no_sanitize("thread"))) int run_parent(void* argument) {
    auto& child = *static_cast<Child*>(argument);
    constexpr uint64_t all_signals = ~uint64_t{0};
    sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &all_signals, nullptr, sizeof(all_signals));
    sys::call(SYS_setpgid, 0, 0); // a signal for the program's group must not leave the worker to the program
    sys::call(SYS_prctl, PR_SET_NAME, "rspreload-wait", 0, 0, 0);
    // The program's connections end when the program closes them.
    if (child.socket != control_fd) {
        sys::call(SYS_dup3, child.socket, control_fd, 0);
        child.socket = control_fd;
    }
    close_from(control_fd + 1);
    for (int fd = 0; fd < control_fd; ++fd) {
        sys::call(SYS_close, fd);
    }
    const long made = __clone(run_worker, static_cast<void*>(child.worker_stack.data() + stack_bytes),
                              CLONE_VM | CLONE_VFORK, argument);
    sys::call(SYS_close, control_fd);
    if (made > 0) {
        while (sys::call(SYS_wait4, made, nullptr, __WALL, nullptr) == -EINTR) {
        }
    }
    sys::call(SYS_exit_group, 0);
    return 0;
}

bool has_ended(const Child& parent) {
    return sys::call(SYS_wait4, parent.pid, nullptr, WNOHANG | __WALL, nullptr) != 0; // or is another process's child
}

void free_ended_parents() {
    for (Child** at = &parents; *at != nullptr;) {
        Child* const parent = *at;
        if (has_ended(*parent)) {
            *at = parent->next;
            munmap(parent, sizeof(Child));
        } else {
            at = &parent->next;
        }
    }
}

bool make_parent(const char* path, int socket) {
    // Without system calls of its own, the library uses libc's, whose errno the parent would share with the thread.
#if defined(__x86_64__)
    void* memory = mmap(nullptr, sizeof(Child), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    auto* parent = new (memory) Child;
    parent->path = path;
    parent->socket = socket;
    parent->pid = __clone(run_parent, static_cast<void*>(parent->stack.data() + stack_bytes), CLONE_VM, parent);
    if (parent->pid <= 0) {
        munmap(memory, sizeof(Child));
        return false;
    }
    parent->next = parents;
    parents = parent;
    return true;
#else
    (void)path;
    (void)socket;
    return false;
#endif
}

} // namespace

// The parent ends soon after its worker, whose end of the socket is closed first. One that takes longer is met later.
void note_worker_ended() {
    constexpr int soon_ms = 1000; // on a machine with much else to do
    free_ended_parents();
    if (parents == nullptr) {
        return;
    }
    const int process = descriptors::make([] { return sys::call(SYS_pidfd_open, parents->pid, 0); });
    if (process >= 0) {
        sys::sleep_until(process, POLLIN, soon_ms);
        descriptors::close(process);
        free_ended_parents();
    }
}

int spawn_worker() {
    static constinit Child child; // on the service's thread only
    std::array<int, 2> sockets{};
    {
        const lowest_fd::Opening opening;
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
    free_ended_parents();
    const bool made = sockets[0] >= 0 && sockets[1] >= 0 && sys::call(SYS_access, child.path, X_OK) == 0 &&
                      (began_as_reaper || is_reaper() ? make_parent(child.path, child.socket) : make_orphan(child));
    descriptors::close(sockets[1]);
    if (!made) {
        descriptors::close(sockets[0]);
        return -1;
    }
    return sockets[0];
}

} // namespace preload::fabric
