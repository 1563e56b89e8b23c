// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include "rsockets/log.hpp"
#include "rsockets/option_sizes.hpp"

namespace rsockets {

namespace {

constexpr socklen_t longest_route = 4096; // bytes of path records, of 72 or less each

// Of keepalive, as the provider takes them: TCP's own limits.
constexpr size_t longest_silence = 32767000; // milliseconds
constexpr size_t most_questions = 127;

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

int give_int(int value, void* to, socklen_t* length) { return give(&value, sizeof(value), to, length); }

} // namespace

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

// Once connected, the sizes are what they are: reading the value back tells.
int Socket::set_size(const Option& option, const void* value, socklen_t length) {
    int wanted = 0;
    if (length < sizeof(wanted)) {
        return -EINVAL;
    }
    if (value == nullptr) {
        return -EFAULT;
    }
    memcpy(&wanted, value, sizeof(wanted));
    const auto member = configured(option);
    if (member == nullptr || (wanted < 0 && option.level == SOL_RDMA)) {
        return -EINVAL;
    }
    config_.*member = static_cast<size_t>(std::clamp(wanted, option.min, option.max));
    return 0;
}

int Socket::set_route(const void* value, socklen_t length) {
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

// Of an option that was set.
int Socket::take_effect(const Option& option) {
    Connection* present = connection();
    switch (option.effect) {
    case Option::Effect::none:
        return 0;
    case Option::Effect::cached: {
        const bool was_corked = cached_.corked;
        cached_.read(options_);
        if (was_corked && !cached_.corked && state() == State::connected) {
            (void)present->look_for_room(); // any call sends what was held back
        }
        return 0;
    }
    case Option::Effect::keepalive: {
        // A core that hides its socket has no such option.
        const int ret = present != nullptr && !lost_.load() ? apply_keepalive(*present) : 0;
        return ret == -FI_ENOENT ? -ENOPROTOOPT : ret;
    }
    case Option::Effect::family:
        v6_only_ = options_.value<int>(option.level, option.name) != 0;
        return 0;
    }
    return 0;
}

int Socket::set_option(int level, int name, const void* value, socklen_t length) {
    if (static_cast<int>(length) < 0) {
        return -EINVAL;
    }
    const Guard lock(mutex_);
    const Option* option = find_option(level, name);
    if (option != nullptr && option->place == Option::Place::size) {
        return set_size(*option, value, length);
    }
    if (option != nullptr && option->place == Option::Place::bytes) {
        return set_route(value, length);
    }
    if (level == SOL_RDMA) {
        return length < sizeof(int) ? -EINVAL : value == nullptr ? -EFAULT : -ENOPROTOOPT;
    }
    if (option != nullptr && option->effect == Option::Effect::family && family_ == AF_INET6 &&
        (reserved_.open() || state() != State::closed)) {
        return -EINVAL;
    }
    // The kernel says what is wrong with those that are not known, too.
    if (const int error = options_.set(level, name, value, length); error != 0) {
        return -error;
    }
    return option != nullptr ? take_effect(*option) : 0;
}

size_t Socket::size_of(const Option& option) const {
    const Connection* present = connection();
    const auto now = left_by_core(option);
    if (present != nullptr && now != nullptr) {
        return present->sizes().*now;
    }
    const auto member = configured(option);
    return member != nullptr ? config_.*member : 0;
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

int Socket::get_state(const Option& option, void* value, socklen_t* length) {
    if (option.level == IPPROTO_TCP) {
        return get_tcp_info(value, length);
    }
    switch (option.name) {
    case SO_RCVLOWAT:
        return give_int(static_cast<int>(low_water()), value, length);
    case SO_ACCEPTCONN:
        return give_int(state() == State::listening ? 1 : 0, value, length);
    case SO_ERROR:
        if (Connection* present = connection(); present != nullptr && state() == State::connected) {
            (void)events_connected(*present, 0); // an error may be on its way
        }
        if (state() != State::connecting) {
            outcome_.reset();
        }
        return give_int(take_error(), value, length);
    default:
        return -ENOPROTOOPT;
    }
}

int Socket::get_option(int level, int name, void* value, socklen_t* length) {
    if (length == nullptr) {
        return -EFAULT;
    }
    const Guard lock(mutex_);
    const Option* option = find_option(level, name);
    if (option == nullptr && level == SOL_RDMA) {
        return -ENOPROTOOPT;
    }
    if (option != nullptr && option->of_state) {
        return get_state(*option, value, length);
    }
    if (option != nullptr && option->place == Option::Place::size) {
        return give_int(static_cast<int>(size_of(*option)), value, length);
    }
    if (option != nullptr && option->place == Option::Place::bytes) {
        return give(route_.data(), static_cast<socklen_t>(route_.size()), value, length);
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
