// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library's own descriptors: close-on-exec, numbered above those that the program may use where the hard limit
// allows that, and known to the table, so that a program that closes all numbers does not close these.
#pragma once

namespace preload::descriptors {

// Takes the place of fd, which is closed. -1 if fd is negative.
int keep(int fd);
// The same for what the library can do without: only where that takes no number from the program.
int keep_spare(int fd);
// Whether one that is kept has a number that the program does not miss.
bool is_spare(int fd);
void close(int fd);
// In a child: those of the parent.
void close_all();

} // namespace preload::descriptors
