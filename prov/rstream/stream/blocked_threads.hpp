// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The threads whose last receive (or send) of a stream found nothing (no space), and which of them may sleep: what one
// of them is told, the others are not. A thread may sleep from fi_trywait on, until its next call on the endpoint; one
// that only found nothing, and then serves other connections, needs no waking.
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
    static constexpr size_t max_known = 16;

    // The calling thread, awake. True: it was not among them.
    bool enter() {
        const uintptr_t own = self();
        if (replace_own(own)) {
            return false;
        }
        for (std::atomic<uintptr_t>& one : threads_) {
            uintptr_t found = 0;
            if (one.load() == 0 && one.compare_exchange_strong(found, own)) {
                ++known_;
                return true;
            }
        }
        // In the place of another one that is awake, most likely for good: in turn, so that it is not a recent one.
        for (size_t tries = 0; tries < max_known; ++tries) {
            std::atomic<uintptr_t>& one = threads_[next_.fetch_add(1) % max_known];
            uintptr_t found = one.load();
            if (!asleep(found) && found != 0 && one.compare_exchange_strong(found, own)) {
                return true;
            }
        }
        unknown_.store(true);
        return true;
    }
    void leave() {
        if (replace_own(0)) {
            --known_;
        }
    }
    [[nodiscard]] bool contain_caller() { return find(self()) != nullptr; }
    // The calling thread may sleep from here on, or is awake.
    void sleep() { replace_own(self() | sleeping); }
    void awake() { replace_own(self()); }
    // None counts as asleep any more.
    void wake_all() {
        for (std::atomic<uintptr_t>& one : threads_) {
            if (uintptr_t found = one.load(); asleep(found)) {
                one.compare_exchange_strong(found, found & ~sleeping);
            }
        }
        unknown_.store(false);
    }
    [[nodiscard]] bool others_sleep() const {
        const uintptr_t own = self();
        return unknown_.load() || std::any_of(threads_.begin(), threads_.end(), [own](const auto& one) {
                   const uintptr_t found = one.load();
                   return asleep(found) && (found & ~sleeping) != own;
               });
    }

  private:
    static constexpr uintptr_t sleeping = 1; // in a thread's entry
    static bool asleep(uintptr_t entry) { return (entry & sleeping) != 0; }
    // Not the address of something thread-local: in a library that was loaded at run time, the first use of that in a
    // thread allocates memory, which no signal handler may. It is that of a structure, and even.
    static uintptr_t self() { return std::bit_cast<uintptr_t>(pthread_self()); }

    std::atomic<uintptr_t>* find(uintptr_t own) {
        if (known_.load() == 0) {
            return nullptr;
        }
        auto* const found = std::find_if(threads_.begin(), threads_.end(),
                                         [own](const auto& one) { return (one.load() & ~sleeping) == own; });
        return found != threads_.end() ? found : nullptr;
    }
    // False if the calling thread has no entry; or another thread has just taken it.
    bool replace_own(uintptr_t by) {
        std::atomic<uintptr_t>* const entry = find(self());
        if (entry == nullptr) {
            return false;
        }
        uintptr_t found = entry->load();
        return found == by || ((found & ~sleeping) == self() && entry->compare_exchange_strong(found, by));
    }

    std::array<std::atomic<uintptr_t>, max_known> threads_{};
    std::atomic<size_t> known_{0}; // entries in use: for most streams there are none
    std::atomic<size_t> next_{0};
    std::atomic<bool> unknown_{false}; // more of them sleep than are known here
};

} // namespace rstream
