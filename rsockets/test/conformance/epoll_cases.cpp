// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// epoll: repoll_create, repoll_ctl, repoll_wait. epoll_edge_cases.cpp has EPOLLET.
#include "rsockets/test/conformance/conformance.hpp"
#include "rsockets/test/conformance/set.hpp"

#include <atomic>

#include <sys/eventfd.h>
#include <unistd.h>

using namespace conformance;

CASE(epoll_create_with_flags) {
    MAKE(c.s.epoll_create(0));
    const int fd = MAKE(c.s.epoll_create(EPOLL_CLOEXEC));
    SAY(c.s.fcntl(fd, F_GETFD));
    MAKE(c.s.epoll_create(1));
}

CASE(epoll_of_an_idle_connection) {
    const Pair pair = c.make_pair();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1));
    set.note("nothing");
    SAY(set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLOUT, 2));
    set.note("space");
}

CASE(epoll_tells_of_data_as_long_as_there_is_some) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 7);
    c.send_all(pair.client, "xy");
    set.note("first", in_time);
    set.note("second");
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    set.note("one is left");
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    set.note("none is left", a_moment);
    c.send_all(pair.client, "z");
    set.note("another", in_time);
}

CASE(epoll_add_twice) {
    const int fd = c.make_socket();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, fd, EPOLLIN));
    SAY(set.control(EPOLL_CTL_ADD, fd, EPOLLIN));
}

CASE(epoll_of_what_is_not_in_the_set) {
    const int fd = c.make_socket();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_MOD, fd, EPOLLIN));
    SAY(set.control(EPOLL_CTL_DEL, fd, 0));
    SAY(set.control(EPOLL_CTL_ADD, fd, EPOLLIN));
    SAY(set.control(EPOLL_CTL_DEL, fd, 0));
    SAY(set.control(EPOLL_CTL_DEL, fd, 0));
}

CASE(epoll_del_needs_no_event) {
    const int fd = c.make_socket();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, fd, EPOLLIN);
    SAY(c.s.epoll_ctl(set.fd, EPOLL_CTL_DEL, fd, nullptr));
    SAY(c.s.epoll_ctl(set.fd, EPOLL_CTL_ADD, fd, nullptr));
}

CASE(epoll_of_bad_numbers) {
    const int fd = c.make_socket();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, -1, EPOLLIN));
    SAY(set.control(EPOLL_CTL_ADD, set.fd, EPOLLIN));
    SAY(set.control(9, fd, EPOLLIN));
    epoll_event event{};
    SAY(c.s.epoll_ctl(fd, EPOLL_CTL_ADD, set.fd, &event));
    SAY(c.s.epoll_ctl(-1, EPOLL_CTL_ADD, fd, &event));
    SAY(c.s.epoll_wait(fd, &event, 1, 0));
    SAY(c.s.epoll_wait(-1, &event, 1, 0));
    SAY(c.s.epoll_wait(set.fd, &event, 0, 0));
    SAY(c.s.epoll_wait(set.fd, &event, -1, 0));
}

CASE(epoll_of_a_fresh_socket_and_a_listener) {
    const Set set(c);
    set.control(EPOLL_CTL_ADD, c.make_socket(), EPOLLIN | EPOLLOUT, 1);
    set.control(EPOLL_CTL_ADD, c.make_listener(), EPOLLIN | EPOLLOUT, 2);
    set.note("now");
}

CASE(epoll_oneshot_is_told_once) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLONESHOT, 1);
    c.send_all(pair.client, "x");
    set.note("shot", in_time);
    set.note("disarmed", a_moment);
    c.send_all(pair.client, "y");
    set.note("still", a_moment);
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLONESHOT, 2));
    SAY(set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLONESHOT, 3));
    set.note("armed", in_time);
    set.note("disarmed", a_moment);
}

CASE(epoll_oneshot_disarms_hup_too) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT | EPOLLONESHOT, 1);
    set.note("shot");
    c.forget(pair.client);
    c.s.close(pair.client);
    c.s.shutdown(pair.server, SHUT_WR);
    c.await(pair.server, POLLHUP);
    set.note("nothing", a_moment);
}

CASE(epoll_exclusive) {
    const Pair pair = c.make_pair();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLEXCLUSIVE, 1));
    SAY(set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN, 1));
    SAY(set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLEXCLUSIVE, 1));
    SAY(set.control(EPOLL_CTL_ADD, pair.client, EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE, 1));
    SAY(set.control(EPOLL_CTL_ADD, pair.client, EPOLLIN | EPOLLRDHUP | EPOLLEXCLUSIVE, 1));
    c.send_all(pair.client, "x");
    set.note("data", in_time);
}

CASE(epoll_tells_of_the_peers_end) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLRDHUP, 1);
    SAY(c.s.shutdown(pair.client, SHUT_WR));
    set.note("half", in_time);
    SAY(c.s.shutdown(pair.server, SHUT_WR));
    set.note("whole", in_time);
}

