// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors that another user's process has passed. A thread that closes the last reference to a file waits for as
// long as the file's maker chose: a TCP socket lingers (SO_LINGER), and a file system in user space answers each close
// when it likes. So does a thread that closes a unix socket in which such a file is queued. Neither the service nor a
// call of the program may wait for that: a thread of the kernel's does, which only closes, and which libc does not
// know.
#pragma once

#include <span>

namespace preload::descriptors {

// All on the service's thread, or when that has ended.

// Closes descriptors that are in the table as the library's own; negative ones are none. Does not wait, unless eight
// threads do that already: then what does not fit into a list of 64 is closed by the caller.
void discard(std::span<const int> fds);
inline void discard(int fd) { discard(std::span(&fd, 1)); }
// Closes what had to wait for a thread.
void discard_more();
// Waits until the kernel does not count the threads any more: a fifth of a second at most, which a stranger's file can
// take.
void await_discarded();

// Whether a close never waits: a small memory file that cannot grow, or a pipe. Does not wait either.
bool is_harmless(int fd);

// A forked child has none of its parent's threads.
void forget_discarded();

} // namespace preload::descriptors
