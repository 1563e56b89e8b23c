// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Limits that both ends of a stream enforce on each other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rstream::wire {

constexpr size_t min_buffer = 4096; // bytes of a staging or receive ring
constexpr size_t max_buffer = size_t{1} << 30;
constexpr size_t min_queue = 4; // data messages in flight
constexpr size_t max_queue = 32768;
constexpr uint8_t min_control_credits = 4;
constexpr uint8_t control_credits = 16; // control messages in flight; one immediate can acknowledge 15 of them

constexpr size_t max_maps = 4096; // iomaps of one end that are announced to the other

} // namespace rstream::wire