CASE(epoll_tells_of_a_reset_without_being_asked) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, 0, 1);
    const linger now{1, 0};
    c.s.setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    c.forget(pair.client);
    c.s.close(pair.client);
    set.note("reset", in_time);
}

CASE(a_closed_socket_leaves_the_set) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLOUT, 1);
    set.note("there");
    c.forget(pair.server);
    c.s.close(pair.server);
    set.note("gone", a_moment);
    SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
}

CASE(a_number_that_is_used_again_is_another_socket) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLOUT, 1);
    const int fd = c.s.dup2(c.make_socket(), pair.server);
    c.note(fd == pair.server ? "the same number" : "another number");
    set.note("nothing", a_moment);
    SAY(set.control(EPOLL_CTL_MOD, fd, EPOLLIN, 2));
    SAY(set.control(EPOLL_CTL_ADD, fd, EPOLLIN, 3));
    set.note("the new one");
}

CASE(a_duplicate_keeps_the_socket_in_the_set) {
    const Pair pair = c.make_pair();
    const Set set(c);
    const int other = c.track(c.s.dup(pair.server));
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT, 1);
    c.forget(pair.server);
    c.s.close(pair.server);
    set.note("still there");
    SAY(set.control(EPOLL_CTL_ADD, other, EPOLLOUT, 2));
    set.note("twice");
}

// Programs register one descriptor for reading and a duplicate for writing.
CASE(epoll_tells_each_of_two_descriptors_of_a_socket) {
    const Pair pair = c.make_pair();
    const Set set(c);
    const int other = c.track(c.s.dup(pair.server));
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT | EPOLLET, 1);
    set.control(EPOLL_CTL_ADD, other, EPOLLIN, 2);
    set.note("space");
    set.note("no more");
    c.send_all(pair.client, "x");
    set.note("bytes", in_time);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN, 1);
    set.note("nothing");
    SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
    c.send_all(pair.client, "y");
    set.note("the duplicate is left", in_time);
    SAY(c.s.recv(other, c.buffer, 1, 0));
}

// Programs that remove and add a member for each request.
CASE(epoll_member_that_is_removed_and_added_again_and_again) {
    const Pair pair = c.make_pair();
    const Set set(c);
    for (uint64_t round = 1; round <= 12; ++round) {
        SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, round));
        c.send_all(pair.client, "xy");
        set.note("bytes", in_time);
        SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
        set.note("removed");
        SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
        SAY(set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN, round));
        SAY(c.s.recv(pair.server, c.buffer, 2, 0));
        SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT, round));
        SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT, round));
        set.note("space", in_time);
        SAY(set.control(EPOLL_CTL_MOD, pair.server, EPOLLIN, round + 100));
        set.note("no bytes");
        SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
        c.send_all(pair.client, "z");
        set.note("bytes for nobody", a_moment);
        SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET, round + 200));
        set.note("the byte before", in_time);
        set.note("once");
        SAY(c.s.recv(pair.server, c.buffer, 2, 0));
        SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
    }
}

CASE(epoll_member_that_was_removed_tells_nobody) {
    const Pair pair = c.make_pair();
    const Set set(c);
    const Set outer(c);
    const int other = c.track(c.s.dup(pair.server));
    SAY(outer.control(EPOLL_CTL_ADD, set.fd, EPOLLIN, 1));
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 2));
    c.send_all(pair.client, "x");
    outer.note("the set has something", in_time);
    set.note("a byte", in_time);
    SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
    c.send_all(pair.client, "y");
    outer.note("the set has nothing", a_moment);
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 3));
    SAY(set.control(EPOLL_CTL_DEL, pair.server, 0));
    c.forget(pair.server);
    c.s.close(pair.server); // its duplicate keeps the connection
    c.send_all(pair.client, "z");
    set.note("removed before its number was closed", a_moment);
    SAY(c.s.recv(other, c.buffer, 3, MSG_WAITALL));
    SAY(set.control(EPOLL_CTL_ADD, other, EPOLLIN, 4));
    c.send_all(pair.client, "w");
    set.note("the duplicate", in_time);
}

CASE(epoll_of_a_mix) {
    const Pair pair = c.make_pair();
    const Set set(c);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        throw Failure("pipe");
    }
    const int event = eventfd(1, EFD_CLOEXEC);
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1));
    SAY(set.control(EPOLL_CTL_ADD, ends[0], EPOLLIN, 2));
    SAY(set.control(EPOLL_CTL_ADD, event, EPOLLIN, 3));
    SAY(set.control(EPOLL_CTL_ADD, event, EPOLLIN, 3));
    set.note("the eventfd");
    (void)!::write(ends[1], "x", 1);
    set.note("and the pipe", in_time);
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    set.note("and the socket", in_time);
    ::close(ends[1]);
    char byte = 0;
    (void)!::read(ends[0], &byte, 1);
    SAY(set.control(EPOLL_CTL_DEL, event, 0));
    set.note("the pipe's end", in_time);
    ::close(ends[0]);
    set.note("the socket alone");
    ::close(event);
}

