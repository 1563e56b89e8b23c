// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether the settings allow an upgrade of a connection, and after how many calls it pays.
#pragma once

#include "preload/connection/connection.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload {

// Reason::none: it is allowed.
Reason decide(const rendezvous::Ends& ends, Role role);

namespace policy {

// Numbers of byte-moving calls, and of bytes, after which an upgrade pays. Short connections do not reach them. Others
// gain, even where each wait is a sleep: half of a round trip of 64 B then takes 0.5 of kernel TCP's time, 0.65 on one
// processor alone (path_bench, 2026-11-23). Between processes of different users it takes 1.05 to 1.2, since they wake
// each other by frames; such a connection stays in memory all the same, as it would not come back when it is busier.
uint32_t worth_after_calls();
inline constexpr uint64_t worth_after_bytes = 64 << 10;
// After this many failed attempts, it stays with the kernel.
inline constexpr uint32_t max_attempts = 6;
inline constexpr uint32_t retry_factor = 4;
inline constexpr uint32_t retry_factor_several = 2; // a process that passes a connection on usually ends soon
// While memory is ready, epoll_wait polls the kernel for the other members at this interval: RSPRELOAD_FAIRNESS, in
// microseconds.
uint64_t max_kernel_pause_ns();
// RSPRELOAD_UPGRADE=never
bool never();
// The probability, per mille, that a write returns to the kernel, or switches again: RSPRELOAD_UPGRADE=test, for tests.
uint32_t test_return_permille();
// Treats all peers as processes of other users: RSPRELOAD_UPGRADE=test:CALLS:0:strangers, for tests. Several such words
// may follow each other.
bool test_strangers();
bool test_fabric();  // uses the fabric also on one host
bool test_patient(); // a writer waits for space in the ring for ever: test:CALLS:0:patient
bool fabric_allowed();

} // namespace policy
} // namespace preload
