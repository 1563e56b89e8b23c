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
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "prov/rstream/test/wire_test.hpp"

namespace rstream::wire {

// The byte at `position` of the stream that `side` sends: no two places of a ring look alike for long.
inline uint8_t pattern(int side, uint64_t position) {
    return static_cast<uint8_t>(position ^ (position >> 8) * 167 ^ (position >> 16) * 59 ^ (side == 0 ? 0x5aU : 0xc3U));
}

using Memory = std::shared_ptr<std::vector<uint8_t>>;
inline Memory memory(size_t size) { return std::make_shared<std::vector<uint8_t>>(size); }

// As the core would carry it: control and headers encoded, the bytes of a bypass taken from the caller at once
// (inject), those of the staging ring by reference until the write is complete. `key`: of the ring that it goes to.
struct Message {
    Message(const Post& post, bool headers, uint64_t ring_key, const Memory& from, std::vector<uint8_t> bytes)
        : kind(post.kind), data(kind == Post::Kind::data), header(is_control() || (data && headers)), chunk(post.chunk),
          immediate(post.immediate.encode()), address(post.address), key(data ? ring_key : post.key),
          staging((data || kind == Post::Kind::write) && !chunk.bypass ? from : nullptr), inlined(std::move(bytes)) {
        if (kind == Post::Kind::map) {
            post.map.encode(control);
        } else if (header) {
            post.control.encode(control);
        }
    }

    [[nodiscard]] bool is_control() const { return kind == Post::Kind::control || kind == Post::Kind::map; }

    // Puts the bytes where the sender said. False if that is not inside the ring.
    bool place(std::vector<uint8_t>& ring) const {
        const uint8_t* from = chunk.bypass ? inlined.data() : staging->data() + chunk.staging_offset;
        const size_t size = chunk.bypass ? inlined.size() : staging->size() - chunk.staging_offset;
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
    Memory staging;
    std::vector<uint8_t> inlined;
    std::array<std::byte, Control::size> control{};
    bool placed = false;
};

// The receive rings of one end, as its core knows them: by key, for as long as they are registered.
class Rings {
  public:
    explicit Rings(size_t size) : current(memory(size)) { by_key_[0] = current; }

    // Where a write with that key goes; null if it is not good any more.
    Memory find(uint64_t key) {
        const std::lock_guard lock(mutex_);
        const auto found = by_key_.find(key);
        return found != by_key_.end() ? found->second : nullptr;
    }
    RemoteRing make(size_t size) {
        next_ = memory(size);
        shrinks_ += size < current->size() ? 1 : 0;
        const std::lock_guard lock(mutex_);
        by_key_[++newest_] = next_;
        return {0, newest_, size};
    }
    void settle() {
        current = std::exchange(next_, nullptr);
        const std::lock_guard lock(mutex_);
        by_key_.erase(newest_ - 1);
    }
    [[nodiscard]] const uint8_t* at(const Extent& extent) const {
        return (extent.moved ? next_ : current)->data() + extent.offset;
    }
    [[nodiscard]] bool holds(const Extent& extent) const {
        return extent.offset + extent.length <= (extent.moved ? next_ : current)->size();
    }
    [[nodiscard]] uint64_t growths() const { return newest_ - shrinks_; }
    [[nodiscard]] uint64_t shrinks() const { return shrinks_; }

    Memory current;

  private:
    Memory next_;
    std::mutex mutex_;
    std::map<uint64_t, Memory> by_key_;
    uint64_t newest_ = 0;
    uint64_t shrinks_ = 0;
};

// The staging ring of one end.
class Staging {
  public:
    explicit Staging(size_t size) : current_(memory(size)) {}

    void move(Link& link, size_t size) {
        next_ = memory(size);
        link.move_staging(size);
    }
    // False if something of the ring that is left is still on its way.
    bool settle(Link& link) {
        if (!link.settle_staging()) {
            return true;
        }
        std::swap(current_, next_);
        return std::exchange(next_, nullptr).use_count() == 1;
    }
    [[nodiscard]] bool holds(const Extent& extent) const {
        return extent.offset + extent.length <= of(extent.moved)->size();
    }
    uint8_t* at(const Extent& extent) { return of(extent.moved)->data() + extent.offset; }
    [[nodiscard]] const Memory& of(bool moved) const { return moved ? next_ : current_; }

  private:
    Memory current_;
    Memory next_;
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
inline Hello exchanged(size_t ring_size, uint16_t credits, bool grows = false) {
    std::array<std::byte, Hello::size> bytes{};
    Hello said = peer_hello(static_cast<uint32_t>(ring_size), credits);
    said.features = grows ? Hello::feature_growth : 0;
    said.features |= credits % 2 != 0 ? Hello::feature_data_acks : 0; // one in two
    said.features |= credits % 4 != 0 ? Hello::feature_shrink : 0;
    said.encode(bytes);
    Hello hello;
    Hello::parse(bytes, hello);
    return hello;
}

} // namespace rstream::wire
