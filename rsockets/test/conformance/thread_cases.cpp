// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Threads, signals, and several numbers for one socket.
#include "rsockets/test/conformance/conformance.hpp"

#include <atomic>
#include <csignal>
#include <cstring>
#include <vector>

#include <pthread.h>
#include <unistd.h>

using namespace conformance;

namespace {

std::atomic<int> signals{0};
void on_signal(int) { ++signals; }

// A handler for SIGUSR1 for the time of a case.
class Handler {
  public:
    Handler(Case& c, int flags) : c_(c) {
        struct sigaction action {};
        action.sa_handler = on_signal;
        action.sa_flags = flags;
        sigaction(SIGUSR1, &action, &before_);
        signals = 0;
    }
    Handler(const Handler&) = delete;
    Handler& operator=(const Handler&) = delete;
    ~Handler() {
        c_.join(); // whoever may still send the signal
        sigaction(SIGUSR1, &before_, nullptr);
    }

  private:
    Case& c_;
    struct sigaction before_ {};
};

// A signal that is blocked for the time of a case, but for a mask that lets it in.
class Blocked {
  public:
    Blocked() {
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &blocked, &open);
    }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &open, nullptr); }
    static void note_pending(Case& c) {
        sigset_t pending;
        sigpending(&pending);
        c.note(std::to_string(signals) + (sigismember(&pending, SIGUSR1) != 0 ? ", another waits" : ""));
    }
    sigset_t open;
};

// Interrupts the calling thread once it sleeps.
void interrupt_when_asleep(Case& c, const std::function<void()>& then = {}) {
    const int id = thread_id();
    const pthread_t self = pthread_self();
    c.run([id, self, then] {
        await_sleep(id);
        pthread_kill(self, SIGUSR1);
        if (then) {
            while (signals == 0) {
                usleep(1000);
            }
            await_sleep(id);
            then();
        }
    });
}

} // namespace

CASE(recv_is_interrupted_by_a_signal) {
    const Handler handler(c, 0);
    const Pair pair = c.make_pair();
    interrupt_when_asleep(c);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

#ifndef __SANITIZE_THREAD__ // which runs handlers only when the call that was interrupted returns
CASE(recv_goes_on_after_a_handler_that_restarts) {
    const Handler handler(c, SA_RESTART);
    const Pair pair = c.make_pair();
    interrupt_when_asleep(c, [&] { c.send_all(pair.client, "x"); });
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
    c.note(std::to_string(signals));
}
#endif

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

CASE(recv_with_a_time_limit_does_not_restart) {
    const Handler handler(c, SA_RESTART);
    const Pair pair = c.make_pair();
    const timeval time{20, 0};
    c.s.setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    interrupt_when_asleep(c);
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
}

CASE(waitall_gives_what_it_has_when_interrupted) {
    const Handler handler(c, 0);
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "ab");
    c.await(pair.server, POLLIN);
    interrupt_when_asleep(c);
    SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL));
}

CASE(waitall_gives_what_it_has_though_the_handler_restarts) {
    const Handler handler(c, SA_RESTART);
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "ab");
    c.await(pair.server, POLLIN);
    interrupt_when_asleep(c);
    SAY(c.s.recv(pair.server, c.buffer, 4, MSG_WAITALL));
}

CASE(a_peek_for_all_gives_what_there_is_when_interrupted) {
    for (const int flags : {0, SA_RESTART}) {
        const Handler handler(c, flags);
        const Pair pair = c.make_pair();
        c.send_all(pair.client, "ab");
        c.await(pair.server, POLLIN);
        interrupt_when_asleep(c);
        SAY(c.s.recv(pair.server, c.buffer, 4, MSG_PEEK | MSG_WAITALL));
        c.join();
    }
}

CASE(recv_below_the_low_water_mark_gives_what_there_is_when_interrupted) {
    const Handler handler(c, 0);
    const Pair pair = c.make_pair();
    const int least = 4;
    c.s.setsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least));
    c.send_all(pair.client, "ab");
    interrupt_when_asleep(c);
    SAY(c.s.recv(pair.server, c.buffer, 8, 0));
}

