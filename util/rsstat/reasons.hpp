// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Why sockets stay with the kernel, and what the operator can do about it.
#pragma once

#include <cstdint>
#include <string>

#include "util/rsstat/snapshot.hpp"

namespace rsstat {

// For programs: a lower-case word.
std::string name_of_reason(uint32_t reason);
// For people; empty: the socket is not with the kernel, or nothing prevents an upgrade yet.
std::string text_of_reason(const Socket& socket);
std::string text_of_reason(uint32_t reason);
std::string advice_for(uint32_t reason);

// A count for each reason, with advice.
std::string reasons_text(const Snapshot& snapshot);

} // namespace rsstat
