// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// TCP_CORK and MSG_MORE: what several writes make together arrives together (tcp(7), send(2)).
#include "preload/test/calls/calls.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

using namespace calls;

namespace {

void set_option(int fd, int name, int value) { MUST(setsockopt(fd, IPPROTO_TCP, name, &value, sizeof(value)) == 0); }

// Not even a byte more.
ssize_t receive_now(int fd, char* to, size_t size) { return recv(fd, to, size, MSG_DONTWAIT); }

// What the peer has before and after the program lets go what it wrote. The kernel holds it back for 200 ms only: on a
// busy machine, the attempt begins anew.
template <class Write, class LetGo> void say_held(const char* what, const Write& write, const LetGo& let_go) {
    alarm(60);
    for (bool done = false; !done;) {
        const Pair one = pair();
        const auto begin = std::chrono::steady_clock::now();
        write(one.client);
        char text[64] = {};
        const ssize_t before = receive_now(one.server, text, sizeof(text));
        const int error = before < 0 ? errno : 0;
        done = std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(150);
        if (done) {
            say("%s: %zd %s", what, before, strerror(error));
            let_go(one.client);
            pollfd ready{one.server, POLLIN, 0};
            MUST(poll(&ready, 1, 10000) == 1);
            memset(text, 0, sizeof(text));
            const ssize_t n = receive_now(one.server, text, sizeof(text));
            say("%s: %zd %s", what, n, text);
        }
        close_all(one);
    }
}

void write_in_parts(int fd) {
    char text[] = "onetwothree";
    iovec parts[] = {{text, 3}, {text + 3, 3}};
    MUST(writev(fd, parts, 2) == 6);
    MUST(send(fd, text + 6, 5, 0) == 5);
}

} // namespace

CALLS_CASE(a_corked_socket_holds_back_what_it_writes) {
    const auto write = [](int fd) {
        set_option(fd, TCP_CORK, 1);
        write_in_parts(fd);
    };
    say_held("uncorked", write, [](int fd) { set_option(fd, TCP_CORK, 0); });
    say_held("not delayed", write, [](int fd) { set_option(fd, TCP_NODELAY, 1); });
    say_held("shut down", write, [](int fd) { MUST(shutdown(fd, SHUT_WR) == 0); });
    say_held("at last", write, [](int) {}); // after 200 ms
}

CALLS_CASE(a_corked_socket_holds_back_a_file) {
    FILE* file = tmpfile();
    MUST(file != nullptr && fputs("content", file) >= 0 && fflush(file) == 0);
    say_held(
        "sendfile",
        [&](int fd) {
            set_option(fd, TCP_CORK, 1);
            MUST(send(fd, "header ", 7, 0) == 7);
            off_t from = 0;
            MUST(sendfile(fd, fileno(file), &from, 7) == 7);
        },
        [](int fd) { set_option(fd, TCP_CORK, 0); });
    MUST(fclose(file) == 0);
}

CALLS_CASE(more_is_said_to_come) {
    const auto write = [](int fd) {
        MUST(send(fd, "one", 3, MSG_MORE) == 3);
        MUST(send(fd, "two", 3, MSG_MORE | MSG_DONTWAIT) == 3);
    };
    say_held("the last", write, [](int fd) { MUST(send(fd, "three", 5, 0) == 5); });
    say_held("uncorked", write, [](int fd) { set_option(fd, TCP_CORK, 0); });
    say_held("at last", write, [](int) {});
}

// What is held back stays in front of what follows, whichever way that goes.
CALLS_CASE(held_bytes_keep_their_place) {
    const Pair one = pair();
    alarm(60);
    set_option(one.client, TCP_CORK, 1);
    MUST(send(one.client, "one", 3, 0) == 3);
    const int yes = 1;
    MUST(setsockopt(one.client, SOL_SOCKET, SO_OOBINLINE, &yes, sizeof(yes)) == 0); // which only the kernel has
    MUST(send(one.client, "two", 3, 0) == 3);
    set_option(one.client, TCP_CORK, 0);
    char text[16] = {};
    SAY(recv(one.server, text, 6, MSG_WAITALL));
    say("%s", text);
    close_all(one);
}

CALLS_CASE(a_corked_socket_moves_much) {
    const Pair one = pair();
    alarm(60);
    constexpr size_t total = 3 << 20;
    set_option(one.client, TCP_CORK, 1);
    std::thread writer([&] {
        std::vector<char> content(5000);
        for (size_t done = 0; done < total;) {
            for (size_t i = 0; i < content.size(); ++i) {
                content[i] = static_cast<char>((done + i) % 251);
            }
            const size_t now = std::min(content.size(), total - done);
            const ssize_t n = send(one.client, content.data(), now, MSG_DONTWAIT);
            if (n < 0) {
                pollfd space{one.client, POLLOUT, 0};
                MUST(errno == EAGAIN && poll(&space, 1, 10000) == 1);
            }
            done += n > 0 ? static_cast<size_t>(n) : 0;
        }
        MUST(close(one.client) == 0);
    });
    std::vector<char> content(70000);
    size_t done = 0;
    size_t wrong = 0;
    for (ssize_t n = 0; (n = read(one.server, content.data(), content.size())) > 0;) {
        for (ssize_t i = 0; i < n; ++i) {
            wrong += content[static_cast<size_t>(i)] != static_cast<char>(done++ % 251) ? 1 : 0;
        }
    }
    writer.join();
    say("%zu of %zu, %zu wrong", done, total, wrong);
    close(one.server);
    close(one.listener);
}

// Whatever ends the process: the kernel sends what it has.
CALLS_CASE(what_a_child_holds_back_at_its_end_arrives) {
    for (const int how : {0, SIGKILL, SIGTERM, -1}) {
        const int on = listener();
        alarm(60);
        const pid_t child = fork();
        if (child == 0) {
            const int client = connected_to(on);
            char byte = 0;
            for (int left = 2000; left > 0 && may_be_upgraded(client); --left) {
                MUST(write(client, "x", 1) == 1 && read(client, &byte, 1) == 1);
                usleep(1000);
            }
            set_option(client, TCP_CORK, 1);
            MUST(send(client, "held", 4, 0) == 4 && send(client, " back", 5, 0) == 5);
            how > 0 ? void(raise(how)) : how == 0 ? exit(0) : _exit(0);
        }
        const int server = accept(on, nullptr, nullptr);
        char byte = 0;
        while (read(server, &byte, 1) == 1 && byte == 'x') {
            MUST(write(server, &byte, 1) == 1);
        }
        int status = 0;
        MUST(waitpid(child, &status, 0) == child);
        char text[16] = {};
        SAY(recv(server, text, sizeof(text), MSG_WAITALL));
        say("%c%s %d", byte, text, status);
        SAY(read(server, text, 1));
        close(server);
        close(on);
    }
}
