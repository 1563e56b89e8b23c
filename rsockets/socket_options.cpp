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

#include "rsockets/listener.hpp"
#include "rsockets/log.hpp"
#include "rsockets/option_sizes.hpp"

namespace rsockets {

namespace {

// As the kernel stores a value: truncated to `length`.
int give(const void* from, socklen_t size, void* to, socklen_t* length) {
    if (to == nullptr || length == nullptr) {
        return -EFAULT;
    }
    if (static_cast<int>(*length) < 0) {
        return -EINVAL;
    }
    *length = std::min(*length, size);
    if (*length != 0) { // else `from` may be null
        memcpy(to, from, *length);
    }
    return 0;
}

int give_int(int value, void* to, socklen_t* length) { return give(&value, sizeof(value), to, length); }

} // namespace

int Socket::apply_keepalive(Connection& connection) const {
    const auto wanted = options_.keepalive();
    const int ret = wanted ? connection.set_keepalive(*wanted) : 0;
    if (ret != 0) {
        log(Level::warn, "keepalive is not in force: %s", fi_strerror(-ret));
    }
    return ret;
}

// Applies an option that was set.
int Socket::take_effect(const Option& option) {
    Connection* present = connection();
    switch (option.effect) {
    case Option::Effect::none:
        return 0;
    case Option::Effect::cached: {
        const bool was_corked = cached_.corked;
        cached_.read(options_.kernel());
        if (Connection* sending = established(); was_corked && !cached_.corked && sending != nullptr) {
            sending->progress_send(); // the data held back
        }
        return 0;
    }
    case Option::Effect::keepalive: {
        // A core that hides its socket lacks the option.
        const int ret = present != nullptr && !ending_.lost.load() ? apply_keepalive(*present) : 0;
        return ret == -FI_ENOENT ? -ENOPROTOOPT : ret;
    }
    case Option::Effect::family:
        options_.read_v6_only();
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
        return options_.set_size(*option, value, length);
    }
    if (option != nullptr && option->place == Option::Place::bytes) {
        return options_.set_route(value, length);
    }
    if (level == SOL_RDMA) {
        return length < sizeof(int) ? -EINVAL : value == nullptr ? -EFAULT : -ENOPROTOOPT;
    }
    if (option != nullptr && option->effect == Option::Effect::family && family_ == AF_INET6 &&
        (bound_.held() || state() != State::closed)) {
        return -EINVAL;
    }
    // The kernel yields the errors of unknown options too.
    if (const int error = options_.kernel().set(level, name, value, length); error != 0) {
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
    const size_t set = options_.size(option);
    const bool grows =
        set == 0 && (option.size == Option::Size::send_buffer || option.size == Option::Size::recv_buffer);
    return grows ? Config::grown_buffer : set;
}

int Socket::get_tcp_info(void* value, socklen_t* length) {
    tcp_info info{};
    switch (state()) {
    case State::closed:
        info.tcpi_state = TCP_CLOSE;
        break;
    case State::listening:
        info.tcpi_state = TCP_LISTEN;
        info.tcpi_unacked = static_cast<uint32_t>(listener_->ready().size());
        info.tcpi_sacked = static_cast<uint32_t>(listener_->limit() - 1);
        break;
    case State::connecting:
        info.tcpi_state = TCP_SYN_SENT;
        break;
    case State::connected: {
        const auto status = connection()->status();
        const bool finished = (status.flags & FI_RSTREAM_PEER_FINISHED) != 0;
        info.tcpi_state = ending_.lost.load()        ? TCP_CLOSE
                          : ending_.send_shut.load() ? (finished ? TCP_CLOSE : TCP_FIN_WAIT2)
                          : finished                 ? TCP_CLOSE_WAIT
                                                     : TCP_ESTABLISHED;
        const Sizes sizes = connection()->sizes();
        info.tcpi_rcv_space = static_cast<uint32_t>(sizes.recv_buffer);
        break;
    }
    }
    return give(&info, sizeof(info), value, length);
}

int Socket::get_state(const Option& option, void* value, socklen_t* length) {
    if (static_cast<int>(*length) < 0) {
        return -EINVAL; // first: an error is reported once
    }
    if (option.level == IPPROTO_TCP) {
        return get_tcp_info(value, length);
    }
    switch (option.name) {
    case SO_RCVLOWAT:
        return give_int(static_cast<int>(low_water()), value, length);
    case SO_ACCEPTCONN:
        return give_int(state() == State::listening ? 1 : 0, value, length);
    case SO_ERROR:
        if (state() != State::connecting) {
            attempt_.seen();
        }
        return give_int(ending_.take_error(), value, length);
    default:
        return -ENOPROTOOPT;
    }
}

int Socket::get_option(int level, int name, void* value, socklen_t* length) {
    if (length == nullptr) {
        return -EFAULT;
    }
    const Option* option = find_option(level, name);
    if (Connection* present = established(); option != nullptr && option->of_state && present != nullptr) {
        find_loss(*present);
    }
    const Guard lock(mutex_);
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
        return give(options_.route().data(), static_cast<socklen_t>(options_.route().size()), value, length);
    }
    return -options_.kernel().get(level, name, value, length);
}

int Socket::control(unsigned long request, int* value) {
    if (value == nullptr) {
        return -EFAULT;
    }
    Connection* present = established();
    switch (request) {
    case FIONBIO:
        set_nonblocking(*value != 0);
        return 0;
    case FIONREAD: {
        if (state() == State::listening) {
            return -EINVAL;
        }
        const ssize_t there = present != nullptr ? present->poll_bytes() : 0;
        *value = there > 0 ? static_cast<int>(there) : 0;
        return 0;
    }
    case SIOCOUTQ:
        if (state() == State::listening) {
            return -EINVAL;
        }
        if (present != nullptr) {
            present->progress_receive();
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
