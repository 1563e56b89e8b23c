// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a connection learns that its peer is gone without a word. Where the core's connection is one of the kernel's TCP,
// the kernel is asked to find out. Elsewhere the peer's adapter is asked, by a remote read of no bytes: an adapter
// answers it without its program, and without looking at a key (InfiniBand specification, C9-88), so no memory has to
// be readable for it. The same question tells, of data that is under way, whether it is acknowledged. A timer makes the
// descriptors readable on which programs sleep meanwhile.
#include "prov/rstream/stream/stream.hpp"

#include <algorithm>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "prov/rstream/kernel_sockets.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/stream/kernel_keepalive.hpp"

namespace rstream {

namespace {

using Clock = std::chrono::steady_clock;

// How often a program that spins looks at the clock for data that nobody acknowledges, which is no hurry.
constexpr uint32_t looks_a_clock = 16;

// At the beginning of time: never.
Clock::time_point next_due(const Keepalive& keepalive, const UserTimeout& timeout) {
    return !keepalive.on() ? (timeout.on() ? timeout.due() : Clock::time_point{})
           : timeout.on()  ? std::min(keepalive.due(), timeout.due())
                           : keepalive.due();
}

} // namespace

int Stream::set_keepalive(const KeepaliveSettings& settings) {
    const auto lock = pump_->lock(); // not while a connection is being completed
    if (state_.load(std::memory_order_acquire) == State::connected) {
        if (const int ret = apply_keepalive(settings); ret != 0) {
            return ret;
        }
    }
    keepalive_settings_ = settings;
    return 0;
}

int Stream::apply_keepalive(const KeepaliveSettings& settings) {
    KeepaliveSettings wanted = settings;
    if (!properties_.answers_empty_reads && wanted.timeout == default_user_timeout) {
        wanted.timeout = 0; // nobody can be asked, or the kernel has its own way to that
    }
    if (wanted == keepalive_applied_) {
        return 0;
    }
    const int ret = properties_.kernel_sockets        ? apply_kernel_keepalive(wanted)
                    : properties_.answers_empty_reads ? apply_own_keepalive(wanted)
                                                      : -FI_EOPNOTSUPP;
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "keepalive could not be set: %s\n", fi_strerror(-ret));
        return ret;
    }
    keepalive_applied_ = wanted;
    return 0;
}

int Stream::apply_kernel_keepalive(const KeepaliveSettings& settings) {
    if (kernel_fd_ < 0) { // its queue does not tell
        sockaddr_storage local{};
        sockaddr_storage peer{};
        size_t length = sizeof(local);
        int ret = fi_getname(&ep_->fid, &local, &length);
        length = sizeof(peer);
        ret = ret != 0 ? ret : fi_getpeer(ep_.get(), &peer, &length);
        if (ret != 0) {
            return ret;
        }
        kernel_fd_ =
            find_kernel_socket(reinterpret_cast<const sockaddr&>(local), reinterpret_cast<const sockaddr&>(peer));
    }
    kernel_timeout_.store(kernel_user_timeout(settings));
    return kernel_fd_ < 0 ? kernel_fd_.load() : keep_kernel_socket_alive(kernel_fd_, keepalive_applied_, settings);
}

int Stream::apply_own_keepalive(const KeepaliveSettings& settings) {
    const bool timed = settings.on() || settings.timeout != 0;
    if (timed && timer_.load(std::memory_order_acquire) < 0) {
        base::Descriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
        if (timer.get() < 0) {
            return -errno;
        }
        const int fd = timer.get();
        if (const int ret = wait_set_.add(fd); ret != 0) {
            return ret;
        }
        timer_fd_ = std::move(timer);
        timer_.store(fd, std::memory_order_release);
        pump_->watch(fd, this);
    }
    const std::lock_guard lock(keepalive_mutex_);
    const auto now = Clock::now();
    keepalive_.start(settings, now);
    user_timeout_.start(settings.timeout, now);
    keepalive_on_.store(settings.on(), std::memory_order_release);
    user_timeout_on_.store(settings.timeout != 0, std::memory_order_release);
    arm_timer(next_due(keepalive_, user_timeout_));
    return 0;
}

