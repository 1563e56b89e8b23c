// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Progress: the work after completions and events of the core, and before a program sleeps until the next.
#include "prov/rstream/stream/stream.hpp"

#include <vector>

#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/domain.hpp"

namespace rstream {

namespace {
using Clock = std::chrono::steady_clock;
} // namespace

void Stream::progress() {
    advance();
    wake_waiters();
}

void Stream::advance() {
    if (const State state = lifecycle_.state(); state != State::connected) {
        if (awaits_answer(state)) {
            take_core_events();
        }
        return;
    }
    const auto drained = completions_.drain();
    // A program that only polls its endpoint must learn of a disconnect too; each poll of events costs a system call.
    if (drained != Completions::Drained::nothing) {
        note_cause_of_wake();
    } else if (core_.events() != nullptr) {
        if (may_have_slept_.exchange(false)) {
            woken_without_cause_.store(true); // it may be an event: see try_wait()
        }
        if (completions_.events_due()) {
            take_core_events();
        }
    }
    if (keepalive_.due()) {
        check_liveness();
    }
    // A control message that is due without new completions was due before, and `flush_wanted` is set if it could not
    // be posted then.
    if (transmit_.flush_wanted() || (drained != Completions::Drained::nothing && link_.control_due())) {
        transmit_.request_flush();
    }
}

// Data was found, or the program sends: it may have been woken for that, and not by an event of the core.
void Stream::note_cause_of_wake() {
    wire::put(may_have_slept_, false);
    wire::put(woken_without_cause_, false);
}

void Stream::take_core_events() {
    if (core_.properties().queue_shows_end) {
        return; // the dispatcher's queue has them
    }
    const auto lock = dispatcher().lock();
    const int failure = core_.events() != nullptr ? dispatcher().drain(core_.events()) : 0;
    if (failure != 0 && lifecycle_.state() == State::connecting) {
        // libfabric 1's verbs reports a failed connect this way; later ones have an event for it.
        fi_eq_err_entry error{};
        error.err = -failure;
        on_core_error(error);
    }
    if (request_.take_retry()) {
        connect_again();
    }
}

// One thread may read from the core the completion that another sleeps for: the fd is kept readable for that waiter.
void Stream::wake_waiters() {
    if (waiters_are_due()) {
        wait_set_.notify();
    }
}

bool Stream::waiters_are_due() const { return wait_set_.armed() && readiness_.wakes(*this); }

// ---- before a program sleeps

int Stream::arm() {
    // Without fi_trywait the fd does not signal that the core can send again.
    if (core_.properties().queue_stays_readable && (!transmit_.waits_for_calls() || !lifecycle_.connected())) {
        return 0;
    }
    return try_wait_core();
}

// Before a thread sleeps on the core's fds: 0, or -FI_EAGAIN if there is activity already.
int Stream::try_wait_core() {
    const State state = lifecycle_.state();
    std::unique_lock<std::recursive_mutex> lock;
    if (state != State::connected) {
        lock = dispatcher().lock(); // another attempt to connect replaces the event queue
    }
    return core_.try_wait(!has_failed(state)); // a lost connection's queue reports nothing new
}

int Stream::wait_fd(int& fd) {
    fd = wait_set_.fd();
    if (fd >= 0) {
        return 0;
    }
    std::vector<Watched> members;
    std::vector<int> queue;
    if (core_.properties().queue_members_fixed && watched_by(core_.completions_fd(), members)) {
        for (const Watched& member : members) {
            queue.push_back(member.fd);
        }
    }
    if (queue.empty()) {
        queue.push_back(core_.completions_fd());
    }
    const int ret = wait_set_.make(queue, [this] { return readiness_.wakes(*this); });
    fd = wait_set_.fd();
    return ret;
}

int Stream::try_wait() {
    progress();
    // The last events, which would keep the fd readable; and those that may have ended a sleep.
    if (woken_without_cause_.exchange(false) || ended()) {
        take_core_events();
    }
    if (readiness_.shows_bytes()) { // the program has seen the readable bytes and consumed none: it needs more
        link_.await_more();
        flush_control();
    }
    if (link_.growth_wanted() && link_.readable() == 0) {
        grow_ring();
    }
    trim_buffers();
    wait_set_.arm();
    if (!readiness_.may_sleep(*this)) {
        return -FI_EAGAIN;
    }
    wait_set_.retract([this] { return readiness_.wakes(*this); });
    if (lost()) {
        // Its queue reports nothing new. With libfabric 1.19 and later, its fd stays readable until it is empty, and
        // asked.
        completions_.drop();
        core_.try_wait(true);
        return 0;
    }
    const int ret = try_wait_core();
    if (ret != 0) {
        readiness_.cancel_wait();
    } else {
        may_have_slept_.store(true);
    }
    return ret;
}

// ---- keepalive

Keepalive::WatchTimer Stream::watch_timer() {
    return [this](int fd) {
        const int ret = wait_set_.add(fd);
        if (ret == 0) {
            dispatcher().watch(fd, this);
        }
        return ret;
    };
}

int Stream::set_keepalive(const KeepaliveSettings& settings) {
    const auto lock = dispatcher().lock(); // not while a connection is being completed
    return keepalive_.set(settings, lifecycle_.connected(), watch_timer());
}

void Stream::check_liveness() {
    switch (keepalive_.check(Clock::now())) {
    case Keepalive::Verdict::well:
        break;
    case Keepalive::Verdict::ask:
        transmit_.request_flush();
        break;
    case Keepalive::Verdict::lost:
        fail(FI_ETIMEDOUT, "the peer does not answer");
        fi_shutdown(core_.get(), 0);
        break;
    }
}

} // namespace rstream
