// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "rsockets/log.hpp"
#include "rsockets/probes.hpp"

namespace rsockets {

namespace {

// The segments of a message, consumed step by step.
class Segments {
  public:
    Segments(const iovec* iov, size_t count) : iov_(iov), count_(count) {
        for (size_t i = 0; i < count; ++i) {
            left_ += iov[i].iov_len;
        }
    }

    [[nodiscard]] size_t left() const { return left_; }

    void skip(size_t bytes) {
        left_ -= bytes;
        while (count_ != 0 && bytes >= iov_->iov_len - offset_) {
            bytes -= iov_->iov_len - offset_;
            offset_ = 0;
            ++iov_;
            --count_;
        }
        offset_ += bytes;
    }

    // The rest, for one call: whole segments, unless the first is partly consumed.
    std::pair<const iovec*, size_t> next() {
        if (offset_ == 0) {
            return {iov_, count_};
        }
        // With MSG_TRUNC, a segment may have no address, and then nothing is added to it.
        char* at = static_cast<char*>(iov_->iov_base);
        rest_ = {at == nullptr ? nullptr : at + offset_, iov_->iov_len - offset_};
        return {&rest_, 1};
    }

  private:
    const iovec* iov_;
    size_t count_;
    size_t offset_ = 0; // in the first
    size_t left_ = 0;
    iovec rest_{};
};

} // namespace

// False, and nothing changes, if another thread has given that connection up: the socket may have the next one by now.
bool Socket::note_loss(const Connection& of, int error) {
    {
        const Guard lock(mutex_);
        if (connection() != &of) {
            return false;
        }
        if (!ending_.lose(error)) {
            return true;
        }
    }
    RSOCKET_PROBE(reset, counters_.fd(), error);
    wait_queue_.notify_all(); // no descriptor signals what a call has found
    return true;
}

// The result of a call that the loss has ended: the error is reported once.
ssize_t Socket::fail_with_loss(const Connection& of, int error) {
    if (!note_loss(of, error)) {
        return -ECONNRESET; // as after tcp_disconnect
    }
    return -ending_.take_error();
}

// A call that has moved some bytes does not report what ended it, a loss or another thread's disconnect: the next one
// does, unless the next connect has begun.
void Socket::keep_for_next(ssize_t error, uint64_t began) {
    if (error >= 0 || error == -EAGAIN || error == -EINTR || error == -EPIPE) {
        return;
    }
    const Guard lock(mutex_);
    const uint64_t since = disconnects() - began;
    if (since == 0 ? ending_.lost.load() : since == 1 && state() == State::closed) {
        ending_.error.store(static_cast<int>(-error));
    }
}

ssize_t Socket::sendable(Connection*& out, uint64_t began) {
    const State now = state();
    Connection* present = connection();
    if (disconnects() != began) { // checked last: neither is of a later connection if it has not changed
        const int error = now == State::closed ? ending_.take_error() : 0;
        return error != 0 ? -error : -EPIPE;
    }
    switch (now) {
    case State::connecting:
        return -EAGAIN;
    case State::closed:
    case State::listening: {
        const int error = ending_.take_error();
        return error != 0 ? -error : -EPIPE;
    }
    case State::connected:
        break;
    }
    if (ending_.send_shut.load() || ending_.lost.load()) {
        if (present != nullptr) {
            find_loss(*present);
        }
        const int error = ending_.take_error();
        return error != 0 ? -error : -EPIPE;
    }
    out = present;
    return out != nullptr ? 0 : -EPIPE;
}

ssize_t Socket::sending_result(Connection& present, ssize_t sent, size_t length) {
    if (sent >= 0) {
        return sent;
    }
    if (sent == -FI_EAGAIN) {
        send_space_.starved.fetch_add(1);
        counters_.blocked();
        if (present.status().writable != 0) { // since then: who has polled meanwhile has found nothing new
            wait_queue_.notify_all();
        }
        return -EAGAIN;
    }
    if (sent == -FI_EPIPE) {
        if (ending_.send_shut.load() || ending_.lost.load()) {
            return -EPIPE;
        }
        const uint64_t flags = present.status().flags;
        if ((flags & FI_RSTREAM_PEER_RESET) != 0) {
            const ssize_t error = fail_with_loss(present, (flags & FI_RSTREAM_PEER_FINISHED) != 0 ? EPIPE : ECONNRESET);
            return error != 0 ? error : -EPIPE;
        }
        // The provider reports the cause of a loss once, possibly to another call. A receive always reports it.
        if ((flags & FI_RSTREAM_LOST) != 0 && present.poll_bytes() == -FI_ETIMEDOUT) {
            const ssize_t error = fail_with_loss(present, ETIMEDOUT);
            return error != 0 ? error : -EPIPE;
        }
        // The peer has closed. TCP detects that by the answer to a send: the first send after it succeeds, and is lost.
        return note_loss(present, EPIPE) ? static_cast<ssize_t>(length) : -ECONNRESET;
    }
    const ssize_t error = fail_with_loss(present, static_cast<int>(-sent));
    return error != 0 ? error : -EPIPE;
}

// One attempt; -EAGAIN if there is no space.
ssize_t Socket::send_now(const iovec* iov, size_t count, bool more, uint64_t began) {
    Connection* present = nullptr;
    if (const ssize_t error = sendable(present, began); error != 0 || present == nullptr) {
        return error;
    }
    if (Call::exiting()) {
        return -EAGAIN; // the call ends in its sleep
    }
    return sending_result(*present, present->send(iov, count, more), Segments(iov, count).left());
}

void Socket::note_sent(size_t bytes) {
    counters_.sent(bytes);
    if (!service_entry_.listed.load(std::memory_order_relaxed) && !service_entry_.listed.exchange(true)) {
        library_.service().serve(*this);
    }
    if (library_.service().dozing() && needs_calls()) {
        library_.service().rouse();
    }
}

Socket::Sent::~Sent() {
    if (bytes_ != 0) {
        try {
            socket_.note_sent(bytes_);
        } catch (const std::bad_alloc&) {
            log(Level::warn, "no memory: what was sent moves on by the program's calls alone");
        }
    }
}

ssize_t Socket::send(const iovec* iov, size_t count, int flags, uint64_t began) {
    if ((flags & MSG_OOB) != 0) {
        return -EOPNOTSUPP;
    }
    Segments segments(iov, count);
    const bool more = (flags & MSG_MORE) != 0 || cached_.corked.load(std::memory_order_relaxed);
    const bool wait = !nonblocking() && (flags & MSG_DONTWAIT) == 0;
    const size_t total = segments.left();
    if (Connection* present = total == 0 ? established() : nullptr; present != nullptr) {
        find_loss(*present);
        if (!ending_.send_shut.load() && !ending_.lost.load()) {
            return 0;
        }
    }
    SendSpaceWaiter waiter(send_space_, wait_queue_);
    size_t sent = 0;
    const Sent noted(*this, sent);
    const auto attempt = [&]() -> ssize_t {
        do {
            const auto [part, parts] = segments.next();
            waiter.begin();
            const ssize_t taken = send_now(part, parts, more, began);
            waiter.end(taken);
            if (taken < 0) {
                return taken;
            }
            sent += static_cast<size_t>(taken);
            segments.skip(static_cast<size_t>(taken));
        } while (segments.left() != 0);
        return 0;
    };
    ssize_t ret = attempt();
    if (ret == -EAGAIN && wait) {
        ret = repeat(true, Nanoseconds(cached_.send_timeout.load()), attempt, [&] { return sent != 0; });
    }
    if (sent != 0) {
        keep_for_next(ret, began);
        return static_cast<ssize_t>(sent);
    }
    return ret;
}

ssize_t Socket::discard(Connection& from, size_t length) {
    std::array<char, 1024> sink; // a signal handler may have little stack
    size_t gone = 0;
    while (gone < length) {
        const iovec iov{sink.data(), std::min(sink.size(), length - gone)};
        const ssize_t n = from.recv(&iov, 1);
        if (n <= 0) {
            return gone != 0 ? static_cast<ssize_t>(gone) : n;
        }
        gone += static_cast<size_t>(n);
    }
    return static_cast<ssize_t>(gone);
}

// One attempt. `wanted`: -EAGAIN while fewer bytes are available, unless no more will arrive.
ssize_t Socket::recv_now(const iovec* iov, size_t count, int flags, size_t wanted, uint64_t began) {
    const State now = state();
    Connection* present = connection();
    if (disconnects() != began) { // checked last, as in `sendable`
        return -EPIPE;            // as in the kernel, which leaves the error of the socket alone
    }
    switch (now) {
    case State::connecting:
        return -EAGAIN;
    case State::listening:
        return -ENOTCONN;
    case State::closed: {
        const int error = ending_.take_error();
        return error != 0 ? -error : ending_.receive_shut.load() || ending_.lost.load() ? 0 : -ENOTCONN;
    }
    case State::connected:
        break;
    }
    if (present == nullptr) {
        return -ENOTCONN;
    }
    if (Call::exiting()) {
        return -EAGAIN; // the call ends in its sleep
    }
    const bool peek = (flags & MSG_PEEK) != 0;
    size_t capacity = 0;
    for (size_t i = 0; i < count; ++i) {
        capacity += iov[i].iov_len;
    }
    if (wanted > 1) {
        const ssize_t there = present->poll_bytes();
        if (there > 0 && static_cast<size_t>(there) < wanted && !ending_.receive_shut.load() &&
            (present->status().flags & (FI_RSTREAM_PEER_FINISHED | FI_RSTREAM_PEER_RESET | FI_RSTREAM_LOST)) == 0) {
            return -EAGAIN;
        }
    }
    ssize_t n = 0;
    if (capacity == 0 || (peek && (flags & MSG_TRUNC) != 0)) {
        n = present->poll_bytes(); // nothing to copy, but EOF or an error may be reported
        n = n > 0 ? std::min(n, static_cast<ssize_t>(capacity)) : n;
    } else if ((flags & MSG_TRUNC) != 0) {
        n = discard(*present, capacity);
    } else {
        n = peek ? present->peek(iov, count) : present->recv(iov, count);
    }
    if (n >= 0) {
        if (!peek && n > 0) {
            counters_.received(static_cast<uint64_t>(n));
        }
        return n;
    }
    if (n == -FI_EAGAIN) {
        return ending_.receive_shut.load() ? 0 : -EAGAIN;
    }
    return fail_with_loss(*present, static_cast<int>(-n)); // EOF after that
}

ssize_t Socket::recv(const iovec* iov, size_t count, int flags) {
    if ((flags & MSG_OOB) != 0) {
        return state() == State::listening ? -ENOTCONN : -EINVAL; // as TCP without urgent data
    }
    if ((flags & MSG_ERRQUEUE) != 0) {
        return -EAGAIN;
    }
    const bool wait = !nonblocking() && (flags & MSG_DONTWAIT) == 0;
    const bool peek = (flags & MSG_PEEK) != 0;
    const uint64_t began = disconnects();
    Segments segments(iov, count);
    const size_t total = segments.left();
    const bool all = (flags & MSG_WAITALL) != 0;
    const auto limit = Nanoseconds(cached_.receive_timeout.load());
    if (!all || !wait || peek || total == 0) {
        const size_t least = all ? std::min(total, most_awaited()) : low_water();
        const size_t wanted = wait ? std::min(least, total) : 1;
        const auto attempt = [&] { return recv_now(iov, count, flags, wanted, began); };
        const auto has_part = [&] {
            Connection* present = established();
            return wanted > 1 && present != nullptr && disconnects() == began && present->poll_bytes() > 0;
        };
        const ssize_t ret = repeat(wait, limit, attempt, has_part);
        if (total == 0 && wait && (ret == -EAGAIN || ret == -EINTR)) {
            return 0; // as in tcp_recvmsg, which has all that it wanted after its first wait
        }
        // After the timeout, or a signal, the available bytes are returned.
        if ((ret == -EAGAIN || ret == -EINTR) && wanted > 1) {
            const ssize_t part = recv_now(iov, count, flags, 1, began);
            return part == -EAGAIN ? ret : part;
        }
        return ret;
    }
    const auto attempt = [&]() -> ssize_t {
        do {
            const auto [part, parts] = segments.next();
            const ssize_t n = recv_now(part, parts, flags, 1, began);
            if (n <= 0) {
                return n;
            }
            segments.skip(static_cast<size_t>(n));
        } while (segments.left() != 0);
        return 0;
    };
    const ssize_t ret = repeat(true, limit, attempt, [&] { return segments.left() != total; });
    const size_t got = total - segments.left();
    if (got == 0) {
        return ret;
    }
    keep_for_next(ret, began);
    return static_cast<ssize_t>(got);
}

bool Socket::needs_calls() {
    Connection* present = established();
    return present != nullptr && present->needs_calls();
}

Socket::Sending Socket::check_sending() {
    const uint64_t now = counters_.sends();
    if (now != service_entry_.sends_seen) {
        service_entry_.sends_seen = now;
        return Sending::busy;
    }
    const auto present_stays = keep_connection();
    service_entry_.listed.store(false); // first: a later send registers the socket again
    // With nothing left that waits for calls there is nothing to do: it is the program that looks for what arrives.
    if (Connection* present = established(); present != nullptr && present->needs_calls()) {
        if (present->may_sleep()) { // which moves data on
            pass_on(*present, nullptr);
        }
        if (present->needs_calls() && !service_entry_.listed.exchange(true)) {
            return Sending::waits;
        }
    }
    return Sending::over;
}

} // namespace rsockets
