// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Every call that moves bytes.
#include "preload/test/calls/calls.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <aio.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

using namespace calls;

// What programs that were compiled with _FORTIFY_SOURCE call.
extern "C" {
ssize_t __read_chk(int fd, void* buffer, size_t size, size_t capacity);
ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t capacity, int flags);
ssize_t __recvfrom_chk(int fd, void* buffer, size_t size, size_t capacity, int flags, sockaddr* from,
                       socklen_t* length);
int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t capacity);
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask, size_t capacity);
int __dprintf_chk(int fd, int flag, const char* format, ...);
}

// A program that is told of each arrival once takes a short read for the end of what there is. nginx does.
CALLS_CASE(a_read_takes_all_that_is_there) {
    const Pair one = pair();
    std::vector<char> buffer(1 << 20);
    size_t sent = 0;
    size_t received = 0;
    int short_reads = 0;
    int short_looks = 0;
    const auto read_all = [&] {
        int there = 0;
        MUST(ioctl(one.server, FIONREAD, &there) == 0);
        // -1 if nothing has arrived yet
        const auto looked =
            std::max<ssize_t>(recv(one.server, buffer.data(), buffer.size(), MSG_PEEK | MSG_DONTWAIT), 0);
        const auto n = std::max<ssize_t>(recv(one.server, buffer.data(), buffer.size(), MSG_DONTWAIT), 0);
        short_looks += looked < there ? 1 : 0;
        short_reads += n < there ? 1 : 0;
        received += static_cast<size_t>(n);
    };
    unsigned size = 1;
    for (int round = 0; round < 400; ++round) {
        size = size * 1103515245 + 12345;
        const ssize_t n = send(one.client, buffer.data(), 1 + (size >> 8) % 50000, MSG_DONTWAIT);
        sent += n > 0 ? static_cast<size_t>(n) : 0;
        if ((size >> 24) % 3 != 0) { // else some rounds come together
            read_all();
        }
    }
    while (received < sent) {
        pollfd more{one.server, POLLIN, 0};
        MUST(poll(&more, 1, 10000) == 1);
        read_all();
    }
    say("%d reads and %d looks were short", short_reads, short_looks);
}

// A program that decides by the beginning of a message, and leaves it in the socket, asks until all of that is there.
CALLS_CASE(a_peek_sees_all_that_has_come) {
    constexpr size_t count = 100;
    const int on = listener();
    const int client = connected_to(on);
    const int server = accept(on, nullptr, nullptr);
    alarm(60);
    char text[count + 1] = {};
    ssize_t seen = 0;
    for (size_t i = 0; i < count; ++i) { // after some of these it is upgraded
        const char byte = static_cast<char>('0' + i % 64);
        MUST(write(client, &byte, 1) == 1);
        pollfd ready{server, POLLIN, 0};
        MUST(poll(&ready, 1, 10000) == 1);
        seen = recv(server, text, count, MSG_PEEK | (i % 2 == 0 ? MSG_DONTWAIT : 0));
        usleep(2000);
    }
    for (int left = 1000; seen < static_cast<ssize_t>(count) && left > 0; --left) {
        usleep(1000);
        seen = recv(server, text, count, MSG_PEEK);
    }
    say("%zd %s", seen, text);
    SAY(recv(server, nullptr, count, MSG_PEEK | MSG_TRUNC));
    SAY(recv(server, text, count, MSG_WAITALL));
    say("%s", text);
    close(client);
    close(server);
    close(on);
}

CALLS_CASE(plain_calls) {
    const Pair one = pair();
    char buffer[64] = {};
    iovec parts[] = {{buffer, 3}, {buffer + 3, 3}};
    SAY(send(one.client, "abc", 3, MSG_MORE));
    SAY(sendto(one.client, "def", 3, 0, nullptr, 0));
    SAY(recv(one.server, buffer, 6, MSG_PEEK | MSG_WAITALL));
    SAY(readv(one.server, parts, 2));
    say("%.6s", buffer);
    SAY(writev(one.server, parts, 2));
    SAY(recvfrom(one.client, buffer, 6, MSG_WAITALL, nullptr, nullptr));
    SAY(recv(one.client, buffer, 1, MSG_DONTWAIT));
    SAY(shutdown(one.client, SHUT_WR));
    SAY(read(one.server, buffer, 1));
    say_poll("after its end", one.server, POLLIN | POLLRDHUP | POLLOUT);
    close_all(one);
}

