// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_setopt and fi_getopt of an endpoint. A new option is a line in the table. Values are taken as size_t, and in the
// widths in which the provider's ancestor had them: uint32_t for buffers, uint16_t for queues.
#include <cstring>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/domain.hpp"
#include "prov/rstream/endpoint.hpp"
#include "prov/rstream/log.hpp"
#include "prov/rstream/wire/limits.hpp"

namespace rstream {

namespace {

struct SizeOption {
    int name;
    size_t Settings::*member;
    size_t narrow; // bytes of the narrower form
    size_t min;    // a smaller value counts as this one
    size_t max;    // a larger one is refused, or, for a queue, counts as this one: the core caps it anyway
    bool cap;
};

constexpr size_t longest_linger = 3600000; // milliseconds

constexpr SizeOption size_options[] = {
    {FI_OPT_SEND_BUF_SIZE, &Settings::send_buf_size, sizeof(uint32_t), wire::min_buffer, wire::max_buffer, false},
    {FI_OPT_RECV_BUF_SIZE, &Settings::recv_buf_size, sizeof(uint32_t), wire::min_buffer, wire::max_buffer, false},
    {FI_OPT_TX_SIZE, &Settings::tx_size, sizeof(uint16_t), wire::min_queue, wire::max_queue, true},
    {FI_OPT_RX_SIZE, &Settings::rx_size, sizeof(uint16_t), wire::min_queue, wire::max_queue, true},
};

const SizeOption* find(int name) {
    for (const SizeOption& option : size_options) {
        if (option.name == name) {
            return &option;
        }
    }
    return nullptr;
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

int Endpoint::set_option(int name, const void* value, size_t length) {
    if (name == FI_OPT_RSTREAM_LINGER) {
        if (value == nullptr || length != sizeof(size_t) || load<size_t>(value) > longest_linger) {
            return -FI_EINVAL;
        }
        linger_.store(load<size_t>(value));
        return 0;
    }
    const SizeOption* option = find(name);
    if (option == nullptr) {
        return -FI_ENOPROTOOPT;
    }
    if (connection_) {
        return -FI_EOPBADSTATE;
    }
    if (value == nullptr || (length != sizeof(size_t) && length != option->narrow)) {
        return -FI_EINVAL;
    }
    size_t wanted = length == sizeof(size_t)     ? load<size_t>(value)
                    : length == sizeof(uint32_t) ? load<uint32_t>(value)
                                                 : load<uint16_t>(value);
    if (wanted == 0 || (wanted > option->max && !option->cap)) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "option %d: %zu is not in 1..%zu\n", name, wanted, option->max);
        return -FI_EINVAL;
    }
    settings_.*option->member = std::clamp(wanted, option->min, option->max);
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
        size_t room = 0;
        if (const int ret = domain_.cm_data_size(room); ret != 0) {
            return ret;
        }
        store<size_t>(value, room - std::min(room, wire::Hello::size));
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
        if (*length < sizeof(fi_rstream_status)) {
            return -FI_ETOOSMALL;
        }
        const fi_rstream_status status = connection_ ? connection_->status() : fi_rstream_status{};
        memcpy(value, &status, sizeof(status));
        *length = sizeof(status);
        return 0;
    }
    const SizeOption* option = find(name);
    if (option == nullptr) {
        return -FI_ENOPROTOOPT;
    }
    const size_t now = settings_.*option->member;
    if (*length >= sizeof(size_t)) {
        store<size_t>(value, now);
        *length = sizeof(size_t);
    } else if (*length == sizeof(uint32_t) && option->narrow == sizeof(uint32_t)) {
        store<uint32_t>(value, now);
    } else if (*length == sizeof(uint16_t) && option->narrow == sizeof(uint16_t)) {
        store<uint16_t>(value, now);
    } else {
        return -FI_ETOOSMALL;
    }
    return 0;
}

} // namespace rstream
