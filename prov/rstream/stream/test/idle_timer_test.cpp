// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When a stream has had so little traffic for a period that its buffers may be small again.
#include "prov/rstream/stream/idle_timer.hpp"

#include <poll.h>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr IdleTimer::Traffic first{100, 200};

// What a stream's waiters sleep on.
struct Watched {
    int fd = -1;
    [[nodiscard]] auto watch() {
        return [this](int timer) {
            fd = timer;
            return 0;
        };
    }
    [[nodiscard]] auto unwatch() {
        return [this](int timer) { fd = timer == fd ? -1 : -2; };
    }
    [[nodiscard]] bool wakes() const {
        pollfd one{fd, POLLIN, 0};
        return poll(&one, 1, 20000) == 1;
    }
};

void test_a_timer_of_no_period_never_runs(void**) {
    IdleTimer timer(std::chrono::milliseconds(0), first);
    Watched watched;
    timer.start({0, 0}, watched.watch());
    assert_false(timer.running());
    assert_int_equal(watched.fd, -1);
}

void test_who_is_woken_finds_it_due(void**) {
    IdleTimer timer(std::chrono::milliseconds(1), first);
    assert_false(timer.due());
    Watched watched;
    timer.start({0, 0}, watched.watch());
    for (int i = 0; i < 50; ++i) {
        assert_true(watched.wakes());
        assert_true(timer.due());
        (void)timer.check({0, 0});
    }
}

void test_little_traffic_is_what_the_first_buffers_hold(void**) {
    IdleTimer timer(std::chrono::milliseconds(1), first);
    Watched watched;
    timer.start({1000, 1000}, watched.watch());
    const auto after = [&](const IdleTimer::Traffic& traffic) {
        assert_true(watched.wakes());
        return timer.check(traffic);
    };
    IdleTimer::Idle idle = after({1100, 1201});
    assert_true(idle.sending);
    assert_false(idle.receiving);
    idle = after({1201, 1401}); // each period by itself
    assert_false(idle.sending);
    assert_true(idle.receiving);
}

void test_a_period_counts_once(void**) {
    IdleTimer timer(std::chrono::hours(1), first);
    Watched watched;
    timer.start({0, 0}, watched.watch());
    assert_true(timer.running());
    assert_false(timer.due());
    const IdleTimer::Idle idle = timer.check({0, 0}); // another thread was faster
    assert_false(idle.sending || idle.receiving);
}

void test_it_stops_when_nothing_is_left_to_shrink(void**) {
    IdleTimer timer(std::chrono::milliseconds(1), first);
    Watched watched;
    timer.start({0, 0}, watched.watch());
    const int fd = watched.fd;
    timer.stop_if([] { return false; }, watched.unwatch());
    assert_true(timer.running());
    assert_int_equal(watched.fd, fd);
    timer.stop_if([] { return true; }, watched.unwatch());
    assert_false(timer.running());
    assert_false(timer.due());
    assert_int_equal(watched.fd, -1);
    timer.start({0, 0}, watched.watch());
    assert_true(timer.running());
    assert_true(watched.wakes());
}

void test_without_an_fd_calls_find_it_due(void**) {
    IdleTimer timer(std::chrono::milliseconds(1), first);
    timer.start({0, 0}, [](int) { return -1; });
    assert_true(timer.running());
    while (!timer.due()) {
    }
    assert_true(timer.check({0, 0}).sending);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_timer_of_no_period_never_runs),
        cmocka_unit_test(test_who_is_woken_finds_it_due),
        cmocka_unit_test(test_little_traffic_is_what_the_first_buffers_hold),
        cmocka_unit_test(test_a_period_counts_once),
        cmocka_unit_test(test_it_stops_when_nothing_is_left_to_shrink),
        cmocka_unit_test(test_without_an_fd_calls_find_it_due),
    };
    return RUN_TAP(tests);
}
