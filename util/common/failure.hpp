// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What ends a program, or one of its connections: one line that names what is bad and says what to do about it.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace util {

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <class... Arguments> [[noreturn]] void fail(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    throw Failure(fmt::format(text, std::forward<Arguments>(arguments)...));
}

// How both backends call a refusal, and what a client may look for then.
constexpr const char* refused = "connection refused";
inline std::string refusal_hint(const std::string& reason) {
    return reason.starts_with(refused) ? "; does a server listen there, on this port and this backend?" : "";
}

} // namespace util
