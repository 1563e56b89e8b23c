// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The memory of a ring, and of the larger one that takes its place: while a ring moves, bytes lie in both. Which bytes
// lie where is the wire's business; see wire/growth.hpp and wire/ring.hpp.
//
// Threads: one thread at a time resizes. What is in use is for the side that the ring belongs to, with its lock held;
// memory is made, registered and given back without it, since that can block.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "prov/rstream/fid.hpp"
#include "prov/rstream/stream/buffer.hpp"

namespace rstream {

// A buffer and what the core knows it by, which goes first.
struct RegisteredBuffer {
    Buffer buffer;
    Owned<fid_mr> mr; // null where the core need not know it

    [[nodiscard]] void* desc() const { return mr ? fi_mr_desc(mr.get()) : nullptr; }
};

class CoreEndpoint;

// Makes a buffer known to the core. 0 or the core's error.
int register_buffer(CoreEndpoint& core, RegisteredBuffer& buffer, uint64_t access);
// For a ring that is to be larger; `registered`: with the core. 0, or an error that is logged, and then `out` is what
// it was. Can block: no lock is to be held.
int make_buffer(CoreEndpoint& core, size_t size, uint64_t access, bool registered, RegisteredBuffer& out);

class RingBuffer {
  public:
    // ---- the owner's side
    [[nodiscard]] RegisteredBuffer& current() { return current_; }
    [[nodiscard]] const RegisteredBuffer& current() const { return current_; }
    // Where an extent of the ring lies.
    [[nodiscard]] const RegisteredBuffer& of(bool moved) const { return moved ? next_ : current_; }
    [[nodiscard]] std::byte* at(size_t offset, bool moved) const { return of(moved).buffer.data() + offset; }

    // From now on a larger one is in use too.
    void set_next(RegisteredBuffer next) { std::swap(next_, next); }
    // The larger one alone is in use. The one before it, for the caller to give back without the lock.
    [[nodiscard]] RegisteredBuffer settle() {
        return std::exchange(current_, std::exchange(next_, RegisteredBuffer{}));
    }
    // Keeps the addresses of a retired buffer: nothing else gets them for as long as the ring is there.
    void keep_addresses(Buffer retired) { retired_.push_back(std::move(retired)); }
    // The core is to forget all of it; nothing is under way.
    void deregister() {
        next_.mr.reset();
        current_.mr.reset();
    }

    // ---- resizing, without a lock
    // False if another thread is at it, or there was no memory once.
    [[nodiscard]] bool begin_resize() { return !resizing_.exchange(true, std::memory_order_acq_rel); }
    // Not after a failure: nobody tries again.
    void end_resize() { resizing_.store(false, std::memory_order_release); }

  private:
    std::vector<Buffer> retired_;
    RegisteredBuffer current_;
    RegisteredBuffer next_;
    std::atomic<bool> resizing_{false};
};

} // namespace rstream
