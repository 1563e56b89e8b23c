// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive and user timeout of one stream: when it is due, what a probe changes, and the timer that wakes a waiter.
// What the clock alone decides is in timing_test; the kernel's part is tried on a TCP socket that is not connected.
#include "prov/rstream/stream/liveness.hpp"

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "prov/rstream/stream/kernel_keepalive.hpp"
#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;
using Verdict = Liveness::Verdict;

namespace {

constexpr KeepaliveSettings keepalive{1000, 100, 3};
constexpr KeepaliveSettings user_timeout{.timeout = 1000}; // checked each 250 ms

Liveness::Time at(int milliseconds) { return Liveness::Time(std::chrono::milliseconds(milliseconds)); }

int set_up(void** state) {
    *state = std::make_unique<Liveness>().release();
    return 0;
}

int tear_down(void** state) {
    const std::unique_ptr<Liveness> liveness(static_cast<Liveness*>(*state));
    return 0;
}

Liveness& of(void** state) { return *static_cast<Liveness*>(*state); }

void assert_check(Liveness& liveness, int when, Verdict wanted) {
    assert_int_equal(static_cast<int>(liveness.check(at(when))), static_cast<int>(wanted));
}

void post_probe(Liveness& liveness) {
    assert_true(liveness.probe_wanted());
    assert_true(liveness.begin_probe());
    liveness.probe_posted();
    assert_false(liveness.probe_wanted());
}

void test_nothing_is_due_while_it_is_off(void** state) {
    Liveness& liveness = of(state);
    assert_false(liveness.due());
    assert_check(liveness, 1000000, Verdict::well);
    liveness.start(keepalive, at(0));
    assert_true(liveness.due());
    liveness.stop();
    assert_false(liveness.due());
    assert_check(liveness, 1000000, Verdict::well);
}

void test_a_user_timeout_alone_is_checked_now_and_then(void** state) {
    Liveness& liveness = of(state);
    liveness.start(user_timeout, at(0));
    int due = 0;
    for (uint32_t i = 0; i < 4 * Liveness::polls_a_check; ++i) {
        due += liveness.due() ? 1 : 0;
    }
    assert_int_equal(due, 4);
}

void test_a_silent_peer_is_probed_and_lost(void** state) {
    Liveness& liveness = of(state);
    liveness.start(keepalive, at(0));
    assert_check(liveness, 999, Verdict::well);
    assert_false(liveness.probe_wanted());
    assert_check(liveness, 1000, Verdict::ask);
    post_probe(liveness);
    assert_check(liveness, 1100, Verdict::ask);
    assert_check(liveness, 1200, Verdict::ask);
    assert_check(liveness, 1300, Verdict::lost);
}

void test_one_probe_is_in_flight_at_a_time(void** state) {
    Liveness& liveness = of(state);
    liveness.start(keepalive, at(0));
    assert_check(liveness, 1000, Verdict::ask);
    post_probe(liveness);
    assert_check(liveness, 1100, Verdict::ask);
    assert_true(liveness.probe_wanted());
    assert_false(liveness.begin_probe());
    assert_false(liveness.probe_wanted());
}

void test_an_answer_proves_that_the_peer_is_there(void** state) {
    Liveness& liveness = of(state);
    liveness.start(keepalive, at(0));
    assert_check(liveness, 1000, Verdict::ask);
    post_probe(liveness);
    liveness.probe_answered();
    assert_check(liveness, 1300, Verdict::well);
    assert_check(liveness, 2299, Verdict::well);
    assert_check(liveness, 2300, Verdict::ask);
    assert_true(liveness.begin_probe());
}

void test_an_arrival_counts_from_the_next_check_on(void** state) {
    Liveness& liveness = of(state);
    liveness.start(keepalive, at(0));
    liveness.on_arrival();
    assert_check(liveness, 1500, Verdict::well);
    assert_check(liveness, 2499, Verdict::well);
    assert_check(liveness, 2500, Verdict::ask);
}

void test_a_completion_proves_that_data_was_acknowledged(void** state) {
    Liveness& liveness = of(state);
    liveness.start(user_timeout, at(0));
    liveness.on_posted();
    for (int i = 1; i <= 20; ++i) {
        liveness.on_completed();
        assert_check(liveness, 250 * i, Verdict::ask);
    }
    for (int i = 21; i <= 23; ++i) {
        assert_check(liveness, 250 * i, Verdict::ask);
    }
    assert_check(liveness, 250 * 24, Verdict::lost);
}

void test_a_completion_behind_a_probe_proves_nothing(void** state) {
    Liveness& liveness = of(state);
    liveness.start(user_timeout, at(0));
    liveness.on_posted();
    assert_check(liveness, 250, Verdict::ask);
    post_probe(liveness);
    for (int i = 2; i <= 4; ++i) {
        liveness.on_completed();
        assert_check(liveness, 250 * i, Verdict::ask);
    }
    assert_check(liveness, 1250, Verdict::lost);
}

void test_a_probe_that_was_answered_covers_what_was_posted_before(void** state) {
    Liveness& liveness = of(state);
    liveness.start(user_timeout, at(0));
    liveness.on_posted();
    assert_check(liveness, 250, Verdict::ask);
    post_probe(liveness);
    liveness.probe_answered();
    assert_check(liveness, 500, Verdict::well);
}

void test_messages_that_arrive_make_probes_unnecessary(void** state) {
    Liveness& liveness = of(state);
    liveness.start(user_timeout, at(0));
    liveness.on_posted();
    for (int i = 1; i <= 20; ++i) {
        liveness.on_arrival();
        assert_check(liveness, 250 * i, Verdict::well);
    }
    assert_false(liveness.probe_wanted());
    assert_check(liveness, 250 * 21, Verdict::ask);
}

void test_a_refused_probe_leaves_what_was_posted_in_doubt(void** state) {
    Liveness& liveness = of(state);
    liveness.start(user_timeout, at(0));
    liveness.on_posted();
    assert_check(liveness, 250, Verdict::ask);
    assert_true(liveness.begin_probe());
    liveness.probe_refused();
    assert_true(liveness.probe_wanted()); // the next flush tries again
    assert_check(liveness, 500, Verdict::ask);
    assert_true(liveness.begin_probe());
}

void test_the_timer_wakes_a_waiter_when_a_check_is_due(void** state) {
    Liveness& liveness = of(state);
    assert_int_equal(liveness.timer_fd(), -1);
    liveness.set_timer(base::Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)));
    pollfd timer{liveness.timer_fd(), POLLIN, 0};
    const auto now = std::chrono::steady_clock::now();
    liveness.start({3600000, 100, 3}, now);
    assert_int_equal(poll(&timer, 1, 0), 0);
    liveness.start({1, 3600000, 3}, now);
    assert_int_equal(poll(&timer, 1, 10000), 1);
    assert_int_equal(static_cast<int>(liveness.check(std::chrono::steady_clock::now())),
                     static_cast<int>(Verdict::ask));
    assert_int_equal(poll(&timer, 1, 0), 0);
    liveness.start({1, 1, 3}, now);
    liveness.stop();
    assert_int_equal(poll(&timer, 1, 20), 0);
}

