// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Other processes, threads, and code that runs before main.
#include "preload/test/calls/calls.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "rsockets/test/fork.hpp"

using namespace calls;

namespace {

// What a constructor has done, before main.
int early_bytes = 0;

__attribute__((constructor(200))) void before_main() {
    const char* wanted = getenv("CALLS_EARLY");
    if (wanted == nullptr || *wanted == '\0') {
        return;
    }
    const int on = listener();
    const int client = connected_to(on);
    const int server = accept(on, nullptr, nullptr);
    char text[8] = {};
    if (write(client, "early", 5) == 5) {
        early_bytes = static_cast<int>(recv(server, text, 5, MSG_WAITALL));
    }
}

int status_of(pid_t child) {
    int status = -1;
    MUST(waitpid(child, &status, 0) == child);
    return status;
}

} // namespace

CALLS_CASE(sockets_before_main) { say("%d", early_bytes); }

CALLS_CASE(children_that_exec) {
    const Pair one = pair();
    SAY(system("exit 3"));
    say_echo(one.client, one.server);
    FILE* stream = popen("echo from a child", "r");
    char text[64] = {};
    MUST(stream != nullptr && fgets(text, sizeof(text), stream) != nullptr);
    say("%s", text);
    SAY(pclose(stream));
    say_echo(one.client, one.server);
    pid_t child = -1;
    const char* const arguments[] = {"true", nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, one.client);
    posix_spawn_file_actions_adddup2(&actions, one.server, 1);
    SAY(posix_spawnp(&child, "true", &actions, nullptr, const_cast<char**>(arguments), environ));
    posix_spawn_file_actions_destroy(&actions);
    say("%d", status_of(child));
    say_echo(one.client, one.server);
    child = fork_with_threads();
    if (child == 0) {
        execlp("true", "true", nullptr);
        _exit(1);
    }
    say("%d", status_of(child));
    say_echo(one.client, one.server);
}

CALLS_CASE(children_that_close) {
    const Pair one = pair();
    pid_t child = fork_with_threads();
    if (child == 0) {
        close_all(one);
        _exit(0);
    }
    say("%d", status_of(child));
    say_echo(one.client, one.server);
    child = fork_with_threads();
    if (child == 0) {
        exit(4); // with all that is done at an exit
    }
    say("%d", status_of(child));
    say_echo(one.client, one.server);
    // NOLINTBEGIN(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork): what programs do
    child = vfork();
    if (child == 0) {
        close(one.client);
        dup2(one.server, one.listener);
        close(one.server);
        _exit(5);
    }
    // NOLINTEND(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork)
    say("%d", status_of(child));
    say_echo(one.client, one.server);
    pollfd quiet{one.listener, POLLIN, 0};
    SAY(poll(&quiet, 1, 0));
    const int again = connected_to(one.listener);
    SAY(poll(&quiet, 1, 10000));
    close(again);
}

// Handshakes are the library's threads' work, and need descriptors; the program's are not disturbed.
CALLS_CASE(lowest_numbers_while_connections_come) {
    const int on = listener();
    MUST(listen(on, 64) == 0);
    const pid_t child = fork_with_threads();
    if (child == 0) {
        for (int i = 0; i < 40; ++i) {
            (void)connected_to(on);
        }
        _exit(0);
    }
    const int lowest = dup(0);
    int status = 0;
    int wrong = 0;
    for (int fd = lowest; waitpid(child, &status, WNOHANG) == 0; fd = dup(0)) {
        wrong += fd == lowest ? 0 : 1;
        close(fd);
    }
    say("%d %d", status, wrong);
}

CALLS_CASE(a_child_makes_sockets_of_its_own) {
    const Pair one = pair();
    const pid_t child = fork_with_threads();
    if (child == 0) {
        const Pair own = pair();
        say_echo(own.client, own.server);
        _exit(0);
    }
    say("%d", status_of(child));
    say_echo(one.client, one.server);
}

namespace {

// Connects as soon as there is someone, for ten seconds at most.
int connect_in_time(sockaddr_in to) {
    for (int i = 0; i < 1000; ++i) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, generic(to), sizeof(to)) == 0) {
            return fd;
        }
        close(fd);
        usleep(10000);
    }
    return -1;
}

