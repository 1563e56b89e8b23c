// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Programs that use a connection they inherited under a number of their own, as Python's pass_fds and shells have it:
// their bytes are those of the kernel.
#include "preload/test/calls/calls.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "rsockets/test/fork.hpp"

using namespace calls;

namespace {

// Start a shell with a command.
using Start = pid_t (*)(const std::string&);

const char* const* arguments_of(const std::string& command) {
    static const char* arguments[4];
    arguments[0] = "sh";
    arguments[1] = "-c";
    arguments[2] = command.c_str();
    arguments[3] = nullptr;
    return arguments;
}

pid_t by_posix_spawn(const std::string& command) {
    pid_t child = -1;
    MUST(posix_spawn(&child, "/bin/sh", nullptr, nullptr, const_cast<char**>(arguments_of(command)), environ) == 0);
    return child;
}

pid_t by_vfork(const std::string& command) {
    const char* const* arguments = arguments_of(command);
    // NOLINTBEGIN(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork): what programs do
    const pid_t child = vfork();
    if (child == 0) {
        execve("/bin/sh", const_cast<char**>(arguments), environ);
        _exit(127);
    }
    // NOLINTEND(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork)
    return child;
}

pid_t by_fork(const std::string& command) {
    const char* const* arguments = arguments_of(command);
    const pid_t child = fork_with_threads();
    if (child == 0) {
        execve("/bin/sh", const_cast<char**>(arguments), environ);
        _exit(127);
    }
    return child;
}

pid_t by_execveat(const std::string& command) {
    const char* const* arguments = arguments_of(command);
    const pid_t child = fork_with_threads();
    if (child == 0) {
        execveat(AT_FDCWD, "/bin/sh", const_cast<char**>(arguments), environ, 0);
        _exit(127);
    }
    return child;
}

pid_t by_execveat_syscall(const std::string& command) {
    const char* const* arguments = arguments_of(command);
    const int program = open("/bin/sh", O_RDONLY | O_CLOEXEC);
    const pid_t child = fork_with_threads();
    if (child == 0) {
        syscall(SYS_execveat, program, "", arguments, environ, AT_EMPTY_PATH);
        _exit(127);
    }
    close(program);
    return child;
}

void say_status(pid_t child) {
    int status = -1;
    MUST(waitpid(child, &status, 0) == child);
    say(" status %d", status);
}

// A pair of which only the server is inherited.
Pair pair_with_leak() {
    const Pair one = pair();
    MUST(fcntl(one.client, F_SETFD, FD_CLOEXEC) == 0 && fcntl(one.listener, F_SETFD, FD_CLOEXEC) == 0);
    return one;
}

// Its status tells whether it has read what it should.
std::string read_from(int fd, const std::string& expected = "hello") {
    return "test \"$(head -c 5 <&" + std::to_string(fd) + ")\" = " + expected;
}
std::string write_to(int fd) { return "echo hello >&" + std::to_string(fd); }

void say_received(int fd) {
    char text[8] = {};
    SAY(recv(fd, text, 6, MSG_WAITALL));
    say("%s", text);
}

void use_inherited(Start start) {
    char byte = 0;
    { // the parent gives it away
        const Pair one = pair_with_leak();
        const pid_t child = start(read_from(one.server) + " && " + write_to(one.server));
        SAY(close(one.server));
        SAY(write(one.client, "hello", 5));
        say_received(one.client);
        say_status(child);
        SAY(recv(one.client, &byte, 1, 0));
        close(one.client);
        close(one.listener);
    }
    { // the parent waits, and goes on with it
        const Pair one = pair_with_leak();
        const pid_t child = start(read_from(one.server));
        SAY(write(one.client, "hello", 5));
        say_status(child);
        say_echo(one.client, one.server);
        say_status(start(write_to(one.server)));
        say_received(one.client);
        say_echo(one.client, one.server);
        close_all(one);
    }
    { // bytes were there before
        const Pair one = pair_with_leak();
        SAY(write(one.client, "hello there", 11));
        SAY(recv(one.server, &byte, 1, 0));
        say_status(start(read_from(one.server)));
        SAY(close(one.server));
        SAY(recv(one.client, &byte, 1, 0)); // the rest was not read: a reset
        close(one.client);
        close(one.listener);
    }
}

} // namespace

