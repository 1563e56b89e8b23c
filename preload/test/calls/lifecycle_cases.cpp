// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What else may happen to a connection and its numbers: it is given up and made again, it becomes the standard output,
// its thread is cancelled; and calls that only the kernel can serve.
#include "preload/test/calls/calls.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

using namespace calls;

CALLS_CASE(a_socket_is_disconnected_and_connects_again) {
    const Pair one = pair();
    sockaddr_in to = address_of(one.listener);
    const int set = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = one.client;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, one.client, &event) == 0);
    const int copy = dup(one.client);
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    char byte = 0;
    SAY(write(one.server, "old", 3));
    SAY(connect(one.client, &nobody, sizeof(nobody)));
    SAY(recv(one.server, &byte, 1, 0));
    SAY(send(one.client, "x", 1, MSG_NOSIGNAL));
    SAY(recv(one.client, &byte, 1, MSG_DONTWAIT));
    SAY(connect(one.client, generic(to), sizeof(to)));
    const int again = accept(one.listener, nullptr, nullptr);
    MUST(again >= 0);
    say_echo(one.client, again);
    exchange(one.client, again); // which upgrades it
    say_echo(one.client, again);
    say_echo(copy, again);
    SAY(epoll_wait(set, &event, 1, 0));
    SAY(write(again, "new", 3));
    SAY(epoll_wait(set, &event, 1, 10000));
    SAY(event.data.fd == one.client);
    char text[8] = {};
    SAY(recv(copy, text, 3, MSG_WAITALL));
    say("%s", text);
    SAY(close(again));
    SAY(recv(one.client, &byte, 1, 0));
}

namespace {

// A client that signals what arrives; accepted is its other end.
Pair signalling_pair(int signal) {
    Pair made{};
    made.listener = listener();
    sockaddr_in to = address_of(made.listener);
    made.client = socket(AF_INET, SOCK_STREAM, 0);
    MUST(fcntl(made.client, F_SETOWN, getpid()) == 0 && (signal == 0 || fcntl(made.client, F_SETSIG, signal) == 0) &&
         fcntl(made.client, F_SETFL, O_ASYNC) == 0);
    MUST(connect(made.client, generic(to), sizeof(to)) == 0);
    made.server = accept(made.listener, nullptr, nullptr);
    exchange(made.client, made.server);
    return made;
}

void say_signalled(int signal) {
    sigset_t waited;
    sigemptyset(&waited);
    sigaddset(&waited, signal != 0 ? signal : SIGIO);
    MUST(pthread_sigmask(SIG_BLOCK, &waited, nullptr) == 0);
    const Pair one = signalling_pair(signal);
    const timespec none{};
    while (sigtimedwait(&waited, nullptr, &none) > 0) { // of the exchanges
    }
    const timespec patience{5, 0};
    SAY(write(one.server, "x", 1));
    SAY(sigtimedwait(&waited, nullptr, &patience) > 0);
    close_all(one);
}

} // namespace

CALLS_CASE(signals_asked_for_before_connect) { say_signalled(0); }
CALLS_CASE(signals_of_another_number_asked_for_before_connect) { say_signalled(SIGUSR1); }

CALLS_CASE(peeks_with_an_offset) {
    const Pair one = pair();
    const int from = 0;
    if (setsockopt(one.server, SOL_SOCKET, SO_PEEK_OFF, &from, sizeof(from)) != 0) {
        return; // before Linux 6.9
    }
    MUST(write(one.client, "abcd", 4) == 4);
    char text[8] = {};
    SAY(recv(one.server, text, 2, MSG_PEEK | MSG_WAITALL));
    SAY(recv(one.server, text + 2, 2, MSG_PEEK | MSG_WAITALL));
    say("%s", text);
    const int off = -1;
    SAY(setsockopt(one.server, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off)));
    SAY(recv(one.server, text, 4, MSG_WAITALL));
    say("%s", text);
    say_echo(one.client, one.server);
    close_all(one);
}

CALLS_CASE(sendfile_from_what_has_no_position) {
    const Pair one = pair();
    const Pair other = pair();
    int ends[2];
    MUST(pipe(ends) == 0);
    off_t offset = 0;
    SAY(sendfile(one.client, ends[0], nullptr, 5)); // which is empty, and blocks nobody
    MUST(write(ends[1], "hello", 5) == 5);
    SAY(sendfile(one.client, ends[0], nullptr, 5));
    SAY(sendfile(one.client, ends[0], nullptr, 0));
    SAY(sendfile(one.client, ends[0], &offset, 5));
    SAY(sendfile(one.client, other.server, nullptr, 5));
    SAY(sendfile(one.client, -1, nullptr, 5));
    char text[8] = {};
    SAY(read(ends[0], text, 5));
    SAY(recv(one.server, text, 5, MSG_DONTWAIT));
    say_echo(one.client, one.server);
    say_echo(other.client, other.server);
}

