// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The receiving half of a stream: what a receive and a peek give for what has arrived, where the stream ends, and a
// larger ring that takes the place of the first.
#include "prov/rstream/stream/receive.hpp"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "prov/rstream/stream/test/parts_scene.hpp"

using namespace rstream;

namespace {

constexpr size_t larger_size = 2 * PartsScene::ring_size;

struct Scene : PartsScene {
    explicit Scene(const Config& config) : PartsScene(config), receive({core.endpoint(), link, lifecycle, readiness}) {
        ready = ready && receive.open(ring_size, idle) == 0 && receive.register_memory() == 0;
        open_link(false);
    }

    // The peer writes to the ring that it was offered, and tells.
    void arrive(const std::string& bytes) {
        auto* ring = reinterpret_cast<char*>(peer_ring.address); // NOLINT(performance-no-int-to-ptr)
        for (const char byte : bytes) {
            ring[written++ % peer_ring.size] = byte;
        }
        tell(link.on_data(wire::Immediate{static_cast<uint32_t>(bytes.size())}.encode()));
    }
    void arrive(wire::Control::Type type, uint32_t argument = 0) {
        tell(link.on_control(wire::Control{type, 0, argument, 0, 0, controls}));
    }
    void tell(const char* rule) { broken = broken != nullptr ? broken : rule; }
    // What we have to send to it.
    std::optional<wire::Post> send() {
        auto post = link.next();
        controls += post && post->kind == wire::Post::Kind::control ? 1 : 0;
        return post;
    }

    ssize_t recv(size_t length) {
        const iovec iov{received.data(), length};
        return receive.recv(&iov, 1, progress());
    }
    ssize_t peek(size_t length) {
        const iovec iov{received.data(), length};
        const Receive::Peeked peeked = receive.peek(&iov, length != 0 ? 1 : 0, progress());
        needs_more = peeked.needs_more;
        return peeked.result;
    }
    [[nodiscard]] std::string text(size_t length) const { return {received.data(), length}; }

    Receive receive;
    wire::RemoteRing peer_ring; // as the peer knows it
    size_t written = 0;         // to the ring at present
    uint64_t controls = 0;
    std::array<char, 4 * PartsScene::ring_size> received{};
    std::string comes; // with the next progress
    int progressed = 0;
    bool needs_more = false;
    const char* broken = nullptr; // a rule, by the test itself

  private:
    std::function<void()> progress() {
        return [this] {
            ++progressed;
            if (!comes.empty()) {
                arrive(std::exchange(comes, ""));
            }
        };
    }
};

int make(void** state, size_t ring_limit, bool connected = true) {
    auto scene = std::make_unique<Scene>(PartsScene::Config{.properties = {}, .ring_limit = ring_limit});
    scene->peer_ring = scene->receive.offer();
    if (connected) {
        scene->connect();
    }
    const bool ready = scene->ready;
    *state = scene.release();
    return ready ? 0 : -1;
}

int set_up(void** state) { return make(state, 0); }
int set_up_growing(void** state) { return make(state, larger_size); }
int set_up_unconnected(void** state) { return make(state, 0, false); }

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    const bool fine = scene->broken == nullptr;
    return fine ? 0 : -1;
}

Scene& of(void** state) { return *static_cast<Scene*>(*state); }

// ---- bytes

void test_the_ring_is_offered_as_the_core_knows_it(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.receive.offer().size, PartsScene::ring_size);
    assert_true(scene.receive.offer().address != 0);
    assert_int_equal(scene.core.regions, 1);
    scene.receive.deregister();
    assert_int_equal(scene.core.regions, 0);
}

void test_a_receive_takes_what_has_arrived(void** state) {
    Scene& scene = of(state);
    scene.arrive("hello ");
    scene.arrive("world");
    assert_int_equal(scene.recv(100), 11);
    assert_memory_equal(scene.received.data(), "hello world", 11);
    assert_int_equal(scene.progressed, 0);
    assert_int_equal(scene.recv(100), -FI_EAGAIN);
}

void test_what_is_left_is_received_next(void** state) {
    Scene& scene = of(state);
    scene.arrive("hello");
    assert_int_equal(scene.recv(2), 2);
    assert_int_equal(scene.recv(100), 3);
    assert_memory_equal(scene.received.data(), "llo", 3);
}

void test_a_list_of_buffers_is_filled_in_order(void** state) {
    Scene& scene = of(state);
    scene.arrive("hello");
    std::array<char, 3> one{};
    std::array<char, 8> two{};
    const iovec iov[] = {{one.data(), one.size()}, {two.data(), two.size()}};
    assert_int_equal(scene.receive.recv(iov, 2, [] {}), 5);
    assert_memory_equal(one.data(), "hel", 3);
    assert_memory_equal(two.data(), "lo", 2);
}

