// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <algorithm>
#include <cerrno>

#include <poll.h>

#include "rsockets/listener.hpp"
#include "rsockets/probes.hpp"
#include "rsockets/setup_attendant.hpp"

namespace rsockets {

namespace {

constexpr short readable = POLLIN | POLLRDNORM;
constexpr short writable = POLLOUT | POLLWRNORM;

// Polls without a sleep in between after which a sleep is enforced: an endpoint that reports work while there is none
// must cost time, not a CPU.
constexpr int max_polls = 64;

} // namespace

short Socket::events(short interest) {
    int found = 0;
    const uint64_t attempt = attempt_.number();
    switch (state()) {
    case State::connecting:
        return 0;
    case State::listening: {
        const Guard lock(mutex_);
        return listener_ && !listener_->ready().empty() ? readable : short{0};
    }
    case State::closed:
        found = writable | POLLHUP;
        if (ending_.receive_shut.load() || ending_.lost.load()) {
            found |= readable | POLLRDHUP;
        }
        break;
    case State::connected:
        if (Connection* present = connection()) {
            found = events_connected(*present, interest);
        }
        break;
    }
    if (ending_.error.load() != 0) {
        found |= POLLERR;
    }
    if (attempt_.shown()) { // the caller learns the result of the connect
        const Guard lock(mutex_);
        if (attempt_.number() == attempt) { // else another thread has begun the next one
            attempt_.seen();
        }
    }
    return static_cast<short>(found);
}

// `there`: the bytes to be received, or -FI_E*, before the endpoint had this status.
void Socket::note_loss_in(Connection& present, const fi_rstream_status& status, ssize_t there) {
    const bool finished = (status.flags & FI_RSTREAM_PEER_FINISHED) != 0;
    if (!finished && (status.flags & (FI_RSTREAM_PEER_RESET | FI_RSTREAM_LOST)) != 0) {
        note_loss(present, there < 0 && there != -FI_EAGAIN ? static_cast<int>(-there) : ECONNRESET);
    }
    if (finished && (status.flags & FI_RSTREAM_PEER_RESET) != 0 && !ending_.send_shut.load()) {
        note_loss(present, EPIPE); // TCP's error for a reset after EOF; after both ends there is nothing to reset
    }
}

void Socket::find_loss(Connection& present) {
    const ssize_t there = present.poll_bytes();
    note_loss_in(present, present.status(), there);
}

short Socket::events_connected(Connection& present, short interest) {
    const ssize_t there = present.poll_bytes();
    const auto status = present.status();
    const bool finished = (status.flags & FI_RSTREAM_PEER_FINISHED) != 0;
    note_loss_in(present, status, there);
    const bool lost = ending_.lost.load();
    const bool no_more_in = ending_.receive_shut.load() || finished || lost;
    const bool no_more_out = ending_.send_shut.load() || lost;
    int found = 0;
    if (no_more_in) {
        found |= readable | POLLRDHUP;
    }
    if (no_more_in && no_more_out) {
        found |= POLLHUP;
    }
    if (there > 0 && static_cast<size_t>(there) >= low_water()) {
        found |= readable;
    }
    if (no_more_out || status.writable != 0 || (status.flags & FI_RSTREAM_PEER_CLOSED) != 0) {
        found |= writable;
    } else if ((interest & writable) != 0) {
        // From now on the descriptor signals space, until any thread has sent. Other waiters may not be notified again.
        send_space_.polled.store(true);
        if (present.poll_space() != -FI_EAGAIN) {
            found |= writable;
            wait_queue_.notify_all();
        } else {
            send_space_.starved.fetch_add(1, std::memory_order_relaxed);
        }
    }
    return static_cast<short>(found);
}

Socket::Progress Socket::progress() {
    Progress now;
    now.starved = send_space_.starved.load(std::memory_order_relaxed);
    now.moves = moves_.load(std::memory_order_relaxed);
    now.arrived = connections_made_.load(std::memory_order_relaxed);
    constexpr uint32_t receive_shut = 1U << 31; // not used by flags of a status
    constexpr uint32_t send_shut = 1U << 30;
    constexpr uint32_t lost = 1U << 29;
    now.ended = (ending_.receive_shut.load() ? receive_shut : 0) | (ending_.send_shut.load() ? send_shut : 0) |
                (ending_.lost.load() ? lost : 0);
    if (Connection* present = established(); present != nullptr) {
        const auto status = present->status();
        // Not what is readable, and what calls have counted: between the two, another thread's receive would hide as
        // many bytes that arrive.
        now.arrived += status.arrived;
        // That the connection is gone behind the peer's end is nothing new: a send finds it, as with TCP.
        const bool finished = (status.flags & FI_RSTREAM_PEER_FINISHED) != 0;
        now.ended |= static_cast<uint32_t>(status.flags) &
                     (FI_RSTREAM_PEER_FINISHED | FI_RSTREAM_PEER_RESET | (finished ? 0 : FI_RSTREAM_LOST));
    }
    return now;
}

// The descriptor signals what is new since the last poll, so a thread that may sleep has ended the signal. What has
// come may be nothing to that thread, or no edge any more, but all to others: those get a notification instead, once.
void Socket::pass_on(const Connection& present, const Waiter* from) {
    if (!wait_queue_.has_others(from)) {
        return;
    }
    constexpr uint64_t ends =
        FI_RSTREAM_PEER_FINISHED | FI_RSTREAM_PEER_CLOSED | FI_RSTREAM_PEER_RESET | FI_RSTREAM_LOST;
    const auto status = present.status();
    const uint64_t come = status.arrived * (ends + 1) + (status.flags & ends);
    if ((status.readable != 0 || (status.flags & ends) != 0) && passed_on_.exchange(come) != come) {
        wait_queue_.notify_others(from);
    }
}

bool Socket::may_sleep(const Waiter& waiter) {
    Connection* present = established();
    if (present == nullptr) {
        return true;
    }
    if (present->may_sleep()) {
        pass_on(*present, &waiter);
        return true;
    }
    // The endpoint has events. If no caller has polled for them, they are consumed here, or it would stay signalled.
    present->progress_receive();
    if (present->status().writable != 0 && present->poll_space() > 0 && send_space_.is_awaited()) {
        wait_queue_.notify_all();
    }
    return false;
}

int Socket::wait_fd() const {
    Connection* present = established();
    return present != nullptr ? present->wait_fd() : -1;
}

void Socket::note_sleep() {
    constexpr uint64_t sleeps_per_poll = 64; // buffers grow, and querying their sizes takes longer than counting
    const uint64_t sleeps = counters_.slept();
    RSOCKET_PROBE(sleep, counters_.fd(), static_cast<int>(state()));
    if (const Connection* present = established(); present != nullptr && sleeps % sleeps_per_poll == 0) {
        const Sizes buffers = present->sizes();
        counters_.set_buffers(buffers.recv_buffer, buffers.send_buffer);
    }
}

ssize_t Socket::keep_trying(Nanoseconds limit, const std::function<ssize_t()>& attempt,
                            const std::function<bool()>& has_part, SetupAttendant* attendant) {
    ssize_t ret = -EAGAIN;
    const HeldSignals signals; // signals from here on end the sleep
    const Deadline deadline = limit.count() != 0 ? Deadline::in(limit) : Deadline::never();
    if (library_.config().polling_time != 0 && state() == State::connected) {
        Spin spin(signals, std::chrono::microseconds(library_.config().polling_time));
        while (spin.goes_on()) {
            if ((ret = attempt()) != -EAGAIN) {
                return ret;
            }
        }
    }
    const std::optional<Nanoseconds> most =
        library_.config().wake_up != 0
            ? std::optional<Nanoseconds>(std::chrono::milliseconds(library_.config().wake_up))
            : std::nullopt;
    Sleeper sleeper;
    if (sleeper.fd() < 0) {
        return -EMFILE;
    }
    sleeper.wait_on(wait_queue_);
    for (int polls = 0;; ++polls) {
        sleeper.clear();
        if (attendant != nullptr) {
            attendant->dispatch_events();
        }
        ret = attempt();
        if (ret != -EAGAIN) {
            return ret;
        }
        if (deadline.passed()) {
            return -EAGAIN;
        }
        const bool setup_may_sleep = attendant == nullptr || attendant->may_sleep();
        if ((!may_sleep(sleeper) || !setup_may_sleep) && polls < max_polls) {
            continue;
        }
        const int fd = attendant != nullptr ? attendant->fd() : wait_fd();
        pollfd fds[] = {{sleeper.fd(), POLLIN, 0}, {fd, POLLIN, 0}};
        timespec storage{};
        const timespec* left =
            polls < max_polls ? deadline.left(storage, most) : deadline.left(storage, std::chrono::milliseconds(1));
        polls = 0;
        note_sleep();
        const int slept = signals.sleep(fds, fd >= 0 ? 2 : 1, left);
        if (slept > 0) {
            counters_.woken();
            RSOCKET_PROBE(wake, counters_.fd(), slept);
        }
        if (slept == -ESHUTDOWN) {
            return slept;
        }
        if (slept == -EINTR && (deadline.limited() || !restarts_after_signal() || (has_part && has_part()))) {
            ret = attempt();
            return ret == -EAGAIN ? -EINTR : ret;
        }
    }
}

} // namespace rsockets
