// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What base/precompiled.hpp is for the tools and the benchmarks: nlohmann-json takes the compiler 3 s a source.
#include "base/precompiled.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
