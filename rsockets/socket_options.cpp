// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include "rsockets/log.hpp"

namespace rsockets {

namespace {

constexpr int largest_buffer = 1 << 30;
constexpr int smallest_buffer = 4096;
constexpr int most_maps = 4096;           // that the provider takes
constexpr socklen_t longest_route = 4096; // bytes of path records, of 72 or less each

// Of keepalive, as the provider takes them: TCP's own limits.
constexpr size_t longest_silence = 32767000; // milliseconds
constexpr size_t most_questions = 127;

bool is_keepalive(int level, int name) {
    return (level == SOL_SOCKET && name == SO_KEEPALIVE) ||
           (level == IPPROTO_TCP &&
            (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL || name == TCP_KEEPCNT || name == TCP_USER_TIMEOUT));
}

// As the kernel gives an int: cut to the room.
int give(const void* from, socklen_t size, void* to, socklen_t* length) {
    if (to == nullptr || length == nullptr) {
        return -EFAULT;
    }
    if (static_cast<int>(*length) < 0) {
        return -EINVAL;
    }
    *length = std::min(*length, size);
    if (*length != 0) { // else there may be nothing at `from`
        memcpy(to, from, *length);
    }
    return 0;
}

constexpr int64_t longest_time = 1000000000; // seconds, some thirty years: more is for ever

int64_t nanoseconds(const timeval& time) {
    return time.tv_sec > longest_time ? 0 : int64_t{1000000000} * time.tv_sec + int64_t{1000} * time.tv_usec;
}

} // namespace

int Socket::get_int(int, int value, void* to, socklen_t* length) { return give(&value, sizeof(value), to, length); }

// What is needed at every call is kept where a call finds it.
void Socket::read_cached_options() {
    receive_timeout_.store(nanoseconds(options_.value<timeval>(SOL_SOCKET, SO_RCVTIMEO)));
    send_timeout_.store(nanoseconds(options_.value<timeval>(SOL_SOCKET, SO_SNDTIMEO)));
    low_water_.store(static_cast<size_t>(std::max(1, options_.value<int>(SOL_SOCKET, SO_RCVLOWAT))));
    corked_.store(options_.value<int>(IPPROTO_TCP, TCP_CORK) != 0);
    linger_ = options_.value<linger>(SOL_SOCKET, SO_LINGER);
}

size_t Socket::tcp_option(int name) const { return static_cast<size_t>(options_.value<int>(IPPROTO_TCP, name)); }

// TCP asks an idle peer only with SO_KEEPALIVE. TCP_USER_TIMEOUT is for data that is not acknowledged, and says besides
// when an idle peer is given up that is asked.
std::optional<Keepalive> Socket::keepalive() const {
    if (!options_.was_set(SOL_SOCKET, SO_KEEPALIVE) && !options_.was_set(IPPROTO_TCP, TCP_USER_TIMEOUT)) {
        return std::nullopt;
    }
    const size_t timeout = std::min(tcp_option(TCP_USER_TIMEOUT), longest_silence);
    Keepalive wanted;
    wanted.wanted = options_.was_set(SOL_SOCKET, SO_KEEPALIVE);
    wanted.user_timeout = timeout;
    if (options_.value<int>(SOL_SOCKET, SO_KEEPALIVE) != 0) {
        wanted.idle = 1000 * tcp_option(TCP_KEEPIDLE);
        wanted.interval = 1000 * tcp_option(TCP_KEEPINTVL);
        wanted.count = tcp_option(TCP_KEEPCNT);
        if (timeout != 0) { // the first question that is due by then and was not answered is the last
            const size_t after = timeout - std::min(timeout, wanted.idle);
            wanted.count = std::clamp<size_t>((after + wanted.interval - 1) / wanted.interval, 1, most_questions);
        }
    }
    return wanted;
}

int Socket::apply_keepalive(Connection& connection) const {
    const auto wanted = keepalive();
    const int ret = wanted ? connection.set_keepalive(*wanted) : 0;
    if (ret != 0) {
        log(Level::warn, "keepalive is not in force: %s", fi_strerror(-ret));
    }
    return ret;
}

int Socket::set_buffer(int name, const void* value, socklen_t length) {
    if (length < sizeof(int)) {
        return -EINVAL;
    }
    if (value == nullptr) {
        return -EFAULT;
    }
    int wanted = 0;
    memcpy(&wanted, value, sizeof(wanted));
    const auto size = static_cast<size_t>(std::clamp(wanted, smallest_buffer, largest_buffer));
    (name == SO_SNDBUF || name == SO_SNDBUFFORCE ? config_.send_buffer : config_.recv_buffer) = size;
    return 0; // once connected, the buffers are what they are: reading the value back tells
}

int Socket::set_rdma(int name, const void* value, socklen_t length) {
    if (name == RDMA_ROUTE) {
        if (value == nullptr && length != 0) {
            return -EFAULT;
        }
        if (length > longest_route) {
            return -EINVAL;
        }
        const auto* bytes = static_cast<const std::byte*>(value);
        route_.assign(bytes, bytes + length);
        return 0;
    }
    if (length < sizeof(int)) {
        return -EINVAL;
    }
    if (value == nullptr) {
        return -EFAULT;
    }
    int wanted = 0;
    memcpy(&wanted, value, sizeof(wanted));
    if (wanted < 0) {
        return -EINVAL;
    }
    const size_t size = std::clamp(wanted, 1, 65535);
    switch (name) {
    case RDMA_SQSIZE:
        config_.send_queue = size;
        return 0;
    case RDMA_RQSIZE:
        config_.recv_queue = size;
        return 0;
    case RDMA_INLINE:
        config_.inline_size = static_cast<size_t>(std::min(wanted, 65535));
        return 0;
    case RDMA_IOMAPSIZE:
        config_.iomap_size = static_cast<size_t>(std::min(wanted, most_maps));
        return 0;
    default:
        return -ENOPROTOOPT;
    }
}

int Socket::set_option(int level, int name, const void* value, socklen_t length) {
    if (static_cast<int>(length) < 0) {
        return -EINVAL;
    }
    const Guard lock(mutex_);
    if (level == SOL_RDMA) {
        return set_rdma(name, value, length);
    }
    if (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_RCVBUF)) {
        return set_buffer(name, value, length);
    }
    const bool v6_only = level == IPPROTO_IPV6 && name == IPV6_V6ONLY;
    if (v6_only && family_ == AF_INET6 && (reserved_.open() || state() != State::closed)) {
        return -EINVAL;
    }
    if (const int error = options_.set(level, name, value, length); error != 0) {
        return -error;
    }
    const bool was_corked = corked_.load();
    read_cached_options();
    if (Connection* present = connection(); is_keepalive(level, name) && present != nullptr && !lost_.load()) {
        // A core that hides its socket has no such option.
        if (const int ret = apply_keepalive(*present); ret != 0) {
            return ret == -FI_ENOENT ? -ENOPROTOOPT : ret;
        }
    }
    if (v6_only) {
        v6_only_ = options_.value<int>(level, name) != 0;
    }
    if (was_corked && !corked_.load() && state() == State::connected) {
        (void)connection()->look_for_room(); // any call sends what was held back
    }
    return 0;
}

