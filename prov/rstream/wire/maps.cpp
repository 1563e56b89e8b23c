// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/maps.hpp"

#include <algorithm>

namespace rstream::wire {

namespace {

// Chosen offsets are multiples of this, with at least as much between them: an access past an iomap hits no other.
constexpr uint64_t gap = 4096;

bool overlap(uint64_t a, uint64_t a_length, uint64_t b, uint64_t b_length) {
    return a < b + b_length && b < a + a_length;
}

} // namespace

Maps::Maps(size_t known, size_t own) : known_limit_(known), own_limit_(own) { known_.reserve(known); }

// ---- our memory

Maps::Own* Maps::own(uint64_t offset) {
    const auto found =
        std::find_if(own_.begin(), own_.end(), [&](const Own& o) { return o.offset == offset && !o.forgotten; });
    return found != own_.end() ? &*found : nullptr;
}

Maps::Claim Maps::claim(uint64_t& offset, uint64_t length) {
    const std::lock_guard lock(mutex_);
    if (own_.size() >= own_limit_) {
        return Claim::full;
    }
    const bool choose = offset == any;
    uint64_t at = choose ? next_offset_ : offset;
    for (;;) {
        if (at >= MapMessage::end_of_offsets || length > MapMessage::end_of_offsets - at) {
            return Claim::taken;
        }
        const auto other = std::find_if(own_.begin(), own_.end(),
                                        [&](const Own& o) { return overlap(at, length, o.offset, o.length); });
        if (other == own_.end()) {
            break;
        }
        if (!choose) {
            return Claim::taken;
        }
        at = (other->offset + other->length + 2 * gap - 1) / gap * gap;
    }
    own_.push_back({at, length});
    if (choose) {
        next_offset_ = (at + length + 2 * gap - 1) / gap * gap;
    }
    offset = at;
    return Claim::made;
}

void Maps::announce(uint64_t offset, uint64_t address, uint64_t key) {
    const std::lock_guard lock(mutex_);
    if (Own* map = own(offset); map != nullptr && map->state == Own::State::claimed) {
        map->address = address;
        map->key = key;
        map->state = Own::State::announcing;
        pending_.fetch_add(1, std::memory_order_release);
    }
}

void Maps::await(Own& map, bool awaited) {
    if (map.awaited == awaited) {
        return;
    }
    map.awaited = awaited;
    const size_t change = awaited ? 1 : SIZE_MAX; // +1 or -1
    awaited_.fetch_add(change, std::memory_order_release);
    if (map.state == Own::State::gone) {
        answered_.fetch_add(change, std::memory_order_release);
    }
}

bool Maps::withdraw(uint64_t offset, bool awaited) {
    const std::lock_guard lock(mutex_);
    Own* map = own(offset);
    if (map == nullptr) {
        return true;
    }
    switch (map->state) {
    case Own::State::announcing:
        pending_.fetch_sub(1, std::memory_order_release);
        [[fallthrough]];
    case Own::State::claimed:
        map->state = Own::State::gone;
        break;
    case Own::State::known:
        map->state = Own::State::withdrawing;
        pending_.fetch_add(1, std::memory_order_release);
        break;
    case Own::State::withdrawing:
    case Own::State::asked:
    case Own::State::gone:
        break;
    }
    const bool gone = map->state == Own::State::gone;
    await(*map, awaited && !gone);
    return gone;
}

void Maps::forget(uint64_t offset) {
    const std::lock_guard lock(mutex_);
    if (Own* map = own(offset)) {
        await(*map, false);
        map->forgotten = true;
        if (map->state == Own::State::claimed || map->state == Own::State::gone) {
            erase(*map);
        }
    }
}

void Maps::erase(const Own& map) { own_.erase(own_.begin() + (&map - own_.data())); }

// ---- the peer's memory

const Maps::Known* Maps::known(uint64_t offset) const {
    auto behind = std::upper_bound(known_.begin(), known_.end(), offset,
                                   [](uint64_t at, const Known& map) { return at < map.offset; });
    if (behind == known_.begin()) {
        return nullptr;
    }
    const Known& map = *--behind;
    return offset - map.offset < map.length ? &map : nullptr;
}

Maps::Known* Maps::known_at(uint64_t offset) {
    const auto found =
        std::find_if(known_.begin(), known_.end(), [offset](const Known& map) { return map.offset == offset; });
    return found != known_.end() ? &*found : nullptr;
}

std::optional<Maps::Target> Maps::find(uint64_t offset) const {
    const std::lock_guard lock(mutex_);
    const Known* map = known(offset);
    if (map == nullptr || map->withdrawn) {
        return std::nullopt;
    }
    const uint64_t skip = offset - map->offset;
    return Target{offset, map->length - skip, map->address + skip, map->key, map->serial};
}

bool Maps::covers(uint64_t offset, uint64_t length) const {
    const std::lock_guard lock(mutex_);
    while (length != 0) {
        const Known* map = known(offset);
        if (map == nullptr || map->withdrawn) {
            return false;
        }
        const uint64_t here = std::min(length, map->length - (offset - map->offset));
        offset += here;
        length -= here;
    }
    return true;
}

std::optional<Maps::Target> Maps::target(const MapWrites::Write& write) const {
    auto target = find(write.offset);
    return target && target->serial == write.serial ? target : std::nullopt;
}

// ---- messages

std::optional<MapMessage> Maps::next() {
    const std::lock_guard lock(mutex_);
    if (pending_.load(std::memory_order_relaxed) == 0) {
        return std::nullopt;
    }
    pending_.fetch_sub(1, std::memory_order_release);
    const auto answer = std::find_if(known_.begin(), known_.end(), [](const Known& map) { return map.withdrawn; });
    if (answer != known_.end()) {
        const uint64_t offset = answer->offset;
        known_.erase(answer);
        return MapMessage{MapMessage::Type::unmapped, offset};
    }
    for (Own& map : own_) {
        if (map.state == Own::State::announcing) {
            map.state = Own::State::known;
            return MapMessage{MapMessage::Type::map, map.offset, map.length, map.address, map.key};
        }
        if (map.state == Own::State::withdrawing) {
            map.state = Own::State::asked;
            return MapMessage{MapMessage::Type::unmap, map.offset};
        }
    }
    return std::nullopt; // not reached: each counted message is found above
}

void Maps::undo(const MapMessage& message) {
    const std::lock_guard lock(mutex_);
    if (message.type == MapMessage::Type::unmapped) {
        // The peer has not received the confirmation, so the entry's range is still free, unless the peer misbehaves.
        if (insert({message.offset, 1, 0, 0, 0, true})) {
            pending_.fetch_add(1, std::memory_order_release);
        }
        return;
    }
    const bool map = message.type == MapMessage::Type::map;
    const auto found = std::find_if(own_.begin(), own_.end(), [&](const Own& o) { return o.offset == message.offset; });
    if (found == own_.end()) {
        return;
    }
    if (found->state == (map ? Own::State::known : Own::State::asked)) {
        found->state = map ? Own::State::announcing : Own::State::withdrawing;
        pending_.fetch_add(1, std::memory_order_release);
    } else if (map && found->state == Own::State::withdrawing) {
        // Withdrawn during the announcement that is undone: the peer has not received it, and need not confirm.
        pending_.fetch_sub(1, std::memory_order_release);
        own_is_gone(*found);
    }
}

void Maps::own_is_gone(Own& map) {
    map.state = Own::State::gone;
    if (map.awaited) {
        answered_.fetch_add(1, std::memory_order_release);
    }
    if (map.forgotten) {
        erase(map);
    }
}

bool Maps::insert(const Known& map) {
    const auto behind = std::find_if(known_.begin(), known_.end(),
                                     [&](const Known& other) { return other.offset + other.length > map.offset; });
    if (known_.size() >= known_limit_ ||
        (behind != known_.end() && overlap(map.offset, map.length, behind->offset, behind->length))) {
        return false;
    }
    known_.insert(behind, map);
    return true;
}

const char* Maps::on_message(const MapMessage& message) {
    const std::lock_guard lock(mutex_);
    switch (message.type) {
    case MapMessage::Type::map:
        return on_map(message);
    case MapMessage::Type::unmap:
        if (Known* map = known_at(message.offset); map != nullptr && !map->withdrawn) {
            map->withdrawn = true;
            pending_.fetch_add(1, std::memory_order_release);
            return nullptr;
        }
        return "asks back memory that is not mapped";
    case MapMessage::Type::unmapped:
        break;
    }
    const auto found = std::find_if(own_.begin(), own_.end(), [&](const Own& o) {
        return o.offset == message.offset && o.state == Own::State::asked;
    });
    if (found == own_.end()) {
        return "gives back memory that it was not asked for";
    }
    own_is_gone(*found);
    return nullptr;
}

const char* Maps::on_map(const MapMessage& message) {
    if (known_.size() >= known_limit_) {
        return "more maps than were offered";
    }
    const bool fits = insert({message.offset, message.length, message.address, message.key, next_serial_, false});
    next_serial_ += fits ? 1 : 0;
    return fits ? nullptr : "a map over another";
}

} // namespace rstream::wire
