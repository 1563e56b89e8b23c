// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Pipes for wake-ups between processes of different users. Another user does not get an eventfd, since it could read it
// and so consume wake-ups meant for a third process, or make writes to it block. Of a pipe, the waiter keeps the read
// end, and passes only the write end. The receiver reopens it (proc(5), /proc/PID/fd), since the giver can still change
// the flags of a descriptor that it passed: O_NONBLOCK must hold when a byte is written.
//
// A peer can misuse its end only by writing too much, which causes spurious wake-ups, or by filling the pipe, which
// counts as woken. It cannot read: the pipe's mode lets other users only write.
#pragma once

namespace preload::wakeup_pipe {

struct Ends {
    int reader = -1;
    int writer = -1; // to be passed; while it is open, the reader never sees EOF
};

// Both -1: no descriptor is available.
Ends make();
// Reopens another process's write end, which stays the caller's, for notify(). -1: it is not the write end of a pipe,
// or cannot be opened (no /proc, RLIMIT_NOFILE).
int open_writer(int given);
// Never blocks, and raises no SIGPIPE. False: the read end is closed. A full pipe is not a failure, since its reader
// has not drained it yet.
bool notify(int writer);
// notify() for kernels before Linux 6.18, which have no RWF_NOSIGNAL: blocks SIGPIPE.
bool notify_with_signal_blocked(int writer);
// Reads all bytes, or enough to make space for the next one: sufficient for an edge-triggered reader (EPOLLET).
void drain(int reader);

} // namespace preload::wakeup_pipe
