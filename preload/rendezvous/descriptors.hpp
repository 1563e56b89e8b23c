// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library's own descriptors: close-on-exec, with numbers above those that the program may use where the hard limit
// allows that, and registered in the table, so that a program that closes all fds does not close these.
#pragma once

#include "preload/base/lowest_fd.hpp"

namespace preload::descriptors {

// Moves fd to a number of the library's; fd is closed. -1 if fd is negative or cannot be moved. Within the
// lowest_fd::Opening in which fd was made.
int keep(int fd);
// The same for an optional descriptor: only if that takes no number from the program.
int keep_spare(int fd);

// Keeps the descriptor that open() makes. -1: it failed.
template <class Open> int make(Open&& open) {
    const lowest_fd::Opening opening;
    return keep(static_cast<int>(open()));
}
template <class Open> int make_spare(Open&& open) {
    const lowest_fd::Opening opening;
    return keep_spare(static_cast<int>(open()));
}
// For a process without a program, before all else: every number is the library's, and there are as many as the hard
// limit allows.
void own_all();
// Whether a kept descriptor has a number that the program does not miss.
bool is_spare(int fd);
void close(int fd);
// In a child: closes the parent's.
void close_all();

} // namespace preload::descriptors