// Milliseconds until the timer expires, -1: it is not set.
int64_t timer_left(Liveness& liveness) {
    itimerspec spec{};
    assert_int_equal(timerfd_gettime(liveness.timer_fd(), &spec), 0);
    const int64_t left = spec.it_value.tv_sec * 1000 + spec.it_value.tv_nsec / 1000000;
    return spec.it_value.tv_sec == 0 && spec.it_value.tv_nsec == 0 ? -1 : left;
}

// Else a thousand idle connections would wake their program hundreds of times a second.
void test_the_timer_of_the_user_timeout_rests_while_nothing_is_outstanding(void** state) {
    constexpr KeepaliveSettings long_timeout{.timeout = 4000000};
    Liveness& liveness = of(state);
    liveness.set_timer(base::Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)));
    auto now = std::chrono::steady_clock::now();
    liveness.start(long_timeout, now);
    assert_true(timer_left(liveness) > 900000);
    const auto check = [&](Verdict wanted) {
        now += std::chrono::seconds(1000);
        assert_int_equal(static_cast<int>(liveness.check(now)), static_cast<int>(wanted));
    };
    check(Verdict::well);
    assert_int_equal(timer_left(liveness), -1);
    check(Verdict::well);
    assert_int_equal(timer_left(liveness), -1);
    liveness.on_posted();
    assert_true(timer_left(liveness) > 900000);
    check(Verdict::ask);
    post_probe(liveness);
    assert_true(timer_left(liveness) > 900000);
    check(Verdict::ask);
    assert_true(timer_left(liveness) > 900000);
    liveness.probe_answered();
    check(Verdict::well);
    assert_int_equal(timer_left(liveness), -1);
    liveness.start({.idle = 5000000, .interval = 1000, .count = 3, .timeout = 4000000}, now);
    check(Verdict::well);
    assert_true(timer_left(liveness) > 3900000); // that of keepalive alone
}

