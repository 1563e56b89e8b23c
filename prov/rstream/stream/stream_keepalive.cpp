// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a connection learns that its peer is gone without a word. Where the core's connection is one of the kernel's TCP,
// the kernel is asked to find out. Elsewhere the peer's adapter is asked, by a remote read of no bytes: an adapter
// answers it without its program, and without looking at a key (InfiniBand specification, C9-88), so no memory has to
// be readable for it. The same question tells, of data that is under way, whether it is acknowledged. A timer makes the
// descriptors readable on which programs sleep meanwhile.
#include "prov/rstream/stream/stream.hpp"

#include <cerrno>
#include <utility>

#include <sys/socket.h>
#include <sys/timerfd.h>

#include "prov/rstream/kernel_sockets.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

using Clock = std::chrono::steady_clock;

int Stream::set_keepalive(const KeepaliveSettings& settings) {
    const auto lock = pump_->lock(); // not while a connection is being completed
    if (lifecycle_.connected()) {
        if (const int ret = apply_keepalive(settings); ret != 0) {
            return ret;
        }
    }
    keepalive_wanted_ = settings;
    return 0;
}

int Stream::apply_keepalive(const KeepaliveSettings& settings) {
    KeepaliveSettings wanted = settings;
    if (!core_.properties().answers_empty_reads && wanted.timeout == default_user_timeout) {
        wanted.timeout = 0; // nobody can be asked, or the kernel has its own way to that
    }
    if (wanted == keepalive_applied_) {
        return 0;
    }
    const int ret = core_.properties().kernel_sockets        ? apply_kernel_keepalive(wanted)
                    : core_.properties().answers_empty_reads ? apply_own_keepalive(wanted)
                                                             : -FI_EOPNOTSUPP;
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "keepalive could not be set: %s\n", fi_strerror(-ret));
        return ret;
    }
    keepalive_applied_ = wanted;
    return 0;
}

int Stream::apply_kernel_keepalive(const KeepaliveSettings& settings) {
    if (!kernel_keepalive_.attached()) { // the core's queue did not lead to the socket
        sockaddr_storage local{};
        sockaddr_storage peer{};
        size_t length = sizeof(local);
        int ret = fi_getname(&core_.get()->fid, &local, &length);
        length = sizeof(peer);
        ret = ret != 0 ? ret : fi_getpeer(core_.get(), &peer, &length);
        if (ret != 0) {
            return ret;
        }
        kernel_keepalive_.attach(
            find_kernel_socket(reinterpret_cast<const sockaddr&>(local), reinterpret_cast<const sockaddr&>(peer)));
    }
    return kernel_keepalive_.apply(keepalive_applied_, settings);
}

int Stream::apply_own_keepalive(const KeepaliveSettings& settings) {
    const bool timed = settings.on() || settings.timeout != 0;
    if (timed && liveness_.timer_fd() < 0) {
        base::Descriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
        if (!timer.open()) {
            return -errno;
        }
        const int fd = timer.get();
        if (const int ret = wait_set_.add(fd); ret != 0) {
            return ret;
        }
        liveness_.set_timer(std::move(timer));
        pump_->watch(fd, this);
    }
    liveness_.start(settings, Clock::now());
    return 0;
}

void Stream::check_liveness() {
    switch (liveness_.check(Clock::now())) {
    case Liveness::Verdict::well:
        break;
    case Liveness::Verdict::ask:
        request_flush();
        break;
    case Liveness::Verdict::lost:
        fail(FI_ETIMEDOUT, "the peer does not answer");
        fi_shutdown(core_.get(), 0);
        break;
    }
}

// Posting side.
void Stream::post_probe() {
    if (!liveness_.begin_probe()) {
        return;
    }
    iovec iov{messages_.memory().buffer.data(), 0};
    fi_rma_iov remote{link_.peer_ring().address, 0, link_.peer_ring().key};
    void* desc = messages_.desc();
    fi_msg_rma message{};
    message.msg_iov = &iov;
    message.desc = &desc;
    message.iov_count = 1;
    message.addr = FI_ADDR_UNSPEC;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.context = liveness_.probe_context();
    if (const ssize_t ret = fi_readmsg(core_.get(), &message, FI_COMPLETION); ret != 0) {
        liveness_.probe_refused();
        if (ret != -FI_EAGAIN) {
            fail(FI_ECONNRESET, fi_strerror(static_cast<int>(-ret)));
        }
        return;
    }
    liveness_.probe_posted();
}

} // namespace rstream
