// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Bytes: send and receive in all their forms. message_cases.cpp has segments and messages.
#include "rsockets/test/conformance/conformance.hpp"

#include <algorithm>
#include <cstring>

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace conformance;

namespace {

void fill_pattern(std::vector<char>& data, uint32_t seed) {
    uint32_t state = seed * 2654435761U + 1;
    for (char& byte : data) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        byte = static_cast<char>(state);
    }
}

// Sends a large pattern from one end while the other receives it in pieces of that size.
void move_pattern(Case& c, int from, int to, size_t total, size_t out_piece, size_t in_piece) {
    std::vector<char> sent(total);
    fill_pattern(sent, 7);
    c.run([&c, from, sent, out_piece] {
        for (size_t at = 0; at < sent.size();) {
            const ssize_t n = c.s.send(from, sent.data() + at, std::min(out_piece, sent.size() - at), 0);
            if (n <= 0) {
                return;
            }
            at += static_cast<size_t>(n);
        }
        c.s.shutdown(from, SHUT_WR);
    });
    std::vector<char> got(total);
    size_t at = 0;
    for (ssize_t n = 1; n > 0 && at < total; at += static_cast<size_t>(std::max<ssize_t>(n, 0))) {
        n = c.s.recv(to, got.data() + at, std::min(in_piece, total - at), 0);
    }
    c.note(std::to_string(at) + " bytes, " + (got == sent ? "the same" : "not the same"));
    SAY(c.s.recv(to, c.buffer, 1, 0));
    c.join();
}

} // namespace

CASE(send_and_recv) {
    const Pair pair = c.make_pair();
    SAY(c.s.send(pair.client, "hello", 5, 0));
    c.note_bytes("there", SAY(c.s.recv(pair.server, c.buffer, 5, MSG_WAITALL)));
    SAY(c.s.send(pair.server, "world!", 6, 0));
    c.note_bytes("back", SAY(c.s.recv(pair.client, c.buffer, 6, MSG_WAITALL)));
}

CASE(write_and_read) {
    const Pair pair = c.make_pair();
    SAY(c.s.write(pair.client, "hello", 5));
    c.await(pair.server, POLLIN);
    c.note_bytes("there", SAY(c.s.read(pair.server, c.buffer, 100)));
}

CASE(recv_gives_what_there_is) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "abc");
    c.await(pair.server, POLLIN);
    c.note_bytes("less", SAY(c.s.recv(pair.server, c.buffer, 100, 0)));
}

CASE(recv_leaves_what_there_is_no_room_for) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "abcdef");
    c.note_bytes("two", SAY(c.s.recv(pair.server, c.buffer, 2, 0)));
    c.note_bytes("four", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL)));
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_DONTWAIT));
}

CASE(recv_without_data_does_not_wait_if_told_so) {
    const Pair pair = c.make_pair();
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_DONTWAIT));
    SAY(c.s.fcntl(pair.server, F_SETFL, O_NONBLOCK));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    SAY(c.s.read(pair.server, c.buffer, 1));
}

CASE(nothing_can_be_sent_and_read) {
    const Pair pair = c.make_pair();
    SAY(c.s.send(pair.client, c.buffer, 0, 0));
    SAY(c.s.write(pair.client, c.buffer, 0));
    SAY(c.s.read(pair.server, c.buffer, 0));
    SAY(c.s.recv(pair.server, c.buffer, 0, MSG_DONTWAIT));
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    SAY(c.s.read(pair.server, c.buffer, 0));
    SAY(c.s.recv(pair.server, c.buffer, 0, 0));
    SAY(c.s.recv(pair.server, c.buffer, 5, 0));
}

CASE(peek_leaves_the_bytes) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "peek");
    c.await(pair.server, POLLIN);
    c.note_bytes("once", SAY(c.s.recv(pair.server, c.buffer, 2, MSG_PEEK)));
    c.note_bytes("twice", SAY(c.s.recv(pair.server, c.buffer, 100, MSG_PEEK)));
    c.note_bytes("taken", SAY(c.s.recv(pair.server, c.buffer, 100, 0)));
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_PEEK | MSG_DONTWAIT));
}

CASE(peek_waits_for_all) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "ab");
    c.run([&] { c.send_all(pair.client, "cd"); });
    c.note_bytes("all", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_PEEK | MSG_WAITALL)));
    c.note_bytes("still", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL)));
    c.join();
}

