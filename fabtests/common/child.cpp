// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/common/child.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/fabric.hpp"
#include "fabtests/common/test.hpp"

namespace fabtests {

namespace {

constexpr const char* role_mark = "--role";
constexpr const char* failure_mark = "failed: ";

// The next line from a pipe; `kept` holds the bytes after it.
std::string read_line(int fd, std::string& kept, int timeout_ms) {
    const auto start = Clock::now();
    for (;;) {
        if (const size_t end = kept.find('\n'); end != std::string::npos) {
            std::string line = kept.substr(0, end);
            kept.erase(0, end + 1);
            return line;
        }
        pollfd ready{fd, POLLIN, 0};
        if (poll(&ready, 1, std::max(0, patience(timeout_ms) - milliseconds_since(start))) == 0) {
            throw Error("nothing from the other process", -FI_ETIMEDOUT);
        }
        char bytes[512];
        const ssize_t got = read(fd, bytes, sizeof(bytes));
        if (got <= 0) {
            throw Error("the other process has ended", -FI_EPIPE);
        }
        kept.append(bytes, static_cast<size_t>(got));
    }
}

void write_line(int fd, std::string line) {
    line += '\n';
    if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
        throw Error("write to the other process", -errno);
    }
}

} // namespace

Child::Child(const std::string& role, const std::vector<std::string>& arguments,
             const std::vector<std::string>& environment) {
    signal(SIGPIPE, SIG_IGN);
    int down[2];
    int up[2];
    if (pipe2(down, O_CLOEXEC) != 0) {
        throw Error("pipe", -errno);
    }
    if (pipe2(up, O_CLOEXEC) != 0) {
        close(down[0]);
        close(down[1]);
        throw Error("pipe", -errno);
    }
    std::vector<const char*> argv{"/proc/self/exe", role_mark, role.c_str()};
    for (const auto& argument : arguments) {
        argv.push_back(argument.c_str());
    }
    argv.push_back(nullptr);
    std::vector<std::string> variables;
    for (char** one = environ; *one != nullptr; ++one) {
        const std::string name(*one, strcspn(*one, "="));
        bool replaced = false;
        for (const auto& change : environment) {
            replaced = replaced || change.substr(0, change.find('=')) == name;
        }
        if (!replaced) {
            variables.emplace_back(*one);
        }
    }
    for (const auto& change : environment) {
        if (change.find('=') != std::string::npos) {
            variables.push_back(change);
        }
    }
    std::vector<char*> envp;
    envp.reserve(variables.size() + 1);
    for (auto& variable : variables) {
        envp.push_back(variable.data());
    }
    envp.push_back(nullptr);

    // Not fork: ThreadSanitizer's runtime may hold a lock of its own in another thread, which a copy would find locked.
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
    pid_t pid = -1;
    const int error = posix_spawn(&pid, argv[0], &actions, nullptr, const_cast<char**>(argv.data()), envp.data());
    posix_spawn_file_actions_destroy(&actions);
    close(down[0]);
    close(up[1]);
    to_ = down[1];
    from_ = up[0];
    if (error != 0) {
        close(to_);
        close(from_);
        throw Error("posix_spawn", -error);
    }
    pid_ = pid;
}

Child::~Child() {
    kill();
    close(to_);
    close(from_);
}

void Child::tell(const std::string& line) { write_line(to_, line); }

std::string Child::hear(int timeout_ms) {
    std::string line = read_line(from_, heard_, timeout_ms);
    if (line.starts_with(failure_mark)) {
        throw Failure("in the other process: " + line.substr(strlen(failure_mark)));
    }
    return line;
}

void Child::finish(int timeout_ms) {
    try {
        for (;;) {
            (void)hear(timeout_ms);
        }
    } catch (const Error& error) {
        if (error.code != -FI_EPIPE) {
            throw;
        }
    }
    int status = 0; // its standard output is closed: it is about to exit
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        throw Failure("the other process ended with status " + std::to_string(status));
    }
}

void Child::stop() {
    interrupt(SIGSTOP);
    siginfo_t stopped{};
    while (waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED) != 0 && errno == EINTR) {
    }
}

void Child::interrupt(int signal) { ::kill(pid_, signal); }

void Child::kill() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
    }
}

void say(const std::string& line) { write_line(STDOUT_FILENO, line); }

std::string listen_to_parent(int timeout_ms) {
    static std::string kept;
    return read_line(STDIN_FILENO, kept, timeout_ms);
}

std::optional<int> play_role(int argc, char** argv, std::span<const Role> roles) {
    if (argc < 3 || strcmp(argv[1], role_mark) != 0) {
        return std::nullopt;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(static_cast<unsigned>(patience(120000) / 1000));
    for (const Role& role : roles) {
        if (strcmp(role.name, argv[2]) != 0) {
            continue;
        }
        try {
            role.play({argv + 3, argv + argc});
            return 0;
        } catch (const std::exception& error) {
            const std::string what = failure_mark + std::string(error.what()) + "\n";
            (void)!write(STDOUT_FILENO, what.data(), what.size());
            return 1;
        }
    }
    return 2;
}

void run_in_child(const std::string& role, const std::vector<std::string>& environment,
                  const std::vector<std::string>& arguments) {
    Child child(role, arguments, environment);
    child.finish();
}

} // namespace fabtests
