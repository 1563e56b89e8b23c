// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Two ends that know four maps of each other's; made for each test, since they own memory.
#pragma once

#include "prov/rstream/test/wire_test.hpp"

#include "prov/rstream/wire/limits.hpp"

namespace rstream::wire {

struct Ends {
    explicit Ends(Mode mode = Mode::immediates) : a({8192, 8192, 64}), b({8192, 8192, 64}), a_maps(4, 4), b_maps(4, 4) {
        a.open(peer_hello(8192, 64), mode == Mode::headers, 65536, &a_maps);
        b.open(peer_hello(8192, 64), mode == Mode::headers, 65536, &b_maps);
    }

    const char* carry(const Post& post, Link& from, Link& to) {
        switch (post.kind) {
        case Post::Kind::map:
            return to.on_map(post.map);
        case Post::Kind::write:
            last_write = post;
            ++writes;
            from.release(post.chunk.length);
            return nullptr;
        case Post::Kind::skip:
            skipped += post.chunk.length;
            from.release(post.chunk.length);
            return nullptr;
        case Post::Kind::data:
            from.release(post.chunk.length);
            [[fallthrough]];
        case Post::Kind::control:
            break;
        }
        return deliver(post, to);
    }
    int run(Link& from, Link& to) {
        int count = 0;
        while (auto post = from.next()) {
            const char* found = carry(*post, from, to);
            broken = broken != nullptr ? broken : found;
            ++count;
        }
        return count;
    }
    void settle() {
        while (run(a, b) + run(b, a) != 0) {
        }
    }
    // A map of b's that a knows.
    void give(uint64_t offset, uint64_t length, uint64_t address = 0x10000, uint64_t key = 77) {
        assert_int_equal(b_maps.claim(offset, length), Maps::Claim::made);
        b_maps.announce(offset, address, key);
        settle();
    }
    void write(size_t length, uint64_t offset) {
        const auto target = a_maps.find(offset);
        assert_true(target.has_value());
        assert_true(a.free_extent(length).length >= length);
        a.stage_write(length, *target);
    }

    Link a;
    Link b;
    Maps a_maps;
    Maps b_maps;
    const char* broken = nullptr;
    Post last_write;
    int writes = 0;
    size_t skipped = 0;
};

inline int make_ends(void** state) {
    *state = new Ends;
    return 0;
}
inline int make_ends_with_headers(void** state) {
    *state = new Ends(Mode::headers);
    return 0;
}
inline int drop_ends(void** state) {
    delete static_cast<Ends*>(*state);
    return 0;
}
inline Ends& ends_of(void** state) { return *static_cast<Ends*>(*state); }

} // namespace rstream::wire

#define ENDS_TEST(test) cmocka_unit_test_setup_teardown(test, make_ends, drop_ends)