// libc writes to it by itself.
CALLS_CASE(a_connection_becomes_the_standard_output) {
    const Pair one = pair();
    char text[32] = {};
    const int saved = dup(STDOUT_FILENO);
    MUST(dup2(one.server, STDOUT_FILENO) == STDOUT_FILENO);
    const int printed = printf("printed ");
    const int flushed = fflush(stdout);
    MUST(dup2(saved, STDOUT_FILENO) == STDOUT_FILENO);
    say("%d %d", printed, flushed);
    SAY(recv(one.client, text, 8, MSG_WAITALL));
    say("%s", text);
    say_echo(one.client, one.server);
    close_all(one);
}

CALLS_CASE(a_connection_becomes_the_standard_input) {
    const Pair one = pair();
    MUST(write(one.client, "a line\n", 7) == 7);
    const int saved = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    MUST(dup(one.server) == STDIN_FILENO); // the lowest
    char text[32] = {};
    SAY(fgets(text, sizeof(text), stdin) == text);
    say("%s", text);
    MUST(saved < 0 || dup2(saved, STDIN_FILENO) == STDIN_FILENO);
    say_echo(one.client, one.server);
    close_all(one);
}

CALLS_CASE(a_child_of_system_writes_to_the_standard_output) {
    const Pair one = pair();
    char text[32] = {};
    const int saved = dup(STDOUT_FILENO);
    MUST(dup2(one.server, STDOUT_FILENO) == STDOUT_FILENO);
    const int status = system("echo of a child");
    MUST(dup2(saved, STDOUT_FILENO) == STDOUT_FILENO);
    say("%d", status);
    SAY(recv(one.client, text, 11, MSG_WAITALL));
    say("%s", text);
    say_echo(one.client, one.server);
    close_all(one);
}

namespace {

// close(2) is a cancellation point.
void* close_cancelled(void* fd) {
    int state = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    close(*static_cast<int*>(fd));
    return nullptr;
}

} // namespace

CALLS_CASE(a_thread_is_cancelled_before_it_closes) {
    Pair one = pair();
    pthread_t thread{};
    void* result = nullptr;
    MUST(pthread_create(&thread, nullptr, close_cancelled, &one.client) == 0);
    MUST(pthread_join(thread, &result) == 0);
    SAY(result == PTHREAD_CANCELED);
    say_echo(one.client, one.server);
    exchange(one.client, one.server);
    say_echo(one.client, one.server);
    close_all(one);
}

namespace {

volatile sig_atomic_t broken_pipes = 0;

// What a program that does not ignore SIGPIPE gets: it has to, at the latest with the error.
void say_end_of_sending(bool by_file, bool unread) {
    const Pair one = pair();
    broken_pipes = 0;
    signal(SIGPIPE, [](int) { broken_pipes = broken_pipes + 1; });
    const int file = memfd_create("file", MFD_CLOEXEC);
    MUST(ftruncate(file, 1 << 20) == 0);
    std::array<char, 64> some{};
    MUST(!unread || write(one.client, some.data(), some.size()) == static_cast<ssize_t>(some.size()));
    MUST(close(one.server) == 0);
    ssize_t n = 0;
    for (int i = 0; i < 10000 && n >= 0; ++i) {
        off_t at = 0;
        n = by_file ? sendfile(one.client, file, &at, some.size()) : send(one.client, some.data(), some.size(), 0);
        usleep(n >= 0 ? 100 : 0);
    }
    const int first = errno;
    MUST(n < 0);
    say("it ends by %s", strerrorname_np(first));
    say("as many signals as broken pipes: %d", broken_pipes == (first == EPIPE ? 1 : 0) ? 1 : 0);
    off_t at = 0;
    SAY(by_file ? sendfile(one.client, file, &at, some.size()) : send(one.client, some.data(), some.size(), 0));
    say("signals behind the first: %d", broken_pipes - (first == EPIPE ? 1 : 0));
    MUST(close(one.client) == 0 && close(one.listener) == 0 && close(file) == 0);
}

} // namespace

CALLS_CASE(a_send_to_a_peer_that_has_closed_raises_a_signal) {
    say_end_of_sending(false, false);
    say_end_of_sending(false, true);
}
CALLS_CASE(a_file_to_a_peer_that_has_closed_raises_a_signal) {
    say_end_of_sending(true, false);
    say_end_of_sending(true, true);
}

// Whether the library still has a part in the connection of the end that closes, or has left it to the kernel: the
// other end has lost what might have followed.
CALLS_CASE(a_reset_by_an_end_that_splices_is_an_error) {
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "hello", 5) == 5);
    SAY(splice(ends[0], nullptr, one.client, nullptr, 5, 0));
    char text[8] = {};
    SAY(recv(one.server, text, 5, MSG_WAITALL));
    const linger abort{1, 0};
    MUST(setsockopt(one.client, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort)) == 0);
    SAY(close(one.client));
    SAY(recv(one.server, text, sizeof(text), 0));
    SAY(recv(one.server, text, sizeof(text), 0));
    SAY(close(one.server));
    SAY(close(one.listener));
}
