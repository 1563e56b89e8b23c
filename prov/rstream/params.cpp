// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/params.hpp"

#include <string_view>

#include "prov/rstream/log.hpp"
#include "prov/rstream/stream/keepalive_timer.hpp"
#include "prov/rstream/wire/limits.hpp"

namespace rstream {

namespace {

struct SizeParam {
    const char* name;
    size_t Params::*member;
    size_t min;
    size_t max;
    const char* help;
};

constexpr SizeParam sizes[] = {
    {"send_buf_size", &Params::send_buf_size, wire::min_buffer, wire::max_buffer,
     "Size of an endpoint's send buffer in bytes, 4096 to 1073741824 (default: %zu)"},
    {"recv_buf_size", &Params::recv_buf_size, wire::min_buffer, wire::max_buffer,
     "Size of an endpoint's receive buffer in bytes, 4096 to 1073741824 (default: %zu)"},
    {"max_buf_size", &Params::max_buf_size, 0, wire::max_buffer,
     "Size in bytes up to which the buffers of a busy endpoint grow, if no size was set for them; "
     "0 to 1073741824, 0: they do not (default: %zu)"},
    {"shrink_timeout", &Params::shrink_timeout, 0, 3600000,
     "Milliseconds with little traffic after which buffers that have grown return to their first size, "
     "0 (never) to 3600000 (default: %zu)"},
    {"tx_size", &Params::tx_size, wire::min_queue, wire::max_queue,
     "Operations that an endpoint keeps in flight on its core, 4 to 32768 (default: %zu)"},
    {"rx_size", &Params::rx_size, wire::min_queue, wire::max_queue,
     "Messages that the peer may have in flight to an endpoint, 4 to 32768 (default: %zu)"},
    {"linger", &Params::linger, 0, 3600000,
     "Milliseconds that closing an endpoint or a domain waits for a peer that does not take what was sent, "
     "0 to 3600000 (default: %zu)"},
    {"connect_timeout", &Params::connect_timeout, 0, 3600000,
     "Milliseconds that connecting waits for the peer's answer, 0 (as long as the core does) to 3600000 "
     "(default: %zu)"},
    {"handshake_timeout", &Params::handshake_timeout, 1, 3600000,
     "Milliseconds that a passive endpoint on tcp waits for the request of a client that has connected, 1 to 3600000 "
     "(default: %zu)"},
    {"keepalive_idle", &Params::keepalive_idle, 0, keepalive_time_max,
     "Milliseconds of silence after which a peer is probed, 0 (never) to 32767000 (default: %zu)"},
    {"keepalive_interval", &Params::keepalive_interval, 1, keepalive_time_max,
     "Milliseconds for the answer to each keepalive probe, 1 to 32767000 (default: %zu)"},
    {"keepalive_count", &Params::keepalive_count, 1, keepalive_count_max,
     "Probes without an answer, in a row, after which the connection is lost, 1 to 127 (default: %zu)"},
    {"user_timeout", &Params::user_timeout, 0, keepalive_time_max,
     "Milliseconds after which unacknowledged data ends the connection, 0 (as long as the core retransmits) to "
     "32767000 (default: %zu)"},
};

std::vector<std::string> split(std::string_view list) {
    std::vector<std::string> names;
    while (!list.empty()) {
        const size_t comma = std::min(list.find_first_of(", "), list.size());
        if (comma != 0) {
            names.emplace_back(list.substr(0, comma));
        }
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return names;
}

} // namespace

std::string list_of(const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) {
        list += (list.empty() ? "" : ",") + name;
    }
    return list;
}

void Params::define() {
    const Params defaults;
    fi_param_define(&provider, "core", FI_PARAM_STRING,
                    "Core providers that the stream may run on, in order of preference, separated by commas "
                    "(default: %s)",
                    list_of(defaults.cores).c_str());
    for (const SizeParam& p : sizes) {
        fi_param_define(&provider, p.name, FI_PARAM_SIZE_T, p.help, defaults.*p.member);
    }
    fi_param_define(&provider, "immediates", FI_PARAM_BOOL,
                    "Announce data by the immediate of a write where the core has one; if off, always by a message "
                    "behind the write, as on iWARP (default: yes)");
}

Params Params::load() {
    Params params;
    char* list = nullptr;
    if (fi_param_get_str(&provider, "core", &list) == 0 && list != nullptr) {
        auto names = split(list);
        if (names.empty()) {
            RSTREAM_WARN(FI_LOG_CORE, "FI_RSTREAM_CORE names no core provider: using %s\n",
                         list_of(params.cores).c_str());
        } else {
            params.cores = std::move(names);
        }
    }
    for (const SizeParam& p : sizes) {
        size_t value = 0;
        if (fi_param_get_size_t(&provider, p.name, &value) != 0) {
            continue;
        }
        if (value < p.min || value > p.max) {
            RSTREAM_WARN(FI_LOG_CORE, "parameter %s: %zu is not in %zu..%zu: using %zu\n", p.name, value, p.min, p.max,
                         params.*p.member);
            continue;
        }
        params.*p.member = value;
        params.send_buf_fixed = params.send_buf_fixed || p.member == &Params::send_buf_size;
        params.recv_buf_fixed = params.recv_buf_fixed || p.member == &Params::recv_buf_size;
    }
    int immediates = 1;
    if (fi_param_get_bool(&provider, "immediates", &immediates) == 0) {
        params.immediates = immediates != 0;
    }
    return params;
}

} // namespace rstream