int Socket::get_rdma(int name, void* value, socklen_t* length) {
    Connection* present = connection();
    const Sizes now = present != nullptr ? present->sizes() : sizes();
    switch (name) {
    case RDMA_SQSIZE:
        return get_int(name, static_cast<int>(now.send_queue), value, length);
    case RDMA_RQSIZE:
        return get_int(name, static_cast<int>(now.recv_queue), value, length);
    case RDMA_INLINE:
        return get_int(name, static_cast<int>(config_.inline_size), value, length);
    case RDMA_IOMAPSIZE:
        return get_int(name, static_cast<int>(now.maps), value, length);
    case RDMA_ROUTE:
        return give(route_.data(), static_cast<socklen_t>(route_.size()), value, length);
    default:
        return -ENOPROTOOPT;
    }
}

int Socket::get_tcp_info(void* value, socklen_t* length) {
    tcp_info info{};
    switch (state()) {
    case State::closed:
        info.tcpi_state = TCP_CLOSE;
        break;
    case State::listening:
        info.tcpi_state = TCP_LISTEN;
        info.tcpi_unacked = static_cast<uint32_t>(listener_->ready.size());
        info.tcpi_sacked = static_cast<uint32_t>(listener_->limit - 1);
        break;
    case State::connecting:
        info.tcpi_state = TCP_SYN_SENT;
        break;
    case State::connected: {
        (void)events_connected(*connection(), 0); // a reset may have come that nobody has looked at
        const auto status = connection()->status();
        const bool finished = (status.flags & FI_RSTREAM_PEER_FINISHED) != 0;
        info.tcpi_state = lost_.load()        ? TCP_CLOSE
                          : send_shut_.load() ? (finished ? TCP_CLOSE : TCP_FIN_WAIT2)
                          : finished          ? TCP_CLOSE_WAIT
                                              : TCP_ESTABLISHED;
        const Sizes sizes = connection()->sizes();
        info.tcpi_rcv_space = static_cast<uint32_t>(sizes.recv_buffer);
        break;
    }
    }
    return give(&info, sizeof(info), value, length);
}

