// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/link.hpp"

#include <algorithm>
#include <limits>

namespace rstream::wire {

void Link::open(const Hello& peer, bool headers, size_t max_chunk, Maps* maps) {
    headers_ = headers;
    maps_ = maps;
    data_acks_ = (peer.features & Hello::feature_data_acks) != 0;
    peer_shrinks_ = (peer.features & Hello::feature_shrink) != 0;
    // Linux's siw sends the wrong bytes for a small message that crosses a page boundary (siw_try_1seg, seen in 6.1),
    // and only iWARP adapters have headers agreed on.
    send_.open(peer.ring_size, peer.data_credits, std::min<size_t>(max_chunk, Immediate::max_length), headers);
    control_.open(std::min(peer.control_credits, control_credits)); // we have no more slots
    wish_.open({peer.ring_address, peer.ring_key, peer.ring_size}, (peer.features & Hello::feature_growth) != 0);
}

// Copies our counters to `control`; they count as reported.
void Link::fill(Control& control, Post& post, uint64_t most_acks) {
    const RecvFlow::Totals now = recv_.grant(post.granted_before);
    post.reported = control_.report(most_acks);
    control.consumed = now.consumed;
    control.data_arrived = now.arrived;
    control.control_arrived = control_.reported();
}

// Makes the immediate of a data message, which also acknowledges messages of the opposite direction.
void Link::announce(Post& post) {
    const Chunk& chunk = post.chunk;
    post.reported = control_.report(Immediate::max_acks);
    post.immediate = {static_cast<uint32_t>(chunk.length), static_cast<uint32_t>(post.reported), chunk.credit_wanted};
    if (data_acks_ && chunk.length <= Immediate::max_short_length) {
        post.immediate.data_acks = static_cast<uint32_t>(recv_.acknowledge(Immediate::max_data_acks));
    }
}

Post Link::control_post(Control::Type type, uint8_t flags) {
    Post post;
    post.kind = Post::Kind::control;
    post.control.type = type;
    post.control.flags = flags;
    fill(post.control, post, std::numeric_limits<uint64_t>::max());
    control_.post();
    return post;
}

// An offer has an address and a key in place of the first two totals, and does not report those.
Post Link::offer_post() {
    const RemoteRing& ring = supply_.offer();
    Post post;
    post.control.type = Control::Type::offer;
    post.control.argument = static_cast<uint32_t>(ring.size);
    post.control.address = ring.address;
    post.control.key = ring.key;
    post.reported = control_.report(std::numeric_limits<uint64_t>::max());
    post.control.control_arrived = control_.reported();
    control_.post();
    return post;
}

Post Link::move_post() {
    wish_.move();
    send_.move_peer(wish_.ring().size);
    Post post = control_post(Control::Type::move, 0);
    post.control.argument = static_cast<uint32_t>(send_.sent());
    return post;
}

bool Link::control_due() const {
    const Ending ending = ending_.load(std::memory_order_acquire);
    if (map_due() && control_.may_send_plain()) {
        return true;
    }
    return control_.may_send() &&
           (recv_.credit_due() || control_.acknowledgement_due() || acknowledge_now_.load(std::memory_order_acquire) ||
            supply_.offer_due() || move_due(ending) || (ending != Ending::none && ending != Ending::posted));
}

std::optional<Post> Link::next() {
    const Ending ending = ending_.load(std::memory_order_acquire);
    if (reset_posted_) {
        return std::nullopt;
    }
    if (ending == Ending::rst) {
        if (!control_.may_send()) {
            return std::nullopt;
        }
        Post post = control_post(Control::Type::rst, 0);
        end_is_posted(ending);
        return post;
    }
    if (control_.may_send()) {
        if (auto post = urgent_control(ending)) {
            return post;
        }
    }
    // Data that is sent after the announcement of an iomap must not overtake it.
    if (map_due()) {
        return map_post();
    }
    const size_t stream =
        maps_ != nullptr ? maps_->writes().distance(send_.posted()) : std::numeric_limits<size_t>::max();
    if (stream == 0) {
        return write_post();
    }
    const bool ends = ending != Ending::none && ending != Ending::posted;
    const bool hurry = ends || stream != std::numeric_limits<size_t>::max();
    if (auto chunk = send_.next(hurry, stream)) {
        Post post;
        post.kind = Post::Kind::data;
        post.chunk = *chunk;
        send_.post(*chunk);
        if (headers_) {
            post.immediate = {static_cast<uint32_t>(chunk->length), 0, chunk->credit_wanted};
            fill(post.control, post, std::numeric_limits<uint64_t>::max());
            post.control.type = Control::Type::data;
            post.control.argument = post.immediate.encode();
        } else {
            announce(post);
        }
        return post;
    }
    if (ending == Ending::none) {
        if (send_.window_closed()) {
            wish_.on_stall(send_.peer_consumed());
        }
        if (control_.may_send() && wish_.ask()) {
            return control_post(Control::Type::grow, 0);
        }
    }
    if (ends && !send_.unposted() && control_.may_send()) {
        Post post = ending == Ending::rst_after_data
                        ? control_post(Control::Type::rst, 0)
                        : control_post(Control::Type::fin, ending == Ending::fin_closed ? Control::flag_closed : 0);
        end_is_posted(ending);
        return post;
    }
    return std::nullopt;
}

bool Link::held_up() {
    if (send_.window() != 0) {
        return true;
    }
    wish_.on_stall(send_.peer_consumed());
    return false;
}

// Control messages that do not wait for staged data.
std::optional<Post> Link::urgent_control(Ending ending) {
    const bool now =
        acknowledge_now_.load(std::memory_order_relaxed) && acknowledge_now_.exchange(false, std::memory_order_acq_rel);
    if (now || recv_.credit_due() || control_.acknowledgement_due()) {
        return control_post(Control::Type::credit, 0);
    }
    if (supply_.offer_due()) {
        return offer_post();
    }
    if (move_due(ending)) {
        return move_post();
    }
    return std::nullopt;
}

std::optional<Post> Link::map_post() {
    Post post;
    post.kind = Post::Kind::map;
    if (!control_.may_send_plain()) {
        return std::nullopt;
    }
    if (const auto message = maps_->next()) {
        post.map = *message;
        control_.post();
        return post;
    }
    return std::nullopt;
}

Post Link::write_post() {
    MapWrites& writes = maps_->writes();
    Post post;
    post.write_before = writes.front();
    if (const auto target = maps_->target(post.write_before)) {
        const Extent from = send_.next_beside(post.write_before.length);
        post.kind = Post::Kind::write;
        post.chunk.staging_offset = from.offset;
        post.chunk.staging_moved = from.moved;
        post.chunk.length = from.length;
        post.address = target->address;
        post.key = target->key;
    } else {
        post.kind = Post::Kind::skip;
        post.chunk.length = post.write_before.length;
    }
    writes.advance(post.chunk.length);
    send_.post_beside(post.chunk.length);
    return post;
}

void Link::stage_write(size_t length, const Maps::Target& target, bool apart) {
    maps_->writes().add({send_.staged(), length, target.offset, target.serial, apart});
    send_.stage_beside(length);
}

std::optional<Post> Link::bypass_write(size_t length, uint64_t offset) {
    if (maps_ == nullptr || maps_->pending() || send_.unposted()) {
        return std::nullopt;
    }
    const auto target = maps_->find(offset);
    if (!target || target->length < length) {
        return std::nullopt;
    }
    Post post;
    post.kind = Post::Kind::write;
    post.chunk.length = length;
    post.chunk.bypass = true;
    post.address = target->address;
    post.key = target->key;
    return post;
}

void Link::end_is_posted(Ending kind) {
    ending_before_ = kind;
    closed_posted_ = kind != Ending::fin;
    reset_posted_ = kind == Ending::rst || kind == Ending::rst_after_data;
    end_position_.store(control_.sent(), std::memory_order_relaxed);
    ending_.store(Ending::posted, std::memory_order_release);
}

std::optional<Post> Link::bypass(size_t length) {
    if (headers_ || map_due()) {
        return std::nullopt;
    }
    auto chunk = send_.bypass(length);
    if (!chunk) {
        return std::nullopt;
    }
    Post post;
    post.kind = Post::Kind::data;
    post.chunk = *chunk;
    send_.post(*chunk);
    announce(post);
    return post;
}

void Link::undo(const Post& post) {
    control_.unreport(post.reported);
    switch (post.kind) {
    case Post::Kind::data:
        send_.unpost(post.chunk);
        if (headers_) {
            recv_.revoke(post.granted_before);
        } else if (post.immediate.data_acks != 0) {
            recv_.unacknowledge(post.immediate.data_acks);
        }
        return;
    case Post::Kind::map:
        control_.unpost();
        maps_->undo(post.map);
        return;
    case Post::Kind::write:
    case Post::Kind::skip:
        if (!post.chunk.bypass) {
            send_.unpost_beside(post.chunk.length);
            maps_->writes().restore(post.write_before, post.chunk.length);
        }
        return;
    case Post::Kind::control:
        break;
    }
    control_.unpost();
    if (post.control.type == Control::Type::offer) {
        supply_.unoffer();
        return;
    }
    recv_.revoke(post.granted_before);
    switch (post.control.type) {
    case Control::Type::fin:
    case Control::Type::rst:
        closed_posted_ = false;
        reset_posted_ = false;
        ending_.store(ending_before_, std::memory_order_release);
        break;
    case Control::Type::grow:
        wish_.unask();
        break;
    case Control::Type::move:
        wish_.unmove();
        send_.unmove_peer(wish_.ring().size);
        break;
    case Control::Type::credit:
    case Control::Type::data:
    case Control::Type::offer:
        acknowledge_now_.store(true, std::memory_order_release);
        break;
    }
}

void Link::finish(bool closed) {
    const Ending wanted = closed ? Ending::fin_closed : Ending::fin;
    const Ending now = ending_.load(std::memory_order_acquire);
    if (now == Ending::none || (closed && (now == Ending::fin || (now == Ending::posted && !closed_posted_)))) {
        ending_.store(wanted, std::memory_order_release);
    }
}

void Link::abort() {
    if (!reset_posted_) {
        send_.discard();
        if (maps_ != nullptr) {
            maps_->writes().clear();
        }
        ending_.store(Ending::rst, std::memory_order_release);
    }
}

void Link::finish_with_reset() {
    if (!reset_posted_) {
        ending_.store(Ending::rst_after_data, std::memory_order_release);
    }
}

const char* Link::on_data(uint64_t raw_immediate) {
    const auto immediate = Immediate::decode(raw_immediate);
    if (!immediate) {
        return "an immediate of no known form";
    }
    if (peer_finished() || peer_reset()) {
        return "data behind the end of the stream";
    }
    if (const char* broken = control_.on_acknowledged(immediate->control_acks)) {
        return broken;
    }
    if (!send_.on_acknowledged(immediate->data_acks)) {
        return "acknowledges data that was not sent";
    }
    return recv_.on_data(immediate->length, immediate->credit_wanted);
}

const char* Link::on_control(const Control& control) {
    // A second fin may only add that the peer reads no more either.
    const bool closes = (control.flags & Control::flag_closed) != 0;
    if (peer_reset() || (control.type == Control::Type::fin && (peer_closed() || (peer_finished() && !closes)))) {
        return "a control message behind the end of the stream";
    }
    if (const char* broken = on_totals(control)) {
        return broken;
    }
    if (control.type == Control::Type::data) {
        return headers_ ? on_data(control.argument) : "a data header where immediates were agreed on";
    }
    if (const char* broken = control_.on_control()) {
        return broken;
    }
    switch (control.type) {
    case Control::Type::fin:
        peer_finished_.store(true, std::memory_order_release); // first: closed implies finished
        peer_closed_.store(closes, std::memory_order_release);
        acknowledge_now_.store(true, std::memory_order_release);
        break;
    case Control::Type::rst:
        peer_reset_.store(true, std::memory_order_release);
        acknowledge_now_.store(true, std::memory_order_release); // a closing peer waits for it
        break;
    case Control::Type::grow:
    case Control::Type::offer:
    case Control::Type::move:
        return on_growth(control);
    case Control::Type::credit:
    case Control::Type::data:
        break;
    }
    return nullptr;
}

const char* Link::on_totals(const Control& control) {
    if (control.type != Control::Type::offer && !send_.on_credit(control.consumed, control.data_arrived)) {
        return "credit for what was not sent";
    }
    return control_.on_total(control.control_arrived);
}

const char* Link::on_growth(const Control& control) {
    if (control.type == Control::Type::offer) {
        return wish_.on_offer({control.address, control.key, control.argument});
    }
    if (peer_finished()) {
        return "a larger ring for a stream that has ended";
    }
    if (control.type == Control::Type::grow) {
        return supply_.on_grow();
    }
    size_t size = 0;
    if (const char* broken = supply_.on_move(size)) {
        return broken;
    }
    if (control.argument != static_cast<uint32_t>(recv_.received())) {
        return "a move at another position than that of the data";
    }
    recv_.move(size);
    return nullptr;
}

const char* Link::on_map(const MapMessage& message) {
    if (peer_reset()) {
        return "a control message behind the end of the stream";
    }
    if (const char* broken = control_.on_control()) {
        return broken;
    }
    return maps_ != nullptr ? maps_->on_message(message) : "a map where none was agreed on";
}

const char* Link::on_message(std::span<const std::byte> bytes) {
    if (const auto control = Control::decode(bytes)) {
        return on_control(*control);
    }
    const auto map = MapMessage::decode(bytes);
    return map ? on_map(*map) : "a message of no known form";
}

} // namespace rstream::wire
