// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A child that executes this program: the connection is its descriptor 0, and its parent goes on later.
#pragma once

#include <cstdint>

#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

void execute(End& e, int fd, uint64_t quota, uint32_t style, Random& random);

// True in the executed program, which then resumes: it drives the end and returns its exit status.
bool is_executed(int argc, char** argv);
int resume(char** argv);

} // namespace torture
