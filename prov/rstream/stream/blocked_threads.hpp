// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The threads whose last receive or peek of a stream found nothing, and which may sleep: what one of them is told, the
// others are not. A few by identity; with more at once, it stays unknown who they are.
//
// Threads: any, sequentially consistent.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include <pthread.h>

namespace rstream {

class BlockedThreads {
  public:
    // The calling thread. A thread that has ended without leaving counts until another one has its identity.
    // True: it was not among them.
    bool enter() {
        const uintptr_t own = self();
        if (std::any_of(threads_.begin(), threads_.end(), [&](const auto& one) { return one.load() == own; })) {
            return false;
        }
        for (std::atomic<uintptr_t>& one : threads_) {
            uintptr_t found = 0;
            if (one.load() == 0 && one.compare_exchange_strong(found, own)) {
                return true;
            }
        }
        unknown_.store(true);
        return true;
    }
    void leave() {
        for (std::atomic<uintptr_t>& one : threads_) {
            if (const uintptr_t found = one.load(std::memory_order_relaxed); found != 0 && found == self()) {
                one.store(0);
            }
        }
    }
    [[nodiscard]] bool others() const {
        const uintptr_t own = self();
        for (const std::atomic<uintptr_t>& one : threads_) {
            if (const uintptr_t found = one.load(); found != 0 && found != own) {
                return true;
            }
        }
        return unknown_.load();
    }

  private:
    // Not the address of something thread-local: in a library that was loaded at run time, the first use of that in a
    // thread allocates memory, which no signal handler may.
    static uintptr_t self() {
        return std::bit_cast<uintptr_t>(pthread_self());
    }

    std::array<std::atomic<uintptr_t>, 4> threads_{};
    std::atomic<bool> unknown_{false}; // for good
};

} // namespace rstream