CASE(epoll_of_a_file) {
    const Set set(c);
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    SAY(set.control(EPOLL_CTL_ADD, file, EPOLLIN, 1));
    ::close(file);
}

CASE(epoll_gives_no_more_than_there_is_room_for) {
    const Pair a = c.make_pair();
    const Pair b = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, a.client, EPOLLOUT, 1);
    set.control(EPOLL_CTL_ADD, b.client, EPOLLOUT, 2);
    set.note("one", 0, 1);
    set.note("the other", 0, 1);
    set.note("both", 0, 2);
}

CASE(epoll_with_room_for_one_gives_each_its_turn) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        throw Failure("pipe");
    }
    const Pair pair = c.make_pair();
    const Set set(c);
    SAY(set.control(EPOLL_CTL_ADD, ends[0], EPOLLIN, 1));
    SAY(set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 2));
    (void)!::write(ends[1], "x", 1);
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    int seen[3]{};
    for (int i = 0; i < 10; ++i) {
        epoll_event event{};
        if (c.s.epoll_wait(set.fd, &event, 1, in_time) == 1 && event.data.u64 < 3) {
            ++seen[event.data.u64];
        }
    }
    c.note(std::string(seen[1] != 0 ? "the pipe " : "") + (seen[2] != 0 ? "the socket" : ""));
    c.note(std::to_string(seen[1] + seen[2]));
    ::close(ends[0]);
    ::close(ends[1]);
}

CASE(epoll_with_room_for_two_gives_each_its_turn) {
    const Set set(c);
    std::vector<Pair> pairs;
    for (uint64_t i = 0; i < 5; ++i) {
        pairs.push_back(c.make_pair());
        set.control(EPOLL_CTL_ADD, pairs.back().client, EPOLLOUT, i);
    }
    int seen[5]{};
    for (int i = 0; i < 10; ++i) {
        epoll_event events[2]{};
        const int count = c.s.epoll_wait(set.fd, events, 2, 0);
        for (int k = 0; k < count; ++k) {
            ++seen[events[k].data.u64];
        }
    }
    c.note(std::to_string(std::count(std::begin(seen), std::end(seen), 0)) + " were never seen");
}

CASE(epoll_does_not_tell_of_what_another_thread_took_out) {
    const Pair out = c.make_pair();
    const Pair in = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, out.server, EPOLLIN, 1);
    set.control(EPOLL_CTL_ADD, in.server, EPOLLIN, 2);
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        set.control(EPOLL_CTL_DEL, out.server, 0);
        c.send_all(out.client, "x");
        c.await(out.server, POLLIN);
        c.send_all(in.client, "x");
    });
    set.note("the other", in_time);
    c.join();
    set.note("still", a_moment);
}

CASE(epoll_waits_for_a_change_by_another_thread) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1);
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        set.control(EPOLL_CTL_MOD, pair.server, EPOLLOUT, 2);
    });
    set.note("changed", in_time);
    c.join();
}

CASE(epoll_waits_for_an_addition_by_another_thread) {
    const Pair pair = c.make_pair();
    const Set set(c);
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        set.control(EPOLL_CTL_ADD, pair.server, EPOLLOUT, 1);
    });
    set.note("added", in_time);
    c.join();
}

CASE(epoll_waits_for_data) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1);
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.send_all(pair.client, "x");
    });
    set.note("data", in_time);
    c.join();
}

CASE(epoll_waits_for_a_connect) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const Set set(c);
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    c.s.connect(fd, generic(to), length_of(to));
    set.control(EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET, 1);
    set.note("connected", in_time);
    c.accept_from(listener);
}

CASE(epoll_waits_for_a_refusal) {
    const sockaddr_in to = loopback(closed_port());
    const Set set(c);
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    c.s.connect(fd, generic(to), sizeof(to));
    set.control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT, 1);
    set.note("refused", in_time);
}

CASE(two_threads_wait_on_one_set) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLONESHOT, 1);
    std::atomic<int> told{0};
    for (int i = 0; i < 2; ++i) {
        c.run([&] {
            epoll_event event;
            if (c.s.epoll_wait(set.fd, &event, 1, 300) == 1) {
                ++told;
            }
        });
    }
    c.send_all(pair.client, "x");
    c.join();
    c.note(std::to_string(told.load()) + " of them was told");
}

CASE(poll_of_a_set) {
    const Pair pair = c.make_pair();
    const Set set(c);
    c.note_poll("empty", set.fd, POLLIN | POLLOUT);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN, 1);
    c.note_poll("idle", set.fd, POLLIN | POLLOUT);
    c.run([&] { c.send_all(pair.client, "x"); });
    c.note_events("data", static_cast<unsigned short>(c.await(set.fd, POLLIN)));
    c.join();
    set.note("and it is there");
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    c.note_poll("read", set.fd, POLLIN);
}

CASE(shutdown_reaches_who_waits_on_a_set) {
    const Pair pair = c.make_pair();
    const Set set(c);
    set.control(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLRDHUP, 1);
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.s.shutdown(pair.server, SHUT_RDWR);
    });
    set.note("shut", in_time);
    c.join();
}
