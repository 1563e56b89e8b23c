// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Uses of a connection that bypass the library: by programs that inherit its fd, and by libc's streams of the standard
// fds. They must find its bytes in the kernel.
#pragma once

#include "preload/connection/connection.hpp"

namespace preload::outside_use {

// A program that inherits all fds without FD_CLOEXEC is about to be executed: by this process, which may be a child of
// vfork, or by a child that it makes for that. Whether the program uses them cannot be known. executes: the process
// itself becomes that program. Otherwise the program may not use them at all: it takes a quarter of a second at most,
// for all of them together, none is reset for it, and where there are more than 16, they are taken to be leaked and
// stay.
void hand_over_inheritable(bool executes);
// A child of vfork is about to duplicate it for the program that it executes; the table is its parent's.
void hand_over_duplicated(int fd);
// Something that bypasses the library uses the connection from now on: for good, whatever fd it gets.
void hand_over(int fd, Reason reason);

// The fd refers to the connection from now on. Hands it over if it is a standard fd.
void note_number(Connection& c, int fd);
// The connection has lost an fd: if no standard one is left, libc's streams no longer matter.
void leave_standard_number(Connection& c);

} // namespace preload::outside_use
