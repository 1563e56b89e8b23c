// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Two links, two programs that do what they like, and a wire between them with delays of its own that is busy when it
// likes. Whatever they do: every byte arrives once and in its place, neither end finds a rule broken, and what waits,
// waits for a program and not for ever. A failure prints its seed; WIRE_MODEL_SEED adds one to the list.
#include "prov/rstream/test/wire_model_connection.hpp"

using namespace rstream::wire;

namespace {

class Model {
  public:
    Model(uint64_t seed, const Options& options) : dice_(seed), options_(options), connection_(dice_, options_) {}

    std::string run() {
        const int reset_at = options_.resets ? static_cast<int>(dice_.below(steps)) : -1;
        for (int step = 0; step < steps && !connection_.failed(); ++step) {
            if (step % (steps / moods) == 0) {
                change_moods();
            }
            if (step == reset_at) {
                reset(connection_.ends()[dice_.below(2)]);
            }
            End& end = connection_.ends()[dice_.below(2)];
            act(end, moods_[end.side].draw(dice_));
            if (dice_.below(300) == 0) {
                settle();
                if (dice_.percent(50)) {
                    read_out();
                }
            }
        }
        if (!connection_.failed()) {
            options_.resets ? check_reset() : end_well();
        }
        return connection_.failed() ? connection_.failure() + describe() : "";
    }
    [[nodiscard]] uint64_t growths() const { return connection_.growths(); }
    [[nodiscard]] uint64_t shrinks() const { return connection_.shrinks(); }

  private:
    static constexpr uint8_t untouched = 0x99;
    static constexpr int steps = 12000;
    static constexpr int moods = 60;

    enum Action { send, bypass, read, pump, deliver, complete, grow, map, write, actions };

    // What a program and its core are inclined to do at present.
    struct Mood {
        uint64_t weights[actions] = {};
        Action draw(Dice& dice) const {
            uint64_t total = 0;
            for (const uint64_t weight : weights) {
                total += weight;
            }
            uint64_t at = dice.below(total);
            int action = 0;
            while (at >= weights[action]) {
                at -= weights[action++];
            }
            return static_cast<Action>(action);
        }
    };

    void change_moods() {
        for (Mood& mood : moods_) {
            for (uint64_t& weight : mood.weights) {
                weight = 1 + dice_.below(dice_.below(2) == 0 ? 4 : 40);
            }
        }
        largest_ = dice_.below(2) == 0 ? 1 + dice_.below(64) : 1 + dice_.below(150000);
        if (!options_.resets && dice_.below(moods) == 0) {
            connection_.ends()[dice_.below(2)].link.finish(false);
        }
    }

    void act(End& end, Action action) {
        switch (action) {
        case send:
            program_sends(end, dice_.size(largest_));
            break;
        case bypass:
            program_bypasses(end, dice_.size(std::min<size_t>(largest_, end.max_chunk)));
            break;
        case read:
            program_reads(end);
            break;
        case pump:
            connection_.posts(end, 1 + dice_.below(20));
            break;
        case deliver:
            connection_.delivers(end, 1 + dice_.below(20));
            break;
        case complete:
            connection_.completes(end, 1 + dice_.below(20));
            break;
        case grow:
            connection_.grows(end);
            break;
        case map:
            if (options_.maps) {
                program_maps(end);
            }
            break;
        case write:
            if (options_.maps) {
                program_writes(end, dice_.size(largest_));
            }
            break;
        case actions:
            break;
        }
    }

    // ---- programs

    void program_sends(End& end, size_t length) {
        if (end.link.finishing() || end.link.peer_reset()) {
            return;
        }
        while (length != 0) {
            const Extent extent = end.link.free_extent(length);
            if (extent.length == 0) {
                break;
            }
            if (!end.staging.holds(extent)) {
                return connection_.fail("space outside the staging ring");
            }
            uint8_t* to = end.staging.at(extent);
            for (size_t i = 0; i < extent.length; ++i) {
                to[i] = pattern(end.side, end.accepted + i);
            }
            end.link.stage(extent.length);
            end.accepted += extent.length;
            length -= extent.length;
        }
        if (dice_.percent(70)) {
            connection_.posts(end, 1000);
        }
    }

