// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The bytes of a connection whose calls are careful: by the kernel or by the ring, each direction by itself, and from
// one to the other at any byte. Nothing here sleeps.
//
// A writer switches to the ring by declaring the TCP position N behind its last byte; the reader takes bytes from the
// kernel up to N, then from the ring. It returns by declaring the ring ended and sending Frame::resume by TCP; the
// reader takes what is left in the ring, then frames up to that one, then bytes from the kernel again.
//
// While the one direction is in the ring, the other end may need to be woken through it. So who waits for space in its
// ring must follow the other direction in the ring as well; where that is not so, it returns to the kernel instead.
//
// Results are as those of system calls, with -errno, or one of those below.
#pragma once

#include <cstdint>
#include <sys/types.h>

#include "preload/connection/connection.hpp"
#include "preload/connection/parts.hpp"

namespace preload::stream {

// Of a write that only the kernel can do.
inline constexpr int kernel_send_flags = MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN | MSG_CONFIRM | MSG_DONTROUTE;

inline constexpr int gone = -10001;        // the number is not this connection's, or it is not careful any more
inline constexpr int elsewhere = -10002;   // another process of this end has the memory, and this one does not
inline constexpr int interrupted = -10003; // a signal handler would have to wait for the call that it interrupts

// Bytes that are there, at least one; 0 at the end of the stream; -EAGAIN if there are none. flags: MSG_PEEK,
// MSG_TRUNC. will_sleep: the caller sleeps on the kernel's socket if there are none, which tells of the end.
ssize_t read_now(Connection& c, int fd, Parts& parts, int flags, bool will_sleep = false);
// Behind so many bytes that were peeked at in one place: what lies in the next one, before or behind a switch. flags:
// as above. Negative: more than that cannot be peeked at.
ssize_t peek_further(Connection& c, int fd, Parts& parts, int flags, ssize_t peeked);
// Bytes that there is space for, at least one, or -EAGAIN. flags: MSG_NOSIGNAL, MSG_MORE.
ssize_t write_now(Connection& c, int fd, Parts& parts, int flags);
// The same from a file: the bytes are read into the ring itself. offset as in sendfile(2).
ssize_t write_file_now(Connection& c, int fd, int file, off_t* offset, size_t count);

// How the connection can be waited for.
struct Readiness {
    short events = 0;     // of POLLIN, POLLOUT, POLLRDHUP, POLLHUP, POLLERR, POLLPRI: there now
    short kernel = 0;     // what to ask the kernel about; it has been, for events
    bool ring = false;    // what is waited for comes by the ring alone, and the end
    bool soon = false;    // bytes are given back: look again after give_back_pause_ms
    bool blocked = false; // the number is not this connection's, or cannot be looked at now: ask the kernel alone
};
// wanted: what the caller waits for. sleeper, a path::Sleeper: the peer is told to wake it, and what there is is looked
// at again afterwards; if nothing is there, the caller may sleep on the kernel's socket for Readiness::kernel, and on
// the descriptor of the id if it gave one. arrived: how many bytes of the program's have come so far, by the ring and
// by the kernel, for edges; it counts what events tell of.
Readiness look(Connection& c, int fd, short wanted, uint64_t sleeper, uint64_t* arrived = nullptr);

// The same without any lock or system call, while all of both directions is in the ring, which is as a rule. False:
// look.
bool look_in_memory(const Connection& c, short wanted, short& events);

// The peer is to wake the sleeper with the next bytes, or with space: for who waits for what comes, not for what is
// there.
void arm(Connection& c, short wanted, uint64_t sleeper);
// Whether the peer can wake by an eventfd.
bool takes_ids(const Connection& c);
// The peer was told to wake the sleeper of this id, and has not been seen to do so; sleeps by frames from now on.
// False: it wakes it just now.
bool withdraw(Connection& c, short wanted, uint64_t id);
// The sleeper of this id is awake, and looks itself.
void disarm(Connection& c, uint64_t id);
bool is_armed(const Connection& c, short wanted, uint64_t id);
// Those who sleep on are woken by another frame, which the peer's service sends if there is reason to wake.
void wake_again(Connection& c);
// What comes next is to wake somebody, who has not said how.
void want_wakeup(Connection& c);

// The worker that plays the far end, if there is one, is to look at what was changed.
void changed(Connection& c);

// Whether there are bytes in the ring: for spinning, without any lock.
bool ring_has_bytes(const Connection& c);
bool ring_has_space(const Connection& c);
// All that there is was seen, and it is the ring's: n bytes are in it, and the peer has not ended.
bool more_may_come(const Connection& c, ssize_t n);

// Bytes are given back (stream_hand_over.cpp): for some milliseconds, what is unread is nobody's to see, and nothing
// tells when it is again. A peer that never answers breaks the protocol.
bool gives_back(Connection& c, int fd);
inline constexpr int give_back_pause_ms = 1; // until the next look
// Whether the calling thread counts as a sleeper of the connections that it looks at.
extern thread_local uint32_t own_sleeps;

// A peer that is killed with a frame unread resets the connection, which it would not without the library: its end is
// an end if it had read all of the program's bytes. Of a receiving call's result.
ssize_t reset_or_end(const Connection& c, ssize_t error);

// How many bytes can be read, as FIONREAD has it; negative: -errno.
long unread(Connection& c, int fd);

// The same as TCP_INQ has it after a receiving call: 0 only if a further one would find nothing. More than there is
// does no harm, since that one says so, as where the stream has ended (1, as the kernel has it) or moves between paths.
int inq_hint(Connection& c, int fd);

// Both directions go back to the kernel: the own one now, the peer's as soon as it is told. The connection stays with
// the kernel, for the reason given.
void pin(Connection& c, int fd, Reason reason);
// The same, and waits until nothing of the stream is in the ring: what is unread there comes by the kernel again. For a
// descriptor that goes to somebody who knows nothing of the ring. False: the peer has not answered in time, and it was
// reset.
bool hand_over(Connection& c, int fd, Reason reason);
// The peer's request to return, or to send again, and frames that are due: what the service does for a busy program.
void attend(Connection& c, int fd);
// attend() is to be called again when the kernel's connection has space, or has ended.
bool wants_service(const Connection& c);
// The last process that has the connection is about to close it: takes frames off the kernel's queue that would make
// closing a reset, sends what the peer has asked for again, and lets no frame come any more. True: there are unread
// bytes in the ring, or some of what was asked for could not be sent, and TCP would reset.
bool prepare_close(Connection& c, int fd);
// Sends what the peer has asked for again, before the connection is closed; waits for space for at most 100 ms.
// False: some of it could not be sent.
bool finish_out(Connection& c, int fd);
// It is not closed in the end: another process has it, or exec has failed. True: the peer may have been told that it
// was.
bool undo_close(Connection& c);
// The number is about to be closed: a reset that the program wants (SO_LINGER), or TCP would make, is told as one.
void note_reset(Connection& c, int fd);
void prepare_shutdown(Connection& c, int fd, int how);
// Leaves careful mode if nothing speaks against it: both directions are the kernel's, for good.
void settle(Connection& c, int fd);

} // namespace preload::stream
