// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Bytes in segments and messages: readv, writev, recvmsg, sendmsg, and the names of recvfrom and sendto.
#include "rsockets/test/conformance/conformance.hpp"

#include <csignal>
#include <cstring>

using namespace conformance;

CASE(segments_are_gathered_and_scattered) {
    const Pair pair = c.make_pair();
    char a[] = "abc";
    char b[] = "defgh";
    const iovec out[] = {{a, 3}, {nullptr, 0}, {b, 5}};
    SAY(c.s.writev(pair.client, out, 3));
    c.await(pair.server, POLLIN);
    char first[2];
    char second[100]{};
    const iovec in[] = {{first, 2}, {nullptr, 0}, {second, 99}};
    SAY(c.s.readv(pair.server, in, 3));
    c.note(std::string(first, 2) + " " + second);
}

CASE(no_segments_at_all) {
    const Pair pair = c.make_pair();
    const iovec none{};
    SAY(c.s.writev(pair.client, &none, 0));
    SAY(c.s.readv(pair.client, &none, 0));
}

CASE(no_segments_at_no_address) {
    const Pair pair = c.make_pair();
    const timeval time{0, 200000}; // where it would wait
    SAY(c.s.setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    SAY(c.s.writev(pair.client, nullptr, 0));
    SAY(c.s.readv(pair.server, nullptr, 0));
    msghdr message{};
    SAY(c.s.sendmsg(pair.client, &message, 0));
    SAY(c.s.recvmsg(pair.server, &message, MSG_DONTWAIT));
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    SAY(c.s.readv(pair.server, nullptr, 0));
    SAY(c.s.recvmsg(pair.server, &message, 0));
    c.note(std::to_string(message.msg_flags));
    message.msg_iovlen = 1;
    SAY(c.s.sendmsg(pair.client, &message, 0));
    SAY(c.s.recvmsg(pair.server, &message, 0));
    SAY(c.s.sendmsg(pair.client, nullptr, 0));
    SAY(c.s.recvmsg(pair.server, nullptr, 0));
    SAY(c.s.recv(pair.server, c.buffer, 100, 0)); // all of it is still there
}

CASE(no_segments_of_a_fresh_socket) {
    const int fd = c.make_socket();
    const auto before = signal(SIGPIPE, SIG_IGN);
    SAY(c.s.writev(fd, nullptr, 0));
    SAY(c.s.readv(fd, nullptr, 0));
    msghdr message{};
    SAY(c.s.sendmsg(fd, &message, MSG_NOSIGNAL));
    SAY(c.s.recvmsg(fd, &message, 0));
    signal(SIGPIPE, before);
}

CASE(as_many_segments_as_there_may_be_and_more) {
    const Pair pair = c.make_pair();
    char byte = 'x';
    const std::vector<iovec> many(1025, iovec{&byte, 1});
    SAY(c.s.writev(pair.client, many.data(), 1024));
    SAY(c.s.writev(pair.client, many.data(), 1025));
    SAY(c.s.writev(pair.client, many.data(), -1));
    c.drain(pair.server, 1024);
    SAY(c.s.readv(pair.server, many.data(), 1025));
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(many.data());
    message.msg_iovlen = 1025;
    SAY(c.s.sendmsg(pair.client, &message, 0));
    SAY(c.s.recvmsg(pair.server, &message, MSG_DONTWAIT));
}

CASE(sendmsg_and_recvmsg) {
    const Pair pair = c.make_pair();
    char text[] = "message";
    iovec iov{text, 7};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    SAY(c.s.sendmsg(pair.client, &message, 0));
    c.await(pair.server, POLLIN);
    sockaddr_storage from{};
    char control[64];
    iov = {c.buffer, 100};
    message.msg_name = &from;
    message.msg_namelen = sizeof(from);
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    message.msg_flags = -1;
    c.note_bytes("got", SAY(c.s.recvmsg(pair.server, &message, 0)));
    c.note(std::to_string(message.msg_namelen) + " " + std::to_string(message.msg_controllen) + " " +
           std::to_string(message.msg_flags));
}

CASE(recvmsg_with_trunc_says_nothing_of_it) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "dropkeep");
    c.await(pair.server, POLLIN);
    strcpy(c.buffer, "as it was");
    iovec iov{c.buffer, 4};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_flags = -1;
    SAY(c.s.recvmsg(pair.server, &message, MSG_TRUNC | MSG_PEEK));
    c.note(std::to_string(message.msg_flags));
    SAY(c.s.recvmsg(pair.server, &message, MSG_TRUNC));
    c.note(std::to_string(message.msg_flags));
    c.note_bytes("buffer", 9);
    SAY(c.s.recvmsg(pair.server, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC));
    c.note(std::to_string(message.msg_flags));
    c.note_bytes("buffer", 9);
}

