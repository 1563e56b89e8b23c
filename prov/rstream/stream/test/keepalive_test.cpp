// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive of a stream: which means it takes on which core, when settings are in force, and the probe that it posts.
// What is decided by the time is in timing_test and liveness_test.
#include "prov/rstream/stream/keepalive.hpp"

#include <cerrno>
#include <memory>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "prov/rstream/stream/test/fake_core.hpp"
#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr KeepaliveSettings settings{1000, 100, 3};
constexpr KeepaliveSettings off{};
constexpr KeepaliveSettings by_default{.timeout = default_user_timeout};

struct Scene {
    Scene(const CoreProperties& properties, const KeepaliveSettings& wanted)
        : core(properties), keepalive(core.endpoint(), wanted) {}

    FakeCore core;
    Keepalive keepalive;
    RegisteredBuffer local;
    int watched = -1; // the timer that waiters are to wake for
    int watching = 0; // what that returns
    int set(const KeepaliveSettings& wanted, bool connected) { return keepalive.set(wanted, connected, watch()); }
    void start(int socket = -1) { keepalive.start(socket, watch()); }
    ssize_t post_probe() { return keepalive.post_probe({0x1000, 7, 65536}, local); }

  private:
    Keepalive::WatchTimer watch() {
        return [this](int fd) {
            watched = fd;
            return watching;
        };
    }
};

template <class Set> int set_up_with(void** state, const Set& set, const KeepaliveSettings& wanted = off) {
    CoreProperties properties;
    set(properties);
    auto scene = std::make_unique<Scene>(properties, wanted);
    const bool opened = scene->core.opened() && scene->local.buffer.allocate(4096) == 0;
    *state = scene.release();
    return opened ? 0 : -1;
}
void nothing(CoreProperties& /*properties*/) {}
void probes(CoreProperties& properties) { properties.answers_empty_reads = true; }
void kernel(CoreProperties& properties) { properties.kernel_sockets = true; }

int set_up(void** state) { return set_up_with(state, nothing, by_default); }
int set_up_probes(void** state) { return set_up_with(state, probes, settings); }
int set_up_kernel(void** state) { return set_up_with(state, kernel, settings); }

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    return 0;
}

Scene& of(void** state) { return *static_cast<Scene*>(*state); }

Keepalive::Time in(int milliseconds) {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
}

// ---- a core that cannot be asked

void test_a_core_that_cannot_be_asked_takes_no_settings_but_the_default(void** state) {
    Scene& scene = of(state);
    scene.start(); // the default user timeout is what it does by itself, or not at all
    assert_int_equal(scene.set(settings, true), -FI_EOPNOTSUPP);
    assert_int_equal(scene.set(by_default, true), 0);
    assert_int_equal(scene.watched, -1);
    assert_false(scene.keepalive.due());
}

void test_before_the_connection_any_settings_are_kept(void** state) {
    assert_int_equal(of(state).set(settings, false), 0);
    assert_false(of(state).keepalive.due());
}

// ---- probes

void test_settings_are_in_force_once_the_stream_is_connected(void** state) {
    Scene& scene = of(state);
    assert_false(scene.keepalive.due());
    scene.start();
    assert_true(scene.keepalive.due());
    assert_true(scene.watched >= 0);
    assert_int_equal(scene.keepalive.timer_fd(), scene.watched);
}

void test_settings_that_cannot_be_watched_change_nothing(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.set(off, false), 0);
    scene.start();
    scene.watching = -EMFILE;
    assert_int_equal(scene.set(settings, true), -EMFILE);
    assert_false(scene.keepalive.due());
    assert_int_equal(scene.keepalive.timer_fd(), -1);
    scene.watching = 0;
    assert_int_equal(scene.set(settings, true), 0);
    assert_true(scene.keepalive.due());
}

void test_there_is_one_timer_for_all_settings(void** state) {
    Scene& scene = of(state);
    scene.start();
    const int timer = scene.keepalive.timer_fd();
    scene.watched = -1;
    assert_int_equal(scene.set({2000, 100, 3}, true), 0);
    assert_int_equal(scene.set(off, true), 0);
    assert_false(scene.keepalive.due());
    assert_int_equal(scene.watched, -1);
    assert_int_equal(scene.keepalive.timer_fd(), timer);
}

void test_a_probe_reads_nothing_of_the_peers_ring(void** state) {
    Scene& scene = of(state);
    scene.start();
    assert_false(scene.keepalive.probe_wanted());
    assert_true(scene.keepalive.check(in(1000)) == Keepalive::Verdict::ask);
    assert_true(scene.keepalive.probe_wanted());
    assert_int_equal(scene.post_probe(), 0);
    assert_false(scene.keepalive.probe_wanted());
    assert_int_equal(scene.core.operations.size(), 1);
    assert_true(scene.core.last().kind == FakeCore::Kind::read);
    assert_int_equal(scene.core.last().address, 0x1000);
    assert_int_equal(scene.core.last().key, 7);
    assert_true((scene.core.last().flags & FI_COMPLETION) != 0);
}

