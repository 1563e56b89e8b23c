// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// An error that ends a program, or one of its connections: one line that names the problem and its remedy.
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

// The text that both backends use for a refused connection, and the hint that a client adds to it.
constexpr const char* refused = "connection refused";
inline std::string refusal_hint(const std::string& reason) {
    return reason.starts_with(refused) ? "; does a server listen there, on this port and this backend?" : "";
}

} // namespace util
