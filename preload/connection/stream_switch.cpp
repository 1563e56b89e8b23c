// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Switches of an own direction: from the kernel to the ring, and back.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>

#include "preload/base/system.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/page.hpp"
#include "preload/stats/probes.hpp"

namespace preload::stream {

using path::Consent;
using path::Direction;

namespace {

bool may_switch(const Connection& c, bool halts) {
    const ConnectionState& s = *c.state.load();
    const Direction& ring = c.out_ring();
    const uint32_t epoch = s.out_epoch.load(std::memory_order_relaxed);
    if ((s.ended && !halts) || s.resume_due || has_backlog(s) || epoch >= path::max_epoch ||
        ring.wake.consent.load(std::memory_order_acquire) != Consent::given) {
        return false;
    }
    if (halts) {
        return true;
    }
    if (holds_in_kernel(s)) {
        return false;
    }
    // The reader may have to give back what it has not yet taken from TCP.
    if (s.hold || s.sent.load() - ring.reader.received.load() > path::give_back_bytes) {
        return false;
    }
    // The first end switches first. The second follows when it reads from the ring, so that it can wait for space.
    return c.out_index() == 0 || (s.in_epoch.load() & 1) != 0;
}

} // namespace

bool is_halted(const ConnectionState& s, uint32_t epoch) {
    constexpr uint64_t timeout_ns = 5000000000U;
    return s.halted_epoch.load() == epoch && sys::now_ns() - s.halted_ns.load() < timeout_ns;
}

void advance_out(Connection& c) {
    ConnectionState& s = *c.state.load();
    if (is_recovering(c)) [[unlikely]] {
        return;
    }
    Direction& ring = c.out_ring();
    const uint32_t epoch = s.out_epoch.load(std::memory_order_relaxed);
    const uint32_t request = ring.reader.request.load(std::memory_order_acquire);
    if (s.recovered) {
        return; // for good; what the worker still writes is stale
    }
    if ((epoch & 1) != 0) {
        const bool resends = path::requests(request, epoch, path::resend);
        // After the peer's FIN nothing can wake this end any more, and the kernel determines the result of a write.
        if (resends || path::requests(request, epoch, path::return_to_kernel) ||
            path::requests(request, epoch, path::return_quietly) || ((s.hold || s.ended) && !is_halted(s, epoch))) {
            return_out(c, resends);
        }
        return;
    }
    const bool halts = path::requests(request, epoch, path::halt);
    uint32_t given = Consent::given;
    if (!may_switch(c, halts) || !path::populate(c.segment.load(), c.out_index(), s.out.area) ||
        !ring.wake.consent.compare_exchange_strong(given, Consent::used)) {
        return;
    }
    push_held(c, c.fd.load());
    if (const uint64_t own = service::own_name(); own != 0) { // else the parent's stays
        c.segment.load()->service[c.out_index()].store(own, std::memory_order_relaxed);
    }
    ring.writer.switch_at.store(s.sent.load(std::memory_order_relaxed), std::memory_order_release);
    ring.writer.epoch.store(epoch + 1, std::memory_order_release);
    if (!halts && s.upgrades.fetch_add(1) == 0) { // in front of the epoch, by which rsstat knows that both have changed
        s.upgraded_ns = sys::now_ns();
    }
    s.out_epoch.store(epoch + 1, std::memory_order_release);
    s.switched_ns = sys::now_ns();
    s.ask_pause_ns = 0;
    s.ask_ns = 0;
    if (halts) {
        s.halted_ns = sys::now_ns();
        s.halted_epoch = epoch + 1;
    }
    changed(c);
    stats::refresh(c);
    RSPRELOAD_PROBE(upgrade, c.fd.load(), epoch + 1);
}

void ask_to_switch(Connection& c) {
    constexpr uint64_t first_pause_ns = 1000000;
    ConnectionState& s = *c.state.load();
    if (const uint64_t now = sys::now_ns(); now >= s.ask_ns) {
        s.ask_pause_ns = s.ask_pause_ns == 0 ? first_pause_ns : 2 * s.ask_pause_ns;
        s.ask_ns = now + s.ask_pause_ns;
        service::ask(c.shared(), 1 - c.out_index());
    }
}

void return_out(Connection& c, bool resend) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.out_ring();
    const uint32_t epoch = s.out_epoch.load(std::memory_order_relaxed);
    if ((epoch & 1) == 0) {
        return;
    }
    push_held(c, c.fd.load());
    if (resend) {
        const uint64_t tail = ring.reader.tail.load();
        s.backlog_from = std::min(tail, s.out.position);
        s.backlog_to = s.out.position;
        if (s.out.position - s.backlog_from.load() > path::ring_bytes) {
            s.backlog_from = s.out.position; // invalid tail: the peer loses its own bytes
        }
        s.give_from = 0;
        s.give_to = std::min<uint64_t>(ring.reader.given_back.load(std::memory_order_acquire), path::give_back_bytes);
        ring.writer.resent.store(epoch, std::memory_order_release);
    }
    s.resume_due = true;
    ring.writer.epoch.store(epoch + 1, std::memory_order_release);
    if (s.halted_epoch.load() != epoch) {
        s.returns.fetch_add(1);
    }
    s.out_epoch.store(epoch + 1, std::memory_order_release);
    stats::refresh(c);
    RSPRELOAD_PROBE(fallback, c.fd.load(), static_cast<int>(s.reason.load()));
    // Frames no longer reach the peer, so it cannot wait for space in its own ring. If reading is shut down, the kernel
    // answers its frame with a reset.
    Direction& in = c.in_ring();
    const uint32_t theirs = in.writer.epoch.load(std::memory_order_acquire);
    uint32_t request = in.reader.request.load();
    if ((theirs & 1) != 0 && !s.giving_back && !s.handed_over && !s.read_shut && // these request more than that
        path::requested_epoch(request) != theirs) {
        in.reader.request.compare_exchange_strong(request, path::request_of(theirs, path::return_quietly));
    }
    changed(c);
}

} // namespace preload::stream
