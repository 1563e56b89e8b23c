// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Several threads use one socket: what ends the wait of a call, and how long it waits in all.
#include "rsockets/test/conformance/conformance.hpp"

#include <atomic>
#include <cstring>
#include <vector>

#include <unistd.h>

using namespace conformance;

// The other end moves on all the time, each time sooner than the limit.
CASE(a_time_limit_is_for_all_waits_of_recv_together) {
    constexpr int all = 250;
    constexpr useconds_t pause_us = 20000;
    const Pair pair = c.make_pair();
    const timeval time{0, 150000};
    SAY(c.s.setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    std::atomic<bool> over{false};
    c.run([&] {
        for (int i = 0; i < all && !over; ++i) {
            c.send_all(pair.client, "x");
            usleep(pause_us);
        }
    });
    const ssize_t n = c.s.recv(pair.server, c.buffer, all, MSG_WAITALL);
    over = true;
    c.join();
    c.note(n < 0 ? "nothing" : n < all ? "a part" : "all");
}

CASE(a_time_limit_is_for_all_waits_of_send_together) {
    constexpr size_t all = 32000000;
    constexpr useconds_t pause_us = 20000;
    const Pair pair = c.make_pair();
    const timeval time{0, 150000};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
    const std::vector<char> data(all);
    std::atomic<bool> over{false};
    c.run([&] {
        std::vector<char> got(size_t{256} << 10);
        for (ssize_t n = 1; n > 0 && !over; usleep(pause_us)) {
            n = c.s.recv(pair.server, got.data(), got.size(), 0);
        }
    });
    const ssize_t n = c.s.send(pair.client, data.data(), data.size(), 0);
    over = true;
    c.s.shutdown(pair.client, SHUT_WR);
    c.join();
    c.note(n < 0 ? "nothing" : n < static_cast<ssize_t>(all) ? "a part" : "all");
}

CASE(shutdown_wakes_up_who_receives) {
    const Pair pair = c.make_pair();
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.s.shutdown(pair.server, SHUT_RD);
    });
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    c.join();
}

CASE(shutdown_wakes_up_who_sends) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.s.shutdown(pair.client, SHUT_WR);
    });
    SAY(c.send_that_waits(pair.client, MSG_NOSIGNAL));
    c.join();
}

CASE(shutdown_wakes_up_who_accepts) {
    const int listener = c.make_listener();
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.s.shutdown(listener, SHUT_RD);
    });
    SAY(c.s.accept(listener, nullptr, nullptr));
    c.join();
}

CASE(two_threads_receive_from_one_socket) {
    const Pair pair = c.make_pair();
    std::atomic<int> total{0};
    for (int i = 0; i < 2; ++i) {
        c.run([&] {
            char byte = 0;
            while (c.s.recv(pair.server, &byte, 1, 0) == 1) {
                ++total;
            }
        });
    }
    for (int i = 0; i < 200; ++i) {
        c.send_all(pair.client, "x");
    }
    c.s.shutdown(pair.client, SHUT_WR);
    c.join();
    c.note(std::to_string(total));
}

CASE(one_thread_waits_to_read_while_another_writes) {
    const Pair pair = c.make_pair();
    c.run([&] { c.drain(pair.client, 5); });
    const size_t total = 4000000;
    c.run([&] {
        std::vector<char> data(total);
        c.s.send(pair.client, data.data(), data.size(), 0);
    });
    c.drain(pair.server, total);
    c.send_all(pair.server, "12345");
    c.join();
    c.note("done");
}

CASE(one_thread_waits_to_write_while_another_reads) {
    const Pair pair = c.make_pair();
    const size_t filled = c.fill(pair.client);
    c.run([&] { c.send_all(pair.client, "x"); });
    c.run([&] { c.drain(pair.client, 1000); });
    for (int i = 0; i < 1000; ++i) {
        c.send_all(pair.server, "y");
    }
    c.drain(pair.server, filled + 1);
    c.join();
    c.note("done");
}

CASE(connect_by_one_thread_of_what_another_listens_on) {
    const int listener = c.make_listener();
    for (int i = 0; i < 4; ++i) {
        c.run([&] {
            const sockaddr_storage to = c.address_of(listener);
            for (int k = 0; k < 8; ++k) {
                const int fd = c.s.socket(AF_INET, SOCK_STREAM, 0);
                if (c.s.connect(fd, generic(to), length_of(to)) != 0) {
                    throw Failure(std::string("connect: ") + strerrorname_np(errno));
                }
                c.send_all(fd, "x");
                c.s.close(fd);
            }
        });
    }
    int total = 0;
    for (int i = 0; i < 32; ++i) {
        const int fd = c.s.accept(listener, nullptr, nullptr);
        total += static_cast<int>(c.s.recv(fd, c.buffer, 1, MSG_WAITALL));
        c.s.close(fd);
    }
    c.note(std::to_string(total));
    c.join();
}

namespace {

// Another thread disconnects the socket while `call` waits, and connects it again.
template <class Call> void give_up_during(Case& c, bool again, bool full, const Call& call) {
    const int listener = c.make_listener();
    const sockaddr_storage to = c.address_of(listener);
    const int fd = c.make_connected_to(listener);
    c.accept_from(listener);
    if (full) {
        c.fill(fd);
    }
    std::atomic<int> id{0};
    c.run([&] {
        id = thread_id();
        call(fd);
    });
    while (id == 0) {
        usleep(1000);
    }
    await_sleep(id);
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    c.s.connect(fd, &none, sizeof(none));
    if (again) {
        c.s.connect(fd, generic(to), length_of(to));
        c.send_all(c.accept_from(listener), "next");
    }
    c.join();
    int error = -1;
    socklen_t length = sizeof(error);
    c.s.getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    c.note(std::to_string(error) + " is left");
}

} // namespace

CASE(a_receive_ends_with_the_connection) {
    give_up_during(c, false, false, [&](int fd) { SAY(c.s.recv(fd, c.buffer, 4, 0)); });
    give_up_during(c, false, false, [&](int fd) { SAY(c.s.recv(fd, c.buffer, 4, MSG_WAITALL)); });
}

// What a thread in recv or send gets if the next connection is there before it runs again is not always the same in the
// kernel: an error, the end, or, on a busy machine, it goes on there. With rsockets it never does (concurrent_test).
CASE(a_receive_returns_although_the_next_connection_is_there) {
    for (const int flags : {0, static_cast<int>(MSG_WAITALL)}) {
        give_up_during(c, true, false, [&](int fd) {
            const ssize_t n = c.s.recv(fd, c.buffer, 4, flags);
            c.note(n >= 0 || errno == ECONNRESET ? "returned" : strerrorname_np(errno));
        });
    }
}

CASE(a_send_ends_with_the_connection) {
    give_up_during(c, false, true, [&](int fd) { SAY(c.send_that_waits(fd, MSG_NOSIGNAL)); });
}

CASE(a_send_returns_although_the_next_connection_is_there) {
    give_up_during(c, true, true, [&](int fd) {
        const ssize_t n = c.s.send(fd, "x", 1, MSG_NOSIGNAL);
        c.note(n == 1 || errno == EPIPE || errno == ECONNRESET ? "returned" : strerrorname_np(errno));
    });
}

CASE(a_poll_goes_on_on_the_next_connection) {
    give_up_during(c, true, false, [&](int fd) {
        pollfd one{fd, POLLIN, 0};
        SAY(c.s.poll(&one, 1, 20000));
    });
}