void test_bytes_that_wrap_around_the_ring_are_whole(void** state) {
    Scene& scene = of(state);
    scene.arrive(std::string(PartsScene::ring_size - 3, '.'));
    assert_int_equal(scene.recv(PartsScene::ring_size), PartsScene::ring_size - 3);
    assert_true(scene.send().has_value()); // which gives the peer its window back
    scene.arrive("around");
    assert_int_equal(scene.recv(100), 6);
    assert_memory_equal(scene.received.data(), "around", 6);
}

void test_a_receive_that_finds_nothing_takes_what_comes_with_progress(void** state) {
    Scene& scene = of(state);
    scene.comes = "just in time";
    assert_int_equal(scene.recv(100), 12);
    assert_int_equal(scene.progressed, 1);
    assert_int_equal(scene.recv(100), -FI_EAGAIN);
    assert_int_equal(scene.progressed, 2);
}

// ---- peeking

void test_a_peek_takes_nothing(void** state) {
    Scene& scene = of(state);
    scene.arrive("hello");
    assert_int_equal(scene.peek(3), 3);
    assert_memory_equal(scene.received.data(), "hel", 3);
    assert_int_equal(scene.peek(0), 5); // what there is
    assert_int_equal(scene.recv(100), 5);
    assert_int_equal(scene.peek(3), -FI_EAGAIN);
}

void test_a_program_that_peeks_again_needs_more(void** state) {
    Scene& scene = of(state);
    const size_t most = PartsScene::ring_size / 2 + 2;
    scene.arrive(std::string(most, '.'));
    assert_int_equal(scene.recv(1), 1);
    assert_int_equal(scene.peek(0), most - 1);
    assert_false(scene.needs_more);
    assert_false(scene.link.control_due());
    assert_int_equal(scene.peek(0), most - 1);
    assert_true(scene.needs_more);
    assert_true(scene.link.control_due()); // the peer may need credit to send it
    scene.arrive("!");
    assert_int_equal(scene.peek(0), most);
    assert_false(scene.needs_more);
}

// ---- the end

void test_there_is_nothing_before_the_connection(void** state) {
    Scene& scene = of(state);
    assert_int_equal(scene.recv(100), -FI_ENOTCONN);
    assert_int_equal(scene.peek(100), -FI_ENOTCONN);
    assert_int_equal(scene.progressed, 0);
}

void test_the_end_is_behind_the_last_byte(void** state) {
    Scene& scene = of(state);
    scene.arrive("last");
    scene.arrive(wire::Control::Type::fin);
    assert_int_equal(scene.recv(2), 2);
    assert_int_equal(scene.recv(100), 2);
    assert_int_equal(scene.recv(100), 0);
    assert_int_equal(scene.peek(100), 0);
    assert_int_equal(scene.recv(100), 0);
}

void test_a_reset_is_behind_what_arrived(void** state) {
    Scene& scene = of(state);
    scene.arrive("last");
    scene.arrive(wire::Control::Type::rst);
    assert_int_equal(scene.recv(100), 4);
    assert_int_equal(scene.recv(100), -FI_ECONNRESET);
}

void test_a_lost_connection_says_why(void** state) {
    Scene& scene = of(state);
    scene.arrive("last");
    scene.lifecycle.fail(FI_ETIMEDOUT);
    assert_int_equal(scene.recv(100), 4);
    assert_int_equal(scene.recv(100), -FI_ETIMEDOUT);
    assert_false(scene.lifecycle.claim_error_report()); // a send says that the pipe is broken
}

void test_after_an_own_shutdown_there_is_what_had_arrived_and_the_end(void** state) {
    Scene& scene = of(state);
    scene.arrive("last");
    scene.lifecycle.shut_receive();
    assert_int_equal(scene.recv(100), 4);
    assert_int_equal(scene.recv(100), 0);
}

// ---- a larger ring

void ask_for_a_larger_ring(Scene& scene) { scene.arrive(wire::Control::Type::grow); }

void test_no_ring_is_made_that_was_not_asked_for(void** state) {
    Scene& scene = of(state);
    assert_false(scene.receive.grow());
    assert_int_equal(scene.core.regions, 1);
}

void test_a_larger_ring_takes_the_place_of_the_first(void** state) {
    Scene& scene = of(state);
    scene.arrive("before");
    ask_for_a_larger_ring(scene);
    assert_true(scene.link.growth_wanted());
    assert_true(scene.receive.grow());
    assert_int_equal(scene.core.regions, 2);
    assert_false(scene.receive.grow()); // there is one
    const auto offer = scene.send();
    assert_true(offer.has_value());
    assert_true(offer->control.type == wire::Control::Type::offer);
    assert_int_equal(offer->control.argument, larger_size);

    scene.arrive(wire::Control::Type::move, static_cast<uint32_t>(scene.written));
    scene.peer_ring = {offer->control.address, offer->control.key, larger_size};
    scene.arrive(" and behind"); // at the position that it has in the stream
    assert_int_equal(scene.recv(3), 3);
    assert_int_equal(scene.core.regions, 2); // bytes lie in both
    assert_int_equal(scene.recv(100), 14);
    assert_memory_equal(scene.received.data(), "ore and behind", 14);
    assert_int_equal(scene.core.regions, 1); // the first was given back
    assert_int_equal(scene.receive.offer().size, larger_size);
}

