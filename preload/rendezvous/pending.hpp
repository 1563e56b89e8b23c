// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections whose upgrade is being agreed on, indexed by their ends. On the service's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include "preload/rendezvous/upgrade.hpp"

namespace preload::rendezvous {

class Channel;
class Meeting;

struct Pending {
    Upgrade upgrade;
    uint64_t since = 0;
    uint64_t due = UINT64_MAX;        // when it must be checked
    Meeting* meeting = nullptr;       // if one has begun
    bool awaits_meeting = false;      // one must begin, see AwaitingList
    Channel* channel = nullptr;       // on which the peer has sent `ready`
    Channel* ready_sent_on = nullptr; // the last one on which this end has sent `ready`
    path::Segment* offer = nullptr;   // made on the channel, and not answered yet
    uint64_t token = 0;               // of the offer

  private:
    friend class AwaitingList;
    friend class PendingTable;
    Pending* older = nullptr; // of those that await a meeting
    Pending* newer = nullptr;
    uint16_t next = 0; // in its bucket, or in the free list; counted from 1
    bool used = false;
};

// Those that await a meeting, by age.
class AwaitingList {
  public:
    [[nodiscard]] Pending* oldest() const { return oldest_; }

    // Most are the newest ones.
    void add(Pending& pending) {
        Pending* older = newest_;
        while (older != nullptr && older->since > pending.since) {
            older = older->older;
        }
        Pending*& newer = older != nullptr ? older->newer : oldest_;
        pending.older = older;
        pending.newer = newer;
        (newer != nullptr ? newer->older : newest_) = &pending;
        newer = &pending;
        pending.awaits_meeting = true;
    }

    void remove(Pending& pending) {
        if (pending.awaits_meeting) {
            (pending.older != nullptr ? pending.older->newer : oldest_) = pending.newer;
            (pending.newer != nullptr ? pending.newer->older : newest_) = pending.older;
            pending.awaits_meeting = false;
        }
    }

  private:
    Pending* oldest_ = nullptr;
    Pending* newest_ = nullptr;
};

class PendingTable {
  public:
    static constexpr size_t capacity = 4096;

    // Null: it is full.
    Pending* add(const Upgrade& upgrade) {
        uint16_t number = free_;
        if (number != 0) {
            free_ = entry(number).next;
        } else if (high_ < capacity) {
            number = ++high_;
        } else {
            return nullptr;
        }
        Pending& made = *new (&entry(number)) Pending;
        made.upgrade = upgrade;
        made.used = true;
        uint16_t& bucket = bucket_of(upgrade.ends);
        made.next = bucket;
        bucket = number;
        ++count_;
        return &made;
    }

    // The newest one, if the kernel has reused the addresses.
    Pending* find(const Ends& ends) {
        for (uint16_t number = bucket_of(ends); number != 0; number = entry(number).next) {
            if (entry(number).upgrade.ends == ends) {
                return &entry(number);
            }
        }
        return nullptr;
    }

    Pending* find(const Upgrade& upgrade) {
        Pending* found = find(upgrade.ends);
        while (found != nullptr && &found->upgrade != &upgrade) {
            found = found->next != 0 ? &entry(found->next) : nullptr;
        }
        return found;
    }

    void remove(Pending& pending) {
        const auto number = static_cast<uint16_t>(reinterpret_cast<const Slot*>(&pending) - slots_.data() + 1);
        uint16_t* link = &bucket_of(pending.upgrade.ends);
        while (*link != number) {
            link = &entry(*link).next;
        }
        *link = pending.next;
        pending.used = false;
        pending.next = free_;
        free_ = number;
        --count_;
    }

    [[nodiscard]] bool full() const { return count_ == capacity; }

    // Calls body(pending) for each; it may remove that one.
    template <class Body> void for_each(Body&& body) {
        for (uint16_t number = 1; number <= high_; ++number) {
            if (entry(number).used) {
                body(entry(number));
            }
        }
    }

  private:
    // Constructed at first use: memory that is never needed is not touched.
    union Slot {
        Slot() {}
        Pending pending;
    };

    Pending& entry(uint16_t number) { return slots_[number - 1U].pending; }
    uint16_t& bucket_of(const Ends& ends) { return buckets_[hash(ends) % buckets_.size()]; }
    static uint32_t hash(const Ends& ends) {
        const uint32_t ports = uint32_t{ends.own.port} << 16 | ends.peer.port;
        uint32_t addresses = 0;
        for (size_t i = 12; i < ends.own.bytes.size(); ++i) { // where those of IPv4 differ, and most of IPv6
            addresses = addresses * 31 + ends.own.bytes[i] * 7U + ends.peer.bytes[i];
        }
        return (ports ^ addresses) * 2654435761U >> 16;
    }

    std::array<Slot, capacity> slots_;
    std::array<uint16_t, 4096> buckets_{};
    uint16_t free_ = 0;
    uint16_t high_ = 0; // used so far
    size_t count_ = 0;
};

} // namespace preload::rendezvous
