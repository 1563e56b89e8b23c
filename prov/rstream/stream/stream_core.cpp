// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The half of a connection that faces the core: the link's posts become writes and sends, the core's completions become
// arrivals. Completions of our own operations are asked for only now and then, since on most cores each one costs.
#include "prov/rstream/stream/stream.hpp"

#include <algorithm>
#include <utility>

#include "prov/rstream/domain.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {
using Clock = std::chrono::steady_clock;
constexpr size_t completion_batch = 16;
// Batches one call may take before it does something with them.
constexpr int most_batches = 8;
} // namespace

int Stream::post_receive(size_t slot) {
    return static_cast<int>(fi_recv(core_.get(), messages_.receive(slot), MessageSlots::slot_size, messages_.desc(),
                                    FI_ADDR_UNSPEC, messages_.context(slot)));
}

// ---- posting side

void Stream::request_flush() {
    posting_.request([this]() BASE_REQUIRES(posting_) { flush(); });
}

void Stream::flush() {
    if (!lifecycle_.connected()) {
        return;
    }
    ssize_t ret = 0;
    if (liveness_.probe_wanted()) {
        post_probe();
    }
    if (header_pending_) {
        ret = post_header(*header_pending_);
        if (ret == 0) {
            header_pending_.reset();
        }
    }
    // Bytes that are not sent are free with the completion of what follows, or, if nothing is under way, at once.
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
        if ((ret = post(*next, nullptr)) != 0) {
            link_.undo(*next);
        }
    }
    if (ret != 0 && ret != -FI_EAGAIN) {
        fail(FI_ECONNRESET, fi_strerror(static_cast<int>(-ret)));
    }
    note_needs();
}

template <class Message> ssize_t Stream::post_message(const Message& message, std::byte* slot, bool signal) {
    message.encode(std::span<std::byte, wire::Control::size>(slot, wire::Control::size));
    void* context = work_requests_.begin(0, signal);
    liveness_.on_posted();
    ssize_t ret = 0;
    if (!signal && core_.traits().inject_size >= wire::Control::size) {
        ret = fi_inject(core_.get(), slot, wire::Control::size, FI_ADDR_UNSPEC);
    } else {
        iovec iov{slot, wire::Control::size};
        void* desc = messages_.desc();
        const fi_msg sent{&iov, &desc, 1, FI_ADDR_UNSPEC, context, 0};
        ret = fi_sendmsg(core_.get(), &sent, signal ? FI_COMPLETION : 0);
    }
    if (ret != 0) {
        work_requests_.undo(0, signal);
    }
    return ret;
}

template <class Message> ssize_t Stream::post_control(const Message& message, bool signal) {
    const ssize_t ret = post_message(message, messages_.next_control(), signal || work_requests_.signal_due(0));
    if (ret == 0) {
        messages_.control_posted();
    }
    return ret;
}

// `direct`: the bytes of a chunk that bypasses the staging ring.
ssize_t Stream::post(const wire::Post& post, const void* direct) {
    switch (post.kind) {
    case wire::Post::Kind::control: {
        const auto type = post.control.type;
        const bool ends = type == wire::Control::Type::fin || type == wire::Control::Type::rst;
        const ssize_t ret = post_control(post.control, ends);
        if (ret == 0 && type == wire::Control::Type::move) {
            size_chunks();
        }
        return ret;
    }
    case wire::Post::Kind::map:
        return post_control(post.map, true);
    case wire::Post::Kind::skip:
        work_requests_.add_skipped(post.chunk.length);
        return 0;
    case wire::Post::Kind::data:
    case wire::Post::Kind::write:
        break;
    }
    if (work_requests_.full()) {
        return -FI_EAGAIN;
    }
    const wire::Chunk& chunk = post.chunk;
    const size_t staged = chunk.bypass ? 0 : chunk.length;
    const bool signal = work_requests_.signal_due(staged);
    if (chunk.bypass) {
        return signal ? -FI_EAGAIN // it has to be staged, so that its completion can be asked for
                      : post_bypass(post, direct);
    }
    ssize_t ret = post_write(post, signal);
    if (ret == 0 && headers_ && post.kind == wire::Post::Kind::data && (ret = post_header(post)) == -FI_EAGAIN) {
        header_pending_ = post; // the write is out: its header must be the next that follows
        ret = 0;
    }
    return ret;
}

