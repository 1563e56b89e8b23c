// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Two links, two programs that do what they like, and a wire between them with delays of its own that is busy when it
// likes. Whatever they do: every byte arrives once and in its place, neither end finds a rule broken, and what waits,
// waits for a program and not for ever. A failure prints its seed; WIRE_MODEL_SEED adds one to the list.
#include "prov/rstream/test/wire_model.hpp"

#include <deque>
#include <memory>
#include <utility>

#include "prov/rstream/wire/limits.hpp"

using namespace rstream::wire;

namespace {

struct Options {
    bool headers = false;
    bool busy = false;   // the core refuses posts now and then
    size_t waits = 0;    // readers wait for up to 1/waits of the ring; 0: for one byte
    bool resets = false; // one end goes away in the middle
    bool grows = false;  // the rings may move to larger buffers
    bool maps = false;   // and they write to each other's memory, which comes and goes
};

// Memory that its owner maps now and then. Registered from the map to the moment at which the owner has it back.
struct Region {
    std::vector<uint8_t> bytes;
    uint64_t offset = 0;
    uint64_t address = 0; // of the first byte, as the wire names it
    bool registered = false;
    bool withdrawing = false;
};

// What a program had written to maps when its stream had come to a position: to be there when the next byte is read.
struct Mark {
    uint64_t position;
    uint64_t written;
};

struct End {
    End(int number, Dice& dice, bool grows)
        : side(number), first_staging(size(dice)), first_ring(size(dice)), staging(first_staging), rings(first_ring),
          credits(static_cast<uint16_t>(dice.below(3) == 0 ? min_queue + dice.below(8) : min_queue + dice.below(381))),
          depth(2 + dice.below(64)), max_chunk(dice.below(2) == 0 ? 1 << 20 : 256 + dice.below(16384)),
          maps(std::make_unique<Maps>(regions_known, regions_known)),
          link({first_staging, first_ring, credits, grows ? first_ring + dice.below(300000) : 0}) {}

    static size_t size(Dice& dice) {
        return dice.below(3) == 0 ? min_buffer << dice.below(5) : min_buffer + dice.below(61441);
    }

    static constexpr size_t regions_known = 6;

    int side;
    size_t first_staging;
    size_t first_ring;
    Staging staging;
    Rings rings;
    uint16_t credits;
    size_t depth; // of the core's transmit queue
    size_t max_chunk;
    std::unique_ptr<Maps> maps;
    Link link;

    std::deque<Message> wire;       // on their way to the peer
    std::deque<size_t> completions; // staging bytes of writes that arrived
    uint64_t accepted = 0;          // bytes that the program gave
    uint64_t read = 0;              // and took
    size_t wanted = 1;              // its reader sleeps until so much is there

    std::vector<Region> regions;
    uint64_t written = 0; // bytes that the program gave for maps
    uint64_t arrived = 0; // of them, that are in their place, or were dropped
    std::deque<Mark> marks;
};

class Model {
  public:
    Model(uint64_t seed, const Options& options)
        : dice_(seed), options_(options),
          busy_(options.busy ? 1 + static_cast<unsigned>(dice_.below(60)) : 0), ends_{{0, dice_, options.grows},
                                                                                      {1, dice_, options.grows}} {
        for (int side = 0; side < 2; ++side) {
            End& peer = ends_[1 - side];
            ends_[side].link.open(exchanged(peer.first_ring, peer.credits, peer.link.ring_limit() != 0),
                                  options.headers, ends_[side].max_chunk,
                                  options.maps ? ends_[side].maps.get() : nullptr);
        }
    }