    void program_bypasses(End& end, size_t length) {
        if (end.link.finishing() || end.link.peer_reset()) {
            return;
        }
        const auto post = end.link.bypass(length);
        if (!post) {
            return;
        }
        std::vector<uint8_t> bytes(length);
        for (size_t i = 0; i < length; ++i) {
            bytes[i] = pattern(end.side, end.accepted + i);
        }
        if (connection_.gives_to_core(end, *post, std::move(bytes))) {
            end.accepted += length;
        }
    }

    // A program waits for no more than its buffer takes, which may have become smaller meanwhile.
    [[nodiscard]] size_t waits_for(const End& end) const {
        return std::min(end.wanted, end.link.ring_size() / std::max<size_t>(options_.waits, 1));
    }

    void program_reads(End& end) {
        const bool last = end.link.peer_finished() || end.link.peer_reset();
        if (end.link.readable() < waits_for(end) && !last) {
            end.link.await_more();
            return;
        }
        size_t length =
            std::min(end.link.readable(), dice_.below(2) == 0 ? end.wanted : dice_.size(end.link.ring_size()));
        while (length != 0 && !connection_.failed()) {
            const Extent piece = end.link.peek(length);
            if (piece.length == 0 || piece.length > length || !end.rings.holds(piece)) {
                return connection_.fail("a peek outside of what is readable");
            }
            const uint8_t* got = end.rings.at(piece);
            for (size_t i = 0; i < piece.length; ++i) {
                if (got[i] != pattern(1 - end.side, end.read + i)) {
                    return connection_.fail("another byte at position " + std::to_string(end.read + i));
                }
            }
            end.link.consume(piece.length);
            end.read += piece.length;
            length -= piece.length;
        }
        if (end.link.settle()) {
            end.rings.settle();
        }
        End& writer = connection_.peer(end);
        for (; !writer.marks.empty() && writer.marks.front().position < end.read; writer.marks.pop_front()) {
            if (writer.marks.front().written > writer.arrived) {
                return connection_.fail("a byte came before what was written in front of it");
            }
        }
        end.wanted = options_.waits == 0 ? 1 : dice_.size(end.link.ring_size() / options_.waits);
        if (options_.waits != 0 && dice_.below(8) == 0) {
            end.wanted = end.link.ring_size() / options_.waits;
        }
        if (end.link.readable() < waits_for(end)) {
            end.link.await_more();
        }
        if (dice_.percent(70)) {
            connection_.posts(end, 1000);
        }
    }

    // Maps some memory, or takes some back.
    void program_maps(End& end) {
        if (end.link.peer_reset()) {
            return;
        }
        const size_t which = dice_.below(2 * End::regions_known);
        if (which >= end.regions.size() || !end.regions[which].registered) {
            Region region;
            region.bytes.assign(dice_.size(20000), untouched);
            region.offset = dice_.percent(50) ? Maps::any : dice_.below(200000);
            const auto claim = end.maps->claim(region.offset, region.bytes.size());
            if (claim != Maps::Claim::made) {
                return;
            }
            region.address = dice_.below(2) == 0 ? 0 : 1 + dice_.below(uint64_t{1} << 40);
            region.registered = true;
            end.regions.push_back(std::move(region));
            end.maps->announce(end.regions.back().offset, end.regions.back().address, end.regions.size() - 1);
        } else {
            end.regions[which].withdrawing = true;
        }
        for (Region& region : end.regions) {
            takes_back(end, region);
        }
        if (dice_.percent(70)) {
            connection_.posts(end, 1000);
        }
    }

    static void takes_back(End& end, Region& region) {
        const bool over = end.link.peer_finished() || end.link.peer_reset();
        if (region.registered && region.withdrawing && (end.maps->withdraw(region.offset, false) || over)) {
            end.maps->forget(region.offset);
            region.registered = false;
            region.bytes.clear();
        }
    }

    void program_writes(End& end, size_t length) {
        if (end.link.finishing() || end.link.peer_reset()) {
            return;
        }
        const std::vector<Region>& regions = connection_.peer(end).regions;
        if (regions.empty()) {
            return;
        }
        // Any of the peer's, whether it is still there or not, and a little beside it.
        const Region& region = regions[dice_.below(regions.size())];
        const uint64_t offset = region.offset + dice_.below(22000);
        const auto target = end.maps->find(offset);
        if (!target) {
            return;
        }
        const Extent extent = end.link.free_extent(std::min<uint64_t>(length, target->length));
        uint8_t* to = end.staging.at(extent);
        for (size_t i = 0; i < extent.length; ++i) {
            to[i] = pattern(2 + end.side, end.written + i);
        }
        if (extent.length != 0) {
            end.link.stage_write(extent.length, *target);
            end.written += extent.length;
            end.marks.push_back({end.accepted, end.written});
        }
        if (dice_.percent(70)) {
            connection_.posts(end, 1000);
        }
    }

