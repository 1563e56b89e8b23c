// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The 16 bytes that both ends exchange before each test, to start together. For rdma-core's programs they have no
// meaning, or are those of the pattern with -T v. Without -T v, this package sends the parameters of the test, so that
// two of its ends detect a mismatch at once.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "util/streaming/plan.hpp"

namespace streaming {

using Greeting = std::array<std::byte, 16>;

Greeting greet(const Test& test);
// The mismatch between the peer's greeting and this test; empty if there is none, or if the peer is not of this
// package.
std::string disagreement(const Greeting& theirs, const Test& ours);

} // namespace streaming
