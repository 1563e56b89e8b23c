// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the tests of buffer resize share: two ends of which one has a ring that may become larger and smaller.
#pragma once

#include <algorithm>
#include <new>

#include "prov/rstream/test/wire_test.hpp"

namespace rstream::wire {

inline constexpr size_t first = 4096;
inline constexpr size_t limit = 65536;
inline constexpr RemoteRing larger{0x1000, 7, 16384};
inline constexpr RemoteRing smaller{0x9000, 8, first};

// Two ends: b's ring may grow, a sends. Wires of no length.
struct Growing : Pair {
    explicit Growing(Mode mode = Mode::immediates) : Pair(mode) {
        new (&b) Link({8192, first, 384, limit});
        Hello hello = peer_hello(first);
        hello.features = Hello::feature_growth;
        a.open(hello, mode == Mode::headers, 65536);
        hello = peer_hello();
        hello.features |= Hello::feature_shrink;
        b.open(hello, mode == Mode::headers, 65536);
    }
    // As Pair's, and keeps what each said last, for a lie that is true but for one thing.
    int run(Link& from, Link& to) {
        int count = 0;
        Control& last = &from == &a ? a_said : b_said;
        while (auto post = from.next()) {
            const char* found = deliver(*post, to);
            broken = broken != nullptr ? broken : found;
            if (post->kind == Post::Kind::data) {
                from.release(post->chunk.bypass ? 0 : post->chunk.length);
            }
            if (post->kind == Post::Kind::data && post->control.type != Control::Type::data) {
                last.control_arrived += post->immediate.control_acks;
            } else if (post->control.type != Control::Type::offer) {
                last = post->control;
            } else {
                last.control_arrived = post->control.control_arrived;
            }
            ++count;
        }
        return count;
    }
    void settle() {
        while (run(a, b) + run(b, a) != 0) {
        }
    }
    [[nodiscard]] Control a_says(Control::Type type, uint32_t argument = 0) const {
        return {type, 0, argument, a_said.consumed, a_said.data_arrived, a_said.control_arrived};
    }
    [[nodiscard]] Control b_offers(size_t size) const {
        return {Control::Type::offer, 0, static_cast<uint32_t>(size), 0, 0, b_said.control_arrived, 1, 2};
    }

    // a has more than b's ring takes, b reads all that is there: one stall.
    void stall() {
        fill();
        b.consume(b.readable());
        run(b, a);
    }
    void fill() {
        a.stage(std::min<size_t>(a.space(), 2 * first));
        run(a, b);
    }
    void stall_until_asked() {
        for (int i = 0; i < 100 && !b.growth_wanted(); ++i) {
            stall();
        }
    }
    void grow() {
        stall_until_asked();
        b.supply(larger);
        run(b, a);
        run(a, b);
    }
    // All is sent and read, in the larger ring.
    void grow_and_read() {
        grow();
        read_out();
    }
    void read_out() {
        while (a.unposted() || b.readable() != 0) {
            b.consume(b.readable());
            settle();
        }
        (void)b.settle();
    }

    Control a_said;
    Control b_said;
};

} // namespace rstream::wire