CALLS_CASE(a_child_of_posix_spawn_uses_what_it_inherited) { use_inherited(by_posix_spawn); }
CALLS_CASE(a_child_of_vfork_uses_what_it_inherited) { use_inherited(by_vfork); }
CALLS_CASE(a_child_of_fork_that_execs_uses_what_it_inherited) { use_inherited(by_fork); }

CALLS_CASE(a_child_that_calls_execveat_uses_what_it_inherited) { use_inherited(by_execveat); }
CALLS_CASE(a_child_that_calls_execveat_by_syscall_uses_what_it_inherited) { use_inherited(by_execveat_syscall); }

CALLS_CASE(a_child_of_system_uses_what_it_inherited) {
    const Pair one = pair_with_leak();
    SAY(write(one.client, "hello", 5));
    SAY(system(read_from(one.server).c_str()));
    say_echo(one.client, one.server);
    SAY(system(write_to(one.server).c_str()));
    say_received(one.client);
    say_echo(one.client, one.server);
    close_all(one);
}

// A program that sets FD_CLOEXEC nowhere; what it runs uses none of its connections.
CALLS_CASE(a_process_that_leaks_many_runs_a_program) {
    std::vector<Pair> pairs;
    for (int i = 0; i < 20; ++i) {
        pairs.push_back(pair_with_leak());
    }
    SAY(write(pairs[3].client, "unread", 6));
    SAY(system("true"));
    for (const Pair& one : pairs) {
        say_echo(one.server, one.client);
    }
    char text[8] = {};
    SAY(read(pairs[3].server, text, 6));
    say("%s", text);
    for (const Pair& one : pairs) {
        say_echo(one.client, one.server);
        close_all(one);
    }
}

CALLS_CASE(a_child_of_popen_uses_what_it_inherited) {
    const Pair one = pair_with_leak();
    FILE* stream = popen(("head -c 5 <&" + std::to_string(one.server)).c_str(), "r");
    MUST(stream != nullptr);
    SAY(write(one.client, "hello", 5));
    char text[8] = {};
    SAY(fread(text, 1, 5, stream));
    say("%s", text);
    SAY(pclose(stream));
    say_echo(one.client, one.server);
    close_all(one);
}

namespace {

pid_t execute_inheritable(const std::string& command, int fd, bool by_ioctl) {
    const char* const* arguments = arguments_of(command);
    // NOLINTBEGIN(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork): what programs do
    const pid_t child = vfork();
    if (child == 0) {
        if (by_ioctl) {
            ioctl(fd, FIONCLEX);
        } else {
            fcntl(fd, F_SETFD, 0);
        }
        execve("/bin/sh", const_cast<char**>(arguments), environ);
        _exit(127);
    }
    // NOLINTEND(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork)
    return child;
}

} // namespace

// The flag is taken away in the child only, as Python's subprocess does.
CALLS_CASE(a_child_makes_its_number_inheritable) {
    for (const bool by_ioctl : {false, true}) {
        const Pair one = pair_with_leak();
        MUST(fcntl(one.server, F_SETFD, FD_CLOEXEC) == 0);
        const pid_t child = execute_inheritable(read_from(one.server), one.server, by_ioctl);
        SAY(close(one.server));
        SAY(write(one.client, "hello", 5));
        say_status(child);
        char byte = 0;
        SAY(recv(one.client, &byte, 1, 0));
        close(one.client);
        close(one.listener);
    }
}

// It has put something else under the number of a connection: nothing of the connection is asked of that.
CALLS_CASE(a_child_uses_the_number_of_a_connection_for_another_socket) {
    const Pair one = pair_with_leak();
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && write(ends[1], "other", 5) == 5);
    const std::string command = read_from(one.server, "other");
    const char* const* arguments = arguments_of(command);
    // NOLINTBEGIN(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork): what programs do
    const pid_t child = vfork();
    if (child == 0) {
        dup2(ends[0], one.server);
        fcntl(one.server, F_SETFD, 0);
        execve("/bin/sh", const_cast<char**>(arguments), environ);
        _exit(127);
    }
    // NOLINTEND(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork)
    say_status(child);
    char byte = 0;
    SAY(recv(ends[1], &byte, 1, MSG_DONTWAIT)); // nor sent there
    say_echo(one.client, one.server);
    close_all(one);
}

