// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Numbers of a command line.
#pragma once

#include <cstdint>
#include <string>

namespace util {

// A decimal number, with K, M or G (of 1024) behind it if suffixes are meant. What is none, or is out of range, is a
// Failure that names the option.
uint64_t parse_number(const std::string& option, const std::string& text, uint64_t least, uint64_t most,
                      bool suffixes = false);

} // namespace util
