// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The waiters of a direction, as its two ends publish them. A single thread or set is named by the id of its wake-up
// descriptor; as soon as there may be several, frames wake them all.
#include "preload/connection/stream_internal.hpp"

#include <initializer_list>

#include <poll.h>

#include "preload/rendezvous/service.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::stream {

namespace {

void arm_one(std::atomic<uint64_t>& wanted, uint64_t sleeper) {
    uint64_t before = path::nobody;
    if (sleeper != path::by_frame &&
        (wanted.compare_exchange_strong(before, sleeper) || before == sleeper || before == path::by_frame)) {
        return;
    }
    before = wanted.exchange(path::by_frame);
    // It may sleep where no frame wakes it; after this wake-up it does not.
    if (before > path::by_frame && before != sleeper) {
        wakeup::wake_own(before);
    }
}

} // namespace

bool takes_ids(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return s.holders.load(std::memory_order_relaxed) == 1 &&
           c.in_ring().writer.wakes.load(std::memory_order_relaxed) != 0 &&
           // The peer asks the service of the process that has switched last, which may be this one's parent.
           c.shared().service[c.out_index()].load(std::memory_order_relaxed) == service::own_name();
}

bool needs_frame(const Connection& c) {
    return c.state.load()->sleepers.load() != 0 ||
           (c.watched.load(std::memory_order_relaxed) && watches_sleep_by_frame(c));
}

void wake_everybody(Connection& c) {
    for (std::atomic<uint64_t>* word : {&c.in_ring().wake.data_wanted, &c.out_ring().wake.space_wanted}) {
        uint64_t sleeper = word->load(); // who sleeps by frame still does
        if (sleeper > path::by_frame && word->compare_exchange_strong(sleeper, path::nobody)) {
            wakeup::wake_own(sleeper);
        }
    }
    if (c.watched.load()) {
        watches_wake(c);
    }
    c.kernel_events.fetch_add(1);
    wakeup::wake_own(c.guarded.load());
}

void arm(Connection& c, short wanted, uint64_t sleeper) {
    if (sleeper == path::nobody || c.segment.load() == nullptr) {
        return;
    }
    // Others may sleep on if this process has consumed the frame for them.
    if (sleeper != path::by_frame && (c.state.load()->sleepers.load() > own_sleeps || !takes_ids(c))) {
        sleeper = path::by_frame;
    }
    if ((wanted & POLLIN) != 0) {
        arm_one(c.in_ring().wake.data_wanted, sleeper);
    }
    if ((wanted & POLLOUT) != 0) {
        arm_one(c.out_ring().wake.space_wanted, sleeper);
    }
}

namespace {

bool wants_space(short wanted) { return (wanted & (POLLOUT | POLLWRNORM)) != 0; }

} // namespace

bool withdraw(Connection& c, short wanted, uint64_t id) {
    const auto one = [&](std::atomic<uint64_t>& word) {
        uint64_t before = id;
        return word.compare_exchange_strong(before, path::by_frame) || before != path::nobody;
    };
    const bool data = one(c.in_ring().wake.data_wanted);
    return (!wants_space(wanted) || one(c.out_ring().wake.space_wanted)) && data;
}

void disarm(Connection& c, uint64_t id) {
    if (c.segment.load() == nullptr) {
        return;
    }
    for (std::atomic<uint64_t>* word : {&c.in_ring().wake.data_wanted, &c.out_ring().wake.space_wanted}) {
        uint64_t before = id;
        if (word->load(std::memory_order_relaxed) == id) {
            word->compare_exchange_strong(before, path::nobody);
        }
    }
}

bool is_armed(const Connection& c, short wanted, uint64_t id) {
    return c.in_ring().wake.data_wanted.load(std::memory_order_relaxed) == id &&
           (!wants_space(wanted) || c.out_ring().wake.space_wanted.load(std::memory_order_relaxed) == id);
}

void want_frame(std::atomic<uint64_t>& wanted) {
    uint64_t before = path::nobody;
    wanted.compare_exchange_strong(before, path::by_frame);
}

void want_wakeup(Connection& c) { want_frame(c.in_ring().wake.data_wanted); }
void want_space(Connection& c) { want_frame(c.out_ring().wake.space_wanted); }

bool wake_by_id(Connection& c, uint64_t sleeper) {
    if (sleeper == path::by_frame) {
        return false;
    }
    if (wakeup::wake(sleeper, c.peer_user.load(std::memory_order_relaxed)) || service::ask_to_wake(c, sleeper)) {
        return true;
    }
    // A child without a service cannot get the descriptor. A worker is the only waiter, and reads its inbox.
    return c.mirrored.load(std::memory_order_relaxed) && service::ask(c.shared(), 1 - c.out_index());
}

} // namespace preload::stream
