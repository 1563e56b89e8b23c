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

#include "prov/rstream/stream/blocked_threads.hpp"
#include "prov/rstream/wire/atomics.hpp"

namespace rstream {

class Readiness {
  public:
    // ---- the program's calls
    void on_send(bool blocked) { wire::put(send_blocked_, blocked); }
    // Before a receive: bytes shown by a peek no longer count.
    void begin_recv() { wire::put(shown_, size_t{0}); }
    // A receive or peek checks the stream.
    void on_poll() { wire::put(polled_, true); }
    void on_recv_blocked() {
        if (blocked_.enter() || !recv_blocked()) {
            blocks_.fetch_add(1);
        }
    }
    void on_recv(size_t left) {
        wire::put(left_, left);
        wire::put(received_, true);
        blocked_.leave();
        wire::put(told_, blocks_.load());
    }
    // A peek shows that many bytes. True if the last one showed as many: the program has consumed none and needs more.
    bool on_peek(size_t readable) {
        const bool same = shown_.exchange(readable) == readable;
        received_.store(false);
        on_told();
        return same;
    }
    void on_end_reported() {
        end_reported_.store(true);
        on_told();
    }
    // Closing: the program has no call left to repeat.
    void on_close() {
        polled_.store(true);
        send_blocked_.store(false);
        told_.store(blocks_.load());
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
        return ((recv_blocked() || !polled_.load()) && (source.readable() != 0 || ended)) ||
               (received_.load() && (source.readable() > left_.load() || news(ended))) ||
               (shown != 0 && (source.readable() > shown || news(ended))) ||
               (send_blocked_.load() && (source.space() != 0 || source.lost())) || source.iomap_answered() ||
               (completion_awaited_.load() && (source.all_completed() || source.lost())) ||
               (peer_close_awaited_.load() && (source.peer_closed() || source.lost()));
    }

    // Whether a program that is about to sleep has something to do instead. It may sleep only if exactly the shown
    // bytes are readable.
    template <class Source> [[nodiscard]] bool ready(const Source& source) const {
        return source.readable() != shown_.load() || news(source.ended()) ||
               (send_blocked_.load() && (source.space() != 0 || source.lost())) || source.iomap_answered();
    }

  private:
    // A receive or peek found no bytes, and since then no thread was told of any, or of an end.
    [[nodiscard]] bool recv_blocked() const { return blocks_.load() != told_.load(); }
    // The calling thread knows what there is. As long as another one may sleep for it, it wakes. One that finds nothing
    // meanwhile is counted, and so not told.
    void on_told() {
        blocked_.leave();
        if (const uint64_t blocks = blocks_.load(); blocks != told_.load() && !blocked_.others()) {
            told_.store(blocks);
        }
    }
    [[nodiscard]] bool news(bool ended) const { return ended && !end_reported_.load(); }

    std::atomic<bool> send_blocked_{false}; // the last send or peek found no space
    std::atomic<uint64_t> blocks_{0};       // receives or peeks that found no bytes, but not each in a row
    std::atomic<uint64_t> told_{0};         // those whose thread knows better by now
    BlockedThreads blocked_;
    std::atomic<bool> polled_{false};       // the program has received or peeked at all
    std::atomic<size_t> shown_{0};          // bytes that a peek has shown and no receive has consumed
    std::atomic<bool> received_{false};     // the program has received since it last peeked,
    std::atomic<size_t> left_{0};           // and left this many
    std::atomic<bool> end_reported_{false}; // the end, or an error
    std::atomic<bool> completion_awaited_{false};
    std::atomic<bool> peer_close_awaited_{false};
};

} // namespace rstream
