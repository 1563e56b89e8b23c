// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The fd that a program sleeps on, over pipes in place of a core's descriptors.
#include "prov/rstream/stream/wait_set.hpp"

#include <memory>
#include <thread>

#include <poll.h>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

struct Pipe {
    Pipe() {
        int ends[2] = {-1, -1};
        if (pipe(ends) == 0) {
            read_end = base::Descriptor(ends[0]);
            write_end = base::Descriptor(ends[1]);
        }
    }
    void fill() const { assert_int_equal(write(write_end.get(), "x", 1), 1); }
    [[nodiscard]] int fd() const { return read_end.get(); }

    base::Descriptor read_end;
    base::Descriptor write_end;
};

struct Scene {
    WaitSet set;
    Pipe queue;
    Pipe other;
};

int set_up(void** state) {
    *state = std::make_unique<Scene>().release();
    return 0;
}

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    return 0;
}

bool never() { return false; }
bool always() { return true; }

bool readable(int fd, int milliseconds = 0) {
    pollfd polled{fd, POLLIN, 0};
    return poll(&polled, 1, milliseconds) == 1;
}

int make(Scene& scene) {
    const int fds[] = {scene.queue.fd()};
    return scene.set.make(fds, never);
}

void test_there_is_no_fd_before_it_is_made(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(scene.set.fd(), -1);
    assert_int_equal(scene.set.notify_fd(), -1);
    scene.set.notify(); // nobody can sleep yet
    assert_int_equal(make(scene), 0);
    assert_true(scene.set.fd() >= 0);
    assert_false(readable(scene.set.fd()));
    const int fd = scene.set.fd();
    assert_int_equal(make(scene), 0);
    assert_int_equal(scene.set.fd(), fd);
}

void test_what_is_due_already_is_notified(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(scene.set.make({}, always), 0);
    assert_true(readable(scene.set.fd()));
}

void test_a_member_makes_it_readable(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(make(scene), 0);
    scene.queue.fill();
    assert_true(readable(scene.set.fd()));
    assert_false(readable(scene.set.notify_fd()));
}

void test_a_descriptor_may_come_before_the_set(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(scene.set.add(scene.other.fd()), 0);
    assert_int_equal(make(scene), 0);
    scene.other.fill();
    assert_true(readable(scene.set.fd()));
}

void test_a_descriptor_may_come_and_go_after_the_set(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(make(scene), 0);
    assert_int_equal(scene.set.add(scene.other.fd()), 0);
    scene.other.fill();
    assert_true(readable(scene.set.fd()));
    scene.set.remove(scene.other.fd());
    assert_false(readable(scene.set.fd()));
}

void test_a_descriptor_that_is_gone_is_not_added_later(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(scene.set.add(scene.other.fd()), 0);
    scene.set.remove(scene.other.fd());
    scene.other = Pipe();
    assert_int_equal(make(scene), 0);
    scene.other.fill();
    assert_false(readable(scene.set.fd()));
}

void test_an_error_leaves_no_set(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    const int fds[] = {scene.queue.fd(), -1};
    assert_int_equal(scene.set.make(fds, never), -EBADF);
    assert_int_equal(scene.set.fd(), -1);
    assert_int_equal(make(scene), 0);
    assert_int_equal(scene.set.add(-1), -EBADF);
}

void test_a_notification_stays_until_it_is_retracted(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(make(scene), 0);
    scene.set.notify();
    scene.set.notify();
    assert_true(readable(scene.set.fd()));
    assert_true(readable(scene.set.notify_fd()));
    scene.set.retract(always);
    assert_true(readable(scene.set.fd()));
    scene.set.retract(never);
    assert_false(readable(scene.set.fd()));
}

void test_armed_once_a_waiter_may_sleep(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_false(scene.set.armed());
    scene.set.arm();
    assert_true(scene.set.armed());
}

void test_a_notification_wakes_a_waiter_that_sleeps(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    assert_int_equal(make(scene), 0);
    bool woken = false;
    {
        std::thread waiter([&] { woken = readable(scene.set.fd(), 10000); });
        scene.set.notify();
        waiter.join();
    }
    assert_true(woken);
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_there_is_no_fd_before_it_is_made),
        test(test_what_is_due_already_is_notified),
        test(test_a_member_makes_it_readable),
        test(test_a_descriptor_may_come_before_the_set),
        test(test_a_descriptor_may_come_and_go_after_the_set),
        test(test_a_descriptor_that_is_gone_is_not_added_later),
        test(test_an_error_leaves_no_set),
        test(test_a_notification_stays_until_it_is_retracted),
        test(test_armed_once_a_waiter_may_sleep),
        test(test_a_notification_wakes_a_waiter_that_sleeps),
    };
    return RUN_TAP(tests);
}
