// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Parses numbers of a command line.
#pragma once

#include <cstdint>
#include <string>

namespace util {

// A decimal number, with suffix K, M or G (units of 1024) if suffixes are allowed. Throws a Failure that names the
// option if it is invalid or out of range.
uint64_t parse_number(const std::string& option, const std::string& text, uint64_t least, uint64_t most,
                      bool suffixes = false);

} // namespace util
