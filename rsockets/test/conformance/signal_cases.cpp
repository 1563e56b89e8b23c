// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls that a signal interrupts while they wait, and masks that let one in.
#include "rsockets/test/conformance/conformance.hpp"

#include <atomic>
#include <csignal>

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
