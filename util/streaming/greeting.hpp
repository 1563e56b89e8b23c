// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The 16 bytes that both ends exchange before each test, so that they start together. To rdma-core's programs they are
// any bytes, or those of the pattern with -T v. Without -T v ours say which test they are about to run, so that two of
// ours which differ find out at once.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "util/streaming/plan.hpp"

namespace streaming {

using Greeting = std::array<std::byte, 16>;

Greeting greet(const Test& test);
// What is wrong with what the peer said; empty if nothing is, or if the peer is not ours.
std::string disagreement(const Greeting& theirs, const Test& ours);

} // namespace streaming
