// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory beside the stream: ours, which the peer writes to, and the peer's. The rules are in wire::Maps; here are the
// registrations behind them, which outlive a withdrawal until the peer has answered it.
#include "prov/rstream/stream/stream.hpp"

#include <algorithm>
#include <cstring>

#include "prov/rstream/domain.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

// ---- ours

int Stream::map(void* buffer, size_t length, uint64_t access, uint64_t& offset) {
    using wire::MapMessage;
    const State state = lifecycle_.state();
    if (!has_connected(state)) {
        return -FI_ENOTCONN;
    }
    if (has_failed(state)) {
        const int error = lifecycle_.error();
        return -(error != 0 ? error : FI_ECONNRESET);
    }
    const bool any = offset == FI_RSTREAM_MAP_ANY;
    if (length > MapMessage::max_length || length > UINT64_MAX - reinterpret_cast<uint64_t>(buffer) ||
        (!any && (offset >= MapMessage::end_of_offsets || length > MapMessage::end_of_offsets - offset))) {
        return -FI_EINVAL;
    }
    const bool remote = access != 0;
    if (remote && !maps_) {
        return -FI_ENOSPC;
    }
    uint64_t at = any ? wire::Maps::any : offset;
    if (remote) {
        switch (maps_->claim(at, length)) {
        case wire::Maps::Claim::full:
            return -FI_ENOSPC;
        case wire::Maps::Claim::taken:
            return -FI_EADDRINUSE;
        case wire::Maps::Claim::made:
            break;
        }
    } else if (any) {
        at = 0; // nobody will ask for it
    }
    Owned<fid_mr> mr;
    const uint64_t rights = remote ? FI_REMOTE_WRITE : FI_SEND | FI_WRITE;
    int ret = register_memory(buffer, length, rights, mr, traits_.provider_keys ? uncached_registration : 0);
    if (ret == -FI_EBADFLAGS) {
        ret = register_memory(buffer, length, rights, mr);
    }
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_MR, "%zu bytes could not be registered for a map: %s\n", length, fi_strerror(-ret));
        if (remote) {
            maps_->forget(at);
        }
        return ret;
    }
    const uint64_t key = fi_mr_key(mr.get());
    {
        const std::lock_guard lock(regions_mutex_);
        regions_.push_back({buffer, length, at, remote, false, std::move(mr)});
    }
    offset = at;
    if (remote) {
        maps_->announce(at, traits_.virtual_address ? reinterpret_cast<uint64_t>(buffer) : 0, key);
        kick();
    }
    return 0;
}

// The peer writes to none of ours any more: it has said that it sends nothing, or is gone.
bool Stream::maps_are_over() const { return lifecycle_.failed() || link_.peer_finished() || link_.peer_reset(); }

bool Stream::iomap_answered() const {
    return maps_ && (maps_->answered() != 0 || (maps_->awaited() != 0 && maps_are_over()));
}

// With the regions locked.
bool Stream::withdrawn(const Region& region, bool awaited) {
    if (!region.remote) {
        return true;
    }
    const bool over = maps_are_over();
    const bool agreed = maps_->withdraw(region.offset, awaited && !over);
    return agreed || over;
}

int Stream::unmap(const void* buffer, size_t length, bool attended) {
    if (lifecycle_.state() == State::lost) {
        fi_shutdown(ep_.get(), 0); // whatever it was that failed, the core is to write no more
    } else {
        progress();
    }
    Owned<fid_mr> mr; // closed without our lock
    {
        const std::lock_guard lock(regions_mutex_);
        const auto fits = [&](const Region& r) { return r.buffer == buffer && r.length == length; };
        // One that is under way comes before a second one of the same memory.
        auto found =
            std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) { return fits(r) && r.withdrawn; });
        if (found == regions_.end()) {
            found = std::find_if(regions_.begin(), regions_.end(), fits);
        }
        if (found == regions_.end()) {
            return -FI_EINVAL;
        }
        found->withdrawn = true;
        if (withdrawn(*found, attended)) {
            if (found->remote) {
                maps_->forget(found->offset);
            }
            mr = std::move(found->mr);
            regions_.erase(found);
            return 0;
        }
    }
    kick();
    return -FI_EAGAIN;
}