void test_one_probe_is_in_flight_at_a_time(void** state) {
    Scene& scene = of(state);
    scene.start();
    assert_true(scene.keepalive.check(in(1000)) == Keepalive::Verdict::ask);
    assert_int_equal(scene.post_probe(), 0);
    assert_int_equal(scene.post_probe(), 0);
    assert_int_equal(scene.core.operations.size(), 1);
    assert_false(scene.keepalive.take_answer(&scene)); // a completion of something else
    assert_true(scene.keepalive.take_answer(scene.core.last().context));
    assert_int_equal(scene.post_probe(), 0);
    assert_int_equal(scene.core.operations.size(), 2);
}

void test_a_probe_that_the_core_has_no_room_for_is_still_wanted(void** state) {
    Scene& scene = of(state);
    scene.start();
    assert_true(scene.keepalive.check(in(1000)) == Keepalive::Verdict::ask);
    scene.core.refusal = -FI_EAGAIN;
    assert_int_equal(scene.post_probe(), -FI_EAGAIN);
    assert_true(scene.keepalive.probe_wanted());
    scene.core.refusal = -FI_EIO;
    assert_int_equal(scene.post_probe(), -FI_EIO);
    scene.core.refusal = 0;
    assert_int_equal(scene.post_probe(), 0);
    assert_false(scene.keepalive.probe_wanted());
}

void test_a_peer_that_does_not_answer_is_lost(void** state) {
    Scene& scene = of(state);
    scene.start();
    assert_true(scene.keepalive.check(in(1000)) == Keepalive::Verdict::ask);
    assert_int_equal(scene.post_probe(), 0);
    assert_true(scene.keepalive.check(in(1200)) == Keepalive::Verdict::ask);
    assert_true(scene.keepalive.check(in(1400)) == Keepalive::Verdict::ask);
    assert_true(scene.keepalive.check(in(1600)) == Keepalive::Verdict::lost);
}

void test_a_peer_that_answers_is_not(void** state) {
    Scene& scene = of(state);
    scene.start();
    assert_true(scene.keepalive.check(in(1000)) == Keepalive::Verdict::ask);
    assert_int_equal(scene.post_probe(), 0);
    assert_true(scene.keepalive.take_answer(scene.core.last().context));
    assert_true(scene.keepalive.check(in(1600)) == Keepalive::Verdict::well);
}

// ---- the kernel's TCP

int keepalive_of(int fd) {
    int value = -1;
    socklen_t length = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length) == 0 ? value : -errno;
}

void test_the_kernel_is_asked_where_the_connection_is_its_socket(void** state) {
    Scene& scene = of(state);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); // not connected: it takes options all the same
    const int before = keepalive_of(fd);
    scene.start(fd);
    const int started = keepalive_of(fd);
    const int turned_off = scene.set(off, true);
    const int after = keepalive_of(fd);
    const bool timed_out = scene.keepalive.timed_out();
    scene.keepalive.detach();
    close(fd);
    assert_true(fd >= 0);
    assert_int_equal(before, 0);
    assert_int_equal(started, 1);
    assert_int_equal(turned_off, 0);
    assert_int_equal(after, 0);
    assert_false(timed_out);
    assert_false(scene.keepalive.due()); // no probe of ours
    assert_int_equal(scene.watched, -1);
    assert_int_equal(scene.core.operations.size(), 0);
}

} // namespace

int main() {
#define test(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_a_core_that_cannot_be_asked_takes_no_settings_but_the_default, set_up),
        test(test_before_the_connection_any_settings_are_kept, set_up),
        test(test_settings_are_in_force_once_the_stream_is_connected, set_up_probes),
        test(test_settings_that_cannot_be_watched_change_nothing, set_up_probes),
        test(test_there_is_one_timer_for_all_settings, set_up_probes),
        test(test_a_probe_reads_nothing_of_the_peers_ring, set_up_probes),
        test(test_one_probe_is_in_flight_at_a_time, set_up_probes),
        test(test_a_probe_that_the_core_has_no_room_for_is_still_wanted, set_up_probes),
        test(test_a_peer_that_does_not_answer_is_lost, set_up_probes),
        test(test_a_peer_that_answers_is_not, set_up_probes),
        test(test_the_kernel_is_asked_where_the_connection_is_its_socket, set_up_kernel),
    };
    return RUN_TAP(tests);
}