// The reader is late.
CALLS_CASE(what_a_closed_end_has_sent_arrives) {
    const Pair one = pair();
    std::vector<char> content(5000, 'x');
    alarm(60);
    MUST(send(one.client, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
    MUST(shutdown(one.client, SHUT_WR) == 0 && close(one.client) == 0);
    usleep(200000);
    SAY(recv(one.server, content.data(), 1000, MSG_WAITALL));
    usleep(200000);
    SAY(recv(one.server, content.data(), content.size(), MSG_WAITALL));
    SAY(recv(one.server, content.data(), 1, 0));
    close(one.server);
    close(one.listener);
}

CALLS_CASE(several_messages) {
    const Pair one = pair();
    char out[] = "onetwothree";
    iovec parts[] = {{out, 3}, {out + 3, 3}, {out + 6, 5}};
    mmsghdr messages[3] = {};
    for (int i = 0; i < 3; ++i) {
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    SAY(sendmmsg(one.client, messages, 3, 0));
    say("%u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
    char in[16] = {};
    MUST(recv(one.server, in, 11, MSG_PEEK | MSG_WAITALL) == 11);
    iovec buffers[] = {{in, 3}, {in + 3, 3}, {in + 6, 5}};
    for (int i = 0; i < 3; ++i) {
        messages[i].msg_hdr.msg_iov = &buffers[i];
    }
    SAY(recvmmsg(one.server, messages, 3, MSG_WAITFORONE, nullptr));
    say("%s", in);
    SAY(recvmmsg(one.server, messages, 3, MSG_DONTWAIT, nullptr));
    timespec bad{0, -1};
    SAY(recvmmsg(one.server, messages, 3, 0, &bad));
    MUST(shutdown(one.client, SHUT_WR) == 0);
    say_poll("the end", one.server, POLLRDHUP);
    SAY(recvmmsg(one.server, messages, 3, 0, nullptr)); // TCP has no messages: as many of no bytes
    say("%u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
}

CALLS_CASE(reads_and_writes_with_flags) {
    const Pair one = pair();
    char out[] = "with an offset";
    char in[32] = {};
    iovec from{out, sizeof(out)};
    iovec to{in, sizeof(in)};
    SAY(pwritev2(one.client, &from, 1, -1, 0) == sizeof(out));
    MUST(recv(one.server, in, sizeof(out), MSG_PEEK | MSG_WAITALL) == sizeof(out));
    SAY(preadv2(one.server, &to, 1, -1, 0) == sizeof(out));
    say("%s", in);
    SAY(preadv2(one.server, &to, 1, -1, RWF_NOWAIT));
    SAY(preadv2(one.server, &to, 1, 0, 0));
    SAY(pwritev2(one.client, &from, 1, 5, 0));
}

CALLS_CASE(checked_calls) {
    const Pair one = pair();
    char buffer[16] = {};
    MUST(write(one.client, "0123456789", 10) == 10);
    MUST(recv(one.server, buffer, 10, MSG_PEEK | MSG_WAITALL) == 10);
    SAY(__read_chk(one.server, buffer, 3, sizeof(buffer)));
    SAY(__recv_chk(one.server, buffer, 3, sizeof(buffer), 0));
    SAY(__recvfrom_chk(one.server, buffer, 3, sizeof(buffer), 0, nullptr, nullptr));
    pollfd fds[] = {{one.server, POLLIN, 0}, {one.client, POLLIN | POLLOUT, 0}};
    SAY(__poll_chk(fds, 2, 0, sizeof(fds)));
    const timespec no_time{};
    SAY(__ppoll_chk(fds, 2, &no_time, nullptr, sizeof(fds)));
    say("%#x %#x", static_cast<unsigned>(fds[0].revents), static_cast<unsigned>(fds[1].revents));
    SAY(__dprintf_chk(one.server, 1, "%d and %s", 12, "more"));
    char answer[12] = {};
    SAY(recv(one.client, answer, 11, MSG_WAITALL));
    say("%s", answer);
}

CALLS_CASE(stdio_on_a_socket) {
    const Pair one = pair();
    FILE* client = fdopen(one.client, "r+");
    FILE* server = fdopen(dup(one.server), "w");
    MUST(client != nullptr && server != nullptr);
    SAY(fileno(client) == one.client);
    SAY(fprintf(client, "a line and %d\n", 42));
    SAY(fflush(client));
    char buffer[64] = {};
    SAY(recv(one.server, buffer, 14, MSG_WAITALL));
    say("%s", buffer);
    SAY(fputs("first\nsecond\n", server) >= 0);
    SAY(fclose(server));
    MUST(fgets(buffer, sizeof(buffer), client) != nullptr);
    say("%s", buffer);
    char* line = nullptr;
    size_t capacity = 0;
    SAY(getline(&line, &capacity, client));
    say("%s", line);
    free(line);
    SAY(dprintf(one.server, "%s\n", "by dprintf"));
    SAY(shutdown(one.server, SHUT_WR));
    MUST(fgets(buffer, sizeof(buffer), client) != nullptr);
    say("%s", buffer);
    SAY(fgets(buffer, sizeof(buffer), client) == nullptr && feof(client) != 0);
    SAY(fclose(client));
    SAY(read(one.server, buffer, 1));
    SAY(fdopen(one.server, "q") == nullptr && errno == EINVAL);
}

CALLS_CASE(lists_of_asynchronous_operations) {
    const Pair one = pair();
    char out[] = "some bytes";
    char in[16] = {};
    aiocb operation{};
    operation.aio_fildes = one.client;
    operation.aio_buf = out;
    operation.aio_nbytes = sizeof(out);
    operation.aio_lio_opcode = LIO_WRITE;
    aiocb nothing{};
    nothing.aio_fildes = -1;
    nothing.aio_lio_opcode = LIO_NOP;
    aiocb* list[] = {nullptr, &nothing, &operation};
    alarm(60);
    SAY(lio_listio(LIO_WAIT, list, 3, nullptr));
    SAY(aio_return(&operation));
    SAY(recv(one.server, in, sizeof(out), MSG_WAITALL));
    say("%s", in);
    const Pair other = pair();
    MUST(send(other.client, "others", 7, 0) == 7);
    operation.aio_fildes = other.server;
    operation.aio_buf = in;
    operation.aio_nbytes = 7;
    operation.aio_lio_opcode = LIO_READ;
    SAY(lio_listio(LIO_WAIT, list, 3, nullptr));
    SAY(aio_return(&operation));
    say("%s", in);
    say_echo(other.client, other.server);
    close_all(other);
    say_echo(one.client, one.server);
    close_all(one);
}

CALLS_CASE(files_and_pipes) {
    const Pair one = pair();
    FILE* file = tmpfile();
    std::vector<char> content(60000); // a ring that is not read holds 72 KiB
    for (size_t i = 0; i < content.size(); ++i) {
        content[i] = static_cast<char>(i * 7 + i / 256);
    }
    MUST(fwrite(content.data(), 1, content.size(), file) == content.size() && fflush(file) == 0);
    off_t at = 0;
    while (at < static_cast<off_t>(content.size())) {
        MUST(sendfile(one.client, fileno(file), &at, content.size() - static_cast<size_t>(at)) > 0);
    }
    std::vector<char> got(content.size());
    SAY(recv(one.server, got.data(), got.size(), MSG_WAITALL));
    SAY(got == content);
    SAY(sendfile(fileno(file), one.client, nullptr, 1));

    int ends[2];
    MUST(pipe(ends) == 0);
    MUST(write(one.client, "into the pipe", 13) == 13);
    char text[32] = {};
    MUST(recv(one.server, text, 13, MSG_PEEK | MSG_WAITALL) == 13);
    SAY(splice(one.server, nullptr, ends[1], nullptr, 100, 0));
    SAY(splice(ends[0], nullptr, one.server, nullptr, 4, 0));
    memset(text, 0, sizeof(text));
    SAY(recv(one.client, text, 4, MSG_WAITALL));
    say("%s", text);
    SAY(read(ends[0], text, sizeof(text)));
    say("%s", text);
    MUST(fcntl(one.server, F_SETFL, O_NONBLOCK) == 0);
    SAY(splice(one.server, nullptr, ends[1], nullptr, 100, SPLICE_F_NONBLOCK));
    SAY(splice(ends[0], nullptr, one.server, nullptr, 100, SPLICE_F_NONBLOCK));
    SAY(tee(one.server, ends[1], 10, 0));
    SAY(splice(one.server, nullptr, one.client, nullptr, 10, 0));
    shutdown(one.client, SHUT_WR);
    say_poll("its end", one.server, POLLIN);
    SAY(splice(one.server, nullptr, ends[1], nullptr, 100, 0));
    close(ends[1]);
    SAY(splice(ends[0], nullptr, one.server, nullptr, 100, 0));
    fclose(file);
}

CALLS_CASE(large_amounts) {
    const Pair one = pair();
    constexpr size_t total = 20000000;
    const pid_t self = getpid();
    std::vector<char> block(65536);
    int flags = fcntl(one.client, F_GETFL);
    MUST(fcntl(one.client, F_SETFL, flags | O_NONBLOCK) == 0);
    size_t sent = 0;
    size_t received = 0;
    bool same = true;
    std::vector<char> in(65536);
    while (received < total) {
        while (sent < total) {
            for (size_t i = 0; i < block.size(); ++i) {
                block[i] = static_cast<char>((sent + i) * 31 / 7);
            }
            const ssize_t n =
                write(one.client, block.data(), block.size() < total - sent ? block.size() : total - sent);
            if (n < 0) {
                MUST(errno == EAGAIN);
                break;
            }
            sent += static_cast<size_t>(n);
        }
        const ssize_t n = read(one.server, in.data(), in.size());
        MUST(n > 0);
        for (ssize_t i = 0; i < n; ++i) {
            same =
                same && in[static_cast<size_t>(i)] == static_cast<char>((received + static_cast<size_t>(i)) * 31 / 7);
        }
        received += static_cast<size_t>(n);
    }
    SAY(same);
    SAY(self == getpid());
}

namespace {

constexpr size_t before_reading = 1000000; // the kernel takes more of a connection that nobody reads
constexpr int rounds = 8;

// Sends all of it, then receives as much.
bool send_then_receive(int fd, bool waits_by_poll) {
    std::vector<char> block(before_reading);
    for (size_t i = 0; i < block.size(); ++i) {
        block[i] = static_cast<char>(i * 31 / 7);
    }
    for (size_t sent = 0; sent < block.size();) {
        const ssize_t n = send(fd, block.data() + sent, block.size() - sent, waits_by_poll ? MSG_DONTWAIT : 0);
        if (n < 0) {
            MUST(errno == EAGAIN);
            pollfd one{fd, POLLOUT, 0};
            MUST(poll(&one, 1, 20000) == 1);
        } else {
            sent += static_cast<size_t>(n);
        }
    }
    std::vector<char> got(block.size());
    MUST(recv(fd, got.data(), got.size(), MSG_WAITALL) == static_cast<ssize_t>(got.size()));
    return got == block;
}

void both_send_then_receive(bool wait_by_poll) {
    const Pair one = pair();
    alarm(60);
    bool same = true;
    for (int i = 0; i < rounds; ++i) {
        std::thread other([&] { same = send_then_receive(one.server, wait_by_poll) && same; });
        const bool own = send_then_receive(one.client, wait_by_poll);
        other.join();
        same = same && own;
    }
    SAY(same);
    say_echo(one.client, one.server);
}

} // namespace

// As programs do that exchange what they have with their neighbours, one step after another.
CALLS_CASE(both_ends_send_before_they_receive) { both_send_then_receive(false); }
CALLS_CASE(both_ends_poll_to_send_before_they_receive) { both_send_then_receive(true); }

// Children do not have their parent's service.
CALLS_CASE(two_children_send_before_they_receive) {
    const Pair one = pair();
    for (const int own : {one.client, one.server}) {
        if (fork() == 0) {
            alarm(60);
            close(own == one.client ? one.server : one.client);
            bool same = true;
            for (int i = 0; i < rounds; ++i) {
                same = send_then_receive(own, false) && same;
            }
            _exit(same ? 0 : 1);
        }
    }
    close(one.client);
    close(one.server);
    for (int i = 0; i < 2; ++i) {
        int status = 0;
        MUST(wait(&status) > 0);
        SAY(status);
    }
}

// What serves a connection in the background may look at it seldom then.
CALLS_CASE(a_connection_goes_on_that_was_idle) {
    constexpr useconds_t idle_us = 100000;
    constexpr int times = 5;
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    for (int i = 0; i < times; ++i) {
        usleep(idle_us);
        say_echo(one.client, one.server);
        usleep(idle_us);
        say_echo(one.server, one.client);
    }
    usleep(idle_us);
    MUST(shutdown(one.client, SHUT_WR) == 0);
    say_poll("end", one.server, POLLIN | POLLRDHUP);
    close_all(one);
}

// Programs that write some kilobytes to a connection on which nothing is unread expect them to be taken.
CALLS_CASE(a_write_that_does_not_wait_is_taken_whole) {
    for (const size_t size : {8192U, 8193U, 20000U, 65536U, 72000U}) {
        const Pair one = pair();
        std::vector<char> block(size);
        SAY(send(one.client, block.data(), block.size(), MSG_DONTWAIT));
        MUST(recv(one.server, block.data(), block.size(), MSG_WAITALL) == static_cast<ssize_t>(block.size()));
        close_all(one);
    }
}

// epoll(7): a program may take a write of less than it has as the sign that there is no space, and wait.
CALLS_CASE(a_short_write_is_followed_by_an_edge) {
    constexpr size_t total = size_t{16} << 20;
    const Pair one = pair();
    exchange(one.client, one.server);
    alarm(60);
    const int set = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLOUT | EPOLLET;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, one.client, &event) == 0);
    std::thread reader([&] {
        std::vector<char> got(total);
        SAY(recv(one.server, got.data(), got.size(), MSG_WAITALL));
    });
    const std::vector<char> block(size_t{1} << 20);
    for (size_t sent = 0; sent < total;) {
        const size_t count = std::min(block.size(), total - sent);
        const ssize_t n = send(one.client, block.data(), count, MSG_DONTWAIT);
        sent += n > 0 ? static_cast<size_t>(n) : 0;
        if (n < static_cast<ssize_t>(count)) {
            MUST(epoll_wait(set, &event, 1, 20000) == 1);
        }
    }
    reader.join();
    close(set);
    close_all(one);
}

// One end sends all of it before the other reads, by one process and epoll.
CALLS_CASE(a_set_hears_of_space_though_nobody_reads) {
    for (const uint32_t edge : {0U, static_cast<uint32_t>(EPOLLET)}) {
        const Pair one = pair();
        alarm(60);
        const int set = epoll_create1(0);
        epoll_event event{};
        event.events = EPOLLOUT | edge;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, one.client, &event) == 0);
        const std::vector<char> block(before_reading);
        for (size_t sent = 0; sent < block.size();) {
            const ssize_t n = send(one.client, block.data() + sent, block.size() - sent, MSG_DONTWAIT);
            if (n < 0) {
                MUST(epoll_wait(set, &event, 1, 20000) == 1);
            } else {
                sent += static_cast<size_t>(n);
            }
        }
        std::vector<char> got(block.size());
        SAY(recv(one.server, got.data(), got.size(), MSG_WAITALL));
        close(set);
    }
}

namespace {
volatile int number_for_handler = -1;
void write_in_handler(int) { (void)!write(number_for_handler, "signal", 6); }
} // namespace

CALLS_CASE(a_call_in_a_signal_handler) {
    const Pair one = pair();
    number_for_handler = one.server;
    struct sigaction action {};
    action.sa_handler = write_in_handler;
    action.sa_flags = SA_RESTART;
    MUST(sigaction(SIGUSR1, &action, nullptr) == 0);
    raise(SIGUSR1);
    char text[8] = {};
    SAY(recv(one.client, text, 6, MSG_WAITALL));
    say("%s", text);
}

namespace {

// A pair that has exchanged nothing, of which that end has the smaller port.
Pair new_pair(bool server_first) {
    for (;;) {
        Pair made{};
        made.listener = listener();
        made.client = connected_to(made.listener);
        made.server = accept(made.listener, nullptr, nullptr);
        MUST(made.server >= 0);
        if ((ntohs(address_of(made.server).sin_port) < ntohs(address_of(made.client).sin_port)) == server_first) {
            return made;
        }
        close_all(made);
    }
}

} // namespace

// The ends agree by their addresses which of them goes first. Neither does both, send and receive.
CALLS_CASE(bytes_of_one_direction_move_whichever_end_goes_first) {
    constexpr int most_bytes = 8000; // a millisecond each at least
    for (const bool server_first : {false, true}) {
        for (const bool server_sends : {false, true}) {
            const Pair p = new_pair(server_first);
            const int from = server_sends ? p.server : p.client;
            const int to = server_sends ? p.client : p.server;
            int left = most_bytes;
            for (; left == most_bytes || (left > 0 && (may_still_move(from) || may_still_move(to))); --left) {
                char byte = 'x';
                MUST(write(from, &byte, 1) == 1 && recv(to, &byte, 1, 0) == 1);
                usleep(1000);
            }
            say("%s", left > 0 ? "moved" : "the bytes stay with TCP");
            close_all(p);
        }
    }
}
