// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the model tests share: the bytes of a stream, and a message on a wire that is made of memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "prov/rstream/test/wire_test.hpp"

namespace rstream::wire {

// The byte at `position` of the stream that `side` sends: no two places of a ring look alike for long.
inline uint8_t pattern(int side, uint64_t position) {
    return static_cast<uint8_t>(position ^ (position >> 8) * 167 ^ (position >> 16) * 59 ^ (side == 0 ? 0x5aU : 0xc3U));
}

// As the core would carry it: control and headers encoded, the bytes of a bypass taken from the caller at once
// (inject), those of the staging ring by reference until the write is complete.
struct Message {
    Message(const Post& post, bool headers, std::vector<uint8_t> bytes)
        : kind(post.kind), data(kind == Post::Kind::data), header(is_control() || (data && headers)), chunk(post.chunk),
          immediate(post.immediate.encode()), address(post.address), key(post.key), inlined(std::move(bytes)) {
        if (kind == Post::Kind::map) {
            post.map.encode(control);
        } else if (header) {
            post.control.encode(control);
        }
    }

    [[nodiscard]] bool is_control() const { return kind == Post::Kind::control || kind == Post::Kind::map; }

    // Puts the bytes where the sender said. False if that is not inside the ring.
    bool place(const std::vector<uint8_t>& staging, std::vector<uint8_t>& ring) const {
        const uint8_t* from = chunk.bypass ? inlined.data() : staging.data() + chunk.staging_offset;
        const size_t size = chunk.bypass ? inlined.size() : staging.size() - chunk.staging_offset;
        if (chunk.ring_offset > ring.size() || chunk.length > ring.size() - chunk.ring_offset || chunk.length > size) {
            return false;
        }
        std::memcpy(ring.data() + chunk.ring_offset, from, chunk.length);
        return true;
    }

    // Tells `to` that it came; null, or the rule that is broken.
    const char* announce(Link& to) const {
        if (header) {
            return to.on_message(control);
        }
        return data ? to.on_data(immediate) : nullptr; // a write to a map says nothing
    }

    Post::Kind kind;
    bool data;
    bool header; // or an immediate
    Chunk chunk;
    uint32_t immediate;
    uint64_t address; // of a write
    uint64_t key;
    std::vector<uint8_t> inlined;
    std::array<std::byte, Control::size> control{};
    bool placed = false;
};

class Dice {
  public:
    explicit Dice(uint64_t seed) : engine_(seed) {}
    uint64_t below(uint64_t bound) { return engine_() % bound; }
    bool percent(unsigned chance) { return below(100) < chance; }
    // 1 .. most, small ones as often as large ones.
    size_t size(size_t most) {
        const size_t limit = size_t{1} << below(65 - static_cast<size_t>(__builtin_clzll(most)));
        return std::min<size_t>(most, 1 + below(2 * limit));
    }

  private:
    std::mt19937_64 engine_;
};

// The seeds 1 .. count, and the one in WIRE_MODEL_SEED.
inline std::vector<uint64_t> seeds(uint64_t count) {
    std::vector<uint64_t> list;
    for (uint64_t seed = 1; seed <= count; ++seed) {
        list.push_back(seed);
    }
    if (const char* one = std::getenv("WIRE_MODEL_SEED")) {
        list.push_back(std::strtoull(one, nullptr, 0));
    }
    return list;
}

// The first failure of `run` over all seeds, or an empty text; in memory that nobody has to free, since asserts
// leave by longjmp.
template <class Run> const char* first_failure(uint64_t count, Run run) {
    static char report[512];
    for (const uint64_t seed : seeds(count)) {
        const std::string failure = run(seed);
        if (!failure.empty()) {
            snprintf(report, sizeof report, "seed %llu: %s", static_cast<unsigned long long>(seed), failure.c_str());
            return report;
        }
    }
    return "";
}

// The hello of one end as it reaches the other one.
inline Hello exchanged(size_t ring_size, uint16_t credits) {
    std::array<std::byte, Hello::size> bytes{};
    peer_hello(static_cast<uint32_t>(ring_size), credits).encode(bytes);
    Hello hello;
    Hello::parse(bytes, hello);
    return hello;
}

} // namespace rstream::wire