// Whichever comes first, the post or the check that would let the timer rest: the timer is set in the end.
void test_the_timer_does_not_rest_when_a_thread_posts_during_the_check(void** state) {
    constexpr KeepaliveSettings long_timeout{.timeout = 4000000};
    constexpr int rounds = 20000;
    Liveness& liveness = of(state);
    liveness.set_timer(base::Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)));
    auto now = std::chrono::steady_clock::now();
    liveness.start(long_timeout, now);
    std::atomic<int> begun{0};
    std::atomic<int> done{0};
    const auto await = [](const std::atomic<int>& count, int wanted) {
        while (count.load() < wanted) {
            std::this_thread::yield();
        }
    };
    std::thread poster([&] {
        for (int i = 0; i < rounds; ++i) {
            await(begun, i + 1);
            for (int delay = i % 256; delay > 0; --delay) { // so that it meets each moment of a check
                std::atomic_signal_fence(std::memory_order_seq_cst);
            }
            liveness.on_posted();
            done = i + 1;
        }
    });
    int resting = 0;
    for (int i = 0; i < rounds; ++i) {
        now += std::chrono::seconds(1000);
        begun = i + 1;
        (void)liveness.check(now);
        await(done, i + 1);
        resting += timer_left(liveness) < 0 ? 1 : 0;
        liveness.begin_probe();
        liveness.probe_posted();
        liveness.probe_answered();
    }
    poster.join();
    assert_int_equal(resting, 0);
}

// ---- KernelKeepalive

int option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    return getsockopt(fd, level, name, &value, &length) == 0 ? value : -errno;
}

void test_without_a_socket_the_kernel_can_be_told_nothing(void**) {
    KernelKeepalive kernel;
    assert_false(kernel.attached());
    assert_false(kernel.timed_out());
    kernel.attach(-ENOENT); // as the search for it failed
    assert_false(kernel.attached());
    assert_int_equal(kernel.apply({}, keepalive), -ENOENT);
    assert_false(kernel.timed_out());
}

void test_the_kernel_is_given_the_settings(void**) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KernelKeepalive kernel;
    kernel.attach(fd);
    const int applied = kernel.apply({}, {5000, 2000, 4});
    const int on = option(fd, SOL_SOCKET, SO_KEEPALIVE);
    const int idle = option(fd, IPPROTO_TCP, TCP_KEEPIDLE);
    const int interval = option(fd, IPPROTO_TCP, TCP_KEEPINTVL);
    const int count = option(fd, IPPROTO_TCP, TCP_KEEPCNT);
    const int timeout = option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT);
    const bool timed_out = kernel.timed_out();
    kernel.detach();
    close(fd);
    assert_int_equal(applied, 0);
    assert_int_equal(on, 1);
    assert_int_equal(idle, 5);
    assert_int_equal(interval, 2);
    assert_int_equal(count, 4);
    assert_int_equal(timeout, 13000);
    assert_false(timed_out); // it has not been silent
    assert_false(kernel.attached());
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_nothing_is_due_while_it_is_off),
        test(test_a_user_timeout_alone_is_checked_now_and_then),
        test(test_a_silent_peer_is_probed_and_lost),
        test(test_one_probe_is_in_flight_at_a_time),
        test(test_an_answer_proves_that_the_peer_is_there),
        test(test_an_arrival_counts_from_the_next_check_on),
        test(test_a_completion_proves_that_data_was_acknowledged),
        test(test_a_completion_behind_a_probe_proves_nothing),
        test(test_a_probe_that_was_answered_covers_what_was_posted_before),
        test(test_messages_that_arrive_make_probes_unnecessary),
        test(test_the_timer_of_the_user_timeout_rests_while_nothing_is_outstanding),
        test(test_the_timer_does_not_rest_when_a_thread_posts_during_the_check),
        test(test_a_refused_probe_leaves_what_was_posted_in_doubt),
        test(test_the_timer_wakes_a_waiter_when_a_check_is_due),
        cmocka_unit_test(test_without_a_socket_the_kernel_can_be_told_nothing),
        cmocka_unit_test(test_the_kernel_is_given_the_settings),
    };
    return RUN_TAP(tests);
}
