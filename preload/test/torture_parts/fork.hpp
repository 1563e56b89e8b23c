// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Forked children that use their parent's connections.
#pragma once

#include <cstdint>

#include <sys/types.h>

#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

// As fork, but it does not fail. The child is the end's process from then on.
pid_t fork_child(End& e);

// Waits for the child, which must succeed.
void await(End& e, pid_t child);

// The child does all, the parent goes on later.
void fork_and_wait(End& e, int fd, uint64_t quota, uint32_t style, Random& random);

// The child writes, the parent reads.
void fork_and_split(End& e, int fd, uint64_t quota, Random& random);

// Both processes write and read, by turns.
void fork_and_share(End& e, int fd, uint64_t quota, Random& random);

} // namespace torture