// At the beginning of time: never.
void Stream::arm_timer(Clock::time_point when) {
    if (const int fd = timer_.load(std::memory_order_acquire); fd >= 0) {
        const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
        itimerspec spec{};
        spec.it_value = {since / 1000000000, since % 1000000000};
        timerfd_settime(fd, TFD_TIMER_ABSTIME, &spec, nullptr);
        timer_due_ = when;
    }
}

bool Stream::keepalive_due() {
    if (keepalive_on_.load(std::memory_order_acquire)) {
        return true;
    }
    if (!user_timeout_on_.load(std::memory_order_acquire)) {
        return false;
    }
    const uint32_t looks = timeout_looks_.load(std::memory_order_relaxed);
    timeout_looks_.store(looks + 1, std::memory_order_relaxed);
    return looks % looks_a_clock == 0;
}

void Stream::look_at_keepalive() {
    bool ask = false;
    bool lost = false;
    {
        const auto now = Clock::now();
        const std::lock_guard lock(keepalive_mutex_);
        if (!keepalive_.on() && !user_timeout_.on()) {
            return;
        }
        const bool flying = probe_flying_.load(std::memory_order_acquire);
        if (heard_.exchange(false, std::memory_order_acquire)) {
            keepalive_.heard(now);
            user_timeout_.heard();
        }
        if (own_moved_.exchange(false, std::memory_order_acquire)) {
            keepalive_.moved(now);
            if (!flying) { // iWARP is done with what its TCP has taken: behind a question, that says nothing
                user_timeout_.heard();
            }
        }
        const auto verdict = keepalive_.look(now);
        const auto of_data = user_timeout_.look(now, flying || sent_.load(std::memory_order_relaxed));
        lost = verdict == Keepalive::Verdict::lost || of_data == UserTimeout::Verdict::lost;
        ask = verdict == Keepalive::Verdict::ask || of_data == UserTimeout::Verdict::ask;
        if (!lost && now >= timer_due_) { // else it is set early enough, and what came since costs it nothing
            arm_timer(next_due(keepalive_, user_timeout_));
        }
    }
    if (lost) {
        fail(FI_ETIMEDOUT, "the peer does not answer");
        fi_shutdown(ep_.get(), 0);
    } else if (ask) {
        probe_wanted_.store(true, std::memory_order_release);
        kick();
    }
}

void Stream::stop_keepalive() {
    const std::lock_guard lock(keepalive_mutex_);
    keepalive_.stop();
    user_timeout_.stop();
    keepalive_on_.store(false, std::memory_order_release);
    user_timeout_on_.store(false, std::memory_order_release);
    arm_timer({});
}

// Posting side.
void Stream::post_probe() {
    if (probe_flying_.load(std::memory_order_acquire)) {
        probe_wanted_.store(false, std::memory_order_relaxed); // its answer will do
        return;
    }
    iovec iov{messages_.buffer.data(), 0};
    fi_rma_iov remote{link_.peer_ring().address, 0, link_.peer_ring().key};
    void* desc = messages_.desc();
    fi_msg_rma message{};
    message.msg_iov = &iov;
    message.desc = &desc;
    message.iov_count = 1;
    message.addr = FI_ADDR_UNSPEC;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.context = &probe_context_;
    probe_flying_.store(true, std::memory_order_release);
    const bool sent = sent_.exchange(false, std::memory_order_relaxed);
    const ssize_t ret = fi_readmsg(ep_.get(), &message, FI_COMPLETION);
    if (ret != 0) {
        probe_flying_.store(false, std::memory_order_release);
        sent_.store(sent, std::memory_order_relaxed);
        if (ret != -FI_EAGAIN) {
            fail(FI_ECONNRESET, fi_strerror(static_cast<int>(-ret)));
        }
        return; // asked again after an interval
    }
    probe_wanted_.store(false, std::memory_order_relaxed);
    const std::lock_guard lock(keepalive_mutex_);
    keepalive_.posted();
}

} // namespace rstream