// The first ring is replaced by a larger one, and that by one of the first size: at the first addresses.
void test_an_idle_ring_shrinks(void** state) {
    Scene& scene = of(state);
    const wire::RemoteRing first = scene.peer_ring;
    const auto move_to = [&](size_t size) {
        const auto offer = scene.send();
        assert_true(offer->control.type == wire::Control::Type::offer);
        assert_int_equal(offer->control.argument, size);
        scene.arrive(wire::Control::Type::move, static_cast<uint32_t>(scene.written));
        scene.peer_ring = {offer->control.address, offer->control.key, size};
    };
    assert_false(scene.receive.shrink(first.size)); // it is no larger
    ask_for_a_larger_ring(scene);
    assert_true(scene.receive.grow());
    move_to(larger_size);
    scene.receive.settle();
    assert_int_equal(scene.core.regions, 1);
    scene.arrive("unread");
    assert_false(scene.receive.shrink(first.size));
    assert_int_equal(scene.recv(100), 6);
    assert_true(scene.receive.shrink(first.size));
    assert_false(scene.receive.shrink(first.size)); // it is offered
    assert_int_equal(scene.core.regions, 2);
    move_to(first.size);
    assert_int_equal(scene.peer_ring.address, first.address);
    scene.arrive("in the smaller one");
    scene.receive.settle(); // without a receive
    assert_int_equal(scene.core.regions, 1);
    assert_int_equal(scene.receive.offer().size, first.size);
    assert_int_equal(scene.recv(100), 18);
    assert_memory_equal(scene.received.data(), "in the smaller one", 18);
}

void test_without_memory_for_a_larger_ring_nobody_tries_again(void** state) {
    Scene& scene = of(state);
    ask_for_a_larger_ring(scene);
    scene.core.registration = -FI_ENOMEM;
    assert_false(scene.receive.grow());
    scene.core.registration = 0;
    assert_false(scene.receive.grow());
    scene.arrive("as before");
    assert_int_equal(scene.recv(100), 9);
}

// It announces bytes that it has not written, to a ring which another stream had before.
void test_a_lying_peer_finds_no_bytes_of_another_stream(void** state) {
    Scene& scene = of(state);
    constexpr size_t length = 1000;
    scene.arrive(std::string(length, 's'));
    assert_int_equal(scene.recv(length), length);
    scene.receive.deregister();
    scene.receive.give_memory(scene.idle);
    assert_int_equal(scene.idle.count(), 1);

    wire::Link link({PartsScene::staging_size, PartsScene::ring_size, 384, 0});
    Receive next({scene.core.endpoint(), link, scene.lifecycle, scene.readiness});
    assert_int_equal(next.open(PartsScene::ring_size, scene.idle), 0);
    assert_int_equal(scene.idle.count(), 0);
    assert_null(link.on_data(wire::Immediate{length}.encode()));
    const iovec iov{scene.received.data(), length};
    assert_int_equal(next.recv(&iov, 1, [] {}), length);
    assert_true(scene.text(length) == std::string(length, '\0'));
}

} // namespace

int main() {
#define test(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_the_ring_is_offered_as_the_core_knows_it, set_up),
        test(test_a_receive_takes_what_has_arrived, set_up),
        test(test_what_is_left_is_received_next, set_up),
        test(test_a_list_of_buffers_is_filled_in_order, set_up),
        test(test_bytes_that_wrap_around_the_ring_are_whole, set_up),
        test(test_a_receive_that_finds_nothing_takes_what_comes_with_progress, set_up),
        test(test_a_peek_takes_nothing, set_up),
        test(test_a_program_that_peeks_again_needs_more, set_up),
        test(test_there_is_nothing_before_the_connection, set_up_unconnected),
        test(test_the_end_is_behind_the_last_byte, set_up),
        test(test_a_reset_is_behind_what_arrived, set_up),
        test(test_a_lost_connection_says_why, set_up),
        test(test_after_an_own_shutdown_there_is_what_had_arrived_and_the_end, set_up),
        test(test_no_ring_is_made_that_was_not_asked_for, set_up_growing),
        test(test_a_larger_ring_takes_the_place_of_the_first, set_up_growing),
        test(test_an_idle_ring_shrinks, set_up_growing),
        test(test_without_memory_for_a_larger_ring_nobody_tries_again, set_up_growing),
        test(test_a_lying_peer_finds_no_bytes_of_another_stream, set_up),
    };
    return RUN_TAP(tests);
}
