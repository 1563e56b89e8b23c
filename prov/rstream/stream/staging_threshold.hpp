// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When the staging ring of a busy stream is resized: once enough sends have found it full, it gets the size of the
// peer's ring, which it feeds, up to a limit. For the posting side.
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
        const size_t goal = std::min(limit_, peer_ring);
        return goal > staging ? goal : 0;
    }

    void on_stall() { ++stalls_; }
    [[nodiscard]] bool reached() const { return stalls_ >= wire::RingWish::stall_limit; }
    void reset() { stalls_ = 0; }

  private:
    const size_t limit_;
    uint32_t stalls_ = 0;
};

} // namespace rstream
