// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory for the messages of a stream, one slot each: receives, control messages, and headers after writes. The slot of
// a sent message is reused after as many further messages as there are slots of its kind: the peer's credits, or the
// core's queue, allow no more in flight.
//
// Threads: the send slots belong to the posting side, the receive slots to the progress side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "prov/rstream/stream/ring_buffer.hpp"
#include "prov/rstream/wire/control.hpp"
#include "prov/rstream/wire/limits.hpp"

namespace rstream {

class MessageSlots {
  public:
    static constexpr size_t slot_size = wire::Control::size;

    // `contexts`: the core needs a struct fi_context2 for each receive. 0 or -FI_ENOMEM.
    int open(size_t receives, size_t headers, bool contexts, IdleBuffers& idle) {
        receives_ = receives;
        headers_ = headers;
        contexts_.resize(contexts ? receives : 0);
        return idle.allocate((receives + wire::control_credits + headers) * slot_size, memory_.buffer);
    }
    [[nodiscard]] RegisteredBuffer& memory() { return memory_; }
    [[nodiscard]] void* desc() const { return memory_.desc(); }

    // ---- receives
    [[nodiscard]] size_t receives() const { return receives_; }
    [[nodiscard]] std::byte* receive(size_t slot) const { return at(slot); }
    // The context of the slot's receive, and of its completion.
    [[nodiscard]] void* context(size_t slot) {
        return contexts_.empty() ? at(slot) : static_cast<void*>(&contexts_[slot]);
    }
    // The slot that an arrival used; nothing if it used none.
    [[nodiscard]] std::optional<size_t> slot_of(const void* context) const {
        if (context == nullptr) {
            return std::nullopt;
        }
        const auto from =
            reinterpret_cast<uintptr_t>(contexts_.empty() ? static_cast<const void*>(at(0)) : contexts_.data());
        const size_t slot =
            (reinterpret_cast<uintptr_t>(context) - from) / (contexts_.empty() ? slot_size : sizeof(fi_context2));
        return slot < receives_ ? std::optional(slot) : std::nullopt;
    }

    // ---- sends: the slot to use, which is the same until its message is posted
    [[nodiscard]] std::byte* next_control() const { return at(receives_ + controls_posted_ % wire::control_credits); }
    void control_posted() { ++controls_posted_; }
    [[nodiscard]] std::byte* next_header() const {
        return at(receives_ + wire::control_credits + headers_posted_ % headers_);
    }
    void header_posted() { ++headers_posted_; }

  private:
    [[nodiscard]] std::byte* at(size_t slot) const { return memory_.buffer.data() + slot * slot_size; }

    RegisteredBuffer memory_;
    size_t receives_ = 0;
    size_t headers_ = 0;
    uint64_t controls_posted_ = 0;
    uint64_t headers_posted_ = 0;
    std::vector<fi_context2> contexts_;
};

} // namespace rstream
