// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The cases of wakeup_test, by subject.
#pragma once

#include <vector>

#include "fabtests/common/test.hpp"

namespace wakeup_test {

std::vector<CMUnitTest> recv_cases();      // a call that blocks, woken without TCP
std::vector<CMUnitTest> steady_cases();    // many wake-ups of each kind of sleeper, and several sleepers
std::vector<CMUnitTest> ended_cases();     // everything that ends a blocking call
std::vector<CMUnitTest> set_cases();       // epoll sets
std::vector<CMUnitTest> processes_cases(); // fork, exec, limits, a peer that is stopped

// What the executed program does: see processes.cpp.
int look_at_inherited_set(int set);

} // namespace wakeup_test
