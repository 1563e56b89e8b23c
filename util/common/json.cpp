// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/json.hpp"

#include <cmath>

namespace util {

std::string json_quoted(std::string_view text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
            quoted += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
            quoted += c;
        }
    }
    return quoted + '"';
}

Json& Json::put(std::string_view name, std::string_view value) {
    if (!members_.empty()) {
        members_ += ", ";
    }
    members_ += json_quoted(name);
    members_ += ": ";
    members_ += value;
    return *this;
}

// JSON has no infinity: what cannot be said is null.
Json& Json::add(std::string_view name, double value) {
    return put(name, std::isfinite(value) ? fmt::format("{:.6g}", value) : "null");
}

} // namespace util
