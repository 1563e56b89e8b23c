// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/option_values.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "rsockets/option_sizes.hpp"

namespace rsockets {

namespace {

constexpr socklen_t longest_route = 4096; // bytes of path records, of 72 or less each

// Keepalive limits of the provider, which are TCP's own.
constexpr size_t longest_silence = 32767000; // milliseconds
constexpr size_t most_questions = 127;

} // namespace

OptionValues::OptionValues(int family, const Config& defaults) : kernel_(family), config_(defaults) {
    if (family == AF_INET6) {
        read_v6_only(); // the system's default
    }
}

void OptionValues::inherit(const OptionValues& listener) {
    kernel_.inherit(listener.kernel_);
    v6_only_ = listener.v6_only_;
    for (const Option& option : option_table) {
        if (const auto member = configured(option); member != nullptr && option.inherited) {
            config_.*member = listener.config_.*member;
        }
    }
}

void OptionValues::read_v6_only() { v6_only_ = kernel_.value<int>(IPPROTO_IPV6, IPV6_V6ONLY) != 0; }

// TCP probes an idle peer only with SO_KEEPALIVE. TCP_USER_TIMEOUT is for unacknowledged data, and also sets when an
// idle peer that is probed is given up.
std::optional<Keepalive> OptionValues::keepalive() const {
    if (!kernel_.was_set(SOL_SOCKET, SO_KEEPALIVE) && !kernel_.was_set(IPPROTO_TCP, TCP_USER_TIMEOUT)) {
        return std::nullopt;
    }
    const size_t timeout = std::min(tcp(TCP_USER_TIMEOUT), longest_silence);
    Keepalive wanted;
    wanted.wanted = kernel_.was_set(SOL_SOCKET, SO_KEEPALIVE);
    wanted.user_timeout = timeout;
    if (kernel_.value<int>(SOL_SOCKET, SO_KEEPALIVE) != 0) {
        wanted.idle = 1000 * tcp(TCP_KEEPIDLE);
        wanted.interval = 1000 * tcp(TCP_KEEPINTVL);
        wanted.count = tcp(TCP_KEEPCNT);
        if (timeout != 0) { // the first unanswered probe due by then is the last
            const size_t after = timeout - std::min(timeout, wanted.idle);
            wanted.count = std::clamp<size_t>((after + wanted.interval - 1) / wanted.interval, 1, most_questions);
        }
    }
    return wanted;
}

// On a connected socket, the sizes stay as they are: getsockopt(2) returns the actual ones.
int OptionValues::set_size(const Option& option, const void* value, socklen_t length) {
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

int OptionValues::set_route(const void* value, socklen_t length) {
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

size_t OptionValues::size(const Option& option) const {
    const auto member = configured(option);
    return member != nullptr ? config_.*member : 0;
}

Sizes OptionValues::sizes() const {
    return {config_.send_buffer, config_.recv_buffer, config_.send_queue, config_.recv_queue, config_.iomap_size};
}

} // namespace rsockets
