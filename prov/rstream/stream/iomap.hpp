// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The program's memory that the peer may write to, and the peer's announced memory. wire::Maps has the rules and
// messages, this class the registrations, which stay until the peer has confirmed that it writes there no more, or is
// gone. `over` means the latter: it has finished, was reset, or the connection is lost.
//
// Threads: any. A registration is closed without the lock, as that can block.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "prov/rstream/fid.hpp"
#include "prov/rstream/wire/maps.hpp"

namespace rstream {

class Iomap {
  public:
    // `offered`: max iomaps of the peer's that this end keeps.
    explicit Iomap(size_t offered) : offered_(offered) {}
    [[nodiscard]] size_t offered() const { return offered_; }

    // Before the stream is connected. `kept_by_peer`: max iomaps of ours that the peer keeps.
    void agree(size_t kept_by_peer);
    // The rules and the peer's memory; null if the two ends have not agreed on iomaps.
    [[nodiscard]] wire::Maps* wire() const { return maps_.get(); }

    // Reserves a range of offsets for memory that is registered later; chooses one for wire::Maps::any. `remote`: the
    // peer will write there. 0, -FI_ENOSPC or -FI_EADDRINUSE.
    int claim(uint64_t& offset, size_t length, bool remote);
    // The memory could not be registered.
    void unclaim(uint64_t offset, bool remote);
    // The memory is registered. `remote`: announces it to the peer; `address` is how the core addresses it.
    void add(const void* buffer, size_t length, uint64_t offset, bool remote, uint64_t address, Owned<fid_mr> mr)
        BASE_EXCLUDES(mutex_);

    // 0: it is not mapped any more. -FI_EAGAIN: the peer has not confirmed yet; `awaited`: the program waits for that.
    // -FI_EINVAL: it is not mapped.
    int remove(const void* buffer, size_t length, bool awaited, bool over) BASE_EXCLUDES(mutex_);
    // For closing: withdraws all iomaps. True once none is left.
    bool remove_all(bool over) BASE_EXCLUDES(mutex_);
    // The core's connection is gone, or there was none.
    void drop_all() BASE_EXCLUDES(mutex_);

    // The program waits for a removal, and it would succeed.
    [[nodiscard]] bool answered(bool over) const {
        return maps_ && (maps_->answered() != 0 || (maps_->awaited() != 0 && over));
    }

  private:
    struct Region {
        const void* buffer;
        size_t length;
        uint64_t offset;
        bool remote;
        bool removing; // the program has requested that
        Owned<fid_mr> mr;
    };

    bool released(const Region& region, bool awaited, bool over) BASE_REQUIRES(mutex_);

    const size_t offered_;
    std::unique_ptr<wire::Maps> maps_;
    base::Mutex mutex_; // a leaf, except for the lock of `maps_`
    std::vector<Region> regions_ BASE_GUARDED_BY(mutex_);
};

} // namespace rstream