CASE(peek_at_the_end_gives_it_again_and_again) {
    const Pair pair = c.make_pair();
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_PEEK));
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_PEEK));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(waitall_waits_for_all) {
    const Pair pair = c.make_pair();
    c.run([&] {
        for (const char* text : {"one ", "two ", "three"}) {
            c.send_all(pair.client, text);
        }
    });
    c.note_bytes("all", SAY(c.s.recv(pair.server, c.buffer, 13, MSG_WAITALL)));
    c.join();
}

CASE(waitall_gives_less_at_the_end) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "short");
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    c.note_bytes("less", SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL)));
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL));
}

CASE(waitall_does_not_wait_where_nothing_does) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "some");
    c.await(pair.server, POLLIN);
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL | MSG_DONTWAIT));
}

CASE(waitall_gives_less_after_so_rcvtimeo) {
    const Pair pair = c.make_pair();
    const timeval time{0, 50000};
    SAY(c.s.setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    c.send_all(pair.client, "some");
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL));
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_WAITALL));
}

CASE(trunc_drops_bytes) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "dropkeep");
    c.await(pair.server, POLLIN);
    SAY(c.s.recv(pair.server, nullptr, 4, MSG_TRUNC));
    c.note_bytes("left", SAY(c.s.recv(pair.server, c.buffer, 100, 0)));
}

CASE(peek_and_trunc_count_only) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "abcdef");
    c.await(pair.server, POLLIN);
    strcpy(c.buffer, "as it was");
    SAY(c.s.recv(pair.server, c.buffer, 4, MSG_PEEK | MSG_TRUNC));
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_PEEK | MSG_TRUNC));
    SAY(c.s.recv(pair.server, nullptr, 100, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT));
    c.note_bytes("buffer", 9);
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 100, 0)));
    SAY(c.s.recv(pair.server, c.buffer, 100, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT));
}

CASE(trunc_and_waitall_wait_for_all_that_is_dropped) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "ab");
    c.await(pair.server, POLLIN);
    c.run([&] { c.send_all(pair.client, "cdef"); });
    SAY(c.s.recv(pair.server, nullptr, 4, MSG_TRUNC | MSG_WAITALL));
    c.note_bytes("left", SAY(c.s.recv(pair.server, c.buffer, 2, MSG_WAITALL)));
    c.join();
}

CASE(recv_of_urgent_data_without_any) {
    const Pair pair = c.make_pair();
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_OOB));
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_OOB | MSG_DONTWAIT));
}

CASE(recv_of_the_error_queue) {
    const Pair pair = c.make_pair();
    SAY(c.s.recv(pair.server, c.buffer, 1, MSG_ERRQUEUE));
}

CASE(unknown_flags_are_ignored) {
    const Pair pair = c.make_pair();
    SAY(c.s.send(pair.client, "ok", 2, MSG_CONFIRM | MSG_DONTROUTE | MSG_EOR));
    SAY(c.s.recv(pair.server, c.buffer, 2, MSG_WAITALL));
}

CASE(null_pointers_are_bad_addresses) {
    const Pair pair = c.make_pair();
    SAY(c.s.send(pair.client, nullptr, 1, 0));
    SAY(c.s.writev(pair.client, nullptr, 1));
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    SAY(c.s.recv(pair.server, nullptr, 1, 0));
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(a_large_message_arrives_whole) {
    const Pair pair = c.make_pair();
    move_pattern(c, pair.client, pair.server, 3000001, 3000001, 4096);
}

CASE(many_small_messages_arrive_whole) {
    const Pair pair = c.make_pair();
    move_pattern(c, pair.server, pair.client, 100003, 17, 65536);
}

CASE(messages_of_odd_sizes_arrive_whole) {
    const Pair pair = c.make_pair();
    move_pattern(c, pair.client, pair.server, 2000003, 65521, 32749);
}

CASE(a_blocking_send_takes_all) {
    const Pair pair = c.make_pair();
    std::vector<char> data(5000000);
    fill_pattern(data, 3);
    c.run([&] { c.drain(pair.server, data.size()); });
    SAY(c.s.send(pair.client, data.data(), data.size(), 0));
    c.join();
}

CASE(a_full_socket_takes_nothing_and_then_again) {
    const Pair pair = c.make_pair();
    size_t total = c.fill(pair.client);
    SAY(c.send_that_waits(pair.client, MSG_DONTWAIT, &total));
    c.note_poll("full", pair.client, POLLOUT);
    c.run([&] { c.drain(pair.server, total); });
    c.note_events("space", static_cast<unsigned short>(c.await(pair.client, POLLOUT)));
    c.join();
    SAY(c.s.send(pair.client, "x", 1, MSG_DONTWAIT));
}

CASE(send_gives_up_after_so_sndtimeo) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    const timeval time{0, 50000};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
    SAY(c.send_that_waits(pair.client, 0));
}