    // ---- what must hold

    // The programs are quiet, the wire is not busy: all that can move does.
    void settle() {
        connection_.settle();
        for (End& end : connection_.ends()) {
            check_settled(end, connection_.peer(end));
        }
    }

    void check_settled(const End& from, const End& to) {
        if (connection_.failed() || options_.resets) {
            return;
        }
        if (options_.maps) {
            const auto held = std::find_if(from.regions.begin(), from.regions.end(), [&](const Region& region) {
                return region.registered && region.withdrawing && !from.maps->withdraw(region.offset, false);
            });
            if (held != from.regions.end()) {
                return connection_.fail("end " + std::to_string(from.side) + " does not get its memory back");
            }
            if (!from.link.unposted() && from.arrived != from.written) {
                return connection_.fail("writes of end " + std::to_string(from.side) + " are lost");
            }
        }
        const size_t readable = to.link.readable();
        if (from.link.unposted()) {
            // The peer need not tell of less than half a ring, and nothing else may be in the way.
            if (readable <= to.link.ring_size() - to.link.ring_size() / 2) {
                connection_.fail("end " + std::to_string(from.side) + " is stuck with bytes for a ring that has space");
            } else if (readable < waits_for(to)) {
                connection_.fail("end " + std::to_string(from.side) + " is stuck with bytes that a reader waits for");
            }
        } else if (to.read + readable != from.accepted) {
            connection_.fail("bytes of end " + std::to_string(from.side) + " are lost");
        } else if (from.link.space() != from.link.staging_size()) {
            connection_.fail("space is missing in the staging ring");
        } else if (from.link.finishing() && !(to.link.peer_finished() && from.link.all_arrived())) {
            connection_.fail("the end of the stream did not arrive, or its sender was not told");
        }
    }

    // Reads all that the readers can get without any more being sent.
    void read_out() {
        uint64_t before = 0;
        do {
            before = connection_.ends()[0].read + connection_.ends()[1].read;
            for (End& end : connection_.ends()) {
                program_reads(end);
            }
            settle();
        } while (!connection_.failed() && connection_.ends()[0].read + connection_.ends()[1].read != before);
    }

    void end_well() {
        settle();
        read_out();
        for (End& end : connection_.ends()) {
            end.link.finish(dice_.percent(30));
        }
        settle();
        read_out();
        for (End& end : connection_.ends()) {
            end.link.finish(true);
        }
        settle();
        for (End& end : connection_.ends()) {
            if (!connection_.failed() && (end.read != connection_.peer(end).accepted || !end.link.peer_closed() ||
                                          !end.link.all_arrived() || end.link.anything_unacknowledged())) {
                connection_.fail("the stream did not end well");
            }
        }
    }

    void reset(End& end) {
        lingers_ = dice_.percent(50);
        lingers_ ? end.link.finish_with_reset() : end.link.abort();
        resetter_ = end.side;
    }

    // Whoever is reset can read what was sent before it, and with `finish_with_reset` that is everything.
    void check_reset() {
        settle();
        End& reader = connection_.ends()[1 - resetter_];
        for (int i = 0; i < 100000 && !connection_.failed(); ++i) {
            program_reads(reader);
            settle();
            if (reader.link.peer_reset() && reader.link.readable() == 0) {
                break;
            }
        }
        if (!connection_.failed() &&
            (!reader.link.peer_reset() || (lingers_ && reader.read != connection_.ends()[resetter_].accepted))) {
            connection_.fail("the reset did not arrive, or bytes before it");
        }
    }

    std::string describe() {
        std::string text;
        for (const End& end : connection_.ends()) {
            text += "; end " + std::to_string(end.side) + ": staging " + std::to_string(end.link.staging_size()) +
                    " ring " + std::to_string(end.link.ring_size()) + " credits " + std::to_string(end.credits) +
                    " accepted " + std::to_string(end.accepted) + " read " + std::to_string(end.read) + " readable " +
                    std::to_string(end.link.readable()) + " wanted " + std::to_string(end.wanted);
        }
        return text;
    }

