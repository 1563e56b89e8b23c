// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The addresses that /etc/hosts gives a name. A preload library must not call the resolver: it allocates memory, loads
// libraries and makes sockets of its own. Needs nothing but libc; safe in any thread and in signal handlers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace preload {

struct HostAddress {
    bool ipv6 = false;
    std::array<uint8_t, 16> bytes{}; // IPv4: the first four
};

// What one name can have; further addresses are not looked at.
inline constexpr size_t max_host_addresses = 8;

struct HostAddresses {
    std::array<HostAddress, max_host_addresses> all{};
    size_t count = 0;
};

// Letters, digits, hyphens, underscores and dots, as host names have them, and not digits and dots alone.
bool is_host_name(std::string_view text);

// Reads the file, by default /etc/hosts. None are found if it cannot be read; what lies beyond its first 4 MiB does not
// count.
HostAddresses find_host(std::string_view name, const char* file = "/etc/hosts");

} // namespace preload
