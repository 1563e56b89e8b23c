// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Detects a peer that is gone without a message: keepalive and the user timeout, by the means that the core offers.
// Where the core's connection is one of the kernel's TCP, the kernel probes the peer. Elsewhere the stream probes the
// peer's adapter, by a remote read of zero bytes: an adapter answers it without its program, and without checking a key
// (InfiniBand specification, C9-88), so no memory has to be readable for it. The same probe shows whether data in
// flight is acknowledged. A timer makes the fds readable on which programs sleep meanwhile.
//
// The stream reports activity, calls `check` when it is `due`, and has a probe posted for verdict `ask`.
//
// Threads: settings with the event dispatcher locked, probes on the posting side, arrivals and completions on the
// progress side, the rest from any. Its locks are leaves, and none is held during a call of the core.
#pragma once

#include <functional>

#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/stream/keepalive_timer.hpp"
#include "prov/rstream/stream/kernel_keepalive.hpp"
#include "prov/rstream/stream/liveness.hpp"
#include "prov/rstream/stream/ring_buffer.hpp"
#include "prov/rstream/wire/growth.hpp"

namespace rstream {

class Keepalive {
  public:
    using Time = Liveness::Time;
    using Verdict = Liveness::Verdict;
    // Makes waiters wake for the timer's fd; called before the timer is first set. 0 or -errno.
    using WatchTimer = std::function<int(int fd)>;

    // `core` outlives this.
    Keepalive(const CoreEndpoint& core, const KeepaliveSettings& wanted) : core_(core), wanted_(wanted) {}

    // ---- settings
    // Takes effect at once if the stream is connected, else at `start`. 0, or an error and no change.
    int set(const KeepaliveSettings& settings, bool connected, const WatchTimer& watch);
    // The stream is connected. `kernel_socket`: the one below it, -1 if none or unknown. Failures are logged.
    void start(int kernel_socket, const WatchTimer& watch);
    // The core closes its socket.
    void detach() { kernel_.detach(); }

    // ---- activity
    void on_posted() { liveness_.on_posted(); }
    void on_completed() { liveness_.on_completed(); }
    void on_arrival() { liveness_.on_arrival(); }

    // ---- checks: see liveness.hpp
    [[nodiscard]] bool due() { return liveness_.due(); }
    Verdict check(Time now) { return liveness_.check(now); }
    void stop() { liveness_.stop(); }
    [[nodiscard]] int timer_fd() { return liveness_.timer_fd(); } // -1 while there is none
    // Whether a connection that was reset ended because the peer did not answer, which no core reports.
    [[nodiscard]] bool timed_out() const { return kernel_.timed_out(); }

    // ---- probes
    [[nodiscard]] bool probe_wanted() const { return liveness_.probe_wanted(); }
    // Posts a probe of the peer's ring unless one is in flight. `local`: any registered memory of ours; none of it is
    // written. 0; -FI_EAGAIN: the probe is still wanted; or the core's error.
    ssize_t post_probe(const wire::RemoteRing& peer, const RegisteredBuffer& local);
    // Handles the completion of a probe. False for any other completion.
    bool take_answer(const void* context) {
        if (context != liveness_.probe_context()) {
            return false;
        }
        liveness_.probe_answered();
        return true;
    }

  private:
    int apply(const KeepaliveSettings& settings, const WatchTimer& watch);
    int apply_by_kernel(const KeepaliveSettings& settings);
    int apply_by_probes(const KeepaliveSettings& settings, const WatchTimer& watch);

    const CoreEndpoint& core_;
    KeepaliveSettings wanted_;
    KeepaliveSettings applied_;
    KernelKeepalive kernel_; // where the core's connection is a kernel socket
    Liveness liveness_;      // elsewhere
};

} // namespace rstream
