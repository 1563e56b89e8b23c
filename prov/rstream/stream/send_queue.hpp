// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Converts messages of the stream state to work requests of the core's endpoint: chunks become writes, control messages
// sends, and where the core has no immediates, a chunk becomes a write and a message after it. Completions are
// requested only now and then, since on most cores each has a cost.
//
// Threads: the posting side.
#pragma once

#include <optional>

#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/stream/keepalive.hpp"
#include "prov/rstream/stream/message_slots.hpp"
#include "prov/rstream/stream/ring_buffer.hpp"
#include "prov/rstream/stream/work_requests.hpp"
#include "prov/rstream/wire/link.hpp"

namespace rstream {

class SendQueue {
  public:
    // All of them outlive this. Of `link`, only the properties of the connection are read.
    SendQueue(const CoreEndpoint& core, const wire::Link& link, MessageSlots& messages, WorkRequests& work_requests,
              Keepalive& keepalive)
        : core_(core), link_(link), messages_(messages), work_requests_(work_requests), keepalive_(keepalive) {}

    // Results: 0; -FI_EAGAIN, if the core has no space now; or the core's error.

    // `staging`: the ring that contains the bytes of a chunk.
    ssize_t post(const wire::Post& post, const RingBuffer& staging);
    // Posts a chunk that bypasses the staging ring, from the caller's memory. Only while `takes_direct`.
    ssize_t post_direct(const wire::Post& post, const void* bytes);
    // The next work request may carry no staged bytes: nothing has to be sent before it, and it requests no completion.
    [[nodiscard]] bool takes_direct() const { return !pending_ && !work_requests_.signal_due(0); }

    // The header of a posted write is pending, since the core had no space for it: it is sent before all else.
    [[nodiscard]] bool pending() const { return pending_.has_value(); }
    ssize_t post_pending(); // while there is one

    // Probes the peer through its adapter.
    ssize_t post_probe() { return keepalive_.post_probe(link_.peer_ring(), messages_.memory()); }

  private:
    ssize_t post_chunk(const wire::Post& post, const RingBuffer& staging);
    ssize_t post_write(const wire::Post& post, const RingBuffer& staging, bool signal);
    ssize_t post_header(const wire::Post& post);
    template <class Message> ssize_t post_control(const Message& message, bool signal);
    template <class Message> ssize_t post_message(const Message& message, std::byte* slot, bool signal);

    const CoreEndpoint& core_;
    const wire::Link& link_;
    MessageSlots& messages_;
    WorkRequests& work_requests_;
    Keepalive& keepalive_;
    std::optional<wire::Post> pending_;
};

} // namespace rstream
