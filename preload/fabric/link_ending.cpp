// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a link ends: with its program, with the far end, or because the fabric has failed.
#include "preload/fabric/link.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/fabric/processor_time.hpp"
#include "preload/path/frame.hpp"
#include "preload/path/urgent.hpp"
#include "preload/rendezvous/holders.hpp"

namespace preload::fabric {

using path::MirrorFields;

namespace {

constexpr uint64_t millisecond = 1000000;
constexpr uint64_t closing_time = 5000 * millisecond;    // for the far end's answer
constexpr uint64_t recovery_time = 925000 * millisecond; // as long as TCP repeats its own bytes (tcp_retries2)
constexpr uint64_t recovery_pause = 10 * millisecond;
constexpr uint64_t first_look = 10 * millisecond;
constexpr uint64_t arrival_time = 1000 * millisecond;    // of an urgent byte that was sent
constexpr uint64_t last_urgent_time = 100 * millisecond; // it was sent before the end of the stream, and is in flight

} // namespace

void Link::close_all() {
    if (std::exchange(phase_, Phase::over) == Phase::over) {
        return;
    }
    deadline_ = UINT64_MAX;
    mirror_.reset();
    listening_.clear();
    socket_.close();
    // No process has it any more. An urgent byte belongs to the proof: unread, it would turn the close into a reset.
    if (int at = 0; tcp_ >= 0 && has_closed() && segment_->mirror.closed.load() != MirrorFields::left &&
                    ioctl(tcp_, SIOCATMARK, &at) == 0 && at != 0) {
        path::take_urgent(tcp_);
    }
    if (tcp_ >= 0) {
        if (recovery_) {
            owner_.unwatch(tcp_);
        }
        close(std::exchange(tcp_, -1));
    }
    recovery_.reset();
    if (segment_ != &path::no_segment) {
        path::unmap_segment(std::exchange(segment_, &path::no_segment));
    }
}

void Link::fail(Reason why) {
    if (phase_ == Phase::over || continues_without_stream()) {
        return;
    }
    path::MirrorFields& mirror = segment_->mirror;
    if (program_has_lost_it()) {
        begin_to_hand_over();
        return;
    }
    if (why == Reason::no_device) {
        owner_.other_devices().note_failure();
    }
    if (!attach_asked_) {
        owner_.send_control(Control::failed, token(), why);
    } else if (has_closed() && phase_ == Phase::moving && !mirror_->has_closed()) {
        if (begin_recovery()) {
            return;
        }
    } else if (phase_ == Phase::closing) {
        give_up_ = 0;
        go_on_leaving(sys::now_ns());
        return;
    } else if (careful_ && phase_ != Phase::moving && !proved_ && socket_ && !has_closed()) {
        leave();
        return;
    } else {
        // A far end that has received `proved` may be moving: then it will report by TCP that it has stopped.
        if (phase_ == Phase::moving || !proved_) {
            mirror.stage.store(phase_ == Phase::moving ? MirrorFields::lost : MirrorFields::failed);
        }
        owner_.attend(*segment_, task_.direction);
        if (phase_ == Phase::moving) {
            begin_to_hand_over();
            return;
        }
    }
    // Once this end has sent `careful`, the far end may send urgent bytes.
    if (careful_ && phase_ != Phase::moving && has_closed() && mirror.closed.load() != MirrorFields::aborted) {
        leave();
    } else {
        close_all();
    }
}

// Closing it is a reset.
void Link::reset() {
    const linger how{1, 0};
    setsockopt(tcp_, SOL_SOCKET, SO_LINGER, &how, sizeof(how));
}

// The kernel repeats what a socket without a process has sent for some 100 s only (tcp_orphan_retries): a wire that was
// cut for a minute may have used that up.
bool Link::is_unacknowledged() const { return preload::fabric::is_unacknowledged(tcp_); }

void Link::begin_to_hand_over() {
    socket_.close();
    phase_ = Phase::handing_over;
    deadline_ = UINT64_MAX;
    owner_.other_devices().note_failure();
}

// True: the program continues by TCP, or has ended, and this worker does. Not before: the worker's descriptor would
// delay EOF, but a program that ends by then leaves all of it to this worker.
bool Link::hand_over() {
    if (segment_->mirror.recovering.load() == 0 && !has_closed()) {
        return false;
    }
    if (segment_->mirror.recovering.load() != 0 || !begin_recovery()) {
        close_all();
    }
    return true;
}

// No process is left that could send the rest by TCP, but this one. False: the connection can be closed.
bool Link::begin_recovery() {
    const path::Direction& ours = segment_->direction[task_.direction];
    if (segment_->mirror.closed.load() == MirrorFields::aborted) {
        reset(); // as its program wanted
        return false;
    }
    if ((ours.writer.epoch.load() & 1) == 0 || segment_->mirror.closed.load() == MirrorFields::left) {
        return false; // the rest is in TCP; if the far end is still in the epoch before, it takes EOF for an error
    }
    const auto [ring, before] = mirror_->end_of_ring();
    recovery_ = std::make_unique<ClosedRecovery>(*segment_, task_.direction, tcp_, ring, before);
    mirror_.reset();
    socket_.close();
    phase_ = Phase::recovering;
    give_up_ = sys::now_ns() + recovery_time;
    recover();
    return true;
}

void Link::recover() {
    const ClosedRecovery::Step step = recovery_->step();
    const uint64_t now = sys::now_ns();
    switch (step) {
    case ClosedRecovery::Step::reading:
        deadline_ = give_up_;
        if (now < give_up_ && owner_.watch(tcp_, token(), false)) {
            return;
        }
        break;
    case ClosedRecovery::Step::later:
        owner_.unwatch(tcp_); // it may be readable all the time
        deadline_ = now + recovery_pause;
        if (now < give_up_) {
            return;
        }
        break;
    case ClosedRecovery::Step::done:
        close_all();
        return;
    case ClosedRecovery::Step::failed:
        break;
    }
    reset();
    close_all();
}

// Before anything was moved: the program has closed, or stays with TCP, as this end's or the far end's. An urgent byte
// that arrives after the kernel's connection was closed resets it, which loses the program's bytes that the far end has
// not received yet; one that is unread then does the same. So both ends say how many they have sent, and the last one
// is awaited.
void Link::leave() {
    const bool moves = phase_ == Phase::moving;
    phase_ = Phase::closing;
    leaving_ = std::make_unique<Leaving>();
    leaving_->stage = moves ? MirrorFields::ended : MirrorFields::failed;
    give_up_ = sys::now_ns() + closing_time;
    if (segment_->mirror.closed.load() == MirrorFields::closed_by_last) {
        shutdown(tcp_, SHUT_WR); // the program's EOF is not delayed
    }
    if (!socket_) {
        leaving_->without_stream_ns = sys::now_ns();
    }
    go_on_leaving(sys::now_ns());
}

bool Link::take_closed(std::span<const uint8_t> body) {
    ClosedEarly far;
    if (body.size() != sizeof(far)) {
        return false;
    }
    memcpy(&far, body.data(), sizeof(far));
    if (far.urgent_sent > MirrorFields::urgent_bytes) {
        return false;
    }
    if (phase_ == Phase::attaching || phase_ == Phase::proving || phase_ == Phase::moving) {
        mirror_.reset(); // without consent, it has moved nothing
        leave();
    }
    if (phase_ == Phase::closing && !leaving_->far_sent) {
        leaving_->far_sent = far.urgent_sent;
        go_on_leaving(sys::now_ns());
    }
    return phase_ == Phase::closing || phase_ == Phase::over;
}

void Link::go_on_leaving(uint64_t now) {
    constexpr uint64_t pause = 2 * millisecond;
    deadline_ = now + pause;
    if (now >= give_up_) {
        socket_.close();
    } else if (!leaving_->told) {
        const std::optional<uint32_t> sent = segment_->mirror.withdraw_urgent();
        leaving_->told = sent.has_value();
        if (sent && socket_) {
            const ClosedEarly own{*sent};
            send(Kind::closed, &own, sizeof(own)); // may end the stream, and call this function
        }
        if (!sent || phase_ != Phase::closing) {
            return;
        }
    }
    if (now < give_up_ && !has_last_urgent(now)) {
        return;
    }
    if (!has_closed()) {
        segment_->mirror.stage.store(leaving_->stage);
        owner_.attend(*segment_, task_.direction);
        if (has_unread_in_front()) {
            socket_.close();
            phase_ = Phase::guarding;
            leaving_->guards_since_ns = now;
            pause_ = first_look;
            deadline_ = now + pause_;
            return;
        }
    }
    close_all();
}

// The last urgent byte of the far end is behind bytes that the program has not read.
bool Link::has_unread_in_front() const {
    int at = 0;
    uint8_t byte = 0;
    return leaving_->far_sent && segment_->mirror.urgent_received.load() >> 8 < *leaving_->far_sent &&
           ioctl(tcp_, SIOCATMARK, &at) == 0 && at == 0 && recv(tcp_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

// Another program may have the connection next, and read those bytes, but not on to the end of the stream: its close
// would be a reset, and lose what it has sent. So this process has it, too, until the urgent byte was read over, or is
// all that is left to nobody. A descriptor that is under way (SCM_RIGHTS) is nobody's.
void Link::guard(uint64_t now) {
    constexpr uint64_t longest_look = 1000 * millisecond;
    int at = 0;
    int unread = 0;
    if (ioctl(tcp_, SIOCATMARK, &at) != 0 || ioctl(tcp_, SIOCINQ, &unread) != 0 ||
        (at == 0 && unread == 0 && now - leaving_->guards_since_ns > arrival_time)) {
        close_all();
        return;
    }
    const uint64_t begin = processor_time_ns();
    const bool was_alone = std::exchange(leaving_->is_alone, rendezvous::is_sole_holder(tcp_));
    if (was_alone && leaving_->is_alone) {
        if (at != 0) {
            path::take_urgent(tcp_);
        }
        close_all();
        return;
    }
    pause_ = leaving_->is_alone ? first_look : std::min(2 * pause_, longest_look);
    deadline_ = after(now, pause_, begin);
}

// Whether no urgent byte of the far end can arrive any more.
bool Link::has_last_urgent(uint64_t now) const {
    if (!leaving_->far_sent) { // a far end that has not said how many there are
        return !socket_ && now - std::min(leaving_->without_stream_ns, now) >= last_urgent_time;
    }
    int at = 0;
    uint8_t byte = 0;
    // The program's own bytes may be in front of it: see guard().
    return segment_->mirror.urgent_received.load() >> 8 >= *leaving_->far_sent ||
           (ioctl(tcp_, SIOCATMARK, &at) == 0 && at != 0) || recv(tcp_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

// Frames that came late, or that a killed process has not consumed: unread, they would turn the close into a reset.
// Bytes after Frame::resume are the program's: there, a reset is due.
void Link::take_frames() const {
    const path::Direction& theirs = segment_->direction[1 - task_.direction];
    const uint32_t followed = theirs.reader.epoch.load();
    bool frames = (followed & 1) != 0;
    uint8_t byte = 0;
    while (frames && recv(tcp_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
           (byte == static_cast<uint8_t>(path::Frame::wake) || byte == static_cast<uint8_t>(path::Frame::resume)) &&
           recv(tcp_, &byte, 1, MSG_DONTWAIT) == 1) {
        frames = byte != static_cast<uint8_t>(path::Frame::resume);
    }
}

void Link::begin_to_acknowledge() {
    mirror_.reset();
    socket_.close();
    shutdown(tcp_, SHUT_WR);
    phase_ = Phase::acknowledging;
    give_up_ = sys::now_ns() + recovery_time;
    deadline_ = sys::now_ns() + recovery_pause;
}

void Link::await_acknowledgement(uint64_t now) {
    take_frames();
    if (now < give_up_ && is_unacknowledged()) {
        deadline_ = now + recovery_pause;
    } else {
        close_all();
    }
}

} // namespace preload::fabric
