// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When the staging ring of a busy stream is resized: once enough sends have found it full, it gets the size of the
// peer's ring, which it feeds, up to a limit. If the peer's ring is full, too, it gets the largest size at once: the
// peer may be sending as much itself before it reads, as programs do that were written for the buffers of TCP. For the
// posting side.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "prov/rstream/wire/growth.hpp"

namespace rstream {

class StagingThreshold {
  public:
    explicit StagingThreshold(size_t limit) : limit_(limit) {}

    // The size to resize to; 0 if the ring is large enough.
    [[nodiscard]] size_t goal(size_t peer_ring, size_t staging) const {
        const size_t goal = both_full_ ? limit_ : std::min(limit_, peer_ring);
        return goal > staging ? goal : 0;
    }

    // A send found the ring full.
    void on_stall() { ++stalls_; }
    // The same, and the peer's is full, too.
    void on_both_full(size_t staging) { both_full_ = limit_ > staging; }
    [[nodiscard]] bool reached() const { return both_full_ || stalls_ >= wire::RingWish::stall_limit; }
    void reset() {
        stalls_ = 0;
        both_full_ = false;
    }

  private:
    const size_t limit_;
    uint32_t stalls_ = 0;
    bool both_full_ = false;
};

} // namespace rstream