int Socket::get_option(int level, int name, void* value, socklen_t* length) {
    if (length == nullptr) {
        return -EFAULT;
    }
    const Guard lock(mutex_);
    if (level == SOL_RDMA) {
        return get_rdma(name, value, length);
    }
    if (level == SOL_SOCKET) {
        Connection* present = connection();
        const Sizes now = present != nullptr ? present->sizes() : sizes();
        switch (name) {
        case SO_SNDBUF:
            return get_int(name, static_cast<int>(now.send_buffer), value, length);
        case SO_RCVBUF:
            return get_int(name, static_cast<int>(now.recv_buffer), value, length);
        case SO_RCVLOWAT:
            return get_int(name, static_cast<int>(low_water()), value, length);
        case SO_ACCEPTCONN:
            return get_int(name, state() == State::listening ? 1 : 0, value, length);
        case SO_ERROR: {
            if (present != nullptr && state() == State::connected) { // an error may be on its way
                (void)events_connected(*present, 0);
            }
            if (state() != State::connecting) {
                outcome_.reset();
            }
            return get_int(name, take_error(), value, length);
        }
        default:
            break;
        }
    }
    if (level == IPPROTO_TCP && name == TCP_INFO) {
        return get_tcp_info(value, length);
    }
    return -options_.get(level, name, value, length);
}

int Socket::control(unsigned long request, int* value) {
    if (value == nullptr) {
        return -EFAULT;
    }
    Connection* present = state() == State::connected ? connection() : nullptr;
    switch (request) {
    case FIONBIO:
        set_nonblocking(*value != 0);
        return 0;
    case FIONREAD: {
        if (state() == State::listening) {
            return -EINVAL;
        }
        const ssize_t there = present != nullptr ? present->look_for_bytes() : 0;
        *value = there > 0 ? static_cast<int>(there) : 0;
        return 0;
    }
    case SIOCOUTQ:
        if (state() == State::listening) {
            return -EINVAL;
        }
        if (present != nullptr) {
            (void)present->look_for_bytes();
        }
        *value = present != nullptr ? static_cast<int>(present->status().unsent) : 0;
        return 0;
    case SIOCATMARK:
        *value = 0;
        return 0;
    default:
        return -ENOTTY;
    }
}

} // namespace rsockets
