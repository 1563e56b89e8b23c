// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the program's calls have reported to it, and whether to wake a waiter. A waiter wakes only for news: bytes
// beyond those that it was shown or has left, space after a send that blocked, an end that was not reported. A program
// that reads all available bytes may sleep without a failing read first, and so may one that has not read at all.
//
// Threads: any. The flags are sequentially consistent: a call stores its flag before it checks the stream again, and a
// thread that changes the stream does so before it checks the flags, so one of the two sees the other.
//
// `Source` is the stream, or a test's stand-in:
//   size_t readable()        bytes that can be received
//   size_t space()           bytes that can be sent
//   bool lost()              the connection is gone
//   bool ended()             no more will arrive: the peer has finished, was reset, or is lost
//   bool iomap_answered()    an unmap that is waited for is complete
//   bool all_completed()     the core has completed all that was sent
//   bool peer_closed()       the peer has closed, and acknowledges nothing more
#pragma once

#include <atomic>
#include <cstddef>

#include <rdma/fi_errno.h>
#include <sys/types.h>

#include "prov/rstream/stream/blocked_calls.hpp"
#include "prov/rstream/wire/atomics.hpp"

namespace rstream {

class Readiness {
  public:
    // ---- the program's calls
    // The result of a send or peek. What accepts and shows nothing, as a call with invalid arguments, changes nothing.
    void on_send(ssize_t result) {
        if (result == -FI_EAGAIN) {
            sends_.on_blocked();
        } else if (result != 0 && result != -FI_EINVAL) {
            sends_.on_notified();
        }
        receives_.on_other_call();
    }
    // Before a receive: bytes shown by a peek no longer count.
    void begin_recv() { wire::put(shown_, size_t{0}); }
    // A receive or peek checks the stream.
    void on_poll() {
        wire::put(polled_, true);
        sends_.on_other_call();
    }
    void on_recv_blocked() { receives_.on_blocked(); }
    void on_recv(size_t left) {
        wire::put(left_, left);
        wire::put(received_, true);
        receives_.on_notified();
    }
    // A peek shows that many bytes. True if the last one showed as many: the program has consumed none and needs more.
    bool on_peek(size_t readable) {
        const bool same = shown_.exchange(readable) == readable;
        received_.store(false);
        receives_.on_notified();
        return same;
    }
    void on_end_reported() {
        end_reported_.store(true);
        receives_.on_notified();
    }
    // Closing: the program has no call left to repeat.
    void on_close() {
        polled_.store(true);
        sends_.drop();
        receives_.drop();
        shown_.store(0);
        received_.store(false);
    }
    // A close waits until the core has completed all that was sent, or the peer has closed.
    void await_completion(bool awaited) { completion_awaited_.store(awaited); }
    void await_peer_close(bool awaited) { peer_close_awaited_.store(awaited); }

    [[nodiscard]] bool shows_bytes() const { return shown_.load() != 0; }

    // Whether to wake a sleeping waiter.
    template <class Source> [[nodiscard]] bool wakes(const Source& source) const {
        const bool ended = source.ended();
        const size_t shown = shown_.load();
        return (receives_.unsettled() && (source.readable() != 0 || ended)) ||
               (!polled_.load() && (source.readable() != 0 || news(ended))) ||
               (received_.load() && (source.readable() > left_.load() || news(ended))) ||
               (shown != 0 && (source.readable() > shown || news(ended))) || (sends_.unsettled() && can_send(source)) ||
               source.iomap_answered() || (completion_awaited_.load() && (source.all_completed() || source.lost())) ||
               (peer_close_awaited_.load() && (source.peer_closed() || source.lost()));
    }

    // Whether a program that is about to sleep has something to do instead. It may sleep only if exactly the shown
    // bytes are readable.
    template <class Source> [[nodiscard]] bool ready(const Source& source) const {
        return source.readable() != shown_.load() || news(source.ended()) ||
               (sends_.unreported() && can_send(source)) || source.iomap_answered();
    }

    // fi_trywait: the same, after the calling thread is noted as one that may sleep; and what it is blocked for may be
    // there, although another thread has been told of that.
    template <class Source> [[nodiscard]] bool may_sleep(const Source& source) {
        if (!polled_.load() && !end_reported_.load()) {
            receives_.on_blocked(); // it sleeps for the first bytes, or the end
        }
        const bool receives = receives_.may_sleep([&] { return source.readable() != 0 || source.ended(); });
        const bool sends = sends_.may_sleep([&] { return can_send(source); });
        if (receives && sends && !ready(source)) {
            return true;
        }
        cancel_wait();
        return false;
    }
    void cancel_wait() {
        receives_.cancel_wait();
        sends_.cancel_wait();
    }

  private:
    [[nodiscard]] bool news(bool ended) const { return ended && !end_reported_.load(); }
    template <class Source> static bool can_send(const Source& source) { return source.space() != 0 || source.lost(); }

    BlockedCalls receives_;                 // or peeks, that found no bytes
    BlockedCalls sends_;                    // or peeks, that found no space
    std::atomic<bool> polled_{false};       // the program has received or peeked at all
    std::atomic<size_t> shown_{0};          // bytes that a peek has shown and no receive has consumed
    std::atomic<bool> received_{false};     // the program has received since it last peeked,
    std::atomic<size_t> left_{0};           // and left this many
    std::atomic<bool> end_reported_{false}; // the end, or an error
    std::atomic<bool> completion_awaited_{false};
    std::atomic<bool> peer_close_awaited_{false};
};

} // namespace rstream