ssize_t Stream::post_bypass(const wire::Post& post, const void* direct) {
    const wire::Chunk& chunk = post.chunk;
    const wire::RemoteRing& ring = link_.peer_ring();
    work_requests_.begin(0, false); // no context: an inject has no completion
    liveness_.on_posted();
    const ssize_t ret = post.kind == wire::Post::Kind::write
                            ? fi_inject_write(core_.get(), direct, chunk.length, FI_ADDR_UNSPEC, post.address, post.key)
                            : fi_inject_writedata(core_.get(), direct, chunk.length, post.immediate.encode(),
                                                  FI_ADDR_UNSPEC, ring.address + chunk.ring_offset, ring.key);
    if (ret != 0) {
        work_requests_.undo(0, false);
    }
    return ret;
}

ssize_t Stream::post_write(const wire::Post& post, bool signal) {
    const wire::Chunk& chunk = post.chunk;
    // Its own completion, not that of the header behind it, says that the memory is free: Linux's siw sends a write
    // that asks for none straight from its pages, and is done with a later message while TCP still holds them.
    const RegisteredBuffer& staging = staging_.of(chunk.staging_moved);
    const wire::RemoteRing& ring = link_.peer_ring();
    iovec iov{staging.buffer.data() + chunk.staging_offset, chunk.length};
    const bool data = post.kind == wire::Post::Kind::data;
    fi_rma_iov remote{data ? ring.address + chunk.ring_offset : post.address, chunk.length, data ? ring.key : post.key};
    void* desc = staging.desc();
    fi_msg_rma message{};
    message.msg_iov = &iov;
    message.desc = &desc;
    message.iov_count = 1;
    message.addr = FI_ADDR_UNSPEC;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.context = work_requests_.begin(chunk.length, signal);
    liveness_.on_posted();
    message.data = post.immediate.encode();
    const ssize_t ret =
        fi_writemsg(core_.get(), &message, (data && !headers_ ? FI_REMOTE_CQ_DATA : 0) | (signal ? FI_COMPLETION : 0));
    if (ret != 0) {
        work_requests_.undo(chunk.length, signal);
    }
    return ret;
}

ssize_t Stream::post_header(const wire::Post& post) {
    const ssize_t ret = post_message(post.control, messages_.next_header(), work_requests_.signal_due(0));
    if (ret == 0) {
        messages_.header_posted();
    }
    return ret;
}

// ---- progress side

void Stream::progress() {
    if (const State state = lifecycle_.state(); state != State::connected) {
        if (awaits_answer(state)) {
            take_core_events();
        }
        return;
    }
    Drained drained = Drained::nothing;
    {
        const base::Guard lock(completing_);
        drained = drain_completions();
    }
    // A program that only polls its endpoint must learn of the connection's end too; each poll of the events costs a
    // system call.
    if (drained == Drained::nothing && core_.events() != nullptr && events_interval_.due(Clock::now)) {
        take_core_events();
    }
    if (liveness_.due()) {
        check_liveness();
    }
    // What is due without anything having come was so before, and is noted if it could not go then.
    if (flush_wanted_.load(std::memory_order_acquire) || (drained != Drained::nothing && link_.control_due())) {
        request_flush();
    }
    wake_waiters();
}

int Stream::arm() {
    // That the core can send again has to be asked for in any case.
    if (core_.properties().queue_stays_readable && (!waiting() || !lifecycle_.connected())) {
        return 0;
    }
    return try_wait_core();
}

// Before anyone sleeps on the core's descriptors: 0, or -FI_EAGAIN if something has come already.
int Stream::try_wait_core() {
    const State state = lifecycle_.state();
    std::unique_lock<std::recursive_mutex> lock;
    if (state != State::connected) {
        lock = pump_->lock(); // the next attempt to connect has an event queue of its own
    }
    return core_.try_wait(!has_failed(state)); // a lost connection's queue has nothing new to say
}

