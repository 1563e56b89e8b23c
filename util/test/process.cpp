// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/test/process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace util_test {

using fabtests::Clock;
using fabtests::Failure;

namespace {
constexpr int longest_wait_ms = 60000;
}

Process::Process(const std::string& program, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment)
    : name_(program) {
    const char* folder = getenv("FABTESTS_BIN");
    const bool is_path = program.find('/') != std::string::npos;
    const std::string path = is_path ? program : std::string(folder != nullptr ? folder : ".") + "/" + program;
    std::vector<char*> argv{const_cast<char*>(path.c_str())};
    for (const auto& argument : arguments) {
        argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    std::vector<char*> envp;
    envp.reserve(environment.size() + 1);
    for (const auto& variable : environment) {
        envp.push_back(const_cast<char*>(variable.c_str()));
    }
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string name(*variable, strcspn(*variable, "="));
        if (std::none_of(environment.begin(), environment.end(),
                         [&](const std::string& given) { return given.starts_with(name + "="); })) {
            envp.push_back(*variable);
        }
    }
    envp.push_back(nullptr);
    int out[2];
    int err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        throw Failure("pipe2: " + std::string(strerror(errno)));
    }
    pid_ = fork();
    if (pid_ == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        execve(path.c_str(), argv.data(), envp.data());
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    output_fd_ = out[0];
    errors_fd_ = err[0];
    if (pid_ < 0) {
        throw Failure("fork: " + std::string(strerror(errno)));
    }
}

Process::~Process() {
    if (pid_ > 0) {
        kill(pid_, SIGKILL);
        while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
    close(output_fd_);
    close(errors_fd_);
}

bool Process::read_some() {
    pollfd fds[] = {{output_fd_, POLLIN, 0}, {errors_fd_, POLLIN, 0}};
    if (poll(fds, 2, fabtests::patience(longest_wait_ms)) == 0) {
        throw Failure(text() + ": nothing for a long time");
    }
    for (const auto& [fd, events, revents] : fds) {
        if (revents == 0) {
            continue;
        }
        char bytes[4096];
        const ssize_t got = read(fd, bytes, sizeof(bytes));
        if (got > 0) {
            (fd == output_fd_ ? output_ : errors_).append(bytes, static_cast<size_t>(got));
        } else if (fd == output_fd_) {
            close(output_fd_);
            output_fd_ = -1;
        } else {
            close(errors_fd_);
            errors_fd_ = -1;
        }
    }
    return output_fd_ >= 0 || errors_fd_ >= 0;
}

std::string Process::line() {
    for (;;) {
        if (const size_t end = output_.find('\n', said_); end != std::string::npos) {
            std::string result = output_.substr(said_, end - said_);
            said_ = end + 1;
            return result;
        }
        if (!read_some()) {
            throw Failure(text() + ": it has ended, and a line is missing");
        }
    }
}

std::string Process::line_with(const std::string& beginning) {
    for (;;) {
        std::string one = line();
        if (one.starts_with(beginning)) {
            return one;
        }
    }
}

void Process::signal(int number) const { kill(pid_, number); }

bool Process::running() const {
    siginfo_t ended{};
    return waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
}

int Process::status() {
    while (read_some()) {
    }
    int status = 0; // its pipes are closed: it is about to end
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The end of it: a failure's text has little space.
std::string Process::text() const {
    const auto tail = [](const std::string& all) { return all.substr(all.size() - std::min<size_t>(all.size(), 400)); };
    return name_ + " said:\n" + tail(errors_) + "---\n" + tail(output_);
}

Ended run_program(const std::string& program, const std::vector<std::string>& arguments) {
    Process process(program, arguments);
    const int status = process.status();
    return {status, process.output(), process.errors()};
}

size_t count_lines(const std::string& text, const std::string& beginning) {
    size_t count = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        count += text.compare(at, beginning.size(), beginning) == 0 ? 1 : 0;
        at = end + 1;
    }
    return count;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void expect_complaint(const Ended& ended, const std::string& part) {
    if (ended.status != 1 || count_lines(ended.errors) != 1 || !holds(ended.errors, part)) {
        throw Failure("instead of one line with \"" + part + "\" and status 1: status " + std::to_string(ended.status) +
                      ", " + ended.errors);
    }
}

void expect_complaint(Process& process, const std::string& part) {
    const int status = process.status();
    expect_complaint({status, process.output(), process.errors()}, part);
}

void expect_success(Process& process) {
    if (const int status = process.status(); status != 0 || !process.errors().empty()) {
        throw Failure(process.text() + "status " + std::to_string(status));
    }
}

std::string port_of(Process& server) {
    const std::string mark = "listening on port ";
    return server.line_with(mark).substr(mark.size());
}

std::string port_of_json(Process& server) {
    const auto said = util::Json::parse(server.line());
    if (said.at("event") != "listening") {
        throw Failure(server.text() + "no line of a server that listens");
    }
    return std::to_string(said.at("port").get<uint16_t>());
}

bool has_json(const Process& process, const util::Json& members) {
    const auto said = util::Json::parse(process.output());
    for (const auto& [name, value] : members.items()) {
        if (!said.contains(name) || said.at(name) != value) {
            return false;
        }
    }
    return true;
}

} // namespace util_test
