// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What lifecycle.cpp and processes.cpp have in common.
#pragma once

#include "preload/connection/lifecycle.hpp"

namespace preload::lifecycle {

// This process is about to close it. True, once: it is the last one.
bool leave(Connection& c);
// Changes before the `fd` of any connection does, because that fd is about to be closed.
uint32_t count_of_moves();
// The close did not take place, and a later one may find all bytes read.
void stay(Connection& c);
// For a careful connection that this process is about to close. may_wait: by its end, or by exec.
void finish(Connection& c, int fd, bool last, bool may_wait);
// leave_everything_to_the_kernel() was called.
bool is_left_to_kernel();

} // namespace preload::lifecycle