CASE(accept_is_interrupted_by_a_signal) {
    const Handler handler(c, 0);
    const int listener = c.make_listener();
    interrupt_when_asleep(c);
    SAY(c.s.accept(listener, nullptr, nullptr));
}

#ifndef __SANITIZE_THREAD__ // which runs handlers only when the call that was interrupted returns
CASE(accept_goes_on_after_a_handler_that_restarts) {
    const Handler handler(c, SA_RESTART);
    const int listener = c.make_listener();
    interrupt_when_asleep(c, [&] { c.make_connected_to(listener); });
    MAKE(c.s.accept(listener, nullptr, nullptr));
    c.join();
}
#endif

CASE(send_is_interrupted_by_a_signal) {
    const Handler handler(c, 0);
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    interrupt_when_asleep(c);
    SAY(c.send_that_waits(pair.client, 0));
}

CASE(poll_is_interrupted_by_a_signal) {
    const Handler handler(c, SA_RESTART);
    const Pair pair = c.make_pair();
    interrupt_when_asleep(c);
    pollfd one{pair.server, POLLIN, 0};
    SAY(c.s.poll(&one, 1, -1));
}

CASE(select_is_interrupted_by_a_signal) {
    const Handler handler(c, SA_RESTART);
    const Pair pair = c.make_pair();
    interrupt_when_asleep(c);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, nullptr));
}

CASE(epoll_is_interrupted_by_a_signal) {
    const Handler handler(c, SA_RESTART);
    const Pair pair = c.make_pair();
    const int set = c.track(c.s.epoll_create(0));
    epoll_event event{};
    event.events = EPOLLIN;
    c.s.epoll_ctl(set, EPOLL_CTL_ADD, pair.server, &event);
    interrupt_when_asleep(c);
    SAY(c.s.epoll_wait(set, &event, 1, -1));
}