void serve_once(int listener) {
    const int fd = accept(listener, nullptr, nullptr);
    char text[8] = {};
    if (recv(fd, text, 5, MSG_WAITALL) == 5) {
        (void)!write(fd, text, 5);
    }
    close(fd);
}

void ask(sockaddr_in to) {
    const int fd = connect_in_time(to);
    MUST(fd >= 0);
    char text[8] = {};
    SAY(write(fd, "there", 5));
    SAY(recv(fd, text, 5, MSG_WAITALL));
    say("%s", text);
    SAY(read(fd, text, 1));
}

} // namespace

CALLS_CASE(a_daemon_serves) {
    int ends[2];
    MUST(pipe(ends) == 0);
    const pid_t child = fork_with_threads();
    if (child == 0) {
        const int on = listener();
        const sockaddr_in name = address_of(on);
        prepare_fork_with_threads();
        if (daemon(1, 1) == 0 && write(ends[1], &name, sizeof(name)) == sizeof(name)) {
            serve_once(on);
        }
        _exit(0);
    }
    sockaddr_in to{};
    MUST(read(ends[0], &to, sizeof(to)) == sizeof(to));
    say("%d", status_of(child));
    ask(to);
}

CALLS_CASE(a_child_serves_after_its_parent) {
    int ends[2];
    MUST(pipe(ends) == 0);
    const pid_t child = fork_with_threads();
    if (child == 0) {
        const int on = listener();
        const sockaddr_in name = address_of(on);
        if (fork_with_threads() != 0) {
            _exit(0);
        }
        (void)!write(ends[1], &name, sizeof(name));
        pollfd ready{on, POLLIN, 0};
        if (poll(&ready, 1, 10000) == 1) {
            serve_once(on);
        }
        _exit(0);
    }
    sockaddr_in to{};
    MUST(read(ends[0], &to, sizeof(to)) == sizeof(to));
    say("%d", status_of(child));
    ask(to);
}

// The kernel raises SIGXFSZ for what makes a file longer than that, a file in memory too. The child sleeps now and
// then.
CALLS_CASE(a_child_that_may_write_no_file) {
    constexpr int messages = 600;
    const int on = listener();
    const pid_t child = fork_with_threads();
    if (child == 0) {
        const rlimit none{0, 0};
        char byte = 0;
        if (setrlimit(RLIMIT_FSIZE, &none) != 0) {
            _exit(1);
        }
        const int server = accept(on, nullptr, nullptr);
        while (recv(server, &byte, 1, 0) == 1) {
            if (send(server, &byte, 1, 0) != 1) {
                _exit(2);
            }
        }
        sigset_t pending;
        sigpending(&pending);
        _exit(sigismember(&pending, SIGXFSZ));
    }
    const int client = connected_to(on);
    int answers = 0;
    for (int i = 0; i < messages; ++i) {
        char byte = 'x';
        if (send(client, &byte, 1, MSG_NOSIGNAL) != 1 || recv(client, &byte, 1, 0) != 1) {
            break;
        }
        ++answers;
        if (i % 20 == 0) {
            usleep(5000);
        }
    }
    say("%d", answers);
    close(client);
    say("%d", status_of(child));
    close(on);
}

CALLS_CASE(many_threads) {
    const int on = listener();
    constexpr int threads = 8;
    constexpr int rounds = 10;
    std::array<int, threads> good{};
    std::thread server([&] {
        for (int i = 0; i < threads * rounds; ++i) {
            serve_once(on);
        }
    });
    std::vector<std::thread> clients;
    clients.reserve(threads);
    for (int t = 0; t < threads; ++t) {
        clients.emplace_back([&, t] {
            for (int i = 0; i < rounds; ++i) {
                const int fd = connected_to(on);
                char text[8] = {};
                good[static_cast<size_t>(t)] +=
                    write(fd, "12345", 5) == 5 && recv(fd, text, 5, MSG_WAITALL) == 5 && strcmp(text, "12345") == 0;
                close(fd);
            }
        });
    }
    for (auto& client : clients) {
        client.join();
    }
    server.join();
    for (const int count : good) {
        say("%d", count);
    }
}

CALLS_CASE(another_namespace_of_the_linker) {
    void* other = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    MUST(other != nullptr);
    using Getpid = pid_t (*)();
    const auto get = reinterpret_cast<Getpid>(dlsym(other, "getpid"));
    SAY(get() == getpid());
    const Pair one = pair();
    say_echo(one.client, one.server);
}
