// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which backend a program runs on: the one that was asked for, or the one that fits the address.
#pragma once

#include <memory>
#include <optional>

#include "util/common/backend.hpp"
#include "util/common/program.hpp"

namespace util {

// A server has no remote address. What the backend cannot honour is a Failure that names the option and the backend
// that can.
std::unique_ptr<Backend> open_backend(const CommonOptions& common, const std::optional<Address>& local,
                                      const std::optional<Address>& remote, const PathSettings& path = {});

} // namespace util