CASE(ppoll_lets_a_signal_in) {
    const Handler handler(c, 0);
    sigset_t blocked;
    sigset_t before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    const Pair pair = c.make_pair();
    pthread_kill(pthread_self(), SIGUSR1);
    pollfd one{pair.server, POLLIN, 0};
    const timespec time{20, 0};
    SAY(c.s.ppoll(&one, 1, &time, &before));
    c.note(std::to_string(signals));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CASE(ppoll_of_this_moment_lets_a_signal_in) {
    const Handler handler(c, 0);
    const Blocked blocked;
    const Pair pair = c.make_pair();
    pthread_kill(pthread_self(), SIGUSR1);
    pollfd one{pair.server, POLLIN, 0};
    const timespec now{};
    SAY(c.s.ppoll(&one, 1, &now, nullptr));
    Blocked::note_pending(c);
    SAY(c.s.ppoll(&one, 1, &now, &blocked.open));
    Blocked::note_pending(c);
    SAY(c.s.ppoll(&one, 1, &now, &blocked.open));
    one.events = POLLOUT;
    pthread_kill(pthread_self(), SIGUSR1);
    SAY(c.s.ppoll(&one, 1, &now, &blocked.open));
    Blocked::note_pending(c);
    SAY(c.s.ppoll(&one, 1, nullptr, &blocked.open));
    Blocked::note_pending(c);
    SAY(c.s.ppoll(nullptr, 0, &now, &blocked.open));
    Blocked::note_pending(c);
}

CASE(pselect_of_this_moment_lets_a_signal_in) {
    const Handler handler(c, 0);
    const Blocked blocked;
    const Pair pair = c.make_pair();
    pthread_kill(pthread_self(), SIGUSR1);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    const timespec now{};
    SAY(c.s.pselect(pair.server + 1, &set, nullptr, nullptr, &now, &blocked.open));
    Blocked::note_pending(c);
    c.note(FD_ISSET(pair.server, &set) ? "the set is as it was" : "the set is empty");
    SAY(c.s.pselect(pair.server + 1, &set, nullptr, nullptr, &now, &blocked.open));
    FD_SET(pair.server, &set);
    pthread_kill(pthread_self(), SIGUSR1);
    SAY(c.s.pselect(pair.server + 1, nullptr, &set, nullptr, &now, &blocked.open));
    Blocked::note_pending(c);
    SAY(c.s.pselect(0, nullptr, nullptr, nullptr, &now, &blocked.open));
    Blocked::note_pending(c);
}

CASE(pselect_lets_a_signal_in_while_it_waits) {
    const Handler handler(c, SA_RESTART);
    const Blocked blocked;
    const Pair pair = c.make_pair();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    interrupt_when_asleep(c);
    SAY(c.s.pselect(pair.server + 1, &set, nullptr, nullptr, nullptr, &blocked.open));
    c.join();
    Blocked::note_pending(c);
}

CASE(ppoll_lets_a_signal_in_while_it_waits) {
    const Handler handler(c, SA_RESTART);
    const Blocked blocked;
    const Pair pair = c.make_pair();
    pollfd one{pair.server, POLLIN, 0};
    interrupt_when_asleep(c);
    SAY(c.s.ppoll(&one, 1, nullptr, &blocked.open));
    c.join();
    Blocked::note_pending(c);
}

CASE(a_mask_keeps_a_signal_out_while_poll_waits) {
    const Handler handler(c, 0);
    const Pair pair = c.make_pair();
    sigset_t closed;
    sigemptyset(&closed);
    sigaddset(&closed, SIGUSR1);
    const int id = thread_id();
    const pthread_t self = pthread_self();
    c.run([&] {
        await_sleep(id);
        pthread_kill(self, SIGUSR1);
        c.send_all(pair.client, "x");
    });
    pollfd one{pair.server, POLLIN, 0};
    SAY(c.s.ppoll(&one, 1, nullptr, &closed));
    c.join();
    while (signals == 0) { // it comes as soon as the mask is as before
        usleep(1000);
    }
    c.note(std::to_string(signals));
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

CASE(a_signal_ends_a_close_that_lingers) {
    const Handler handler(c, SA_RESTART);
    const Pair pair = c.make_pair();
    const size_t total = c.fill(pair.client);
    const linger some{1, 20};
    SAY(c.s.setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &some, sizeof(some)));
    timespec before{};
    timespec after{};
    clock_gettime(CLOCK_MONOTONIC, &before);
    interrupt_when_asleep(c);
    c.forget(pair.client);
    SAY(c.s.close(pair.client));
    clock_gettime(CLOCK_MONOTONIC, &after);
    c.join();
    c.note(after.tv_sec - before.tv_sec < 10 ? "by the signal" : "when the time is over");
    c.note(std::to_string(signals));
    c.drain(pair.server, total); // in the background
    SAY(c.s.recv(pair.server, c.buffer, 1, 0));
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

CASE(a_receive_does_not_go_on_on_the_next_connection) {
    for (const bool again : {false, true}) {
        give_up_during(c, again, false, [&](int fd) { SAY(c.s.recv(fd, c.buffer, 4, 0)); });
        give_up_during(c, again, false, [&](int fd) { SAY(c.s.recv(fd, c.buffer, 4, MSG_WAITALL)); });
    }
}

// What a thread in send gets if the next connection is there before it runs again is not always the same in the kernel:
// EPIPE or ECONNRESET.
CASE(a_send_ends_with_the_connection) {
    give_up_during(c, false, true, [&](int fd) { SAY(c.s.send(fd, "x", 1, MSG_NOSIGNAL)); });
}

CASE(a_send_does_not_go_on_on_the_next_connection) {
    give_up_during(c, true, true, [&](int fd) {
        const ssize_t n = c.s.send(fd, "x", 1, MSG_NOSIGNAL);
        c.note(n < 0 && (errno == EPIPE || errno == ECONNRESET) ? "ended" : "went on");
    });
}

CASE(a_poll_goes_on_on_the_next_connection) {
    give_up_during(c, true, false, [&](int fd) {
        pollfd one{fd, POLLIN, 0};
        SAY(c.s.poll(&one, 1, 20000));
    });
}
