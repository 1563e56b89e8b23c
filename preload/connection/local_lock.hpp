// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A lock private to this process, held for a few instructions. It fails in a signal handler that interrupts its owner.
#pragma once

#include "preload/connection/owner_lock.hpp"

namespace preload {

class LocalLock {
  public:
    class Hold {
      public:
        // waits: else it fails also while another thread has the lock.
        explicit Hold(LocalLock& lock, bool waits = true)
            : lock_(lock), held_(waits ? lock.lock_.acquire() : lock.lock_.try_acquire()) {}
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;
        ~Hold() {
            if (held_) {
                lock_.lock_.release();
            }
        }
        explicit operator bool() const { return held_; }

      private:
        LocalLock& lock_;
        const bool held_;
    };
    // In a signal handler that has interrupted its owner, which has not left the section by longjmp.
    [[nodiscard]] bool is_interrupted() { return lock_.is_own() && !Hold(*this); }
    void forget() { lock_.forget(); }

  private:
    OwnerLock lock_;
};

} // namespace preload
