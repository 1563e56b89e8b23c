// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Out-of-band memory: the calls that map the program's memory, and that write to the peer's.
#include "prov/rstream/stream/stream.hpp"

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
        transmit_.request_flush();
    }
    return 0;
}

int Stream::unmap(const void* buffer, size_t length, bool attended) {
    if (lifecycle_.state() == State::lost) {
        fi_shutdown(core_.get(), 0); // whatever failed, the core must write no more
    } else {
        progress();
    }
    const int ret = iomap_.remove(buffer, length, attended, ended());
    if (ret == -FI_EAGAIN) {
        transmit_.request_flush();
    }
    return ret;
}

// ---- the peer's

ssize_t Stream::write_map(const void* buffer, size_t length, uint64_t offset, bool more) {
    const auto* from = static_cast<const std::byte*>(buffer);
    Transmit::Leftover left;
    ssize_t written = transmit_.write(iomap_.wire(), from, length, offset, more, left);
    if (written == -FI_EAGAIN) {
        progress();
        written = transmit_.write(iomap_.wire(), from, length, offset, more, left);
        if (written == -FI_EAGAIN && grow_full_staging()) {
            written = transmit_.write(iomap_.wire(), from, length, offset, more, left);
        }
    } else if (left.poll) {
        progress();
    }
    readiness_.on_send(written);
    return written;
}

} // namespace rstream
