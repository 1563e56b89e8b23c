// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The program's memory that the peer may write to, and what is known of the peer's. The rules and messages are
// wire::Maps; here are the registrations behind them, which stay until the peer has answered that it writes there no
// more, or is gone. `over` means the latter: it has finished, was reset, or the connection is lost.
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
    // How many maps of the peer's this end keeps.
    explicit Iomap(size_t offered) : offered_(offered) {}
    [[nodiscard]] size_t offered() const { return offered_; }

    // Before the stream is connected: the peer keeps that many of ours.
    void agree(size_t kept_by_peer);
    // The rules and the peer's memory; null if the two ends have not agreed on any.
    [[nodiscard]] wire::Maps* wire() const { return maps_.get(); }

    // Takes a range of offsets for memory that is yet to be registered; chooses one for wire::Maps::any. With `remote`
    // the peer will write there. 0, -FI_ENOSPC or -FI_EADDRINUSE.
    int claim(uint64_t& offset, size_t length, bool remote);
    // It could not be registered.
    void unclaim(uint64_t offset, bool remote);
    // It is registered. With `remote` the peer is to be told; `address` is what the core names it by.
    void add(const void* buffer, size_t length, uint64_t offset, bool remote, uint64_t address, Owned<fid_mr> mr)
        BASE_EXCLUDES(mutex_);

    // 0: it is not mapped any more. -FI_EAGAIN: the peer has to be asked, or has not answered; `awaited`: the program
    // waits for it. -FI_EINVAL: it is not mapped.
    int remove(const void* buffer, size_t length, bool awaited, bool over) BASE_EXCLUDES(mutex_);
    // For closing: asks for all of it back. True once none is left.
    bool remove_all(bool over) BASE_EXCLUDES(mutex_);
    // The core's connection is gone, or there was none.
    void drop_all() BASE_EXCLUDES(mutex_);

    // Someone waits for a removal, and it would succeed.
    [[nodiscard]] bool answered(bool over) const {
        return maps_ && (maps_->answered() != 0 || (maps_->awaited() != 0 && over));
    }

  private:
    struct Region {
        const void* buffer;
        size_t length;
        uint64_t offset;
        bool remote;
        bool removing; // the program has asked for it
        Owned<fid_mr> mr;
    };

    bool released(const Region& region, bool awaited, bool over) BASE_REQUIRES(mutex_);

    const size_t offered_;
    std::unique_ptr<wire::Maps> maps_;
    base::Mutex mutex_; // a leaf, but for the lock of `maps_`
    std::vector<Region> regions_ BASE_GUARDED_BY(mutex_);
};

} // namespace rstream
