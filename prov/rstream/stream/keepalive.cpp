// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/keepalive.hpp"

#include <cerrno>
#include <utility>

#include <sys/socket.h>
#include <sys/timerfd.h>

#include "prov/rstream/kernel_sockets.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

int Keepalive::set(const KeepaliveSettings& settings, bool connected, const WatchTimer& watch) {
    if (connected) {
        if (const int ret = apply(settings, watch); ret != 0) {
            return ret;
        }
    }
    wanted_ = settings;
    return 0;
}

void Keepalive::start(int kernel_socket, const WatchTimer& watch) {
    kernel_.attach(kernel_socket);
    apply(wanted_, watch);
}

int Keepalive::apply(const KeepaliveSettings& settings, const WatchTimer& watch) {
    KeepaliveSettings wanted = settings;
    if (!core_.properties().answers_empty_reads && wanted.timeout == default_user_timeout) {
        wanted.timeout = 0; // no probe is possible, or the kernel has that timeout itself
    }
    if (wanted == applied_) {
        return 0;
    }
    const int ret = core_.properties().kernel_sockets        ? apply_by_kernel(wanted)
                    : core_.properties().answers_empty_reads ? apply_by_probes(wanted, watch)
                                                             : -FI_EOPNOTSUPP;
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "keepalive could not be set: %s\n", fi_strerror(-ret));
        return ret;
    }
    applied_ = wanted;
    return 0;
}

int Keepalive::apply_by_kernel(const KeepaliveSettings& settings) {
    if (!kernel_.attached()) { // not found through the core's queue
        sockaddr_storage local{};
        sockaddr_storage peer{};
        size_t length = sizeof(local);
        int ret = fi_getname(&core_.get()->fid, &local, &length);
        length = sizeof(peer);
        ret = ret != 0 ? ret : fi_getpeer(core_.get(), &peer, &length);
        if (ret != 0) {
            return ret;
        }
        kernel_.attach(
            find_kernel_socket(reinterpret_cast<const sockaddr&>(local), reinterpret_cast<const sockaddr&>(peer)));
    }
    return kernel_.apply(applied_, settings);
}

int Keepalive::apply_by_probes(const KeepaliveSettings& settings, const WatchTimer& watch) {
    const bool timed = settings.on() || settings.timeout != 0;
    if (timed && liveness_.timer_fd() < 0) {
        base::Descriptor timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
        if (!timer.open()) {
            return -errno;
        }
        if (const int ret = watch(timer.get()); ret != 0) {
            return ret;
        }
        liveness_.set_timer(std::move(timer));
    }
    liveness_.start(settings, std::chrono::steady_clock::now());
    return 0;
}

ssize_t Keepalive::post_probe(const wire::RemoteRing& peer, const RegisteredBuffer& local) {
    if (!liveness_.begin_probe()) {
        return 0;
    }
    iovec iov{local.buffer.data(), 0};
    fi_rma_iov remote{peer.address, 0, peer.key};
    void* desc = local.desc();
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
        return ret;
    }
    liveness_.probe_posted();
    return 0;
}

} // namespace rstream
