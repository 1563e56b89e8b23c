// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the tests of fi_getinfo share: hints and requests in short.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include <netinet/in.h>

#include "fabtests/common/streams.hpp"

namespace fabtests {

constexpr uint32_t version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);

inline Info hints_for(fi_ep_type type, const std::string& provider = "rstream") {
    Info hints(fi_allocinfo());
    hints->ep_attr->type = type;
    if (!provider.empty()) {
        hints->fabric_attr->prov_name = strdup(provider.c_str());
    }
    return hints;
}

// Of the core under test.
inline Info stream_hints() { return hints_for(FI_RSTREAM_EP_STREAM, core_name() + ";rstream"); }

inline int ask(Info& answer, const fi_info* hints, const char* node = nullptr, const char* service = nullptr,
               uint64_t flags = 0) {
    fi_info* list = nullptr;
    const int ret = fi_getinfo(version, node, service, flags, hints, &list);
    answer.reset(ret == 0 ? list : nullptr);
    return ret;
}

inline int ask(const fi_info* hints) {
    Info answer;
    return ask(answer, hints);
}

inline bool is_stream(const fi_info& info) { return info.ep_attr->protocol == FI_PROTO_RSTREAM; }

inline uint16_t port(const void* address) {
    const auto* any = static_cast<const sockaddr*>(address);
    return ntohs(any->sa_family == AF_INET6 ? static_cast<const sockaddr_in6*>(address)->sin6_port
                                            : static_cast<const sockaddr_in*>(address)->sin_port);
}

} // namespace fabtests
