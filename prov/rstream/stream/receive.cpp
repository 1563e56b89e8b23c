// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/receive.hpp"

#include "base/copy.hpp"
#include "prov/rstream/stream/iov.hpp"

namespace rstream {

namespace {

// One resize multiplies the size of the ring by this: few steps, none of which takes much more than is needed.
constexpr size_t resize_factor = 4;

} // namespace

// As `available`, without progress; -FI_EAGAIN if there is nothing yet.
ssize_t Receive::find() {
    // The end is checked before the bytes: bytes that arrive in between precede it.
    const bool failed = lifecycle_.failed();
    const bool finished = link_.peer_finished();
    const bool reset = link_.peer_reset();
    if (const size_t readable = link_.readable(); readable != 0) {
        return static_cast<ssize_t>(readable);
    }
    if (finished) {
        readiness_.on_end_reported();
        return 0;
    }
    if (reset || failed) {
        readiness_.on_end_reported();
        lifecycle_.on_error_reported();
        const int error = lifecycle_.error();
        return -(reset || error == 0 ? FI_ECONNRESET : error);
    }
    return -FI_EAGAIN;
}

ssize_t Receive::take(const iovec* iov, size_t count, size_t there) {
    const size_t taken = copy_out(iov, count, true);
    readiness_.on_recv(there - std::min(there, taken));
    return static_cast<ssize_t>(taken);
}

Receive::Peeked Receive::show(const iovec* iov, size_t count, size_t there) {
    const bool again = readiness_.on_peek(there);
    if (again) {
        link_.await_more();
    }
    const size_t shown = total_length(iov, count) == 0 ? there : copy_out(iov, count, false);
    return {static_cast<ssize_t>(shown), again};
}

size_t Receive::copy_out(const iovec* iov, size_t count, bool take) {
    size_t copied = 0;
    for (size_t i = 0; i < count; ++i) {
        auto* to = static_cast<std::byte*>(iov[i].iov_base);
        for (size_t left = iov[i].iov_len; left != 0;) {
            const wire::Extent piece = link_.peek(left, take ? 0 : copied);
            if (piece.length == 0) {
                return copied;
            }
            base::copy_bytes(to, ring_.at(piece.offset, piece.moved), piece.length);
            if (take) {
                link_.consume(piece.length);
            }
            to += piece.length;
            left -= piece.length;
            copied += piece.length;
        }
    }
    return copied;
}

wire::RemoteRing Receive::offer_of(const RegisteredBuffer& ring) const {
    return {core_.traits().virtual_address ? reinterpret_cast<uint64_t>(ring.buffer.data()) : 0,
            fi_mr_key(ring.mr.get()), ring.buffer.size()};
}

// False if there is no memory for it.
bool Receive::make_ring(size_t size, RegisteredBuffer& made) {
    {
        const base::Guard lock(mutex_);
        made.buffer = ring_.take_addresses(size);
    }
    if (make_buffer(core_, size, FI_REMOTE_WRITE, true, made) == 0) {
        return true;
    }
    keep_addresses(std::move(made.buffer));
    return false;
}

bool Receive::grow() {
    if (!ring_.begin_growth()) {
        return false;
    }
    const bool wanted = link_.growth_wanted(); // unless another thread was faster
    if (wanted) {
        RegisteredBuffer made;
        if (!make_ring(std::min(link_.ring_size() * resize_factor, link_.ring_limit()), made)) {
            ring_.end_growth_without_memory();
            return false;
        }
        const wire::RemoteRing larger = offer_of(made);
        const base::Guard lock(mutex_);
        ring_.set_next(std::move(made));
        link_.supply(larger);
    }
    ring_.end_resize();
    return wanted;
}

bool Receive::shrink(size_t size) {
    if (!ring_.begin_resize()) {
        return false;
    }
    RegisteredBuffer made;
    bool offered = false;
    if (link_.may_shrink() && size < link_.ring_size() && make_ring(size, made)) {
        const wire::RemoteRing smaller = offer_of(made);
        const base::Guard lock(mutex_);
        ring_.set_next(std::move(made));
        link_.supply(smaller);
        offered = true;
    }
    ring_.end_resize();
    return offered;
}

// The peer has declared that it writes to the old ring no more, but may break that: the key is closed first, then the
// memory released. A core may have begun to receive a write when the key was still valid, so the addresses are not
// reused but for this stream.
void Receive::settle() {
    RegisteredBuffer emptied;
    {
        const base::Guard lock(mutex_);
        if (link_.settle()) {
            emptied = ring_.settle();
        }
    }
    if (emptied.buffer.size() != 0) {
        emptied.mr.reset();
        emptied.buffer.retire();
        keep_addresses(std::move(emptied.buffer));
    }
}

void Receive::keep_addresses(Buffer retired) {
    if (retired.size() != 0) {
        const base::Guard lock(mutex_);
        ring_.keep_addresses(std::move(retired));
    }
}

} // namespace rstream
