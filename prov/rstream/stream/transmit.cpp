// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/transmit.hpp"

#include <algorithm>
#include <ctime>
#include <new>
#include <utility>

#include "base/copy.hpp"
#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/log.hpp"
#include "prov/rstream/stream/iov.hpp"

namespace rstream {

namespace {

using Clock = std::chrono::steady_clock;

// While small sends are held back, completions are polled once in this many bytes, and at each tick of the kernel's
// clock: a poll costs a system call on some cores, and a poll too few only makes the messages larger. But a program
// that sends now and then may make no other call: its bytes must not wait for more of them.
constexpr size_t poll_quantum = 4096;

// The time of the last tick in nanoseconds. Reading it costs a fraction of reading the exact time.
int64_t tick() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

// A program that waits for a write to its memory polls the final bytes of it, and assumes that the rest is written when
// it sees them. Where the core does not write in order, as a copy may store the end of a message first, the final bytes
// are a message of their own.
constexpr size_t tail = 8;
constexpr size_t in_order = 64; // bytes that memcpy stores in order: first half, then second half

} // namespace

Transmit::Transmit(const Parts& parts, size_t staging_limit, Events& events)
    : core_(parts.core), link_(parts.link), lifecycle_(parts.lifecycle), readiness_(parts.readiness),
      keepalive_(parts.keepalive), events_(events),
      queue_(parts.core, parts.link, parts.messages, work_requests_, parts.keepalive),
      chunk_size_(parts.core.traits().max_message), staging_threshold_(staging_limit) {}

int Transmit::open(size_t staging_size, size_t queue_size, IdleBuffers& idle) {
    work_requests_.open(queue_size, wire::control_credits, core_.traits().contexts, core_.properties().loses_frames);
    return idle.allocate(staging_size, staging_.current().buffer);
}

void Transmit::start() {
    const Posting posting(*this);
    size_chunks();
}

// ---- posting

void Transmit::request_flush() {
    posting_.request([this]() BASE_REQUIRES(posting_) { flush(); });
}

void Transmit::flush() {
    if (!lifecycle_.connected()) {
        return;
    }
    if (keepalive_.probe_wanted()) {
        const ssize_t probed = queue_.post_probe();
        if (probed != 0 && probed != -FI_EAGAIN) {
            events_.on_post_error(static_cast<int>(-probed));
        }
    }
    ssize_t ret = queue_.pending() ? queue_.post_pending() : 0;
    // Skipped bytes are freed with the next completion, or, if none is outstanding, at once.
    if (work_requests_.skipped()) {
        link_.release(work_requests_.take_skipped());
    }
    if (chunk_size_.update_loss()) {
        RSTREAM_INFO(FI_LOG_EP_DATA,
                     chunk_size_.loses_frames() ? "frames get lost: writes are small\n" : "writes are large again\n");
        size_chunks();
    }
    while (ret == 0) {
        const auto next = link_.next();
        if (!next) {
            break;
        }
        if ((ret = post(*next)) != 0) {
            link_.undo(*next);
        }
    }
    if (ret != 0 && ret != -FI_EAGAIN) {
        events_.on_post_error(static_cast<int>(-ret));
    }
    note_needs();
}

ssize_t Transmit::post(const wire::Post& post) {
    const ssize_t ret = queue_.post(post, staging_);
    if (ret == 0 && post.kind == wire::Post::Kind::control && post.control.type == wire::Control::Type::move) {
        size_chunks(); // from here on the peer's ring is another one
    }
    return ret;
}

// False if there is no such message, or the core did not accept it.
bool Transmit::send_direct(const std::optional<wire::Post>& post, const void* bytes) {
    if (!post) {
        return false;
    }
    if (queue_.post_direct(*post, bytes) != 0) {
        link_.undo(*post);
        return false;
    }
    return true;
}

void Transmit::note_needs() {
    const bool left = link_.unposted() || queue_.pending() || link_.map_due() || work_requests_.skipped() ||
                      (link_.finishing() && !link_.end_posted()) || link_.control_due();
    flush_wanted_.store(left, std::memory_order_release);
    if (left != needs_progress_) {
        try {
            events_.on_needs_progress(left);
            needs_progress_ = left;
        } catch (const std::bad_alloc&) { // what was posted stays posted; the next call tries again
        }
    }
}

void Transmit::end(End how) {
    const Posting posting(*this);
    switch (how) {
    case End::finish:
        link_.finish(false);
        break;
    case End::close:
        link_.finish(true);
        break;
    case End::close_unread:
        link_.finish_with_reset();
        break;
    case End::abort:
        link_.abort();
        break;
    }
    flush();
}

void Transmit::complete(const void* context) {
    const auto completion = work_requests_.complete(context);
    if (!completion) {
        return;
    }
    keepalive_.on_completed();
    if (core_.properties().loses_frames) {
        chunk_size_.on_completed(completion->staged, Clock::now() - completion->posted);
    }
    link_.release(completion->staged);
}

// ---- the stream's bytes

int Transmit::error() {
    const State state = lifecycle_.state();
    if (!has_connected(state)) {
        if (has_failed(state)) {
            readiness_.on_end_reported();
        }
        return -FI_ENOTCONN;
    }
    if (link_.finishing() || link_.peer_closed()) {
        return -FI_EPIPE;
    }
    if (has_failed(state) || link_.peer_reset()) {
        readiness_.on_end_reported();
        if (link_.peer_finished() || !lifecycle_.claim_error_report()) {
            return -FI_EPIPE;
        }
        const int error = lifecycle_.error();
        return -(error != 0 ? error : FI_ECONNRESET);
    }
    return 0;
}

ssize_t Transmit::send(const iovec* iov, size_t count, bool more, Leftover& left) {
    const size_t length = total_length(iov, count);
    const Posting posting(*this);
    if (const int broken = error(); broken != 0) {
        return broken;
    }
    if (length == 0) {
        return 0;
    }
    if (count == 1 && !more && length <= core_.traits().inject_size && queue_.takes_direct() &&
        send_direct(link_.bypass(length), iov[0].iov_base)) {
        return static_cast<ssize_t>(length);
    }
    const size_t copied = copy_in(iov, count, more);
    left.resize = left.resize || link_.staging_moves() || staging_threshold_.reached();
    if (copied == 0) {
        return -FI_EAGAIN;
    }
    left.poll = poll_pays(more ? 0 : copied);
    return static_cast<ssize_t>(copied);
}

// After a call that has staged so many bytes.
bool Transmit::poll_pays(size_t staged) {
    if (staged == 0 || !link_.unposted()) {
        unpolled_ = 0;
        return false;
    }
    unpolled_ += staged;
    const int64_t now = tick();
    if (now == polled_at_ && unpolled_ < std::min(poll_quantum, link_.staging_size() / 4)) {
        return false;
    }
    unpolled_ = 0;
    polled_at_ = now;
    return true;
}

size_t Transmit::copy_in(const iovec* iov, size_t count, bool more) {
    size_t copied = 0;
    size_t unflushed = 0;
    for (size_t i = 0; i < count; ++i) {
        const auto* from = static_cast<const std::byte*>(iov[i].iov_base);
        for (size_t left = iov[i].iov_len; left != 0;) {
            const wire::Extent extent = link_.free_extent(std::min(left, chunk_size_.get()));
            if (extent.length == 0) {
                note_held_up();
                flush();
                return copied;
            }
            base::copy_bytes(staging_.at(extent.offset, extent.moved), from, extent.length);
            link_.stage(extent.length);
            from += extent.length;
            left -= extent.length;
            copied += extent.length;
            unflushed += extent.length;
            if (unflushed >= chunk_size_.get()) { // the peer can start to read while the rest is copied
                flush();
                unflushed = 0;
            }
        }
    }
    if (!more) {
        flush();
    } else {
        note_needs();
    }
    return copied;
}

// ---- the peer's memory

ssize_t Transmit::write(const wire::Maps* maps, const std::byte* from, size_t length, uint64_t offset, bool more,
                        Leftover& left) {
    const Posting posting(*this);
    if (const int broken = error(); broken != 0) {
        return broken;
    }
    if (maps == nullptr || offset >= wire::MapMessage::end_of_offsets || !maps->covers(offset, length)) {
        return -FI_EINVAL;
    }
    if (length == 0) {
        return 0;
    }
    const size_t max_direct =
        core_.properties().ordered_writes ? core_.traits().inject_size : std::min(core_.traits().inject_size, in_order);
    if (!more && length <= max_direct && queue_.takes_direct() &&
        send_direct(link_.bypass_write(length, offset), from)) {
        return static_cast<ssize_t>(length);
    }
    const size_t copied = copy_to_map(*maps, from, length, offset, more);
    left.poll = poll_pays(more ? 0 : copied);
    return copied != 0 ? static_cast<ssize_t>(copied) : -FI_EAGAIN;
}

size_t Transmit::copy_to_map(const wire::Maps& maps, const std::byte* from, size_t length, uint64_t offset, bool more) {
    const bool ordered = core_.properties().ordered_writes;
    size_t copied = 0;
    size_t unflushed = 0;
    while (copied < length) {
        const auto target = maps.find(offset + copied);
        const size_t left = length - copied;
        const bool apart = !ordered && left <= tail;
        const size_t piece = !ordered && left > tail ? left - tail : left;
        const size_t wanted = target ? std::min<uint64_t>({piece, target->length, chunk_size_.get()}) : 0;
        const wire::Extent extent = link_.free_extent(wanted);
        if (extent.length == 0) { // or the peer has withdrawn the rest meanwhile
            flush();
            return copied;
        }
        base::copy_bytes(staging_.at(extent.offset, extent.moved), from + copied, extent.length);
        link_.stage_write(extent.length, *target, apart);
        copied += extent.length;
        unflushed += extent.length;
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

// ---- the sizes of the staging ring and of chunks

void Transmit::size_chunks() { link_.limit_chunks(chunk_size_.fit(link_.peer_ring().size, link_.staging_size())); }

size_t Transmit::staging_goal() const { return staging_threshold_.goal(link_.peer_ring().size, link_.staging_size()); }

// A send found no space, at the peer or in the staging ring.
void Transmit::note_held_up() {
    if (link_.held_up() && staging_goal() != 0) {
        staging_threshold_.on_stall();
    }
}

bool Transmit::enlarge_full() {
    {
        const Posting posting(*this);
        if (!link_.both_full() || link_.staging_moves()) {
            return false;
        }
        staging_threshold_.on_both_full(link_.staging_size());
        if (!staging_threshold_.reached()) {
            return false;
        }
    }
    return resize();
}

bool Transmit::resize() {
    if (!staging_.begin_growth()) {
        return false;
    }
    RegisteredBuffer emptied; // released at the end, without a lock
    size_t present = 0;
    size_t size = 0;
    {
        const Posting posting(*this);
        present = link_.staging_size();
        if (link_.staging_moves()) {
            if (link_.settle_staging()) {
                emptied = staging_.settle();
            }
        } else if (staging_threshold_.reached()) {
            size = staging_goal();
            staging_threshold_.reset();
        }
    }
    if (size != 0) {
        RegisteredBuffer made;
        while (make_buffer(core_, size, FI_WRITE, core_.traits().local_mr, made) != 0) {
            size /= 2;
            if (size < 2 * present) {
                staging_.end_growth_without_memory();
                return false;
            }
        }
        const Posting posting(*this);
        staging_.set_next(std::move(made));
        link_.move_staging(size);
        size_chunks();
    }
    staging_.end_resize();
    return size != 0;
}

void Transmit::shrink(size_t size) {
    if (!staging_.begin_resize()) {
        return;
    }
    RegisteredBuffer left_before; // by the last growth; released at the end, without a lock, as are the others
    RegisteredBuffer emptied;
    RegisteredBuffer made;
    if (size < link_.staging_size() && make_buffer(core_, size, FI_WRITE, core_.traits().local_mr, made) == 0) {
        const Posting posting(*this);
        if (link_.staging_moves() && link_.settle_staging()) {
            left_before = staging_.settle();
        }
        if (link_.unreleased() == 0) {
            staging_.set_next(std::move(made));
            link_.move_staging(size);
            link_.settle_staging();
            emptied = staging_.settle();
            staging_threshold_.reset();
            size_chunks();
        }
    }
    staging_.end_resize();
}

} // namespace rstream
