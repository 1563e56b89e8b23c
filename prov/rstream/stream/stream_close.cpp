// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The end of a connection: the program's shutdown and close, and how long sent data is still delivered.
#include "prov/rstream/stream/stream.hpp"

#include <poll.h>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/domain.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

using Clock = std::chrono::steady_clock;

} // namespace

// True if it was connecting. The answer is still awaited: a peer that accepts has to be disconnected.
bool Stream::give_up() {
    const auto lock = dispatcher().lock();
    if (!lifecycle_.abandon(FI_ECONNABORTED)) {
        return lifecycle_.state() == State::abandoned;
    }
    lifecycle_.drop_end_event();
    wake_waiters();
    return true;
}

int Stream::shutdown(uint64_t flags) {
    switch (flags) {
    case 0:
    case FI_RSTREAM_SHUT_WR:
    case FI_RSTREAM_ABORT:
        break;
    default:
        return -FI_EINVAL;
    }
    if (flags == FI_RSTREAM_ABORT && give_up()) {
        return 0;
    }
    const State state = lifecycle_.state();
    if (!has_connected(state)) {
        return -FI_ENOTCONN;
    }
    if (has_failed(state)) {
        return 0; // there is nothing left to end
    }
    if (flags != FI_RSTREAM_SHUT_WR) {
        lifecycle_.shut_receive();
    }
    transmit_.end(flags == FI_RSTREAM_ABORT     ? Transmit::End::abort
                  : flags == FI_RSTREAM_SHUT_WR ? Transmit::End::finish
                                                : Transmit::End::close);
    if (flags == FI_RSTREAM_ABORT) {
        fail(FI_ECONNABORTED, "reset by the program");
        fi_shutdown(core_.get(), 0);
        return 0;
    }
    progress();
    return 0;
}

bool Stream::close(std::chrono::milliseconds linger) {
    events_.close();
    if (!lifecycle_.connected()) {
        return false;
    }
    readiness_.on_close();
    progress();
    bool unmapped = iomap_.remove_all(ended()); // withdraws them before the end is posted
    // As TCP: the peer gets a reset if not all that it sent was read.
    transmit_.end(link_.readable() != 0 && !lifecycle_.receive_shut() ? Transmit::End::close_unread
                                                                      : Transmit::End::close);
    linger_.start(Clock::now(), linger);
    // Staged bytes need the peer's credit, and a core may drop work requests that are not complete. A closed peer reads
    // nothing more; over verbs it may be gone without an event, and a write to it fails only after seconds.
    const auto waiting = [&] { return !unmapped || (!all_completed() && !peer_closed()); };
    while (waiting() && lifecycle_.connected()) {
        progress();
        unmapped = iomap_.remove_all(ended());
        const auto left = linger_.wait_left(Clock::now());
        if (left <= 0) {
            RSTREAM_INFO(FI_LOG_EP_CTRL, "the peer does not take what was sent: it waits in the background\n");
            break;
        }
        if (waiting()) {
            wait_for_core(left);
        }
    }
    if (!unmapped) {
        // The program may reuse the memory when this returns, so the peer must not write there afterwards.
        fail(FI_ECONNABORTED, "closed, and the peer does not give back what is mapped");
        fi_shutdown(core_.get(), 0);
    }
    iomap_.drop_all();
    return !linger_is_over();
}

void Stream::wait_for_core(int64_t milliseconds) {
    // Another thread may read from the core the completion that this one waits for; it notifies.
    int set = -1;
    const int notified = wait_fd(set) == 0 ? wait_set_.notify_fd() : -1;
    readiness_.await_completion(!all_completed());
    readiness_.await_peer_close(!peer_closed());
    wait_set_.arm();
    const auto wakes = [this] { return readiness_.wakes(*this); };
    wait_set_.retract(wakes);
    if (!wakes() && try_wait_core() == 0) {
        // poll(2) ignores a negative fd
        pollfd fds[] = {{core_.completions_fd(), POLLIN, 0}, {core_.events_fd(), POLLIN, 0}, {notified, POLLIN, 0}};
        poll(fds, 3, static_cast<int>(milliseconds));
    }
    readiness_.await_completion(false);
    readiness_.await_peer_close(false);
    take_core_events();
}

bool Stream::linger_is_over() const {
    return !lifecycle_.connected() || (all_completed() && link_.all_arrived()) ||
           (all_completed() && peer_closed()) || // the peer acknowledges nothing more
           linger_.given_up(Clock::now());
}

} // namespace rstream
