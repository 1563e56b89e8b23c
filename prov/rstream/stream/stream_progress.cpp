// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Progress: what is done when something has come from the core, and before a program sleeps until it does.
#include "prov/rstream/stream/stream.hpp"

#include <vector>

#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/domain.hpp"

namespace rstream {

namespace {
using Clock = std::chrono::steady_clock;
} // namespace

void Stream::progress() {
    if (const State state = lifecycle_.state(); state != State::connected) {
        if (awaits_answer(state)) {
            take_core_events();
        }
        return;
    }
    const auto drained = completions_.drain();
    // A program that only polls its endpoint must learn of the connection's end too; each poll of the events costs a
    // system call.
    if (drained == Completions::Drained::nothing && core_.events() != nullptr && completions_.events_due()) {
        take_core_events();
    }
    if (keepalive_.due()) {
        check_liveness();
    }
    // What is due without anything having come was so before, and is noted if it could not go then.
    if (transmit_.flush_wanted() || (drained != Completions::Drained::nothing && link_.control_due())) {
        transmit_.request_flush();
    }
    wake_waiters();
}

void Stream::take_core_events() {
    if (core_.properties().queue_shows_end) {
        return; // they come with all others
    }
    const auto lock = dispatcher().lock();
    const int failure = core_.events() != nullptr ? dispatcher().drain(core_.events()) : 0;
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

// One thread may take from the core what another sleeps for: the descriptor is kept readable for that one.
void Stream::wake_waiters() {
    if (wait_set_.armed() && readiness_.wakes(*this)) {
        wait_set_.notify();
    }
}

// ---- before a program sleeps

int Stream::arm() {
    // That the core can send again has to be asked for in any case.
    if (core_.properties().queue_stays_readable && (!transmit_.waits_for_calls() || !lifecycle_.connected())) {
        return 0;
    }
    return try_wait_core();
}

// Before anyone sleeps on the core's descriptors: 0, or -FI_EAGAIN if something has come already.
int Stream::try_wait_core() {
    const State state = lifecycle_.state();
    std::unique_lock<std::recursive_mutex> lock;
    if (state != State::connected) {
        lock = dispatcher().lock(); // the next attempt to connect has an event queue of its own
    }
    return core_.try_wait(!has_failed(state)); // a lost connection's queue has nothing new to say
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
    take_core_events();
    progress();
    if (readiness_.shows_bytes()) { // the program has seen what is there and took none of it: it needs more
        link_.await_more();
        flush_control();
    }
    if (link_.growth_wanted() && link_.readable() == 0) {
        resize_ring();
    }
    wait_set_.arm();
    if (readiness_.ready(*this)) {
        return -FI_EAGAIN;
    }
    wait_set_.retract([this] { return readiness_.wakes(*this); });
    if (lost()) {
        return 0; // a lost connection's queue has nothing new to say
    }
    return try_wait_core();
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
