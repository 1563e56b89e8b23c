// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/session.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <sys/wait.h>
#include <unistd.h>

#include "util/common/failure.hpp"

namespace rsrun {

int become(const std::vector<std::string>& command, const Environment& environment) {
    for (const auto& [name, value] : environment) {
        setenv(name.c_str(), value.c_str(), 1);
    }
    std::vector<char*> argv;
    argv.reserve(command.size() + 1);
    for (const auto& word : command) {
        argv.push_back(const_cast<char*>(word.c_str()));
    }
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    const int status = errno == ENOENT ? 127 : 126;
    fmt::print(stderr, "rsrun: {}: {}\n", command.front(), strerror(errno));
    return status;
}

namespace {

// The terminal sends its signals to all processes of the group, so that the child already has them.
bool is_for_child(const siginfo_t& info) { return info.si_code != SI_KERNEL; }

// The child's status if it has ended; -1 if it is still running.
int after_change(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG | WUNTRACED) != child) {
        return -1;
    }
    if (WIFSTOPPED(status)) {
        // Stop rsrun too, so that its parent, such as a shell, sees it. When rsrun is continued, it continues the
        // child.
        raise(SIGSTOP);
        kill(child, SIGCONT);
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace

int run_child(const std::vector<std::string>& command, const Environment& environment) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (const int fatal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS}) {
        sigdelset(&all, fatal); // signals of rsrun's own faults
    }
    sigprocmask(SIG_SETMASK, &all, &before);
    // With an inherited SIG_IGN, the kernel would reap the child itself.
    struct sigaction plain {};
    struct sigaction inherited {};
    plain.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &plain, &inherited);
    const pid_t child = fork();
    if (child == 0) {
        sigaction(SIGCHLD, &inherited, nullptr);
        sigprocmask(SIG_SETMASK, &before, nullptr);
        _exit(become(command, environment));
    }
    if (child < 0) {
        util::fail("no process can be made: {}", strerror(errno));
    }
    for (;;) {
        siginfo_t info{};
        const int number = sigwaitinfo(&all, &info);
        if (number == SIGCHLD) {
            if (const int status = after_change(child); status >= 0) {
                sigprocmask(SIG_SETMASK, &before, nullptr);
                return status;
            }
        } else if (number > 0 && is_for_child(info)) {
            kill(child, number);
        }
    }
}

} // namespace rsrun
