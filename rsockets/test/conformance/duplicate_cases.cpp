// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Several descriptors of one socket: dup, dup2, F_DUPFD.
#include "rsockets/test/conformance/conformance.hpp"

using namespace conformance;

#ifndef __SANITIZE_THREAD__ // which takes the close of a number in use for a race
CASE(a_closed_number_still_serves_who_waits_on_it) {
    const Pair pair = c.make_pair();
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.forget(pair.server);
        c.s.close(pair.server);
        c.send_all(pair.client, "late");
    });
    c.note_bytes("got", SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL)));
    c.join();
    SAY(c.s.recv(pair.client, c.buffer, 1, 0)); // and now it is closed
}
#endif

CASE(a_duplicate_is_the_same_socket) {
    const Pair pair = c.make_pair();
    const int other = MAKE(c.s.dup(pair.server));
    c.send_all(pair.client, "abcd");
    SAY(c.s.recv(pair.server, c.buffer, 2, MSG_WAITALL));
    SAY(c.s.recv(other, c.buffer, 2, MSG_WAITALL));
    SAY(c.s.fcntl(other, F_SETFL, O_NONBLOCK));
    SAY(c.s.fcntl(pair.server, F_GETFL));
    SAY(c.s.fcntl(other, F_SETFD, FD_CLOEXEC));
    SAY(c.s.fcntl(pair.server, F_GETFD));
}

CASE(a_connection_ends_with_its_last_number) {
    const Pair pair = c.make_pair();
    const int other = MAKE(c.s.dup(pair.server));
    c.forget(pair.server);
    SAY(c.s.close(pair.server));
    c.send_all(other, "still");
    c.note_bytes("got", SAY(c.s.recv(pair.client, c.buffer, 5, MSG_WAITALL)));
    c.forget(other);
    SAY(c.s.close(other));
    SAY(c.s.recv(pair.client, c.buffer, 1, 0));
}

CASE(f_dupfd_takes_a_number_from_there_on) {
    const int fd = c.make_socket();
    const int other = SAY(c.s.fcntl(fd, F_DUPFD, 500));
    SAY(c.s.fcntl(other, F_GETFD));
    const int third = SAY(c.s.fcntl(fd, F_DUPFD_CLOEXEC, 500));
    SAY(c.s.fcntl(third, F_GETFD));
    SAY(c.s.fcntl(fd, F_DUPFD, -1));
    c.track(other);
    c.track(third);
}

CASE(dup2_onto_another_socket_closes_it) {
    const Pair pair = c.make_pair();
    const Pair other = c.make_pair();
    c.note(c.s.dup2(pair.server, other.server) == other.server ? "that number" : "another");
    SAY(c.s.recv(other.client, c.buffer, 1, 0)); // its peer is gone
    c.send_all(pair.client, "x");
    SAY(c.s.recv(other.server, c.buffer, 1, 0));
}

CASE(dup2_onto_itself_and_onto_nonsense) {
    const int fd = c.make_socket();
    c.note(c.s.dup2(fd, fd) == fd ? "the same" : "another");
    SAY(c.s.dup2(fd, -1));
    SAY(c.s.dup2(-1, fd));
    SAY(c.s.fcntl(fd, F_GETFD));
}

CASE(dup2_onto_a_file) {
    const Pair pair = c.make_pair();
    const int file = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    c.note(c.s.dup2(pair.server, file) == file ? "that number" : "another");
    c.track(file);
    c.send_all(pair.client, "x");
    SAY(c.s.recv(file, c.buffer, 1, 0));
}