// For closing: asks for all of it back. True once none is left.
bool Stream::release_regions() {
    std::vector<Region> released; // closed without our lock
    const std::lock_guard lock(regions_mutex_);
    const auto kept = std::stable_partition(regions_.begin(), regions_.end(), [&](const Region& region) {
        const bool done = withdrawn(region, true);
        if (done && region.remote) {
            maps_->forget(region.offset);
        }
        return !done;
    });
    std::move(kept, regions_.end(), std::back_inserter(released));
    regions_.erase(kept, regions_.end());
    return regions_.empty();
}

// The core's connection is over, or there never was one.
void Stream::drop_regions() {
    std::vector<Region> dropped;
    const std::lock_guard lock(regions_mutex_);
    dropped.swap(regions_);
}

// ---- the peer's

// A program that waits for a write looks at its last bytes, and takes the rest for written when it sees them. Where
// the core does not write in order, as a copy may store the end of a message first, the last bytes are a message of
// their own.
constexpr size_t tail = 8;
constexpr size_t in_order = 64; // what memcpy stores in order: the first half, then the last

size_t Stream::copy_to_map(const void* buffer, size_t length, uint64_t offset, bool more) {
    const auto* from = static_cast<const std::byte*>(buffer);
    size_t copied = 0;
    size_t unflushed = 0;
    while (copied < length) {
        const auto target = maps_->find(offset + copied);
        const size_t left = length - copied;
        const bool apart = !properties_.ordered_writes && left <= tail;
        const size_t piece = !properties_.ordered_writes && left > tail ? left - tail : left;
        const size_t wanted = target ? std::min<uint64_t>({piece, target->length, max_chunk_}) : 0;
        const wire::Extent room = link_.room(wanted);
        if (room.length == 0) { // or the peer has asked for the rest back meanwhile
            flush();
            return copied;
        }
        memcpy((room.moved ? next_staging_ : staging_).buffer.data() + room.offset, from + copied, room.length);
        link_.stage_write(room.length, *target, apart);
        copied += room.length;
        unflushed += room.length;
        if (unflushed >= max_chunk_) {
            flush();
            unflushed = 0;
        }
    }
    if (!more) {
        flush();
    } else {
        note_needs();
    }
    return copied;
}

ssize_t Stream::try_write_map(const void* buffer, size_t length, uint64_t offset, bool more) {
    const Posting posting(*this);
    if (const int error = send_error(); error != 0) {
        return error;
    }
    if (!maps_ || offset >= wire::MapMessage::end_of_offsets || !maps_->covers(offset, length)) {
        return -FI_EINVAL;
    }
    if (length == 0) {
        return 0;
    }
    const size_t most_inline =
        properties_.ordered_writes ? traits_.inject_size : std::min(traits_.inject_size, in_order);
    if (!more && length <= most_inline && !header_pending_ && !signal_due(0)) {
        if (const auto direct = link_.bypass_write(length, offset)) {
            if (post(*direct, buffer) == 0) {
                return static_cast<ssize_t>(length);
            }
            link_.undo(*direct);
        }
    }
    const size_t copied = copy_to_map(buffer, length, offset, more);
    return copied != 0 ? static_cast<ssize_t>(copied) : -FI_EAGAIN;
}

ssize_t Stream::write_map(const void* buffer, size_t length, uint64_t offset, bool more) {
    ssize_t written = try_write_map(buffer, length, offset, more);
    if (written == -FI_EAGAIN) {
        progress();
        written = try_write_map(buffer, length, offset, more);
    }
    readiness_.on_send(written == -FI_EAGAIN);
    return written;
}

} // namespace rstream
