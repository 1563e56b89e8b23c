// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The work requests of a stream that are posted to the core, and which of them request a completion. On most cores each
// completion has a cost, so only those request one whose memory is to be reused, and one in a while of the others,
// since each occupies an entry of the core's queue. A completion covers all work requests before its own.
//
// Threads: a posting side and a progress side, each for one thread at a time, under the caller's lock of that side.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include <rdma/fabric.h>

#include "prov/rstream/wire/atomics.hpp"

namespace rstream {

class WorkRequests {
  public:
    using Time = std::chrono::steady_clock::time_point;

    // `queue_size`: max data operations with the core at once; `reserve`: max others. `contexts`: the core needs a
    // struct fi_context2 for each. `timed`: a completion reports when its work request was posted.
    void open(size_t queue_size, size_t reserve, bool contexts, bool timed);

    // ---- posting side
    [[nodiscard]] bool full() const { return posted_ - completed_.load(std::memory_order_acquire) >= queue_size_; }
    // Whether the next work request has to request a completion. `staged`: bytes of the staging ring that it sends.
    [[nodiscard]] bool signal_due(size_t staged) const { return staged != 0 || unsignaled_ + 1 >= interval_; }
    // Called before the work request is given to the core. Returns its context: null if it requests no completion and
    // the core needs no context.
    void* begin(size_t staged, bool signal);
    // The core did not accept it.
    void undo(size_t staged, bool signal);
    // Staged bytes that are not sent: freed with those before them.
    void add_skipped(size_t staged) { unsignaled_staged_ += staged; }
    [[nodiscard]] bool skipped() const { return unsignaled_staged_ != 0; }
    // The skipped bytes, if no completion that would free them is outstanding.
    size_t take_skipped();

    // ---- progress side
    struct Completion {
        size_t staged; // bytes of the staging ring that are free
        Time posted;
    };
    // Nothing for an unrequested completion, as some cores report.
    std::optional<Completion> complete(const void* context);

    // ---- from any side
    [[nodiscard]] bool all_completed() const {
        return signaled_.load(std::memory_order_acquire) == taken_.load(std::memory_order_acquire);
    }

  private:
    struct Signaled {
        const void* context;
        size_t staged;
        uint64_t operations;
        Time posted;
    };

    size_t queue_size_ = 0;
    uint64_t interval_ = 1;
    bool timed_ = false;

    uint64_t posted_ = 0;
    uint64_t unsignaled_ = 0; // since the last that requests a completion
    size_t unsignaled_staged_ = 0;
    std::vector<fi_context2> contexts_;

    std::vector<Signaled> queue_; // the posting side adds, the progress side removes
    std::atomic<uint64_t> signaled_{0};
    std::atomic<uint64_t> taken_{0};
    std::atomic<uint64_t> completed_{0};
};

} // namespace rstream
