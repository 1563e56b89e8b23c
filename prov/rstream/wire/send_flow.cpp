// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/send_flow.hpp"

namespace rstream::wire {

void SendFlow::open(size_t peer_ring, uint64_t credits, size_t max_chunk, bool keep_small_in_page) {
    keep_small_in_page_ = keep_small_in_page;
    peer_ = Ring(peer_ring);
    credits_ = credits;
    limit_chunks(max_chunk);
}

// The bytes in a larger ring that is left count for the smaller one only if they do not exceed it: a window cannot be
// negative. So the smaller one starts empty. A larger one starts with what is unread in the smaller, as it always did.
void SendFlow::move_peer(size_t peer_ring) {
    peer_from_before_ = peer_from_;
    if (peer_ring < peer_.capacity()) {
        peer_from_ = sent();
    }
    peer_ = Ring(peer_ring);
}

void SendFlow::unmove_peer(size_t peer_ring) {
    peer_from_ = peer_from_before_;
    peer_ = Ring(peer_ring);
}

void SendFlow::limit_chunks(size_t max_chunk) {
    max_chunk_ = max_chunk;
    full_chunk_ = std::min(max_chunk, staging_.capacity() / 4);
}

void SendFlow::move_staging(size_t size) {
    staging_.move(staged_.load(std::memory_order_relaxed), size);
    full_chunk_ = std::min(max_chunk_, size / 4);
}

void SendFlow::stage(size_t length) {
    // Nothing is in flight, or the program sends in bulk: the next small sends are not held back.
    if (holding_ && (length >= full_chunk_ || (!unposted() && in_flight() == 0))) {
        holding_ = false;
    }
    count_up(staged_, length);
}

Extent SendFlow::piece(size_t length) const {
    Extent from = staging_.extent(posted_, length);
    if (keep_small_in_page_ && from.length <= small) {
        from.length = std::min(from.length, page - from.offset % page);
    }
    return from;
}

std::optional<Chunk> SendFlow::next(bool urgent, size_t limit) const {
    const size_t pending = std::min<size_t>(staged_ - posted_, limit);
    const size_t open_window = window();
    const uint64_t flying = in_flight();
    if (pending == 0 || open_window == 0 || flying >= credits_) {
        return std::nullopt;
    }
    if (!urgent && holding_ && pending < full_chunk_ && flying >= held_in_flight) {
        return std::nullopt;
    }
    const Extent from = piece(std::min({pending, open_window, max_chunk_}));
    const Extent to = peer_.extent(sent(), from.length);
    return Chunk{from.offset, to.offset, to.length, false, from.moved, wants_credit(to.length, flying), holding_};
}

std::optional<Chunk> SendFlow::bypass(size_t length) {
    if (length == 0 || length > max_chunk_ || unposted() || window() < length) {
        return std::nullopt;
    }
    const uint64_t flying = in_flight();
    if (flying >= credits_) {
        return std::nullopt;
    }
    if (holding_ && flying == 0) {
        holding_ = false;
    }
    if (holding_ && flying >= held_in_flight) {
        return std::nullopt;
    }
    const Extent to = peer_.extent(sent(), length);
    if (to.length < length) {
        return std::nullopt;
    }
    return Chunk{0, to.offset, length, true, false, wants_credit(length, flying), holding_};
}

void SendFlow::post(const Chunk& chunk) {
    if (!chunk.bypass) {
        count_up(posted_, chunk.length, std::memory_order_relaxed);
    }
    count_up(sent_, chunk.length, std::memory_order_relaxed);
    count_up(messages_, 1, std::memory_order_relaxed);
    if (chunk.credit_wanted) {
        holding_ = true;
    }
}

void SendFlow::unpost(const Chunk& chunk) {
    if (!chunk.bypass) {
        count_down(posted_, chunk.length);
    }
    count_down(sent_, chunk.length);
    count_down(messages_, 1);
    holding_ = chunk.held_before;
}

bool SendFlow::on_credit(uint64_t consumed, uint64_t arrived) {
    if (consumed > sent() || consumed < peer_consumed_.load(std::memory_order_relaxed) ||
        arrived > messages_.load(std::memory_order_relaxed) ||
        arrived < acknowledged_.load(std::memory_order_relaxed)) {
        return false;
    }
    peer_consumed_.store(consumed, std::memory_order_release);
    acknowledged_.store(arrived, std::memory_order_release);
    return true;
}

bool SendFlow::on_acknowledged(uint64_t count) {
    if (count == 0) {
        return true;
    }
    // Not compared with in_flight(), which wraps if a peer has acknowledged in advance a message that was then undone.
    if (acknowledged_.load(std::memory_order_relaxed) + count > messages_.load(std::memory_order_relaxed)) {
        return false;
    }
    count_up(acknowledged_, count);
    return true;
}

} // namespace rstream::wire
