// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/work_requests.hpp"

#include <algorithm>
#include <utility>

namespace rstream {

void WorkRequests::open(size_t queue_size, size_t reserve, bool contexts, bool timed) {
    queue_size_ = queue_size;
    interval_ = std::max<size_t>(queue_size / 2, 1);
    timed_ = timed;
    queue_.resize(queue_size + reserve + 1);
    if (contexts) {
        contexts_.resize(queue_size + reserve + 1);
    }
}

void* WorkRequests::begin(size_t staged, bool signal) {
    void* context = !contexts_.empty() ? &contexts_[posted_ % contexts_.size()] : nullptr;
    ++posted_;
    ++unsignaled_;
    unsignaled_staged_ += staged;
    if (signal) {
        const uint64_t signaled = signaled_.load(std::memory_order_relaxed);
        Signaled& added = queue_[signaled % queue_.size()];
        if (context == nullptr) {
            context = &added;
        }
        added = {context, unsignaled_staged_, unsignaled_, timed_ ? std::chrono::steady_clock::now() : Time{}};
        unsignaled_ = 0;
        unsignaled_staged_ = 0;
        signaled_.store(signaled + 1, std::memory_order_release);
    }
    return context;
}

void WorkRequests::undo(size_t staged, bool signal) {
    if (signal) {
        const uint64_t signaled = signaled_.load(std::memory_order_relaxed) - 1;
        const Signaled& added = queue_[signaled % queue_.size()];
        unsignaled_ = added.operations;
        unsignaled_staged_ = added.staged;
        signaled_.store(signaled, std::memory_order_release);
    }
    --posted_;
    --unsignaled_;
    unsignaled_staged_ -= staged;
}

size_t WorkRequests::take_skipped() { return all_completed() ? std::exchange(unsignaled_staged_, 0) : 0; }

std::optional<WorkRequests::Completion> WorkRequests::complete(const void* context) {
    const uint64_t taken = taken_.load(std::memory_order_relaxed);
    if (taken == signaled_.load(std::memory_order_acquire)) {
        return std::nullopt;
    }
    const Signaled& oldest = queue_[taken % queue_.size()];
    if (oldest.context != context) {
        return std::nullopt;
    }
    const Completion completion{oldest.staged, oldest.posted};
    const uint64_t operations = oldest.operations;
    taken_.store(taken + 1, std::memory_order_release); // the posting side may reuse its entry
    wire::count_up(completed_, operations);
    return completion;
}

} // namespace rstream
