// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Selects the backend: the one that was requested, or the one that fits the address.
#pragma once

#include <memory>
#include <optional>

#include "util/common/backend.hpp"
#include "util/common/program.hpp"

namespace util {

// A server has no remote address. Throws a Failure that names the option and a backend that supports it, if this
// backend does not.
std::unique_ptr<Backend> open_backend(const CommonOptions& common, const std::optional<Address>& local,
                                      const std::optional<Address>& remote, const PathSettings& path = {});

} // namespace util
