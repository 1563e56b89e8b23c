// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Children, execution of other programs, and exit. Children share the state of connections (lifecycle.cpp).
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/outside_use.hpp"
#include "preload/connection/stream.hpp"
#include "preload/rendezvous/raised_limit.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/explain.hpp"
#include "preload/wait/epoll_set.hpp"

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>

#include <linux/seccomp.h>
#include <sys/mman.h>

#include "preload/base/system.hpp"

using namespace preload;

namespace {

void before_exec() {
    const sys::ErrnoKept kept;
    explain::record_all();
    outside_use::hand_over_inheritable(true);
    lifecycle::leave_inheritable_sets();
    lifecycle::leave_process();
}

template <class Exec> int execute(Exec&& exec) {
    if (lifecycle::in_vfork_child()) {
        outside_use::hand_over_inheritable(false);
        return exec();
    }
    before_exec();
    const int result = exec();
    lifecycle::stay_in_process();
    return result;
}

// A child of libc's is about to execute another program: libc calls nothing there that could be interposed.
void before_spawn() {
    outside_use::hand_over_inheritable(false);
    lifecycle::leave_inheritable_sets();
}

// The arguments of execl and similar calls, as a list.
class Arguments {
  public:
    Arguments(const char* first, va_list rest, bool with_environment) {
        va_list counted;
        va_copy(counted, rest);
        size_t count = first != nullptr ? 1 : 0;
        while (first != nullptr && va_arg(counted, const char*) != nullptr) {
            ++count;
        }
        va_end(counted);
        list_ = few_.data();
        if (count >= few_.size()) {
            void* got =
                mmap(nullptr, (count + 1) * sizeof(char*), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            list_ = got != MAP_FAILED ? static_cast<char**>(got) : nullptr;
            count = list_ != nullptr ? count : 0;
        }
        if (list_ != nullptr) {
            list_[0] = const_cast<char*>(first);
            for (size_t i = 1; i <= count; ++i) {
                list_[i] = va_arg(rest, char*);
            }
        }
        environment_ = with_environment && first != nullptr ? va_arg(rest, char**) : environ;
    }
    [[nodiscard]] char** list() const { return list_; }
    [[nodiscard]] char** environment() const { return environment_; }

  private:
    std::array<char*, 64> few_{};
    char** list_ = nullptr;
    char** environment_ = nullptr;
};

} // namespace

PRELOAD_EXPORT int execve(const char* path, char* const argv[], char* const envp[]) noexcept {
    return execute([&] { return real::execve(path, argv, envp); });
}
PRELOAD_EXPORT int execv(const char* path, char* const argv[]) noexcept { return execve(path, argv, environ); }
PRELOAD_EXPORT int execvpe(const char* file, char* const argv[], char* const envp[]) noexcept {
    return execute([&] { return real::execvpe(file, argv, envp); });
}
PRELOAD_EXPORT int execvp(const char* file, char* const argv[]) noexcept { return execvpe(file, argv, environ); }
PRELOAD_EXPORT int fexecve(int fd, char* const argv[], char* const envp[]) noexcept {
    return execute([&] { return real::fexecve(fd, argv, envp); });
}
PRELOAD_EXPORT int execveat(int folder, const char* path, char* const argv[], char* const envp[], int flags) noexcept {
    return execute([&] { return real::execveat(folder, path, argv, envp, flags); });
}

#define EXECUTE_LIST(call, name, with_environment)                                                                     \
    va_list rest;                                                                                                      \
    va_start(rest, first);                                                                                             \
    const Arguments arguments(first, rest, with_environment);                                                          \
    va_end(rest);                                                                                                      \
    return call(name, arguments.list(), arguments.environment())

// NOLINTBEGIN(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
PRELOAD_EXPORT int execl(const char* path, const char* first, ...) noexcept { EXECUTE_LIST(execve, path, false); }
PRELOAD_EXPORT int execlp(const char* file, const char* first, ...) noexcept { EXECUTE_LIST(execvpe, file, false); }
PRELOAD_EXPORT int execle(const char* path, const char* first, ...) noexcept { EXECUTE_LIST(execve, path, true); }

PRELOAD_EXPORT int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                               const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
    before_spawn();
    const raised_limit::Pause pause;
    return real::posix_spawn(pid, path, actions, attributes, argv, envp);
}
PRELOAD_EXPORT int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                                const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
    before_spawn();
    const raised_limit::Pause pause;
    return real::posix_spawnp(pid, file, actions, attributes, argv, envp);
}

PRELOAD_EXPORT int system(const char* command) {
    if (command != nullptr) {
        before_spawn();
    }
    const raised_limit::Pause pause;
    return real::system(command);
}

PRELOAD_EXPORT FILE* popen(const char* command, const char* type) {
    before_spawn();
    const raised_limit::Pause pause;
    return real::popen(command, type);
}

// Hands over a connection that the spawned program gets under another fd.
PRELOAD_EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd, int made) noexcept {
    if (Connection* c = table::connection(fd); c != nullptr) {
        const sys::ErrnoKept kept;
        stream::hand_over(*c, fd, Reason::executed);
    }
    return real::posix_spawn_file_actions_adddup2(actions, fd, made);
}

PRELOAD_EXPORT pid_t fork() noexcept {
    return lifecycle::forked([] { return real::fork(); });
}
PRELOAD_ALIAS(__fork, fork);

// libc's daemon ends the parent by an exit that cannot be interposed, and replaces the standard fds in the same way. As
// there, a folder or an fd that stays as it is, is not reported.
PRELOAD_EXPORT int daemon(int keeps_folder, int keeps_standard) noexcept {
    const pid_t child = fork();
    if (child > 0) {
        _exit(0);
    }
    if (child < 0 || setsid() < 0) {
        return -1;
    }
    if (keeps_folder == 0) {
        sys::call(SYS_chdir, "/");
    }
    if (keeps_standard != 0) {
        return 0;
    }
    const int null = open("/dev/null", O_RDWR);
    if (null < 0) {
        return -1;
    }
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        dup2(null, fd);
    }
    if (null > STDERR_FILENO) {
        close(null);
    }
    return 0;
}

PRELOAD_EXPORT void _exit(int status) {
    if (!lifecycle::in_vfork_child()) {
        explain::record_all();
        lifecycle::leave_process();
    }
    for (;;) {
        sys::call(SYS_exit_group, status);
    }
}
PRELOAD_ALIAS(_Exit, _exit);

// A system call filter may end the process at a call that it does not allow: no upgrades from now on.
PRELOAD_EXPORT int prctl(int option, ...) noexcept {
    va_list rest;
    va_start(rest, option);
    const auto a = va_arg(rest, unsigned long);
    const auto b = va_arg(rest, unsigned long);
    const auto c = va_arg(rest, unsigned long);
    const auto d = va_arg(rest, unsigned long);
    va_end(rest);
    // Without a program it is a probe, and fails.
    if (option == PR_SET_SECCOMP && (a == SECCOMP_MODE_STRICT || (a == SECCOMP_MODE_FILTER && b != 0))) {
        lifecycle::leave_everything_to_the_kernel();
    }
    return real::prctl(option, a, b, c, d);
}
// NOLINTEND(clang-analyzer-valist.Uninitialized)
