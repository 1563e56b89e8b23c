// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_setopt and fi_getopt of an endpoint. A new option is a line in the table. Values are accepted as size_t, and in
// the widths that the provider's predecessor used: uint32_t for buffers, uint16_t for queues.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/domain.hpp"
#include "prov/rstream/endpoint.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/status_option.hpp"
#include "prov/rstream/wire/limits.hpp"

namespace rstream {

namespace {

struct SizeOption {
    int name;
    size_t Settings::*member;
    size_t narrow; // bytes of the narrower form
    size_t min;    // a smaller value is raised to this one
    size_t max;    // a larger value is refused, or, if `cap`, reduced to this one: the core caps queues anyway
    bool cap;
    size_t Settings::*limit = nullptr;           // of resizes; a size that is set turns them off
    size_t (Stream::*present)() const = nullptr; // the size after resizes
};

struct KeepaliveOption {
    int name;
    size_t KeepaliveSettings::*member;
    size_t min;
    size_t max;
};

constexpr KeepaliveOption keepalive_options[] = {
    {FI_OPT_RSTREAM_KEEPALIVE_IDLE, &KeepaliveSettings::idle, 0, keepalive_time_max},
    {FI_OPT_RSTREAM_KEEPALIVE_INTERVAL, &KeepaliveSettings::interval, 1, keepalive_time_max},
    {FI_OPT_RSTREAM_KEEPALIVE_COUNT, &KeepaliveSettings::count, 1, keepalive_count_max},
    {FI_OPT_RSTREAM_USER_TIMEOUT, &KeepaliveSettings::timeout, 0, keepalive_time_max},
};

constexpr size_t longest_linger = 3600000; // milliseconds

constexpr SizeOption size_options[] = {
    {FI_OPT_SEND_BUF_SIZE, &Settings::send_buf_size, sizeof(uint32_t), wire::min_buffer, wire::max_buffer, false,
     &Settings::send_limit, &Stream::send_buf_size},
    {FI_OPT_RECV_BUF_SIZE, &Settings::recv_buf_size, sizeof(uint32_t), wire::min_buffer, wire::max_buffer, false,
     &Settings::recv_limit, &Stream::recv_buf_size},
    {FI_OPT_TX_SIZE, &Settings::tx_size, sizeof(uint16_t), wire::min_queue, wire::max_queue, true},
    {FI_OPT_RX_SIZE, &Settings::rx_size, sizeof(uint16_t), wire::min_queue, wire::max_queue, true},
    {FI_OPT_RSTREAM_MAPS, &Settings::maps, sizeof(size_t), 0, wire::max_maps, true},
};

template <class Options> auto find(const Options& options, int name) -> decltype(std::data(options)) {
    const auto* found =
        std::find_if(std::begin(options), std::end(options), [name](const auto& o) { return o.name == name; });
    return found != std::end(options) ? found : nullptr;
}

template <class T> size_t load(const void* value) {
    T narrow;
    memcpy(&narrow, value, sizeof(T));
    return narrow;
}

template <class T> void store(void* to, size_t value) {
    const T narrow = static_cast<T>(value);
    memcpy(to, &narrow, sizeof(T));
}

} // namespace

namespace {

// 0 or -FI_EINVAL. Every value may also be a size_t.
int load_any(const void* value, size_t length, size_t narrow, size_t& out) {
    if (value == nullptr || (length != sizeof(size_t) && length != narrow)) {
        return -FI_EINVAL;
    }
    out = length == sizeof(size_t)     ? load<size_t>(value)
          : length == sizeof(uint32_t) ? load<uint32_t>(value)
                                       : load<uint16_t>(value);
    return 0;
}

int store_any(void* to, size_t* length, size_t narrow, size_t value) {
    if (*length >= sizeof(size_t)) {
        store<size_t>(to, value);
        *length = sizeof(size_t);
    } else if (*length == sizeof(uint32_t) && narrow == sizeof(uint32_t)) {
        store<uint32_t>(to, value);
    } else if (*length == sizeof(uint16_t) && narrow == sizeof(uint16_t)) {
        store<uint16_t>(to, value);
    } else {
        return -FI_ETOOSMALL;
    }
    return 0;
}

} // namespace

int Endpoint::set_option(int name, const void* value, size_t length) {
    if (name == FI_OPT_RSTREAM_LINGER) {
        if (value == nullptr || length != sizeof(size_t) || load<size_t>(value) > longest_linger) {
            return -FI_EINVAL;
        }
        linger_.store(load<size_t>(value));
        return 0;
    }
    size_t wanted = 0;
    if (const auto* option = find(keepalive_options, name)) {
        if (const int ret = load_any(value, length, sizeof(uint32_t), wanted); ret != 0) {
            return ret;
        }
        if (wanted < option->min || wanted > option->max) {
            RSTREAM_WARN(FI_LOG_EP_CTRL, "keepalive option: %zu is not in %zu..%zu\n", wanted, option->min,
                         option->max);
            return -FI_EINVAL;
        }
        const base::Guard lock(setting_);
        KeepaliveSettings changed = settings_.keepalive;
        changed.*option->member = wanted;
        if (const int ret = stream() != nullptr ? stream()->set_keepalive(changed) : 0; ret != 0) {
            return ret;
        }
        settings_.keepalive = changed;
        return 0;
    }
    const auto* option = find(size_options, name);
    if (option == nullptr) {
        return -FI_ENOPROTOOPT;
    }
    const base::Guard lock(setting_);
    if (connection_) {
        return -FI_EOPBADSTATE;
    }
    if (const int ret = load_any(value, length, option->narrow, wanted); ret != 0) {
        return ret;
    }
    if ((wanted == 0 && option->min != 0) || (wanted > option->max && !option->cap)) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "option %d: %zu is not in 1..%zu\n", name, wanted, option->max);
        return -FI_EINVAL;
    }
    settings_.*option->member = std::clamp(wanted, option->min, option->max);
    if (option->limit != nullptr) {
        settings_.*option->limit = 0;
    }
    return 0;
}

int Endpoint::get_option(int name, void* value, size_t* length) {
    if (value == nullptr || length == nullptr) {
        return -FI_EINVAL;
    }
    if (name == FI_OPT_CM_DATA_SIZE) {
        if (*length < sizeof(size_t)) {
            return -FI_ETOOSMALL;
        }
        size_t capacity = 0;
        if (const int ret = domain_.cm_data_size(capacity); ret != 0) {
            return ret;
        }
        store<size_t>(value, capacity - std::min(capacity, wire::Hello::size));
        *length = sizeof(size_t);
        return 0;
    }
    if (name == FI_OPT_RSTREAM_LINGER) {
        if (*length < sizeof(size_t)) {
            return -FI_ETOOSMALL;
        }
        store<size_t>(value, linger_.load());
        *length = sizeof(size_t);
        return 0;
    }
    if (name == FI_OPT_RSTREAM_STATUS) {
        return store_status(stream() != nullptr ? stream()->status() : fi_rstream_status{}, value, length);
    }
    if (const auto* option = find(keepalive_options, name)) {
        const base::Guard lock(setting_);
        return store_any(value, length, sizeof(uint32_t), settings_.keepalive.*option->member);
    }
    const auto* option = find(size_options, name);
    if (option == nullptr) {
        return -FI_ENOPROTOOPT;
    }
    const size_t now =
        stream() != nullptr && option->present != nullptr ? (stream()->*option->present)() : settings_.*option->member;
    return store_any(value, length, option->narrow, now);
}

} // namespace rstream
