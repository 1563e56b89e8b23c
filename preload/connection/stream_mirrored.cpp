// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What differs for a connection to another host, whose far end a worker plays (see path::MirrorFields): the worker must
// be notified of changes, and its knowledge lags behind what TCP carries, so nothing goes by TCP before the far end can
// interpret it. Also the proof, by urgent bytes, that the worker has found the right far end.
#include "preload/connection/stream_internal.hpp"

#include "preload/base/system.hpp"
#include "preload/path/urgent.hpp"
#include "preload/stats/page.hpp"

namespace preload::stream {

using path::MirrorFields;

void changed(Connection& c) {
    if (!c.mirrored.load(std::memory_order_relaxed)) [[likely]] {
        return;
    }
    MirrorFields& mirror = c.shared().mirror;
    mirror.changes.fetch_add(1);
    if (const uint64_t id = mirror.sleeper.exchange(0); id != 0) {
        wake_by_id(c, id);
    }
}

bool far_end_knows(const Connection& c) {
    if (!c.mirrored.load(std::memory_order_relaxed)) [[likely]] {
        return true;
    }
    const MirrorFields& mirror = c.shared().mirror;
    return mirror.applied.load(std::memory_order_acquire) == c.state.load()->out_epoch.load() ||
           mirror.stage.load() == MirrorFields::ended || c.state.load()->recovered;
}

bool is_at_mark(int fd) {
    int at = 0;
    return sys::ioctl(fd, SIOCATMARK, &at) == 0 && at != 0;
}

void step_over_mark(int fd) {
    if (is_at_mark(fd)) {
        path::take_urgent(fd);
    }
}

// In order with arm(), which is in front of it where a thread is about to sleep: see Mirror::take_state().
uint32_t published_epoch(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return s.recovered.load(std::memory_order_relaxed) ? s.in_epoch.load() : c.in_ring().writer.epoch.load();
}

bool is_proving(const Connection& c) {
    return c.mirrored.load(std::memory_order_relaxed) && c.shared().mirror.stage.load() < MirrorFields::moving;
}

// An urgent byte can be read from its arrival until the bytes in front of it were read and the next one behind it is
// consumed: then the kernel discards it. It is acknowledged when it is the next one, so that another one may come: of
// two unread ones, the first would become one of the program's bytes (tcp_check_urg() of Linux).
void receive_urgent(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    uint8_t byte = 0;
    if (s.urgent_number == MirrorFields::urgent_bytes) {
        return; // a later one is in front of a record
    }
    if (s.urgent_byte == 0 && sys::recv(fd, &byte, 1, MSG_OOB | MSG_DONTWAIT) == 1) {
        s.urgent_byte = 0x100U | byte;
    }
    if (s.urgent_byte == 0 || !is_at_mark(fd)) {
        return;
    }
    count_received(c, 1);
    s.frames_seen.fetch_add(1, std::memory_order_relaxed); // it is not the program's
    const uint32_t number = ++s.urgent_number;
    c.shared().mirror.urgent_received.store(MirrorFields::urgent_of(number, static_cast<uint8_t>(s.urgent_byte)),
                                            std::memory_order_release);
    s.urgent_byte = 0;
    changed(c);
}

bool has_urgent_to_send(const Connection& c) {
    const MirrorFields& mirror = c.shared().mirror;
    return is_proving(c) && mirror.has_urgent_to_send();
}

void send_urgent(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (!has_urgent_to_send(c) || (s.out_epoch.load() & 1) != 0 || s.resume_due || has_backlog(s)) {
        return;
    }
    MirrorFields& mirror = c.shared().mirror;
    uint32_t wanted = mirror.urgent_to_send.load(std::memory_order_acquire) & ~MirrorFields::urgent_claimed;
    const auto byte = static_cast<uint8_t>(wanted);
    // After the peer's end, it would be answered with a reset.
    if (pollfd one{fd, POLLRDHUP, 0}; sys::poll(&one, 1, 0) != 0) {
        return;
    }
    if (!mirror.urgent_to_send.compare_exchange_strong(wanted, wanted | MirrorFields::urgent_claimed)) {
        return; // it was withdrawn
    }
    if (sys::send(fd, &byte, 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {
        c.out_ring().writer.frames.fetch_add(1, std::memory_order_release);
        count_sent(c, 1);
        mirror.urgent_sent.store(wanted);
    } else {
        mirror.urgent_to_send.store(wanted); // TCP has no space
    }
}

void announce_leaving(Connection& c) {
    if (c.mirrored.load(std::memory_order_relaxed) && c.segment.load() != nullptr) {
        c.shared().mirror.shared = MirrorFields::last_leaves(static_cast<pid_t>(sys::call(SYS_getpid)));
        changed(c);
    }
}

void withdraw_leaving(Connection& c) {
    if (c.mirrored.load(std::memory_order_relaxed) && c.segment.load() != nullptr) {
        uint32_t own = MirrorFields::last_leaves(static_cast<pid_t>(sys::call(SYS_getpid)));
        c.shared().mirror.shared.compare_exchange_strong(own, MirrorFields::several);
    }
}

void leave_mirror(Connection& c) {
    if (c.mirrored.load(std::memory_order_relaxed)) {
        uint32_t open = path::MirrorFields::open;
        c.shared().mirror.closed.compare_exchange_strong(open, path::MirrorFields::left);
        changed(c);
    }
}

} // namespace preload::stream
