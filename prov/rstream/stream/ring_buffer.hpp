// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The memory of a ring, and of the one of another size that replaces it: during a resize, bytes are in both.
// wire/growth.hpp and wire/ring.hpp determine which bytes are where.
//
// Threads: one thread at a time resizes. The side that owns the ring uses the buffers with its lock held; memory is
// allocated, registered and released without it, since that can block.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "prov/rstream/fid.hpp"
#include "prov/rstream/stream/buffer.hpp"
#include "prov/rstream/stream/idle_buffers.hpp"

namespace rstream {

// A buffer and its registration, which is closed first.
struct RegisteredBuffer {
    Buffer buffer;
    Owned<fid_mr> mr; // null if the core needs no registration

    [[nodiscard]] void* desc() const { return mr ? fi_mr_desc(mr.get()) : nullptr; }
};

class CoreEndpoint;

// Registers a buffer with the core. 0 or the core's error.
int register_buffer(CoreEndpoint& core, RegisteredBuffer& buffer, uint64_t access);
// Makes the buffer of a resize; `registered`: registers it too. `made` is empty, or has retired addresses for a buffer
// of that size, which it still has after an error. 0, or an error, which is logged. Can block: no lock may be held.
int make_buffer(CoreEndpoint& core, size_t size, uint64_t access, bool registered, RegisteredBuffer& made);

class RingBuffer {
  public:
    // ---- the owner's side
    [[nodiscard]] RegisteredBuffer& current() { return current_; }
    [[nodiscard]] const RegisteredBuffer& current() const { return current_; }
    // The buffer of an extent of the ring.
    [[nodiscard]] const RegisteredBuffer& of(bool moved) const { return moved ? next_ : current_; }
    [[nodiscard]] std::byte* at(size_t offset, bool moved) const { return of(moved).buffer.data() + offset; }

    // From here on the other buffer is in use too.
    void set_next(RegisteredBuffer next) { std::swap(next_, next); }
    // From here on only that buffer is in use. Returns the old one, which the caller releases without the lock.
    [[nodiscard]] RegisteredBuffer settle() {
        return std::exchange(current_, std::exchange(next_, RegisteredBuffer{}));
    }
    // Keeps the addresses of a retired buffer reserved for as long as the ring exists, for another buffer of this ring:
    // who still has access to them reaches nothing else. `take_addresses` returns an empty buffer if there are none of
    // that size.
    void keep_addresses(Buffer retired) { retired_.push_back(std::move(retired)); }
    [[nodiscard]] Buffer take_addresses(size_t size) {
        const auto found = std::find_if(retired_.begin(), retired_.end(),
                                        [size](const Buffer& retired) { return retired.size() == size; });
        if (found == retired_.end()) {
            return {};
        }
        std::swap(*found, retired_.back());
        Buffer taken = std::move(retired_.back());
        retired_.pop_back();
        return taken;
    }
    // Both are deregistered.
    void give_memory(IdleBuffers& idle) {
        idle.give(std::move(next_.buffer));
        idle.give(std::move(current_.buffer));
    }
    // Closes the registrations; nothing may be in flight.
    void deregister() {
        next_.mr.reset();
        current_.mr.reset();
    }

    // ---- resizing, without a lock
    // False if another thread is resizing, or there was no memory for a larger buffer: no thread tries that again.
    [[nodiscard]] bool begin_growth() { return !no_memory_.load(std::memory_order_relaxed) && begin_resize(); }
    // False if another thread is resizing.
    [[nodiscard]] bool begin_resize() { return !resizing_.exchange(true, std::memory_order_acq_rel); }
    void end_resize() { resizing_.store(false, std::memory_order_release); }
    void end_growth_without_memory() {
        no_memory_.store(true, std::memory_order_relaxed);
        end_resize();
    }

  private:
    std::vector<Buffer> retired_;
    RegisteredBuffer current_;
    RegisteredBuffer next_;
    std::atomic<bool> resizing_{false};
    std::atomic<bool> no_memory_{false};
};

} // namespace rstream
