// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core's completions of one stream. An arrival goes to the stream state, which checks the peer's messages, a
// completed work request to Transmit, the answer of a probe to Keepalive. Receives are posted here, and posted again as
// arrivals use them up.
//
// Threads: any. One lock makes readers of the completion queue one progress side.
#pragma once

#include <cstdint>

#include "base/mutex.hpp"
#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/stream/keepalive.hpp"
#include "prov/rstream/stream/lock_order.hpp"
#include "prov/rstream/stream/message_slots.hpp"
#include "prov/rstream/stream/poll_interval.hpp"
#include "prov/rstream/stream/transmit.hpp"
#include "prov/rstream/wire/link.hpp"

namespace rstream {

class Completions {
  public:
    // Rare reports to the stream, with the lock held: it must not call this part.
    class Events {
      public:
        // The core has failed: FI_E*, and why.
        virtual void on_lost(int error, const char* why) = 0;
        // The peer broke a rule of the protocol.
        virtual void on_violation(const char* rule) = 0;
        // The peer sends no more. May be reported more than once.
        virtual void on_peer_end() = 0;

      protected:
        ~Events() = default;
    };

    // The other parts that this one uses; all of them outlive it.
    struct Parts {
        CoreEndpoint& core;
        wire::Link& link; // its progress side
        MessageSlots& messages;
        Keepalive& keepalive;
        Transmit& transmit;
    };
    Completions(const Parts& parts, Events& events)
        : core_(parts.core), link_(parts.link), messages_(parts.messages), keepalive_(parts.keepalive),
          transmit_(parts.transmit), events_(events) {}

    // Completions that the core's queue must hold: of `receives` posted receives, of `rx_size` immediates of the peer's
    // where these use up no receive, and of our own operations, with control messages and what a keepalive probes.
    [[nodiscard]] static size_t queue_size(const CoreTraits& traits, size_t receives, size_t rx_size, size_t tx_size) {
        const size_t immediates = traits.immediates && !traits.consumes_recv ? rx_size : 0;
        return receives + immediates + tx_size + 2 * size_t{wire::control_credits};
    }

    // Before the connection: posts a receive in each slot. 0 or the core's error.
    int post_receives();

    enum class Drained : uint8_t { nothing, something, not_all };
    // Reads the core's completions, up to a limit, so that the caller can react to them.
    Drained drain() BASE_EXCLUDES(mutex_);
    // The same without a limit: data that arrived before a connection ended belongs to the stream.
    void drain_all() BASE_EXCLUDES(mutex_);
    // Discards the completions of an endpoint that is closed: its receives may have been flushed.
    void drop() BASE_EXCLUDES(mutex_);

    // Whether to poll for an end of the connection that the completion queue does not show: that costs a system call,
    // so a program that polls does it at intervals.
    [[nodiscard]] bool events_due();

  private:
    int post_receive(size_t slot);
    Drained drain_locked() BASE_REQUIRES(mutex_);
    void on_completion(const fi_cq_data_entry& entry) BASE_REQUIRES(mutex_);
    void on_arrival(const fi_cq_data_entry& entry) BASE_REQUIRES(mutex_);
    bool on_error() BASE_REQUIRES(mutex_);
    void note_loss(int error, const char* why) BASE_REQUIRES(mutex_);
    void report_loss() BASE_REQUIRES(mutex_);

    CoreEndpoint& core_;
    wire::Link& link_;
    MessageSlots& messages_;
    Keepalive& keepalive_;
    Transmit& transmit_;
    Events& events_;

    base::Mutex mutex_ BASE_ACQUIRED_AFTER(below_receive);
    // Found, and not reported yet. A core can queue a failed send ahead of data that had arrived before, and reads the
    // rest of that only now: the loss is reported when the queue is empty.
    struct Loss {
        int error = 0; // FI_E*; 0: none
        const char* why = nullptr;
    };
    Loss loss_ BASE_GUARDED_BY(mutex_);
    PollInterval events_interval_;
};

} // namespace rstream