void Stream::take_core_events() {
    if (core_.properties().queue_shows_end) {
        return; // they come with all others
    }
    const auto lock = pump_->lock();
    const int failure = core_.events() != nullptr ? pump_->drain(core_.events()) : 0;
    if (failure != 0 && lifecycle_.state() == State::connecting) {
        // libfabric 1's verbs tells so that it could not connect; later ones have an event for it.
        fi_eq_err_entry error{};
        error.err = -failure;
        on_core_error(error);
    }
    if (request_.take_retry()) {
        connect_again();
    }
}

Stream::Drained Stream::drain_completions() {
    fi_cq_data_entry entries[completion_batch];
    Drained drained = Drained::nothing;
    for (int batch = 0; batch < most_batches; ++batch) {
        const ssize_t count = fi_cq_read(core_.completions(), entries, completion_batch);
        if (count == -FI_EAVAIL) {
            on_completion_error();
            return Drained::something;
        }
        if (count < 0) {
            if (count != -FI_EAGAIN) {
                fail(FI_ECONNRESET, "the core's completion queue fails");
            }
            return drained;
        }
        drained = Drained::something;
        for (ssize_t i = 0; i < count; ++i) {
            on_completion(entries[i]);
        }
        if (static_cast<size_t>(count) < completion_batch) {
            return drained;
        }
    }
    return Drained::not_all;
}

// Of an endpoint that is gone: its receives may have been flushed.
void Stream::drop_completions() {
    const base::Guard lock(completing_);
    fi_cq_data_entry entries[completion_batch];
    for (;;) {
        const ssize_t count = fi_cq_read(core_.completions(), entries, completion_batch);
        fi_cq_err_entry error{};
        if (count == 0 || (count < 0 && (count != -FI_EAVAIL || fi_cq_readerr(core_.completions(), &error, 0) < 0))) {
            return;
        }
    }
}

void Stream::on_completion(const fi_cq_data_entry& entry) {
    if (entry.op_context == liveness_.probe_context()) {
        liveness_.probe_answered();
        return;
    }
    // Our own operations first: some cores report an initiator's write with FI_REMOTE_CQ_DATA too.
    if ((entry.flags & (FI_WRITE | FI_SEND)) != 0) {
        const auto completion = work_requests_.complete(entry.op_context);
        if (!completion) {
            return;
        }
        liveness_.on_completed();
        if (core_.properties().loses_frames) {
            chunk_size_.on_completed(completion->staged, Clock::now() - completion->posted);
        }
        link_.release(completion->staged);
        return;
    }

    liveness_.on_arrival();
    const auto slot = messages_.slot_of(entry.op_context);
    const char* broken = nullptr;
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
        broken = headers_ ? "an immediate where headers were agreed on" : link_.on_data(entry.data);
    } else if ((entry.flags & FI_RECV) != 0 && slot) {
        broken = link_.on_message({messages_.receive(*slot), std::min(entry.len, MessageSlots::slot_size)});
    } else {
        return;
    }
    if (broken != nullptr) {
        on_violation(broken);
        return;
    }
    if (link_.peer_finished() || link_.peer_reset()) {
        report_shutdown();
    }
    if (slot) {
        if (const int ret = post_receive(*slot); ret != 0) {
            fail(FI_ECONNRESET, "a receive could not be posted");
        }
    }
}

void Stream::on_completion_error() {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(core_.completions(), &error, 0) < 0) {
        fail(FI_ECONNRESET, "the core's completion queue fails");
        return;
    }
    if (error.err == FI_ETRUNC) {
        on_violation("a message longer than any that is known");
        return;
    }
    fail(error.err == FI_ETIMEDOUT ? FI_ETIMEDOUT : FI_ECONNRESET, fi_strerror(error.err));
}

void Stream::on_violation(const char* rule) {
    RSTREAM_WARN(FI_LOG_EP_DATA, "the peer breaks the protocol (%s): the connection is reset\n", rule);
    fail(FI_ECONNRESET, rule);
    fi_shutdown(core_.get(), 0);
}

} // namespace rstream
