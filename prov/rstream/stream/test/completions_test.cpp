// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Completions of one stream: what becomes of an arrival, of a completed work request, and of what a core or a peer gets
// wrong.
#include "prov/rstream/stream/completions.hpp"

#include <cstring>
#include <memory>
#include <string>

#include "prov/rstream/stream/test/parts_scene.hpp"

using namespace rstream;
using Drained = Completions::Drained;
using Kind = FakeCore::Kind;

namespace {

struct Scene final : PartsScene, Transmit::Events, Completions::Events {
    explicit Scene(const Config& config)
        : PartsScene(config), transmit({core.endpoint(), link, messages, lifecycle, readiness, keepalive}, 0, *this),
          completions({core.endpoint(), link, messages, keepalive, transmit}, *this) {
        ready = ready && transmit.open(staging_size, 16, idle) == 0;
        open_link(config.headers);
        transmit.start();
        connect();
        core.operations.reserve(64);
        ready = ready && completions.post_receives() == 0;
    }
    virtual ~Scene() = default;
    void on_needs_progress(bool /*needs*/) override {}
    void on_post_error(int /*error*/) override {}
    void on_lost(int error, const char* /*why*/) override {
        lost = error;
        readable_at_loss = link.readable();
    }
    void on_violation(const char* rule) override { violation = rule; }
    void on_peer_end() override { ++peer_ends; }

    // The core has put a message of the peer's into a slot.
    void arrive(size_t slot, const wire::Control& control, size_t length = MessageSlots::slot_size) {
        control.encode(std::span<std::byte, wire::Control::size>(messages.receive(slot), wire::Control::size));
        core.complete(messages.context(slot), FI_RECV | FI_MSG, length);
    }
    void arrive_data(uint32_t length) {
        core.complete(nullptr, FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, length, wire::Immediate{length}.encode());
    }
    ssize_t send(size_t length) {
        std::string bytes(length, 'x');
        const iovec iov{bytes.data(), bytes.size()};
        Transmit::Leftover left;
        return transmit.send(&iov, 1, false, left);
    }

    Transmit transmit;
    Completions completions;
    int lost = 0;
    size_t readable_at_loss = 0;
    const char* violation = nullptr;
    int peer_ends = 0;
};

int make(void** state, const PartsScene::Config& config) {
    auto scene = std::make_unique<Scene>(config);
    const bool ready = scene->ready;
    *state = scene.release();
    return ready ? 0 : -1;
}

int set_up(void** state) { return make(state, {}); }
int set_up_headers(void** state) { return make(state, {.headers = true}); }
int set_up_probes(void** state) {
    CoreProperties properties;
    properties.answers_empty_reads = true;
    return make(state, {.properties = properties});
}

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    return 0;
}

Scene& of(void** state) { return *static_cast<Scene*>(*state); }

// ---- arrivals

void test_a_receive_is_posted_in_each_slot(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.core.operations.size(), wire::control_credits);
    assert_int_equal(scene.core.count(Kind::recv), wire::control_credits);
    for (size_t slot = 0; slot < wire::control_credits; ++slot) {
        assert_ptr_equal(scene.core.operations[slot].context, scene.messages.context(slot));
        assert_int_equal(scene.core.operations[slot].bytes.size(), MessageSlots::slot_size);
    }
}

void test_an_idle_queue_gives_nothing(void** state) { assert_true(of(state).completions.drain() == Drained::nothing); }

void test_data_that_arrived_is_readable(void** state) {
    Scene& scene = of(state);
    scene.arrive_data(100);
    scene.arrive_data(20);
    assert_true(scene.completions.drain() == Drained::something);
    assert_int_equal(scene.link.readable(), 120);
    assert_int_equal(scene.core.count(Kind::recv), wire::control_credits); // it took none
}

void test_a_message_goes_to_the_link_and_its_slot_is_posted_again(void** state) {
    Scene& scene = of(state);
    scene.arrive(3, {wire::Control::Type::fin});
    assert_true(scene.completions.drain() == Drained::something);
    assert_true(scene.link.peer_finished());
    assert_int_equal(scene.peer_ends, 1);
    assert_int_equal(scene.core.count(Kind::recv), wire::control_credits + 1);
    assert_ptr_equal(scene.core.last().context, scene.messages.context(3));
    assert_null(scene.violation);
}

