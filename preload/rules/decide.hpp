// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether the settings let a connection be upgraded, and after how many calls it is worth it.
#pragma once

#include "preload/connection/connection.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload {

// Reason::none: it may be.
Reason decide(const rendezvous::Ends& ends, Role role);

namespace policy {

// Calls that moved bytes, and bytes, after which a connection is worth an upgrade. Short ones never are. Others are,
// also where each wait is a sleep: half of a round trip of 64 B then takes 0.5 of kernel TCP's time, 0.65 on one
// processor alone (path_bench, 2026-11-23). Between processes of different users it takes 1.05 to 1.2, since they wake
// each other by frames; such a connection stays in memory all the same, as it would not come back when it is busier.
uint32_t worth_after_calls();
inline constexpr uint64_t worth_after_bytes = 64 << 10;
// After so many attempts in vain, it stays with the kernel.
inline constexpr uint32_t max_attempts = 6;
inline constexpr uint32_t retry_factor = 4;
inline constexpr uint32_t retry_factor_several = 2; // a process that passes a connection on is gone soon, as a rule
// While memory is ready, epoll_wait asks the kernel about the other members this often: RSPRELOAD_FAIRNESS, in
// microseconds.
uint64_t max_kernel_pause_ns();
// RSPRELOAD_UPGRADE=never
bool never();
// The chance, in thousands, that a write returns to the kernel, or switches anew: RSPRELOAD_UPGRADE=test, for tests.
uint32_t test_return_permille();
// All peers are taken for processes of other users: RSPRELOAD_UPGRADE=test:CALLS:0:strangers, for tests.
bool test_strangers();
bool test_fabric(); // by the fabric also on one host
bool fabric_allowed();

} // namespace policy
} // namespace preload
