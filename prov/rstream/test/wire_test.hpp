// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the tests of the protocol share: cmocka with the headers it expects, a main that speaks TAP, and the text of a
// broken rule.
//
// cmocka's asserts leave by longjmp. Nothing in the protocol owns memory, so its objects may live on a test's stack;
// what does own (vectors, threads) belongs in a function that returns before the assert.
#pragma once

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
extern "C" {
#include <cmocka.h>
}
#undef fail // a macro of that name breaks the standard headers

#include <type_traits>

#include "prov/rstream/wire/link.hpp"

namespace rstream::wire {

static_assert(std::is_trivially_destructible_v<Link> && std::is_trivially_destructible_v<std::optional<Post>>);

constexpr const char* fine = "no rule broken";
inline const char* rule(const char* broken) { return broken != nullptr ? broken : fine; }

// A peer with space for everything, unless a test says otherwise.
inline Hello peer_hello(uint32_t ring_size = 65536, uint16_t credits = 384) {
    Hello hello;
    hello.ring_size = ring_size;
    hello.data_credits = credits;
    hello.control_credits = control_credits;
    return hello;
}

enum class Mode { immediates, headers };

inline const char* deliver(const Post& post, Link& to) {
    if (post.kind == Post::Kind::data && post.control.type != Control::Type::data) {
        return to.on_data(post.immediate.encode());
    }
    return to.on_control(post.control);
}

// Two ends and a wire of no length. `broken` keeps the first rule that one of them found broken.
struct Pair {
    explicit Pair(Mode mode = Mode::immediates, uint32_t ring = 65536, uint16_t credits = 384)
        : a({8192, ring, credits}), b({8192, ring, credits}) {
        a.open(peer_hello(ring, credits), mode == Mode::headers, 65536);
        b.open(peer_hello(ring, credits), mode == Mode::headers, 65536);
    }
    // Gives all that `from` has to `to`; how many messages that were.
    int run(Link& from, Link& to) {
        int count = 0;
        while (auto post = from.next()) {
            const char* found = deliver(*post, to);
            broken = broken != nullptr ? broken : found;
            if (post->kind == Post::Kind::data && !post->chunk.bypass) {
                from.release(post->chunk.length);
            }
            ++count;
        }
        return count;
    }
    void settle() {
        while (run(a, b) + run(b, a) != 0) {
        }
    }
    // Small messages from a to b, one by one.
    void chatter(int count) {
        for (int i = 0; i < count; ++i) {
            a.stage(1);
            run(a, b);
        }
    }

    Link a;
    Link b;
    const char* broken = nullptr;
};

inline Control report(uint64_t consumed, uint64_t data, uint64_t control, Control::Type type = Control::Type::credit,
                      uint8_t flags = 0) {
    return {type, flags, 0, consumed, data, control};
}

inline uint64_t immediate(uint32_t length, uint32_t acks = 0) { return Immediate{length, acks, false}.encode(); }

} // namespace rstream::wire

#define RUN_TAP(tests) (cmocka_set_message_output(CM_OUTPUT_TAP), cmocka_run_group_tests(tests, nullptr, nullptr))

// Macros, so that a failure names the line of the test.
#define assert_extent(got, at, count)                                                                                  \
    do {                                                                                                               \
        const Extent extent_ = (got);                                                                                  \
        assert_int_equal(extent_.offset, at);                                                                          \
        assert_int_equal(extent_.length, count);                                                                       \
    } while (0)
