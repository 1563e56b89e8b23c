// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library's own descriptors: close-on-exec, numbered above those that the program may use where the hard limit
// allows that, and known to the table, so that a program that closes all numbers does not close these.
#pragma once

#include "preload/base/numbers.hpp"

namespace preload::descriptors {

// Takes the place of fd, which is closed. -1 if fd is negative. Within the numbers::Making in which fd was made.
int keep(int fd);
// The same for what the library can do without: only where that takes no number from the program.
int keep_spare(int fd);

// What open() makes, or -1.
template <class Open> int make(Open&& open) {
    const numbers::Making making;
    return keep(static_cast<int>(open()));
}
template <class Open> int make_spare(Open&& open) {
    const numbers::Making making;
    return keep_spare(static_cast<int>(open()));
}
// Whether one that is kept has a number that the program does not miss.
bool is_spare(int fd);
void close(int fd);
// In a child: those of the parent.
void close_all();

} // namespace preload::descriptors
