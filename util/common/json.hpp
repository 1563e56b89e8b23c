// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// JSON output of the tools: by nlohmann-json, with members in the order in which they are added, one object a line.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace util {

using Json = nlohmann::ordered_json;

// One line. Names of devices and programs may be invalid UTF-8: invalid bytes are replaced, without an exception. A
// number that is not finite becomes null.
inline std::string json_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

} // namespace util