void test_with_headers_a_message_announces_data(void** state) {
    Scene& scene = of(state);
    scene.arrive(0, {wire::Control::Type::data, 0, wire::Immediate{100}.encode()});
    assert_true(scene.completions.drain() == Drained::something);
    assert_int_equal(scene.link.readable(), 100);
    scene.arrive_data(1);
    scene.completions.drain();
    assert_non_null(scene.violation);
    assert_int_equal(scene.link.readable(), 100);
}

void test_one_call_takes_a_limited_number(void** state) {
    Scene& scene = of(state);
    for (int i = 0; i < 200; ++i) {
        scene.arrive_data(1);
    }
    assert_true(scene.completions.drain() == Drained::not_all);
    const size_t first = scene.link.readable();
    assert_in_range(first, 1, 199);
    assert_true(scene.completions.drain() == Drained::something);
    assert_int_equal(scene.link.readable(), 200);
}

void test_all_that_came_before_an_end_is_taken(void** state) {
    Scene& scene = of(state);
    for (int i = 0; i < 300; ++i) {
        scene.arrive_data(1);
    }
    scene.completions.drain_all();
    assert_int_equal(scene.link.readable(), 300);
    assert_true(scene.core.completions.empty());
}

// ---- what was sent

void test_a_completed_write_frees_its_bytes(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send(100), 100);
    assert_int_equal(scene.link.space(), PartsScene::staging_size - 100);
    assert_false(scene.transmit.all_completed());
    scene.core.complete(scene.core.last().context, FI_WRITE | FI_RMA);
    assert_true(scene.completions.drain() == Drained::something);
    assert_int_equal(scene.link.space(), PartsScene::staging_size);
    assert_true(scene.transmit.all_completed());
}

void test_a_completed_write_is_no_arrival_even_with_an_immediate(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.send(100), 100);
    scene.core.complete(scene.core.last().context, FI_WRITE | FI_RMA | FI_REMOTE_CQ_DATA, 100, scene.core.last().data);
    scene.completions.drain();
    assert_int_equal(scene.link.readable(), 0);
    assert_true(scene.transmit.all_completed());
}

void test_an_answered_probe_is_neither(void** state) {
    Scene& scene = of(state);
    scene.keepalive.set({.idle = 1000}, true, [](int) { return 0; });
    assert_true(scene.keepalive.check(std::chrono::steady_clock::now() + std::chrono::seconds(2)) ==
                Keepalive::Verdict::ask);
    scene.transmit.request_flush();
    assert_true(scene.core.last().kind == Kind::read);
    scene.core.complete(scene.core.last().context, FI_READ | FI_RMA);
    assert_true(scene.completions.drain() == Drained::something);
    assert_null(scene.violation);
    assert_int_equal(scene.lost, 0);
    // It was taken for an answer: the next may be posted.
    RegisteredBuffer local;
    assert_int_equal(scene.keepalive.post_probe({}, local), 0);
    assert_int_equal(scene.core.count(Kind::read), 2);
}

// ---- what goes wrong

void test_a_peer_that_breaks_a_rule_is_reported(void** state) {
    Scene& scene = of(state);
    scene.arrive_data(PartsScene::ring_size + 1);
    scene.completions.drain();
    assert_non_null(scene.violation);
    assert_int_equal(scene.link.readable(), 0);
}

void test_a_message_that_is_cut_short_breaks_a_rule(void** state) {
    Scene& scene = of(state);
    scene.arrive(0, {wire::Control::Type::credit}, 8);
    scene.completions.drain();
    assert_non_null(scene.violation);
}

void test_a_message_that_is_too_long_breaks_a_rule(void** state) {
    Scene& scene = of(state);
    scene.core.error.emplace();
    scene.core.error->err = FI_ETRUNC;
    assert_true(scene.completions.drain() == Drained::something);
    assert_non_null(scene.violation);
    assert_int_equal(scene.lost, 0);
}

void test_an_error_of_the_core_is_the_loss_of_the_connection(void** state) {
    Scene& scene = of(state);
    scene.core.error.emplace();
    scene.core.error->err = FI_EIO;
    scene.completions.drain();
    assert_int_equal(scene.lost, FI_ECONNRESET); // whatever the core calls it
    scene.core.error.emplace();
    scene.core.error->err = FI_ETIMEDOUT;
    scene.completions.drain();
    assert_int_equal(scene.lost, FI_ETIMEDOUT);
    assert_null(scene.violation);
}

