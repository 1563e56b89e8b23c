// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/send_queue.hpp"

namespace rstream {

template <class Message> ssize_t SendQueue::post_message(const Message& message, std::byte* slot, bool signal) {
    message.encode(std::span<std::byte, wire::Control::size>(slot, wire::Control::size));
    void* context = work_requests_.begin(0, signal);
    keepalive_.on_posted();
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

template <class Message> ssize_t SendQueue::post_control(const Message& message, bool signal) {
    const ssize_t ret = post_message(message, messages_.next_control(), signal || work_requests_.signal_due(0));
    if (ret == 0) {
        messages_.control_posted();
    }
    return ret;
}

ssize_t SendQueue::post_header(const wire::Post& post) {
    const ssize_t ret = post_message(post.control, messages_.next_header(), work_requests_.signal_due(0));
    if (ret == 0) {
        messages_.header_posted();
    }
    return ret;
}

ssize_t SendQueue::post(const wire::Post& post, const RingBuffer& staging) {
    switch (post.kind) {
    case wire::Post::Kind::control: {
        const auto type = post.control.type;
        const bool ends = type == wire::Control::Type::fin || type == wire::Control::Type::rst;
        return post_control(post.control, ends);
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
    return post_chunk(post, staging);
}

ssize_t SendQueue::post_chunk(const wire::Post& post, const RingBuffer& staging) {
    if (work_requests_.full()) {
        return -FI_EAGAIN;
    }
    ssize_t ret = post_write(post, staging, work_requests_.signal_due(post.chunk.length));
    if (ret == 0 && link_.headers() && post.kind == wire::Post::Kind::data && (ret = post_header(post)) == -FI_EAGAIN) {
        pending_ = post; // the write is posted: its header must be next
        ret = 0;
    }
    return ret;
}

ssize_t SendQueue::post_pending() {
    const ssize_t ret = post_header(*pending_);
    if (ret == 0) {
        pending_.reset();
    }
    return ret;
}

ssize_t SendQueue::post_direct(const wire::Post& post, const void* bytes) {
    if (work_requests_.full()) {
        return -FI_EAGAIN;
    }
    const wire::Chunk& chunk = post.chunk;
    const wire::RemoteRing& ring = link_.peer_ring();
    work_requests_.begin(0, false); // no context: an inject has no completion
    keepalive_.on_posted();
    const ssize_t ret = post.kind == wire::Post::Kind::write
                            ? fi_inject_write(core_.get(), bytes, chunk.length, FI_ADDR_UNSPEC, post.address, post.key)
                            : fi_inject_writedata(core_.get(), bytes, chunk.length, post.immediate.encode(),
                                                  FI_ADDR_UNSPEC, ring.address + chunk.ring_offset, ring.key);
    if (ret != 0) {
        work_requests_.undo(0, false);
    }
    return ret;
}

ssize_t SendQueue::post_write(const wire::Post& post, const RingBuffer& staging, bool signal) {
    const wire::Chunk& chunk = post.chunk;
    // The write's own completion, not that of the header after it, shows that its memory is free: Linux's siw sends a
    // write without a completion directly from its pages, and completes a later message while TCP still holds them.
    const RegisteredBuffer& from = staging.of(chunk.staging_moved);
    const wire::RemoteRing& ring = link_.peer_ring();
    iovec iov{from.buffer.data() + chunk.staging_offset, chunk.length};
    const bool data = post.kind == wire::Post::Kind::data;
    fi_rma_iov remote{data ? ring.address + chunk.ring_offset : post.address, chunk.length, data ? ring.key : post.key};
    void* desc = from.desc();
    fi_msg_rma message{};
    message.msg_iov = &iov;
    message.desc = &desc;
    message.iov_count = 1;
    message.addr = FI_ADDR_UNSPEC;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.context = work_requests_.begin(chunk.length, signal);
    keepalive_.on_posted();
    message.data = post.immediate.encode();
    const uint64_t immediate = data && !link_.headers() ? FI_REMOTE_CQ_DATA : 0;
    const ssize_t ret = fi_writemsg(core_.get(), &message, immediate | (signal ? FI_COMPLETION : 0));
    if (ret != 0) {
        work_requests_.undo(chunk.length, signal);
    }
    return ret;
}

} // namespace rstream
