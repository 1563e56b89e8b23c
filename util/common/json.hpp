// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// JSON as the tools write it: by nlohmann-json, with members in the order in which they are added, one object a line.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace util {

using Json = nlohmann::ordered_json;

// One line. Names of devices and programs may be no UTF-8: what JSON cannot hold is replaced, not thrown. A number that
// is not finite is null.
inline std::string json_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

} // namespace util
