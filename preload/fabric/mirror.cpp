// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/mirror.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/copy.hpp"

namespace preload::fabric {

using path::Consent;

Mirror::Mirror(path::Segment& segment, unsigned own) : segment_(segment), own_(own) {
    out().wake.data_wanted.store(path::nobody); // the worker sleeps on its own descriptor only
    in().wake.space_wanted.store(path::nobody);
}

Mirror::~Mirror() {
    for (uint8_t* area : taken_areas_) {
        path::unmap_give_back(area);
    }
}

void Mirror::append(Bytes& out, Kind kind, const void* body, size_t bytes, uint64_t position, uint32_t area) {
    Header header;
    header.kind = kind;
    header.bytes = static_cast<uint32_t>(bytes);
    header.position = position;
    header.area = area;
    // given_back must be sent before the tail, see stream::is_clear().
    const uint64_t tail = in().reader.tail.load();
    header.tail = in().reader.given_back.load() == sent_.given_back ? tail : reported_tail_;
    const size_t at = out.size();
    out.resize(at + sizeof(header) + bytes);
    memcpy(out.data() + at, &header, sizeof(header));
    if (bytes != 0) {
        base::copy_bytes(out.data() + at + sizeof(header), body, bytes);
    }
    if (kind == Kind::data) { // the far end takes the tail from these, and from states
        reported_tail_ = std::max(reported_tail_, header.tail);
    }
}

// False: the program is changing the fields.
bool Mirror::snapshot(State& state) {
    const path::WriterFields& writer = out().writer;
    const path::ReaderFields& reader = in().reader;
    state.epoch = writer.epoch.load(std::memory_order_acquire);
    state.frames = writer.frames.load(std::memory_order_acquire);
    state.switch_at = writer.switch_at.load(std::memory_order_acquire);
    state.sent = writer.sent.load();
    state.resent = writer.resent.load(std::memory_order_acquire);
    state.resets = writer.resets.load();
    state.ends = writer.ends.load();
    state.clear = writer.clear.load(std::memory_order_acquire);
    state.followed = reader.epoch.load(std::memory_order_acquire);
    state.request = reader.request.load(std::memory_order_acquire);
    state.tail = reader.tail.load();
    state.received = reader.received.load(std::memory_order_acquire);
    state.given_back = reader.given_back.load(std::memory_order_acquire);
    // The snapshot has what the program wrote before it changed these. Bytes in front of the end of an epoch must have
    // been collected.
    const bool ends = state.epoch != sent_.epoch || segment_.mirror.closed.load() != path::MirrorFields::open;
    return writer.epoch.load() == state.epoch && reader.request.load() == state.request &&
           (!ends || writer.head.load() == read_.position);
}

// Counts of bytes, and small advances of the tail, are sent with other changes.
bool Mirror::is_news(const State& state) const {
    State sent = sent_;
    sent.sent = state.sent;
    sent.received = state.received;
    if (!exact_) {
        const uint64_t capacity = write_.capacity();
        sent.tail = state.tail - reported_tail_ < capacity / 4 ? state.tail : sent.tail;
        sent.given_back = state.given_back;
    }
    return exact_ ? sent_ != state : sent != state;
}

// False: there is nothing to collect in the ring.
bool Mirror::next(uint64_t& count) {
    const path::Cursor before = read_;
    const bool valid = readable(out(), read_, count);
    if (read_.area != before.area) {
        read_before_ = before;
    }
    return valid && count != 0;
}

Mirror::EndOfRing Mirror::end_of_ring() {
    for (uint64_t count = 0; next(count);) {
        read_.position += count;
    }
    return {read_, read_before_};
}

bool Mirror::collect_data(Bytes& out, size_t limit) {
    bool any = false;
    while (out.size() < limit) {
        uint64_t count = 0;
        if (!next(count)) {
            return any;
        }
        const size_t space = limit - out.size();
        const size_t n = read_.contiguous(std::min<uint64_t>(count, std::max<size_t>(space, 4096)));
        append(out, Kind::data, path::ring_memory(&segment_, own_) + read_.offset_of(read_.position), n, read_.position,
               read_.area);
        read_.position += n;
        any = true;
    }
    return any;
}

// The bytes that the reader has taken from TCP and wants resent go to the far writer before the request.
void Mirror::collect_taken(Bytes& out, const State& state) {
    const uint32_t epoch = path::requested_epoch(state.request);
    if (!path::requests(state.request, epoch, path::resend) || taken_epoch_ == state.request) {
        return;
    }
    taken_epoch_ = state.request;
    uint8_t*& area = taken_areas_[1 - own_];
    const uint64_t count = std::min<uint64_t>(state.given_back, path::give_back_bytes);
    if (area == nullptr && count != 0) {
        area = path::map_give_back(&segment_, 1 - own_);
    }
    for (uint64_t at = 0; area != nullptr && at < count;) {
        const uint64_t n = std::min<uint64_t>(count - at, max_body);
        append(out, Kind::taken, area + at, n, at);
        at += n;
    }
}

void Mirror::take_grant() {
    path::WakeFields& wake = in().wake;
    uint32_t given = Consent::given;
    if (wake.consent.compare_exchange_strong(given, Consent::used)) {
        ++grants_;
        segment_.mirror.withdraw.store(0);
    } else if (given == Consent::used && segment_.mirror.withdraw.load() != 0 &&
               in().writer.epoch.load() == in().reader.epoch.load()) {
        withdraw_ = grants_;
    }
}

bool Mirror::collect(Bytes& out, size_t limit) {
    const uint64_t changes = segment_.mirror.changes.load();
    bool any = collect_data(out, limit);
    if (out.size() >= limit) {
        return any;
    }
    take_grant();
    State state;
    if (!snapshot(state)) {
        return any; // this is called again when the program has changed them
    }
    changes_ = changes;
    state.grants = grants_;
    state.withdraw = withdraw_;
    state.withdrawn = withdrawn_;
    if (state.epoch != sync_epoch_) {
        sync_epoch_ = state.epoch;
        ++sync_;
    }
    if (closing_ == 0 && segment_.mirror.closed.load() != path::MirrorFields::open) {
        closing_ = ++sync_;
    }
    state.sync = sync_;
    state.synced = far_.sync;
    state.closing = closing_;
    if (is_news(state)) {
        collect_taken(out, state);
        append(out, Kind::state, &state, sizeof(state));
        sent_ = state;
        reported_tail_ = std::max(reported_tail_, state.tail); // the reader may have advanced since the snapshot
        any = true;
    }
    exact_ = false;
    // Behind the state: what is to be attended to may be in it.
    if (frame_wanted_ || attend_far_) {
        append(out, Kind::attend, nullptr, 0, 0, frame_wanted_ ? 1 : 0);
        frame_wanted_ = attend_far_ = false;
        any = true;
    }
    return any;
}

bool Mirror::take(const Header& header, std::span<const uint8_t> body) {
    switch (header.kind) {
    case Kind::data:
        return take_data(header, body);
    case Kind::state: {
        State state;
        if (body.size() != sizeof(state)) {
            return false;
        }
        memcpy(&state, body.data(), sizeof(state));
        return take_state(state);
    }
    case Kind::taken:
        return take_taken(header, body);
    case Kind::attend:
        segment_.mirror.asked.store(1);
        if (header.area != 0) {
            segment_.mirror.frames.store(1); // the program's service sends the frame
        }
        attend_here_ = true;
        return true;
    default:
        return false;
    }
}

bool Mirror::take_data(const Header& header, std::span<const uint8_t> body) {
    if (header.position != write_.position || header.area >= path::areas || header.area < write_.area || body.empty()) {
        return false;
    }
    path::WriterFields& writer = in().writer;
    const bool grows = header.area != write_.area;
    if (grows) {
        write_.base = write_.position;
        write_.area = header.area;
    }
    uint64_t space = 0;
    if (!writable(in(), write_, space) || space < body.size()) {
        return false;
    }
    if ((grows || write_.position == 0) && !path::populate(&segment_, 1 - own_, write_.area)) {
        return false; // no memory: as if the fabric had failed
    }
    uint8_t* memory = path::ring_memory(&segment_, 1 - own_);
    for (size_t done = 0; done < body.size();) {
        const size_t n = write_.contiguous(body.size() - done);
        base::copy_bytes(memory + write_.offset_of(write_.position), body.data() + done, n);
        write_.position += n;
        done += n;
    }
    if (grows) {
        writer.grow_at.store(write_.base, std::memory_order_release);
        writer.grow_area.store(write_.area, std::memory_order_release);
    }
    take_tail(header.tail);
    writer.head.store(write_.position);
    wake_for_data();
    return true;
}

void Mirror::take_tail(uint64_t tail) {
    path::ReaderFields& reader = out().reader;
    if (tail > reader.tail.load()) {
        reader.tail.store(tail); // the program validates it
        wake_for_space();
    }
}

bool Mirror::take_state(const State& state) {
    path::Direction& theirs = in();
    path::Direction& ours = out();
    theirs.writer.switch_at.store(state.switch_at, std::memory_order_relaxed);
    theirs.writer.sent.store(state.sent, std::memory_order_relaxed);
    theirs.writer.resent.store(state.resent, std::memory_order_relaxed);
    theirs.writer.resets.store(state.resets, std::memory_order_relaxed);
    theirs.writer.ends.store(state.ends, std::memory_order_relaxed);
    theirs.writer.clear.store(state.clear, std::memory_order_relaxed);
    theirs.writer.epoch.store(state.epoch); // in order with wake_for_data(): a reader arms, and then loads the epoch
    theirs.writer.frames.store(state.frames, std::memory_order_release);
    // The bytes behind a switch may have come first, when the reader could not know that they are its next ones.
    if (state.epoch != far_.epoch && theirs.writer.head.load() != theirs.reader.tail.load()) {
        wake_for_data();
    }
    ours.reader.given_back.store(state.given_back); // before the tail, see stream::is_clear()
    ours.reader.received.store(state.received);
    take_tail(state.tail);
    const uint32_t followed = ours.reader.epoch.exchange(state.followed);
    const uint32_t requested = ours.reader.request.exchange(state.request);
    if (state.grants != far_.grants) {
        ours.wake.consent.store(Consent::given, std::memory_order_release);
        attend_here_ = true; // the first end switches even if its program never writes: the far end waits for that
    }
    if (state.withdraw != far_.withdraw && state.withdraw == state.grants) {
        uint32_t given = Consent::given;
        if (ours.wake.consent.compare_exchange_strong(given, Consent::withheld)) {
            withdrawn_ = state.withdraw;
        } // else it was used: the reader sees the switch next
    }
    if (state.withdrawn != far_.withdrawn && state.withdrawn == grants_) {
        uint32_t used = Consent::used;
        theirs.wake.consent.compare_exchange_strong(used, Consent::withheld);
        attend_here_ = true;
    }
    if (state.synced != synced_) {
        synced_ = state.synced;
        if (synced_ == sync_) {
            segment_.mirror.applied.store(sync_epoch_, std::memory_order_release);
            attend_here_ = true;
        }
    }
    attend_here_ = attend_here_ || requested != state.request || followed != state.followed ||
                   state.epoch != far_.epoch || state.clear != far_.clear;
    if (state.closing != 0) {
        segment_.mirror.far_closed.store(1);
    }
    far_ = state;
    return true;
}

bool Mirror::take_taken(const Header& header, std::span<const uint8_t> body) {
    if (body.size() > path::give_back_bytes || header.position > path::give_back_bytes - body.size()) {
        return false;
    }
    uint8_t*& area = taken_areas_[own_];
    if (area == nullptr) {
        area = path::map_give_back(&segment_, own_);
    }
    if (area == nullptr) {
        return false;
    }
    memcpy(area + header.position, body.data(), body.size());
    return true;
}

void Mirror::wake_for_data() {
    path::WakeFields& wake = in().wake;
    if (wake.data_wanted.load() == path::nobody) {
        return;
    }
    if (const uint64_t sleeper = wake.data_wanted.exchange(path::nobody); sleeper > path::by_frame) {
        data_sleeper_ = sleeper;
    } else if (sleeper == path::by_frame) {
        frame_wanted_ = true;
    }
}

// As the program's own reader would, see stream::space_made().
void Mirror::wake_for_space() {
    path::Direction& ring = out();
    if (ring.wake.space_wanted.load() == path::nobody) {
        return;
    }
    const uint32_t area = std::min(ring.writer.grow_area.load(std::memory_order_relaxed), path::areas - 1);
    if (ring.writer.head.load() - ring.reader.tail.load() > path::area_sizes[area] / 2) {
        return;
    }
    if (const uint64_t sleeper = ring.wake.space_wanted.exchange(path::nobody); sleeper > path::by_frame) {
        space_sleeper_ = sleeper;
    } else if (sleeper == path::by_frame) {
        frame_wanted_ = true;
    }
}

uint64_t Mirror::data_sleeper() { return std::exchange(data_sleeper_, 0); }
uint64_t Mirror::space_sleeper() { return std::exchange(space_sleeper_, 0); }
bool Mirror::attend_wanted() { return std::exchange(attend_here_, false); }

void Mirror::attended() {
    attend_far_ = true;
    exact_ = true;
    if (in().writer.head.load() != in().reader.tail.load()) {
        wake_for_data();
    }
    wake_for_space();
}

bool Mirror::arm(uint64_t id) {
    path::Direction& ours = out();
    if (ours.wake.data_wanted.load() != id) {
        ours.wake.data_wanted.store(id);
    }
    // Only where reading all of it would be news: see is_news().
    path::Direction& theirs = in();
    if (theirs.wake.space_wanted.load() != id && theirs.writer.head.load() != theirs.reader.tail.load() &&
        theirs.writer.head.load() - reported_tail_ >= write_.capacity() / 4) {
        theirs.wake.space_wanted.store(id);
    }
    segment_.mirror.sleeper.store(id);
    return ours.writer.head.load() != read_.position || segment_.mirror.changes.load() != changes_ ||
           in().reader.tail.load() - reported_tail_ >= write_.capacity() / 4;
}

} // namespace preload::fabric