    std::string run() {
        const int reset_at = options_.resets ? static_cast<int>(dice_.below(steps)) : -1;
        for (int step = 0; step < steps && failure_.empty(); ++step) {
            if (step % (steps / moods) == 0) {
                change_moods();
            }
            if (step == reset_at) {
                reset(ends_[dice_.below(2)]);
            }
            End& end = ends_[dice_.below(2)];
            act(end, moods_[end.side].draw(dice_));
            if (dice_.below(300) == 0) {
                settle();
                if (dice_.percent(50)) {
                    read_out();
                }
            }
        }
        if (failure_.empty()) {
            options_.resets ? check_reset() : end_well();
        }
        return failure_.empty() ? failure_ : failure_ + describe();
    }
    [[nodiscard]] uint64_t growths() const { return ends_[0].rings.growths() + ends_[1].rings.growths(); }

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
            ends_[dice_.below(2)].link.finish(false);
        }
    }

    End& peer(const End& end) { return ends_[1 - end.side]; }
    void failed(std::string text) {
        if (failure_.empty()) {
            failure_ = std::move(text);
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
            posts(end, 1 + dice_.below(20));
            break;
        case deliver:
            delivers(end, 1 + dice_.below(20));
            break;
        case complete:
            completes(end, 1 + dice_.below(20));
            break;
        case grow:
            grows(end);
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
                return failed("space outside the staging ring");
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
            posts(end, 1000);
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
        if (gives_to_core(end, *post, std::move(bytes))) {
            end.accepted += length;
        }
    }

    void program_reads(End& end) {
        const bool last = end.link.peer_finished() || end.link.peer_reset();
        if (end.link.readable() < end.wanted && !last) {
            end.link.await_more();
            return;
        }
        size_t length =
            std::min(end.link.readable(), dice_.below(2) == 0 ? end.wanted : dice_.size(end.link.ring_size()));
        while (length != 0 && failure_.empty()) {
            const Extent piece = end.link.peek(length);
            if (piece.length == 0 || piece.length > length || !end.rings.holds(piece)) {
                return failed("a peek outside of what is readable");
            }
            const uint8_t* got = end.rings.at(piece);
            for (size_t i = 0; i < piece.length; ++i) {
                if (got[i] != pattern(1 - end.side, end.read + i)) {
                    return failed("another byte at position " + std::to_string(end.read + i));
                }
            }
            end.link.consume(piece.length);
            end.read += piece.length;
            length -= piece.length;
        }
        if (end.link.settle()) {
            end.rings.settle();
        }
        End& writer = peer(end);
        for (; !writer.marks.empty() && writer.marks.front().position < end.read; writer.marks.pop_front()) {
            if (writer.marks.front().written > writer.arrived) {
                return failed("a byte came before what was written in front of it");
            }
        }
        end.wanted = options_.waits == 0 ? 1 : dice_.size(end.link.ring_size() / options_.waits);
        if (options_.waits != 0 && dice_.below(8) == 0) {
            end.wanted = end.link.ring_size() / options_.waits;
        }
        if (end.link.readable() < end.wanted) {
            end.link.await_more();
        }
        if (dice_.percent(70)) {
            posts(end, 1000);
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
            posts(end, 1000);
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
        const std::vector<Region>& regions = peer(end).regions;
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
            posts(end, 1000);
        }
    }

    // A write that comes to its place, with bytes that are still those that the program gave.
    void arrives(End& end, const Message& message) {
        const uint64_t first = end.arrived;
        end.arrived += message.chunk.length;
        if (message.kind == Post::Kind::skip) {
            return;
        }
        std::vector<Region>& regions = peer(end).regions;
        if (message.key >= regions.size() || !regions[message.key].registered) {
            return failed("a write to memory that its owner has back");
        }
        Region& region = regions[message.key];
        const uint64_t at = message.address - region.address;
        if (at > region.bytes.size() || message.chunk.length > region.bytes.size() - at) {
            return failed("a write outside of a map");
        }
        const uint8_t* got = message.staging->data() + message.chunk.staging_offset;
        std::copy_n(got, message.chunk.length, region.bytes.data() + at);
        for (size_t i = 0; i < message.chunk.length; ++i) {
            if (got[i] != pattern(2 + end.side, first + i)) {
                return failed("another byte in a map");
            }
        }
    }

    // ---- the provider and its core

    // What a provider does about larger rings, sooner or later.
    void grows(End& end) {
        if (!end.staging.settle(end.link)) {
            failed("a staging ring was left that is still in use");
        }
        if (options_.grows && !end.link.staging_moves() && dice_.below(50) == 0) {
            end.staging.move(end.link, end.link.staging_size() + 1 + dice_.below(50000));
        }
        if (end.link.growth_wanted()) {
            const size_t more = end.link.ring_limit() - end.link.ring_size();
            end.link.supply(end.rings.make(end.link.ring_size() + 1 + dice_.below(more)));
        }
    }

    bool gives_to_core(End& end, const Post& post, std::vector<uint8_t> bytes) {
        const bool full = end.wire.size() + end.completions.size() >= end.depth;
        if (options_.busy && !settling_ && (full || dice_.percent(busy_))) {
            end.link.undo(post);
            return false;
        }
        Message message(post, options_.headers, end.link.peer_ring().key, end.staging.of(post.chunk.staging_moved),
                        std::move(bytes));
        if (message.data && dice_.percent(50)) { // a write may land long before its announcement
            place(message, end);
        }
        end.wire.push_back(std::move(message));
        const auto data = std::count_if(end.wire.begin(), end.wire.end(), [](const Message& m) { return m.data; });
        const auto control =
            std::count_if(end.wire.begin(), end.wire.end(), [](const Message& m) { return m.is_control(); });
        if (data > peer(end).credits || control > control_credits) {
            failed("more messages in flight than the peer has receives for");
        }
        return true;
    }

    void place(Message& message, End& from) {
        const Memory ring = peer(from).rings.find(message.key);
        if (!ring) {
            return failed("a write to a ring that is no more");
        }
        if (!message.place(*ring)) {
            failed("a write outside the ring");
        }
        message.placed = true;
    }

    uint64_t posts(End& end, uint64_t most) {
        uint64_t count = 0;
        while (count < most) {
            const auto post = end.link.next();
            if (!post || !gives_to_core(end, *post, {})) {
                break;
            }
            ++count;
        }
        return count;
    }

    uint64_t delivers(End& end, uint64_t most) {
        uint64_t count = 0;
        for (; count < most && !end.wire.empty() && failure_.empty(); ++count) {
            Message message = std::move(end.wire.front());
            end.wire.pop_front();
            if (message.data && !message.placed) {
                place(message, end);
            }
            if (message.kind == Post::Kind::write || message.kind == Post::Kind::skip) {
                arrives(end, message);
            }
            if (const char* broken = message.announce(peer(end).link)) {
                failed(std::string("end ") + std::to_string(1 - end.side) + " says: " + broken);
            }
            end.completions.push_back(message.is_control() || message.chunk.bypass ? 0 : message.chunk.length);
        }
        if (dice_.percent(50)) {
            posts(peer(end), 1000);
        }
        return count;
    }

    uint64_t completes(End& end, uint64_t most) {
        uint64_t count = 0;
        for (; count < most && !end.completions.empty(); ++count) {
            end.link.release(end.completions.front());
            end.completions.pop_front();
        }
        return count;
    }

    // ---- what must hold

    // The programs are quiet, the wire is not busy: all that can move does.
    void settle() {
        settling_ = true;
        uint64_t moved = 1;
        for (int rounds = 0; moved != 0 && failure_.empty(); ++rounds) {
            moved = 0;
            for (End& end : ends_) {
                moved += posts(end, 1000000) + delivers(end, 1000000) + completes(end, 1000000);
            }
            if (rounds > 1000) {
                failed("the two ends never stop talking");
            }
        }
        settling_ = false;
        for (End& end : ends_) {
            check_settled(end, peer(end));
        }
    }

    void check_settled(const End& from, const End& to) {
        if (!failure_.empty() || options_.resets) {
            return;
        }
        if (options_.maps) {
            const auto held = std::find_if(from.regions.begin(), from.regions.end(), [&](const Region& region) {
                return region.registered && region.withdrawing && !from.maps->withdraw(region.offset, false);
            });
            if (held != from.regions.end()) {
                return failed("end " + std::to_string(from.side) + " does not get its memory back");
            }
            if (!from.link.unposted() && from.arrived != from.written) {
                return failed("writes of end " + std::to_string(from.side) + " are lost");
            }
        }
        const size_t readable = to.link.readable();
        if (from.link.unposted()) {
            // The peer need not tell of less than half a ring, and nothing else may be in the way.
            if (readable <= to.link.ring_size() - to.link.ring_size() / 2) {
                failed("end " + std::to_string(from.side) + " is stuck with bytes for a ring that has space");
            } else if (readable < to.wanted) {
                failed("end " + std::to_string(from.side) + " is stuck with bytes that a reader waits for");
            }
        } else if (to.read + readable != from.accepted) {
            failed("bytes of end " + std::to_string(from.side) + " are lost");
        } else if (from.link.space() != from.link.staging_size()) {
            failed("space is missing in the staging ring");
        } else if (from.link.finishing() && !(to.link.peer_finished() && from.link.all_arrived())) {
            failed("the end of the stream did not arrive, or its sender was not told");
        }
    }

    // Reads all that the readers can get without any more being sent.
    void read_out() {
        uint64_t before = 0;
        do {
            before = ends_[0].read + ends_[1].read;
            for (End& end : ends_) {
                program_reads(end);
            }
            settle();
        } while (failure_.empty() && ends_[0].read + ends_[1].read != before);
    }

    void end_well() {
        settle();
        read_out();
        for (End& end : ends_) {
            end.link.finish(dice_.percent(30));
        }
        settle();
        read_out();
        for (End& end : ends_) {
            end.link.finish(true);
        }
        settle();
        for (End& end : ends_) {
            if (failure_.empty() && (end.read != peer(end).accepted || !end.link.peer_closed() ||
                                     !end.link.all_arrived() || end.link.anything_unacknowledged())) {
                failed("the stream did not end well");
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
        End& reader = ends_[1 - resetter_];
        for (int i = 0; i < 100000 && failure_.empty(); ++i) {
            program_reads(reader);
            settle();
            if (reader.link.peer_reset() && reader.link.readable() == 0) {
                break;
            }
        }
        if (failure_.empty() && (!reader.link.peer_reset() || (lingers_ && reader.read != ends_[resetter_].accepted))) {
            failed("the reset did not arrive, or bytes before it");
        }
    }

    std::string describe() {
        std::string text;
        for (const End& end : ends_) {
            text += "; end " + std::to_string(end.side) + ": staging " + std::to_string(end.link.staging_size()) +
                    " ring " + std::to_string(end.link.ring_size()) + " credits " + std::to_string(end.credits) +
                    " accepted " + std::to_string(end.accepted) + " read " + std::to_string(end.read) + " readable " +
                    std::to_string(end.link.readable()) + " wanted " + std::to_string(end.wanted);
        }
        return text;
    }

    Dice dice_;
    Options options_;
    unsigned busy_;
    End ends_[2];
    Mood moods_[2];
    size_t largest_ = 1;
    bool settling_ = false;
    bool lingers_ = false;
    int resetter_ = 0;
    std::string failure_;
};

#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t runs = 24; // each takes some twenty times as long
#elif !defined(__OPTIMIZE__)
constexpr uint64_t runs = 40; // five times
#else
constexpr uint64_t runs = 150;
#endif

void check(const Options& options) {
    uint64_t growths = 0;
    assert_string_equal(first_failure(runs,
                                      [&](uint64_t seed) {
                                          Model model(seed, options);
                                          std::string failure = model.run();
                                          growths += model.growths();
                                          return failure;
                                      }),
                        "");
    // They grow where they may.
    assert_int_equal(growths >= runs / 3, options.grows);
    assert_true(options.grows || growths == 0);
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
