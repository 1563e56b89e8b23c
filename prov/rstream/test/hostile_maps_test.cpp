// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that lies about maps, or has the key of one and does what it likes with it: it reaches the mapped bytes while
// they are mapped, nothing beside them, and nothing at all once they were given back. libfabric's cache of
// registrations is on, as it is by default.
#include <algorithm>
#include <cstring>

#include <sys/mman.h>

#include "fabtests/functional/maps.hpp"
#include "prov/rstream/test/hostile_peer.hpp"

using namespace fabtests;
using namespace hostile;

namespace {

using Type = wire::MapMessage::Type;

wire::MapMessage announced(uint64_t offset, uint64_t length, uint64_t address = 0, uint64_t key = 77) {
    return {Type::map, offset, length, address, key};
}

// ---- lies

void expect_attack_fails(const std::function<void(Raw&)>& attack, size_t maps = 4) {
    Scene scene;
    scene.maps = maps;
    Raw raw(scene);
    raw.maps = 4;
    const auto victim = scene.attack(raw);
    attack(raw);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void test_more_maps_than_were_asked_for_reset() {
    expect_attack_fails([](Raw& raw) { raw.map(announced(0, 1)); }, 0);
    expect_attack_fails([](Raw& raw) {
        for (uint64_t i = 0; i < 5; ++i) {
            raw.map(announced(i, 1));
        }
    });
}

void test_a_map_where_neither_end_wants_any_resets() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    raw.map(announced(0, 1));
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void test_maps_over_each_other_reset() {
    expect_attack_fails([](Raw& raw) {
        raw.map(announced(100, 100));
        raw.map(announced(199, 1));
    });
}

void test_maps_beyond_all_offsets_and_of_no_length_reset() {
    const uint64_t end = wire::MapMessage::end_of_offsets;
    for (const auto& map : {announced(0, 0), announced(end, 1), announced(end - 1, 2), announced(UINT64_MAX, 10),
                            announced(0, 10, UINT64_MAX - 5)}) {
        expect_attack_fails([&](Raw& raw) { raw.map(map); });
    }
}

void test_asking_back_what_was_not_mapped_resets() {
    expect_attack_fails([](Raw& raw) { raw.map({Type::unmap, 0}); });
    expect_attack_fails([](Raw& raw) {
        raw.map(announced(100, 100));
        raw.map({Type::unmap, 150});
    });
    expect_attack_fails([](Raw& raw) {
        raw.map(announced(100, 100));
        raw.map({Type::unmap, 100});
        raw.map({Type::unmap, 100});
    });
}

void test_giving_back_what_was_not_asked_for_resets() {
    expect_attack_fails([](Raw& raw) { raw.map({Type::unmapped, 0}); });
}

void test_a_flood_of_maps_resets() {
    expect_attack_fails([](Raw& raw) {
        for (uint64_t i = 0; i < 3000 && raw.map(announced(0, 1)) == 0 && raw.map({Type::unmap, 0}) == 0; ++i) {
        }
    });
}

void test_a_map_of_memory_that_does_not_exist_only_harms_the_liar() {
    Scene scene;
    scene.maps = 4;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    raw.map(announced(0, 100000, 0x1000, 0x5555));
    const std::vector<char> bytes(50000);
    const auto start = Clock::now();
    ssize_t sent = 0;
    do { // the core of the peer refuses the write, and ends its connection
        sent = write(*victim, bytes.data(), bytes.size(), 0);
        raw.progress();
        (void)peek_recv(*victim);
    } while ((sent == -FI_EINVAL || sent > 0 || sent == -FI_EAGAIN) && milliseconds_since(start) < patience(10000));
    EXPECT(sent == -FI_ECONNRESET || sent == -FI_EPIPE);
    scene.ended(*victim);
    scene.others_carry_on();
}

// ---- the key of a map

constexpr size_t page = 4096;

// Three pages of which the middle one is mapped, but for its first and last bytes.
struct Mapped {
    explicit Mapped(Scene& scene) : pages(3 * page), raw(scene) {
        memset(pages.data(), 0x55, 3 * page);
        raw.maps = 4;
        victim = scene.attack(raw);
        uint64_t offset = FI_RSTREAM_MAP_ANY;
        EXPECT_RESULT(ops_of(*victim).map(victim->get(), memory(), length, FI_REMOTE_WRITE, &offset), 0);
        EXPECT(scene.until(raw, *victim, [&] { return !raw.told.empty(); }));
        map = raw.told.front();
        raw.told.pop_front();
        EXPECT(map.type == Type::map && map.offset == offset && map.length == length);
    }
    [[nodiscard]] std::byte* memory() const { return pages.data() + page + before; }
    int unmap() { return ops_of(*victim).unmap(victim->get(), memory(), length, 0); }
    void expect_untouched(size_t from, size_t to) const {
        EXPECT(std::all_of(pages.data() + from, pages.data() + to, [](std::byte b) { return b == std::byte{0x55}; }));
    }
    void expect_only_the_map_was_touched() const {
        expect_untouched(0, page + before);
        expect_untouched(page + before + length, 3 * page);
    }

    static constexpr size_t before = 100;
    static constexpr size_t length = 2000;
    Pages pages;
    Raw raw;
    std::unique_ptr<Stream> victim;
    wire::MapMessage map;
};

void test_the_key_reaches_what_is_mapped() {
    Scene scene;
    Mapped m(scene);
    EXPECT_RESULT(m.raw.poke(m.map.address, m.length, m.map.key), 0);
    EXPECT_RESULT(m.raw.data(5), 0);
    EXPECT(scene.until(m.raw, *m.victim, [&] { return peek_recv(*m.victim) == 5; }));
    EXPECT(std::all_of(m.memory(), m.memory() + m.length, [](std::byte b) { return b == Raw::poison; }));
    m.expect_only_the_map_was_touched();
    scene.others_carry_on();
}

void test_a_write_beside_the_map_changes_nothing() {
    struct Try {
        int64_t offset;
        size_t length;
    };
    for (const Try t : {Try{-1, 1}, Try{-50, 64}, Try{static_cast<int64_t>(Mapped::length), 1},
                        Try{static_cast<int64_t>(Mapped::length) - 32, 64}, Try{-100, 3000}}) {
        Scene scene;
        Mapped m(scene);
        m.raw.poke(m.map.address + static_cast<uint64_t>(t.offset), t.length, m.map.key);
        expect_reset(scene, *m.victim, m.raw);
        m.expect_only_the_map_was_touched();
        EXPECT_RESULT(m.unmap(), 0);
        scene.others_carry_on();
    }
}

void test_the_key_of_the_map_does_not_open_the_ring() {
    Scene scene;
    Mapped m(scene);
    EXPECT(m.map.key != m.raw.peer.ring_key);
    if (scene.virtual_addresses()) {
        m.raw.poke(m.raw.peer.ring_address, 64, m.map.key);
        expect_reset(scene, *m.victim, m.raw);
    }
    scene.others_carry_on();
}

void test_the_key_is_of_no_use_once_the_memory_was_given_back() {
    for (const size_t written : {size_t{0}, size_t{1000}}) {
        Scene scene;
        Mapped m(scene);
        if (written != 0) {
            EXPECT_RESULT(m.raw.poke(m.map.address, written, m.map.key), 0);
        }
        EXPECT_RESULT(m.unmap(), -FI_EAGAIN);
        EXPECT(scene.until(m.raw, *m.victim, [&] { return !m.raw.told.empty(); }));
        EXPECT(m.raw.told.front().type == Type::unmap && m.raw.told.front().offset == m.map.offset);
        EXPECT_RESULT(m.raw.map({Type::unmapped, m.map.offset}), 0);
        EXPECT(scene.until(m.raw, *m.victim, [&] { return m.unmap() == 0; }));
        memset(m.memory(), 0x55, m.length);
        m.raw.poke(m.map.address, 64, m.map.key); // it has promised not to
        expect_reset(scene, *m.victim, m.raw);
        m.expect_untouched(0, 3 * page);
        scene.others_carry_on();
    }
}

void test_the_key_is_of_no_use_to_another_stream_once_the_first_is_closed() {
    Scene scene;
    Mapped m(scene);
    m.raw.close();
    scene.ended(*m.victim);
    EXPECT_RESULT(m.unmap(), 0);
    m.victim.reset();
    Raw other(scene);
    const auto victim = scene.attack(other);
    other.poke(m.map.address, 64, m.map.key);
    expect_reset(scene, *victim, other);
    m.expect_untouched(0, 3 * page);
    scene.others_carry_on();
}

// The owner has its memory back when it closes, whatever the peer says or does not say.
void test_a_peer_that_never_answers_holds_no_memory_beyond_the_close() {
    Scene scene;
    Mapped m(scene);
    EXPECT_RESULT(m.unmap(), -FI_EAGAIN);
    const auto start = Clock::now();
    while (milliseconds_since(start) < patience(200)) {
        EXPECT_RESULT(m.unmap(), -FI_EAGAIN);
        m.raw.progress();
    }
    EXPECT_RESULT(m.raw.data(5), 0); // the stream is as well as ever
    EXPECT(scene.until(m.raw, *m.victim, [&] { return peek_recv(*m.victim) == 5; }));
    m.victim->set_option(FI_OPT_RSTREAM_LINGER, 100);
    m.victim.reset();
    m.raw.poke(m.map.address, 64, m.map.key);
    scene.others_carry_on();
    m.raw.progress();
    m.expect_untouched(0, 3 * page);
}

void test_a_peer_that_does_not_answer_can_be_left_by_a_reset() {
    Scene scene;
    Mapped m(scene);
    EXPECT_RESULT(m.unmap(), -FI_EAGAIN);
    EXPECT_RESULT(fi_shutdown(m.victim->get(), FI_RSTREAM_ABORT), 0);
    scene.ended(*m.victim);
    EXPECT_RESULT(m.unmap(), 0);
    m.raw.poke(m.map.address, 64, m.map.key);
    scene.others_carry_on();
    m.expect_untouched(0, 3 * page);
}

} // namespace

int main() {
    show_core();
    const CMUnitTest tests[] = {
        FABTEST(test_more_maps_than_were_asked_for_reset),
        FABTEST(test_a_map_where_neither_end_wants_any_resets),
        FABTEST(test_maps_over_each_other_reset),
        FABTEST(test_maps_beyond_all_offsets_and_of_no_length_reset),
        FABTEST(test_asking_back_what_was_not_mapped_resets),
        FABTEST(test_giving_back_what_was_not_asked_for_resets),
        FABTEST(test_a_flood_of_maps_resets),
        FABTEST(test_a_map_of_memory_that_does_not_exist_only_harms_the_liar),
        FABTEST(test_the_key_reaches_what_is_mapped),
        FABTEST(test_a_write_beside_the_map_changes_nothing),
        FABTEST(test_the_key_of_the_map_does_not_open_the_ring),
        FABTEST(test_the_key_is_of_no_use_once_the_memory_was_given_back),
        FABTEST(test_the_key_is_of_no_use_to_another_stream_once_the_first_is_closed),
        FABTEST(test_a_peer_that_never_answers_holds_no_memory_beyond_the_close),
        FABTEST(test_a_peer_that_does_not_answer_can_be_left_by_a_reset),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
