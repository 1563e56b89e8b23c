// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Iomaps: the memory that each end lets the other write to, out of band. Our own are announced to the peer, and
// withdrawn by a handshake: a write without a valid key would end the connection, so the memory stays registered until
// the peer has confirmed that it writes there no more. Of the peer's memory, only announced iomaps are written to.
// Messages wait here until the stream state has credit for them.
//
// Threads: any, except for the queue of writes, which belongs to the posting side. The lock is a leaf.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "prov/rstream/wire/map_message.hpp"
#include "prov/rstream/wire/map_writes.hpp"

namespace rstream::wire {

class Maps {
  public:
    static constexpr uint64_t any = UINT64_MAX; // `claim` chooses the offset

    // `known`: max iomaps of the peer's that this end keeps. `own`: max iomaps of ours that the peer keeps.
    Maps(size_t known, size_t own);

    // ---- our memory
    enum class Claim : uint8_t { made, full, taken };
    // Reserves an entry and a range of offsets for an iomap, which the peer does not see before it is announced.
    Claim claim(uint64_t& offset, uint64_t length);
    void announce(uint64_t offset, uint64_t address, uint64_t key);
    // Requests that the peer write there no more. True if it does not: it has confirmed that, or the iomap was never
    // announced. `awaited`: the program waits for the confirmation.
    bool withdraw(uint64_t offset, bool awaited);
    // The entry is free as soon as no message of the peer about it is outstanding.
    void forget(uint64_t offset);
    // Iomaps whose withdrawal the program waits for: all of them, and those that the peer has confirmed.
    [[nodiscard]] size_t awaited() const { return awaited_.load(std::memory_order_acquire); }
    [[nodiscard]] size_t answered() const { return answered_.load(std::memory_order_acquire); }

    // ---- the peer's memory
    struct Target {
        uint64_t offset = 0;
        uint64_t length = 0;  // from there to the end of the iomap
        uint64_t address = 0; // as the core addresses it
        uint64_t key = 0;
        uint64_t serial = 0;
    };
    [[nodiscard]] std::optional<Target> find(uint64_t offset) const;
    [[nodiscard]] bool covers(uint64_t offset, uint64_t length) const;
    // The present target of a queued write; nothing if its iomap was withdrawn.
    [[nodiscard]] std::optional<Target> target(const MapWrites::Write& write) const;
    MapWrites& writes() { return writes_; }
    [[nodiscard]] const MapWrites& writes() const { return writes_; }

    // ---- messages
    [[nodiscard]] bool pending() const { return pending_.load(std::memory_order_acquire) != 0; }
    std::optional<MapMessage> next(); // the message counts as sent
    void undo(const MapMessage& message);
    // Null, or the rule that the peer broke.
    const char* on_message(const MapMessage& message);

  private:
    struct Own {
        enum class State : uint8_t { claimed, announcing, known, withdrawing, asked, gone };
        uint64_t offset;
        uint64_t length;
        uint64_t address = 0;
        uint64_t key = 0;
        State state = State::claimed;
        bool awaited = false;
        bool forgotten = false;
    };
    struct Known {
        uint64_t offset;
        uint64_t length;
        uint64_t address;
        uint64_t key;
        uint64_t serial;
        bool withdrawn; // and the confirmation is not sent yet
    };

    Own* own(uint64_t offset);
    [[nodiscard]] const Known* known(uint64_t offset) const; // the iomap that covers it
    Known* known_at(uint64_t offset);
    const char* on_map(const MapMessage& message);
    bool insert(const Known& map);
    void await(Own& map, bool awaited);
    void own_is_gone(Own& map);
    void erase(const Own& map);

    const size_t known_limit_;
    const size_t own_limit_;
    mutable std::mutex mutex_;
    std::vector<Own> own_;
    std::vector<Known> known_; // by offset; reserved to its max size, so that no peer can make an insert fail
    uint64_t next_offset_ = 0; // to choose next: none is reused soon, so that late writes hit nothing
    uint64_t next_serial_ = 1;
    std::atomic<size_t> pending_{0};
    std::atomic<size_t> awaited_{0};
    std::atomic<size_t> answered_{0};
    MapWrites writes_;
};

} // namespace rstream::wire
