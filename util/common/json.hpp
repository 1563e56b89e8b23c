// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One JSON object, member by member, in the order in which they are added.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace util {

std::string json_quoted(std::string_view text);

class Json {
  public:
    Json& add(std::string_view name, std::string_view text) { return put(name, json_quoted(text)); }
    Json& add(std::string_view name, const char* text) { return add(name, std::string_view(text)); }
    Json& add(std::string_view name, bool value) { return put(name, value ? "true" : "false"); }
    Json& add(std::string_view name, std::integral auto value) { return put(name, fmt::format("{}", value)); }
    Json& add(std::string_view name, double value);
    Json& add(std::string_view name, const Json& object) { return put(name, object.text()); }
    [[nodiscard]] std::string text() const { return "{" + members_ + "}"; }

  private:
    Json& put(std::string_view name, std::string_view value);

    std::string members_;
};

} // namespace util