CASE(recv_gives_up_after_so_rcvtimeo) {
    const Pair pair = c.make_pair();
    const timeval time{0, 50000};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
    SAY(c.s.read(pair.client, c.buffer, 1));
}

CASE(what_is_sent_with_more_arrives) {
    const Pair pair = c.make_pair();
    SAY(c.s.send(pair.client, "mo", 2, MSG_MORE));
    SAY(c.s.send(pair.client, "re", 2, 0));
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL)));
}

CASE(what_is_sent_with_more_alone_arrives_too) {
    const Pair pair = c.make_pair();
    SAY(c.s.send(pair.client, "more", 4, MSG_MORE));
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL)));
}

CASE(a_corked_socket_sends_when_the_cork_is_out) {
    const Pair pair = c.make_pair();
    c.set(pair.client, IPPROTO_TCP, TCP_CORK, 1);
    SAY(c.s.send(pair.client, "corked", 6, 0));
    c.set(pair.client, IPPROTO_TCP, TCP_CORK, 0);
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 6, MSG_WAITALL)));
}

// The kernel's recv itself may wait for ever with a low-water mark, since it counts from what it has copied: poll
// first.
CASE(low_water_holds_poll_back) {
    const Pair pair = c.make_pair();
    c.set(pair.server, SOL_SOCKET, SO_RCVLOWAT, 4);
    c.send_all(pair.client, "ab");
    pollfd one{pair.server, POLLIN, 0};
    SAY(c.s.poll(&one, 1, 50));
    c.run([&] { c.send_all(pair.client, "cd"); });
    c.await(pair.server, POLLIN);
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 100, 0)));
    c.join();
    c.send_all(pair.client, "e");
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    c.await(pair.server, POLLIN);
    c.note_bytes("at the end", SAY(c.s.recv(pair.server, c.buffer, 100, 0)));
}

CASE(fionread_tells_how_much_there_is) {
    const Pair pair = c.make_pair();
    int there = -1;
    SAY(c.s.ioctl(pair.server, FIONREAD, &there));
    c.note(std::to_string(there));
    c.send_all(pair.client, "12345");
    c.await(pair.server, POLLIN);
    SAY(c.s.ioctl(pair.server, FIONREAD, &there));
    c.note(std::to_string(there));
    SAY(c.s.recv(pair.server, c.buffer, 2, 0));
    SAY(c.s.ioctl(pair.server, FIONREAD, &there));
    c.note(std::to_string(there));
    SAY(c.s.ioctl(c.make_listener(), FIONREAD, &there));
    SAY(c.s.ioctl(c.make_socket(), FIONREAD, &there));
}

CASE(siocoutq_is_zero_once_all_is_received) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "12345");
    c.drain(pair.server, 5);
    c.send_all(pair.server, "x"); // brings the news that the other has arrived
    c.drain(pair.client, 1);
    int left = -1;
    SAY(c.s.ioctl(pair.client, SIOCOUTQ, &left));
    c.note(std::to_string(left));
}

CASE(an_unknown_ioctl) {
    int value = 0;
    SAY(c.s.ioctl(c.make_socket(), TIOCGPGRP, &value));
}

CASE(sendfile_sends_a_file) {
    const Pair pair = c.make_pair();
    const int file = memfd_create("file", MFD_CLOEXEC);
    (void)!::write(file, "0123456789", 10);
    off_t offset = 3;
    SAY(c.s.sendfile(pair.client, file, &offset, 4));
    c.note(std::to_string(offset) + " " + std::to_string(lseek(file, 0, SEEK_CUR)));
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL)));
    lseek(file, 8, SEEK_SET);
    SAY(c.s.sendfile(pair.client, file, nullptr, 100));
    c.note(std::to_string(lseek(file, 0, SEEK_CUR)));
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 2, MSG_WAITALL)));
    SAY(c.s.sendfile(pair.client, file, nullptr, 100));
    ::close(file);
    SAY(c.s.sendfile(pair.client, file, nullptr, 100));
}

