// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Pipes for wake-ups between processes of different users. An eventfd is not given to another user, who could read it
// and so take wake-ups that are meant for a third, or make it block. A pipe has two ends: the sleeper keeps the one
// that is read, and gives only the other one away. Who gets that opens the pipe anew (proc(5), /proc/PID/fd), since the
// flags of a descriptor that was passed are still the giver's to change: O_NONBLOCK must hold when a byte is written.
//
// What a peer can do with its end: write more than it should, which wakes the sleeper in vain, or fill it, which counts
// as woken. It cannot read: other users may only write, by the pipe's mode.
#pragma once

namespace preload::wakeup_pipe {

struct Ends {
    int reader = -1;
    int writer = -1; // to give away; as long as it is open, the reader never sees an end
};

// -1 both: there is no descriptor for it.
Ends make();
// Of another process's writer, which stays the caller's: one for notify(). -1: it is not the writer of a pipe, or
// cannot be opened (no /proc, RLIMIT_NOFILE).
int open_writer(int given);
// Never blocks, and raises no SIGPIPE. False: nobody reads it any more. A pipe that is full is no failure, since its
// reader has not looked yet.
bool notify(int writer);
// The same as notify() does it before Linux 6.18, which has no RWF_NOSIGNAL: with SIGPIPE blocked.
bool notify_with_signal_blocked(int writer);
// Takes all that has come, or so much that there is a place for the next: enough for a reader that is woken by what
// arrives (EPOLLET).
void drain(int reader);

} // namespace preload::wakeup_pipe