CASE(recvmsg_gives_no_name) {
    const Pair pair = c.make_pair();
    sockaddr_storage from{};
    iovec iov{c.buffer, 100};
    for (const bool named : {false, true}) {
        for (const socklen_t length : {77U, 0U, static_cast<socklen_t>(sizeof(from)), 0x80000000U}) {
            c.send_all(pair.client, "x");
            c.await(pair.server, POLLIN);
            msghdr message{};
            message.msg_name = named ? &from : nullptr;
            message.msg_namelen = length;
            message.msg_iov = &iov;
            message.msg_iovlen = 1;
            const long long got = SAY(c.s.recvmsg(pair.server, &message, 0));
            c.note(std::to_string(message.msg_namelen) + " " + std::to_string(message.msg_flags));
            if (got < 0) {
                c.drain(pair.server, 1);
            }
        }
    }
    c.note(std::to_string(from.ss_family));
}

CASE(recvfrom_gives_no_name) {
    const Pair pair = c.make_pair();
    for (int i = 0; i < 3; ++i) {
        c.send_all(pair.client, "x");
    }
    c.await(pair.server, POLLIN);
    socklen_t length = 77;
    SAY(c.s.recvfrom(pair.server, c.buffer, 1, 0, nullptr, &length));
    c.note(std::to_string(length));
    sockaddr_storage from{};
    length = static_cast<socklen_t>(-1);
    SAY(c.s.recvfrom(pair.server, c.buffer, 1, 0, generic(from), &length));
    c.note(std::to_string(length));
    c.await(pair.server, POLLIN);
    SAY(c.s.recvfrom(pair.server, c.buffer, 1, MSG_DONTWAIT, generic(from), nullptr));
}

CASE(sendmsg_with_a_bad_name) {
    const Pair pair = c.make_pair();
    char to[500]{};
    char text[] = "x";
    iovec iov{text, 1};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_name = to;
    for (const socklen_t length : {128U, 500U, 0x80000000U}) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) // which look at all of the name
        if (length > sizeof(to)) {
            continue;
        }
#endif
        message.msg_namelen = length;
        SAY(c.s.sendmsg(pair.client, &message, 0));
    }
    message.msg_name = nullptr;
    message.msg_namelen = 77;
    SAY(c.s.sendmsg(pair.client, &message, 0));
}

CASE(sendto_ignores_the_address) {
    const Pair pair = c.make_pair();
    const sockaddr_in elsewhere = loopback(1);
    SAY(c.s.sendto(pair.client, "to", 2, 0, generic(elsewhere), sizeof(elsewhere)));
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    SAY(c.s.recvfrom(pair.server, c.buffer, 2, MSG_WAITALL, generic(from), &length));
    c.note(std::to_string(length));
}

CASE(sendto_on_a_fresh_socket) {
    const sockaddr_in elsewhere = loopback(closed_port());
    SAY(c.s.sendto(c.make_socket(), "to", 2, MSG_NOSIGNAL, generic(elsewhere), sizeof(elsewhere)));
}

// Their lengths add up to 0, but not in numbers that have an end.
CASE(segments_whose_lengths_wrap_around_are_not_empty) {
    const Pair pair = c.make_pair();
    iovec parts[] = {{c.buffer, SIZE_MAX}, {c.buffer, 1}};
    SAY(c.s.writev(pair.client, parts, 2));
    SAY(c.s.readv(pair.server, parts, 2));
}