CASE(sendfile_of_more_than_fits) {
    const Pair pair = c.make_pair();
    const int file = memfd_create("file", MFD_CLOEXEC);
    std::vector<char> data(3000000);
    fill_pattern(data, 9);
    (void)!::write(file, data.data(), data.size());
    off_t offset = 0;
    std::vector<char> got(data.size());
    c.run([&] { c.s.recv(pair.server, got.data(), got.size(), MSG_WAITALL); });
    SAY(c.s.sendfile(pair.client, file, &offset, data.size()));
    c.join();
    c.note(got == data ? "the same" : "not the same");
    ::close(file);
}

CASE(sendfile_on_a_full_socket) {
    const Pair pair = c.make_pair();
    const int file = memfd_create("file", MFD_CLOEXEC);
    (void)!::write(file, "0123456789", 10);
    lseek(file, 2, SEEK_SET);
    const size_t total = c.fill(pair.client);
    SAY(c.s.send(pair.client, "x", 0, 0));
    SAY(c.s.fcntl(pair.client, F_SETFL, O_NONBLOCK));
    off_t offset = 3;
    SAY(c.s.sendfile(pair.client, file, &offset, 4));
    SAY(c.s.sendfile(pair.client, file, nullptr, 4));
    c.note(std::to_string(offset) + " " + std::to_string(lseek(file, 0, SEEK_CUR)));
    c.drain(pair.server, total);
    c.await(pair.client, POLLOUT);
    SAY(c.s.sendfile(pair.client, file, &offset, 4));
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL)));
    ::close(file);
}

CASE(sendfile_gives_up_after_so_sndtimeo) {
    const Pair pair = c.make_pair();
    const int file = memfd_create("file", MFD_CLOEXEC);
    (void)!::write(file, "0123456789", 10);
    c.fill(pair.client);
    const timeval time{0, 50000};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
    off_t offset = 3;
    SAY(c.s.sendfile(pair.client, file, &offset, 4));
    c.note(std::to_string(offset));
    ::close(file);
}

CASE(both_directions_at_once) {
    const Pair pair = c.make_pair();
    std::vector<char> data(2000000);
    fill_pattern(data, 5);
    std::vector<char> got_client(data.size());
    std::vector<char> got_server(data.size());
    c.run([&] { c.s.send(pair.client, data.data(), data.size(), 0); });
    c.run([&] { c.s.send(pair.server, data.data(), data.size(), 0); });
    c.run([&] { c.s.recv(pair.client, got_client.data(), data.size(), MSG_WAITALL); });
    SAY(c.s.recv(pair.server, got_server.data(), data.size(), MSG_WAITALL));
    c.join();
    c.note(got_client == data && got_server == data ? "the same" : "not the same");
}

CASE(one_thread_fills_and_drains_its_own_connection) {
    const Pair pair = c.make_pair();
    for (int round = 0; round < 3; ++round) {
        c.drain(pair.server, c.fill(pair.client));
        c.drain(pair.client, c.fill(pair.server));
    }
    c.note("done");
}

// A null pointer is found last, when there are bytes to copy.
CASE(null_pointers_come_after_what_the_socket_says) {
    const Pair pair = c.make_pair();
    SAY(c.s.recv(pair.server, nullptr, 1, MSG_DONTWAIT));
    SAY(c.s.recv(c.make_socket(), nullptr, 1, 0));
    SAY(c.s.send(c.make_socket(), nullptr, 1, MSG_NOSIGNAL));
    c.send_all(pair.client, "ab");
    c.await(pair.server, POLLIN);
    SAY(c.s.recv(pair.server, nullptr, 1, 0));
    SAY(c.s.recv(pair.server, nullptr, 1, MSG_WAITALL));
    iovec parts[] = {{nullptr, 1}, {c.buffer, 1}};
    SAY(c.s.readv(pair.server, parts, 2));
    SAY(c.s.recv(pair.server, c.buffer, 2, 0));
    SAY(c.s.send(pair.client, nullptr, 1, 0));
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    SAY(c.s.send(pair.client, nullptr, 1, MSG_NOSIGNAL));
    SAY(c.s.recv(pair.server, nullptr, 1, 0));
}

CASE(recv_of_no_bytes_returns_none_after_so_rcvtimeo) {
    const Pair pair = c.make_pair();
    const timeval time{0, 20000};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    SAY(c.s.recv(pair.client, c.buffer, 0, MSG_DONTWAIT));
    SAY(c.s.recv(pair.client, c.buffer, 0, 0));
    SAY(c.s.recv(pair.client, c.buffer, 0, MSG_WAITALL));
}

CASE(a_listener_has_no_urgent_data) { SAY(c.s.recv(c.make_listener(), c.buffer, 1, MSG_OOB)); }