// A send may fail while data of a peer that has died waits in the kernel: the core puts its completion behind the
// error.
void test_what_is_behind_an_error_is_taken_before_the_loss(void** state) {
    for (const bool all : {false, true}) {
        Scene& scene = of(state);
        const size_t before = scene.link.readable();
        scene.core.error.emplace();
        scene.core.error->err = FI_EIO;
        for (int i = 0; i < 150; ++i) {
            scene.arrive_data(1);
        }
        scene.readable_at_loss = 0;
        if (all) {
            scene.completions.drain_all();
        } else {
            assert_true(scene.completions.drain() == Drained::something);
        }
        assert_int_equal(scene.lost, FI_ECONNRESET);
        assert_int_equal(scene.link.readable() - before, 150);
        assert_int_equal(scene.readable_at_loss, scene.link.readable());
    }
}

void test_the_first_of_several_errors_is_the_reason(void** state) {
    Scene& scene = of(state);
    scene.core.error.emplace();
    scene.core.error->err = FI_ETIMEDOUT;
    scene.arrive(3, {wire::Control::Type::fin});
    scene.core.refuse_receives = true;
    scene.completions.drain();
    assert_int_equal(scene.lost, FI_ETIMEDOUT);
    assert_true(scene.link.peer_finished());
}

void test_a_queue_that_fails_is_the_loss_of_the_connection(void** state) {
    Scene& scene = of(state);
    scene.core.queue_failure = -FI_EIO;
    assert_true(scene.completions.drain() == Drained::nothing);
    assert_int_equal(scene.lost, FI_ECONNRESET);
}

void test_what_an_endpoint_leaves_is_dropped(void** state) {
    Scene& scene = of(state);
    scene.arrive_data(100);
    scene.core.error.emplace();
    scene.core.error->err = FI_ECANCELED; // a receive that was flushed
    scene.completions.drop();
    assert_true(scene.core.completions.empty());
    assert_int_equal(scene.link.readable(), 0);
    assert_int_equal(scene.lost, 0);
    assert_true(scene.completions.drain() == Drained::nothing);
}

void test_a_program_that_polls_looks_for_events_now_and_then(void** state) {
    Scene& scene = of(state);
    assert_true(scene.completions.events_due());
    for (uint32_t i = 1; i < PollInterval::polls_a_clock; ++i) {
        assert_false(scene.completions.events_due());
    }
}

void test_a_queue_has_space_for_immediates_that_use_no_receive(void** state) {
    auto& scene = *static_cast<Scene*>(*state);
    CoreTraits traits = scene.core.endpoint().traits();
    constexpr size_t own = 100 + 2 * size_t{wire::control_credits};
    traits.immediates = true;
    traits.consumes_recv = false;
    assert_int_equal(Completions::queue_size(traits, 10, 50, 100), 10 + 50 + own);
    traits.consumes_recv = true; // the receives of all immediates are posted
    assert_int_equal(Completions::queue_size(traits, 60, 50, 100), 60 + own);
    traits.immediates = false; // messages in place of them
    traits.consumes_recv = false;
    assert_int_equal(Completions::queue_size(traits, 60, 50, 100), 60 + own);
}

} // namespace

int main() {
#define test(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_a_receive_is_posted_in_each_slot, set_up),
        test(test_an_idle_queue_gives_nothing, set_up),
        test(test_data_that_arrived_is_readable, set_up),
        test(test_a_message_goes_to_the_link_and_its_slot_is_posted_again, set_up),
        test(test_with_headers_a_message_announces_data, set_up_headers),
        test(test_one_call_takes_a_limited_number, set_up),
        test(test_all_that_came_before_an_end_is_taken, set_up),
        test(test_a_completed_write_frees_its_bytes, set_up),
        test(test_a_completed_write_is_no_arrival_even_with_an_immediate, set_up),
        test(test_an_answered_probe_is_neither, set_up_probes),
        test(test_a_peer_that_breaks_a_rule_is_reported, set_up),
        test(test_a_message_that_is_cut_short_breaks_a_rule, set_up),
        test(test_a_message_that_is_too_long_breaks_a_rule, set_up),
        test(test_an_error_of_the_core_is_the_loss_of_the_connection, set_up),
        test(test_what_is_behind_an_error_is_taken_before_the_loss, set_up),
        test(test_the_first_of_several_errors_is_the_reason, set_up),
        test(test_a_queue_that_fails_is_the_loss_of_the_connection, set_up),
        test(test_what_an_endpoint_leaves_is_dropped, set_up),
        test(test_a_program_that_polls_looks_for_events_now_and_then, set_up),
        test(test_a_queue_has_space_for_immediates_that_use_no_receive, set_up),
    };
    return RUN_TAP(tests);
}