// The last bytes are still the parent's to read, though most children inherit the connection.
CALLS_CASE(a_child_of_system_is_made_while_the_last_bytes_are_unread) {
    const Pair one = pair();
    SAY(write(one.client, "hello", 5));
    SAY(close(one.client));
    say_poll("the end", one.server, POLLRDHUP);
    SAY(system("true"));
    char text[8] = {};
    SAY(recv(one.server, text, 6, MSG_WAITALL));
    say("%s", text);
    SAY(recv(one.server, text, 1, 0));
}

namespace {

// Sends back what it receives.
[[noreturn]] void echo(int fd) {
    char bytes[64];
    for (;;) {
        const ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n <= 0 || send(fd, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) != n) {
            _exit(n == 0 ? 0 : 1);
        }
    }
}

void echo_once(int fd) {
    char byte = 'x';
    MUST(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, MSG_WAITALL) == 1);
}

} // namespace

// For as long as CALLS_STOPPED_MS says. Nothing of the connection is lost by that.
CALLS_CASE(a_child_inherits_a_connection_whose_peer_is_stopped) {
    const int listening = listener(SOCK_CLOEXEC);
    const pid_t peer = fork();
    if (peer == 0) {
        echo(connected_to(listening));
    }
    const int fd = accept(listening, nullptr, nullptr);
    for (int left = setting("CALLS_EXCHANGES", 0); left > 0; --left) {
        echo_once(fd);
    }
    for (int left = setting("CALLS_UPGRADE_MS", 2000); left > 0 && may_be_upgraded(fd); --left) {
        usleep(1000);
        echo_once(fd);
    }
    int status = 0;
    MUST(kill(peer, SIGSTOP) == 0 && waitpid(peer, &status, WUNTRACED) == peer && WIFSTOPPED(status));
    std::thread waker([&] {
        usleep(static_cast<useconds_t>(setting("CALLS_STOPPED_MS", 100)) * 1000);
        kill(peer, SIGCONT);
    });
    const pid_t child = fork_with_threads();
    if (child == 0) {
        const std::string command = "echo hello; read -r line; test \"$line\" = hello";
        const char* const* arguments = arguments_of(command);
        dup2(fd, STDIN_FILENO);
        dup2(fd, STDOUT_FILENO);
        execve("/bin/sh", const_cast<char**>(arguments), environ);
        _exit(127);
    }
    say_status(child);
    waker.join();
    SAY(send(fd, "again", 5, 0));
    char text[8] = {};
    SAY(recv(fd, text, 5, MSG_WAITALL));
    say("%s", text);
    SAY(close(fd));
    say_status(peer);
    close(listening);
}

CALLS_CASE(an_exec_that_fails_leaves_all_as_it_was) {
    const Pair one = pair();
    MUST(fcntl(one.client, F_SETFD, FD_CLOEXEC) == 0 && fcntl(one.server, F_SETFD, FD_CLOEXEC) == 0);
    SAY(write(one.client, "abc", 3));
    const char* const arguments[] = {"none", nullptr};
    SAY(execve("/nonexistent/none", const_cast<char**>(arguments), environ));
    for (const int fd : {one.client, one.server}) {
        linger how{};
        socklen_t length = sizeof(how);
        SAY(getsockopt(fd, SOL_SOCKET, SO_LINGER, &how, &length));
        say("%d %d", how.l_onoff, how.l_linger);
    }
    char text[8] = {};
    SAY(recv(one.server, text, 3, MSG_WAITALL));
    say("%s", text);
    say_echo(one.client, one.server);
    SAY(close(one.server));
    SAY(recv(one.client, text, 1, 0));
    close(one.client);
    close(one.listener);
}
