// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The addresses of a name in /etc/hosts. A preload library must not call the resolver: it allocates memory, loads
// libraries and opens sockets of its own. Needs only libc; safe in any thread and in signal handlers.
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

// Maximum number of addresses of one name; further ones are ignored.
inline constexpr size_t max_host_addresses = 8;

struct HostAddresses {
    std::array<HostAddress, max_host_addresses> all{};
    size_t count = 0;
};

// Letters, digits, hyphens, underscores and dots; at least one letter, and no hyphen or dot at the beginning.
bool is_host_name(std::string_view text);

// Reads the file, by default /etc/hosts. No addresses if it cannot be read; bytes beyond its first 4 MiB are ignored.
HostAddresses find_host(std::string_view name, const char* file = "/etc/hosts");

} // namespace preload
