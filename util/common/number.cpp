// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/number.hpp"

#include <charconv>

#include "util/common/failure.hpp"

namespace util {

namespace {

unsigned shift_of(char suffix) {
    switch (suffix) {
    case 'k':
    case 'K':
        return 10;
    case 'm':
    case 'M':
        return 20;
    case 'g':
    case 'G':
        return 30;
    default:
        return 0;
    }
}

} // namespace

uint64_t parse_number(const std::string& option, const std::string& text, uint64_t least, uint64_t most,
                      bool suffixes) {
    const char* const end = text.data() + text.size();
    uint64_t value = 0;
    auto [rest, error] = std::from_chars(text.data(), end, value);
    bool good = error == std::errc();
    unsigned shift = 0;
    if (good && suffixes && rest != end) {
        shift = shift_of(*rest);
        rest += shift != 0 ? 1 : 0;
    }
    good = good && rest == end && value <= (most >> shift) && (value << shift) >= least;
    if (!good) {
        fail("{} {}: not a number from {} to {}", option, text.empty() ? "''" : text, least, most);
    }
    return value << shift;
}

} // namespace util
