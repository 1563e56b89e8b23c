// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection of the model test: two links, and between them the wire and what a provider and its core do. It finds a
// byte that arrives in another place, and a rule that an end says is broken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "prov/rstream/test/wire_model.hpp"
#include "prov/rstream/wire/limits.hpp"

namespace rstream::wire {

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

class Connection {
  public:
    Connection(Dice& dice, const Options& options)
        : dice_(dice), options_(options),
          busy_(options.busy ? 1 + static_cast<unsigned>(dice.below(60)) : 0), ends_{{0, dice, options.grows},
                                                                                     {1, dice, options.grows}} {
        for (End& end : ends_) {
            const End& other = peer(end);
            end.link.open(exchanged(other.first_ring, other.credits, other.link.ring_limit() != 0), options.headers,
                          end.max_chunk, options.maps ? end.maps.get() : nullptr);
        }
    }

    [[nodiscard]] std::span<End, 2> ends() { return ends_; }
    End& peer(const End& end) { return ends_[1 - end.side]; }
    // The first failure stays.
    void fail(std::string text) {
        if (!failed()) {
            failure_ = std::move(text);
        }
    }
    [[nodiscard]] bool failed() const { return !failure_.empty(); }
    [[nodiscard]] const std::string& failure() const { return failure_; }
    [[nodiscard]] uint64_t growths() const { return ends_[0].rings.growths() + ends_[1].rings.growths(); }
    [[nodiscard]] uint64_t shrinks() const { return ends_[0].rings.shrinks() + ends_[1].rings.shrinks(); }

    // What a provider does about rings of other sizes, sooner or later.
    void grows(End& end) {
        if (!end.staging.settle(end.link)) {
            fail("a staging ring was left that is still in use");
        }
        if (options_.grows && !end.link.staging_moves() && dice_.below(50) == 0) {
            const size_t size = end.link.staging_size();
            if (end.link.unreleased() == 0 && size > min_buffer && dice_.percent(50)) {
                end.staging.move(end.link, size - 1 - dice_.below(size - min_buffer));
            } else {
                end.staging.move(end.link, size + 1 + dice_.below(50000));
            }
        }
        if (end.link.growth_wanted()) {
            const size_t more = end.link.ring_limit() - end.link.ring_size();
            end.link.supply(end.rings.make(end.link.ring_size() + 1 + dice_.below(more)));
        } else if (options_.grows && end.link.may_shrink() && end.link.ring_size() > min_buffer &&
                   dice_.below(20) == 0) {
            const size_t less = end.link.ring_size() - min_buffer;
            end.link.supply(end.rings.make(end.link.ring_size() - 1 - dice_.below(less)));
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
            fail("more messages in flight than the peer has receives for");
        }
        return true;
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
        for (; count < most && !end.wire.empty() && !failed(); ++count) {
            Message message = std::move(end.wire.front());
            end.wire.pop_front();
            if (message.data && !message.placed) {
                place(message, end);
            }
            if (message.kind == Post::Kind::write || message.kind == Post::Kind::skip) {
                arrives(end, message);
            }
            if (const char* broken = message.announce(peer(end).link)) {
                fail(std::string("end ") + std::to_string(1 - end.side) + " says: " + broken);
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

    // The wire is not busy, and the programs are quiet: all that can move does.
    void settle() {
        settling_ = true;
        uint64_t moved = 1;
        for (int rounds = 0; moved != 0 && !failed(); ++rounds) {
            moved = 0;
            for (End& end : ends_) {
                moved += posts(end, 1000000) + delivers(end, 1000000) + completes(end, 1000000);
            }
            if (rounds > 1000) {
                fail("the two ends never stop talking");
            }
        }
        settling_ = false;
    }

  private:
    void place(Message& message, End& from) {
        const Memory ring = peer(from).rings.find(message.key);
        if (!ring) {
            return fail("a write to a ring that is no more");
        }
        if (!message.place(*ring)) {
            fail("a write outside the ring");
        }
        message.placed = true;
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
            return fail("a write to memory that its owner has back");
        }
        Region& region = regions[message.key];
        const uint64_t at = message.address - region.address;
        if (at > region.bytes.size() || message.chunk.length > region.bytes.size() - at) {
            return fail("a write outside of a map");
        }
        const uint8_t* got = message.staging->data() + message.chunk.staging_offset;
        std::copy_n(got, message.chunk.length, region.bytes.data() + at);
        for (size_t i = 0; i < message.chunk.length; ++i) {
            if (got[i] != pattern(2 + end.side, first + i)) {
                return fail("another byte in a map");
            }
        }
    }

    Dice& dice_;
    const Options& options_;
    unsigned busy_;
    End ends_[2];
    bool settling_ = false;
    std::string failure_;
};

} // namespace rstream::wire