    Dice dice_;
    Options options_;
    Connection connection_;
    Mood moods_[2];
    size_t largest_ = 1;
    bool lingers_ = false;
    int resetter_ = 0;
};

// With a sanitizer, each takes some twenty times as long, and the fuzzer runs the same code with one, too.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t runs = 8;
#elif !defined(__OPTIMIZE__)
constexpr uint64_t runs = 40; // five times
#else
constexpr uint64_t runs = 150;
#endif

void check(const Options& options) {
    uint64_t growths = 0;
    uint64_t shrinks = 0;
    assert_string_equal(first_failure(runs,
                                      [&](uint64_t seed) {
                                          Model model(seed, options);
                                          std::string failure = model.run();
                                          growths += model.growths();
                                          shrinks += model.shrinks();
                                          return failure;
                                      }),
                        "");
    // They grow, and shrink, where they may.
    assert_int_equal(growths >= runs / 3, options.grows);
    assert_int_equal(shrinks >= runs / 3, options.grows);
    assert_true(options.grows || growths + shrinks == 0);
}

void test_streams_with_immediates(void**) { check({}); }
void test_streams_with_headers(void**) { check({.headers = true}); }
void test_streams_over_a_busy_core(void**) { check({.busy = true}); }
void test_streams_with_headers_over_a_busy_core(void**) { check({.headers = true, .busy = true}); }
void test_readers_that_wait_for_half_a_ring(void**) { check({.busy = true, .waits = 2}); }
void test_readers_that_wait_for_half_a_ring_with_headers(void**) { check({.headers = true, .busy = true, .waits = 2}); }
void test_readers_that_wait_for_a_whole_ring(void**) { check({.waits = 1}); }
void test_readers_that_wait_for_a_whole_ring_with_headers(void**) { check({.headers = true, .waits = 1}); }
void test_rings_that_grow(void**) { check({.grows = true}); }
void test_rings_that_grow_with_headers(void**) { check({.headers = true, .grows = true}); }
void test_rings_that_grow_over_a_busy_core(void**) { check({.busy = true, .waits = 2, .grows = true}); }
void test_rings_that_grow_with_headers_over_a_busy_core(void**) {
    check({.headers = true, .busy = true, .waits = 1, .grows = true});
}
void test_rings_that_grow_until_a_reset(void**) { check({.busy = true, .resets = true, .grows = true}); }
void test_rings_that_grow_beside_maps(void**) { check({.busy = true, .grows = true, .maps = true}); }
void test_streams_beside_maps(void**) { check({.maps = true}); }
void test_streams_with_headers_beside_maps(void**) { check({.headers = true, .maps = true}); }
void test_streams_beside_maps_over_a_busy_core(void**) { check({.busy = true, .waits = 2, .maps = true}); }
void test_resets_beside_maps(void**) { check({.busy = true, .resets = true, .maps = true}); }
void test_streams_that_end_by_reset(void**) { check({.busy = true, .resets = true}); }
void test_streams_with_headers_that_end_by_reset(void**) { check({.headers = true, .busy = true, .resets = true}); }

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_with_immediates),
        cmocka_unit_test(test_streams_with_headers),
        cmocka_unit_test(test_streams_over_a_busy_core),
        cmocka_unit_test(test_streams_with_headers_over_a_busy_core),
        cmocka_unit_test(test_readers_that_wait_for_half_a_ring),
        cmocka_unit_test(test_readers_that_wait_for_half_a_ring_with_headers),
        cmocka_unit_test(test_readers_that_wait_for_a_whole_ring),
        cmocka_unit_test(test_readers_that_wait_for_a_whole_ring_with_headers),
        cmocka_unit_test(test_rings_that_grow),
        cmocka_unit_test(test_rings_that_grow_with_headers),
        cmocka_unit_test(test_rings_that_grow_over_a_busy_core),
        cmocka_unit_test(test_rings_that_grow_with_headers_over_a_busy_core),
        cmocka_unit_test(test_rings_that_grow_until_a_reset),
        cmocka_unit_test(test_rings_that_grow_beside_maps),
        cmocka_unit_test(test_streams_beside_maps),
        cmocka_unit_test(test_streams_with_headers_beside_maps),
        cmocka_unit_test(test_streams_beside_maps_over_a_busy_core),
        cmocka_unit_test(test_resets_beside_maps),
        cmocka_unit_test(test_streams_that_end_by_reset),
        cmocka_unit_test(test_streams_with_headers_that_end_by_reset),
    };
    return RUN_TAP(tests);
}
