// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory beside the stream: the calls that map the program's memory, and that write to the peer's.
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
    uint64_t at = any ? wire::Maps::any : offset;
    int ret = iomap_.claim(at, length, remote);
    if (ret != 0) {
        return ret;
    }
    Owned<fid_mr> mr;
    const uint64_t rights = remote ? FI_REMOTE_WRITE : FI_SEND | FI_WRITE;
    ret = core_.register_memory(buffer, length, rights, mr, core_.traits().provider_keys ? uncached_registration : 0);
    if (ret == -FI_EBADFLAGS) {
        ret = core_.register_memory(buffer, length, rights, mr);
    }
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_MR, "%zu bytes could not be registered for a map: %s\n", length, fi_strerror(-ret));
        iomap_.unclaim(at, remote);
        return ret;
    }
    iomap_.add(buffer, length, at, remote, core_.traits().virtual_address ? reinterpret_cast<uint64_t>(buffer) : 0,
               std::move(mr));
    offset = at;
    if (remote) {
        request_flush();
    }
    return 0;
}

int Stream::unmap(const void* buffer, size_t length, bool attended) {
    if (lifecycle_.state() == State::lost) {
        fi_shutdown(core_.get(), 0); // whatever it was that failed, the core is to write no more
    } else {
        progress();
    }
    const int ret = iomap_.remove(buffer, length, attended, ended());
    if (ret == -FI_EAGAIN) {
        request_flush();
    }
    return ret;
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
        const auto target = iomap_.wire()->find(offset + copied);
        const size_t left = length - copied;
        const bool apart = !core_.properties().ordered_writes && left <= tail;
        const size_t piece = !core_.properties().ordered_writes && left > tail ? left - tail : left;
        const size_t wanted = target ? std::min<uint64_t>({piece, target->length, chunk_size_.get()}) : 0;
        const wire::Extent room = link_.room(wanted);
        if (room.length == 0) { // or the peer has asked for the rest back meanwhile
            flush();
            return copied;
        }
        memcpy(staging_.at(room.offset, room.moved), from + copied, room.length);
        link_.stage_write(room.length, *target, apart);
        copied += room.length;
        unflushed += room.length;
        if (unflushed >= chunk_size_.get()) {
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
    const wire::Maps* maps = iomap_.wire();
    if (maps == nullptr || offset >= wire::MapMessage::end_of_offsets || !maps->covers(offset, length)) {
        return -FI_EINVAL;
    }
    if (length == 0) {
        return 0;
    }
    const size_t most_inline =
        core_.properties().ordered_writes ? core_.traits().inject_size : std::min(core_.traits().inject_size, in_order);
    if (!more && length <= most_inline && !header_pending_ && !work_requests_.signal_due(0)) {
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
