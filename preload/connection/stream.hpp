// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The bytes of a connection in careful mode: they go by the kernel or by the ring, each direction independently, and
// may switch between the two at any byte. Reads and writes here never block.
//
// A writer switches to the ring by publishing the TCP position N behind its last byte; the reader reads from the kernel
// up to N, then from the ring. The writer returns by ending the ring's epoch and sending Frame::resume by TCP; the
// reader drains the ring, consumes frames up to that one, then reads bytes from the kernel again.
//
// While one direction is in the ring, its writer may have to be woken by frames of the other direction. So a writer
// that waits for space must have the other direction in the ring as well; otherwise it returns to the kernel.
//
// Results are those of system calls, with -errno, or one of the codes below.
#pragma once

#include <cstdint>

#include <poll.h>
#include <sys/types.h>

#include "preload/connection/connection.hpp"
#include "preload/connection/parts.hpp"

namespace preload::stream {

// Flags of a write that only the kernel can handle.
inline constexpr int kernel_send_flags = MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN | MSG_CONFIRM | MSG_DONTROUTE;

inline constexpr int gone = -10001;        // the fd is not this connection's, or it is not careful any more
inline constexpr int elsewhere = -10002;   // another process of this end has the memory, this one does not
inline constexpr int interrupted = -10003; // a signal handler would wait for the call that it interrupts
inline constexpr int last_bytes =
    -10004;                            // the peer has ended, and has left bytes in memory that only this process reads
inline constexpr int not_yet = -10005; // a step is due first

// Reads available bytes, at least one. 0: EOF; -EAGAIN: there are none. flags: MSG_PEEK, MSG_TRUNC. will_sleep: if
// there are none, the caller sleeps on the kernel's socket, which reports EOF.
ssize_t read_now(Connection& c, int fd, Parts& parts, int flags, bool will_sleep = false);
// After `peeked` bytes were peeked at on one side of a switch: peeks at those on its other side. flags: as above.
// Negative: nothing further can be peeked at.
ssize_t peek_further(Connection& c, int fd, Parts& parts, int flags, ssize_t peeked);
// Writes as many bytes as there is space for, at least one, or returns -EAGAIN. flags: MSG_NOSIGNAL, MSG_MORE.
ssize_t write_now(Connection& c, int fd, Parts& parts, int flags);
// The same from a file, which is read directly into the ring. offset as in sendfile(2).
ssize_t write_file_now(Connection& c, int fd, int file, off_t* offset, size_t count);
// The peer sees what was held back, see TCP_CORK in tcp(7) and MSG_MORE in send(2).
inline constexpr uint64_t held_at_most_ns = 200000000U;
void push(Connection& c, int fd);

// How to wait for the connection.
struct Readiness {
    short events = 0;     // of POLLIN, POLLOUT, POLLRDHUP, POLLHUP, POLLERR, POLLPRI: ready now
    short kernel = 0;     // what to poll the kernel for; `events` includes its present answer
    bool frames = false;  // the peer's frames are still to come
    bool ring = false;    // what is waited for, except EOF, comes by the ring only
    bool soon = false;    // something is under way that no event reports: look again after give_back_pause_ms
    bool blocked = false; // the fd is not this connection's, or a lock cannot be taken: use the kernel only
    // Nothing that is waited for is there yet.
    [[nodiscard]] bool only_soon(short wanted) const { return soon && (events & (wanted | POLLHUP | POLLERR)) == 0; }
};
// wanted: the events that the caller waits for. sleeper, a path::Sleeper: armed for the peer to wake, and readiness is
// checked once more afterwards; if nothing is ready, the caller may sleep on the kernel's socket for Readiness::kernel,
// and on the descriptor of the id if it passed one. arrived: how many bytes of the program have arrived so far, by the
// ring and by the kernel, for edge-triggered epoll; it includes all that `events` reports.
Readiness check(Connection& c, int fd, short wanted, uint64_t sleeper, uint64_t* arrived = nullptr);
// Consumes frames that have arrived, as check() does: by one of them, a thread has woken that needs no answer.
inline void take_frames_of_waiter(Connection& c, int fd) { check(c, fd, 0, path::nobody); }

// The same without locks or system calls, in the common case: all of both directions is in the ring. False:
// use check().
bool check_in_memory(const Connection& c, short wanted, short& events);

// A sleep on the kernel's socket has found it readable. While the ring is read, that is a frame, which its writer on
// this host has counted, and one on another host perhaps not yet; else the peer has sent a byte past its library
// (io_uring, a system call of its own), which nothing else reports: the next call reads it, and resets the connection.
void note_kernel_readable(Connection& c);

// Arms the sleeper: the peer wakes it with the next bytes, or with space. For a waiter that needs new events, not
// present ones.
void arm(Connection& c, short wanted, uint64_t sleeper);
// Whether the peer can wake by an eventfd.
bool takes_ids(const Connection& c);
// Rearms the waiter of this id, which the peer has not been seen to wake: it sleeps by frames from now on. False: the
// peer is waking it.
bool withdraw(Connection& c, short wanted, uint64_t id);
// The waiter of this id is awake and polls itself.
void disarm(Connection& c, uint64_t id);
bool is_armed(const Connection& c, short wanted, uint64_t id);
// Wakes threads that still sleep by another frame, which the peer's service sends if there is reason to wake.
void wake_again(Connection& c);
// The next bytes wake a waiter that has armed no id.
void want_wakeup(Connection& c);
void want_space(Connection& c); // the same for space

// Notifies the worker that plays the far end, if there is one, of a change.
void changed(Connection& c);
// This process is the last one to have it, and is about to end, or to execute another program: the kernel closes it
// then, without an event for the worker.
void announce_leaving(Connection& c);
void withdraw_leaving(Connection& c); // it goes on

// Whether there are bytes in the ring: for spinning, without any lock.
bool ring_has_bytes(const Connection& c);
bool ring_has_space(const Connection& c);
// Whether all available bytes were seen, all are in the ring (n bytes), and the peer has not ended.
bool more_may_come(const Connection& c, ssize_t n);

// A give-back runs (stream_give_back.cpp), and the peer was asked for the unread bytes: for some milliseconds, no
// caller sees them, and no event reports its end. A peer that never answers violates the protocol.
bool gives_back(Connection& c, int fd);
inline constexpr int give_back_pause_ms = 1; // until the next poll
// What was given back has not arrived by TCP yet.
bool lacks_given_back(const Connection& c, int fd);
// Waits for that, for a millisecond since begin: a call that does not block would fail with EAGAIN, although a wait may
// have reported these bytes. True: read again.
bool await_given_back(Connection& c, int fd, uint64_t begin);
// Continues by the kernel if the ring is full, and its reader has not read for a while. For the service, repeatedly.
// True: call it again after this time.
bool leave_full_ring(Connection& c, int fd, uint64_t now);
inline constexpr uint64_t full_ring_pause_ns = 10000000U;
// Wakes a reader that has left bytes unread for a while, and waits past its library. For the service. Returns when it
// is to be called again; UINT64_MAX: not.
uint64_t wake_reader(Connection& c, int fd, uint64_t now);
// This process closes the connection, while others have it: what it watches, they may watch from now on.
void forget_unread(Connection& c);
// For the service: takes the next step of what goes on by time, not by an event: a full ring, a shutdown, a hand-over.
// Returns when it is to be called again; UINT64_MAX: not.
uint64_t on_time(Connection& c, int fd, uint64_t now);
// The same for sockets that the program has closed, see stream_ending.cpp.
uint64_t linger_on_time(uint64_t now);
void linger_after_fork_in_child();
// This process ends, or its service does: gives the service as long as a close without one takes, or longer while the
// peer reads.
void await_lingering();
void end_all_lingering(); // there is no service any more
// Whether the calling thread counts as a sleeper of the connections that it polls.
extern thread_local uint32_t own_sleeps;

// A peer that is killed with a frame unread resets the connection, which it would not do without the library: if it had
// read all of the program's bytes, the reset counts as EOF. error: the result of a receiving call.
ssize_t reset_or_end(const Connection& c, ssize_t error);

// How many bytes can be read, as FIONREAD has it; negative: -errno.
long unread(Connection& c, int fd);

// The same as TCP_INQ reports it after a receiving call: 0 only if a further call would find nothing. Too large a value
// does no harm, since a further call corrects it: so at EOF (1, as in the kernel), or while the path changes.
int inq_hint(Connection& c, int fd);

// Returns both directions to the kernel: this end's now, the peer's as soon as it handles the request. The connection
// stays with the kernel, for the given reason.
void pin(Connection& c, int fd, Reason reason);
// The same, and waits until nothing of the stream is in the ring: unread bytes there come by the kernel again. For a
// descriptor that goes to a holder that does not use the ring. False: the peer has not answered in time, and the
// connection was reset. goes_on_at: by then (sys::now_ns) the call returns false instead, and the service goes on; for
// a holder that may not use the connection at all. Also if the peer has ended, and has left bytes in memory. 0: not.
// Once the service goes on, further such calls do not wait.
bool hand_over(Connection& c, int fd, Reason reason, uint64_t goes_on_at = 0);
// The same for a call of this process, which can be repeated: does not wait for the peer. 0: the kernel handles the
// connection from now on; -EAGAIN: the service goes on, and until it has finished no event is reported; `last_bytes`:
// nothing can be handed over; else -errno, and the connection was reset.
ssize_t begin_to_hand_over(Connection& c, int fd, Reason reason);
// True: the kernel may write now, nothing of the stream is still to be sent before that. False: asks the peer for it.
bool writes_by_kernel(Connection& c, int fd);
// What the kernel has written then.
void count_written_by_kernel(Connection& c, int fd, uint64_t n);
// Whether bytes in memory are unread and the peer has ended: they cannot be handed over.
bool has_last_bytes(Connection& c, int fd);
// Moves some of them into a pipe. Never waits. 0: there are none any more; -EAGAIN: the pipe is full; `not_yet`: try
// again in a millisecond; else -errno.
ssize_t splice_last_bytes(Connection& c, int fd, int pipe, size_t count);
// Handles the peer's requests to return or to resend, and sends frames that are due: called by the service for a busy
// program.
void attend(Connection& c, int fd);
// Whether attend() must be called again when the kernel's connection has space, or has ended.
bool wants_service(const Connection& c);
// The last process that has the connection is about to close it: consumes frames in the kernel's queue that would turn
// the close into a reset, resends what the peer has requested, and lets no further frame come.
// may_wait: for up to 100 ms; else the service goes on with what the peer delays, if it can.
enum class Ending : uint8_t {
    whole,
    reset, // TCP would reset: the ring has unread bytes, or some of the requested bytes could not be sent
    kept,  // the service has the socket: this close does not end it, even if SO_LINGER is set meanwhile
};
Ending prepare_close(Connection& c, int fd, bool may_wait);
// Resends what the peer has requested, before the connection is closed. may_wait: for space, for at most 100 ms. False:
// some of it could not be sent.
bool finish_out(Connection& c, int fd, bool may_wait);
// The close does not take place: another process has the connection, or exec has failed. True: the peer may have seen
// the close announced.
bool undo_close(Connection& c);
// The fd is about to be closed: publishes a reset that the program wants (SO_LINGER), or that TCP would make.
void note_reset(Connection& c, int fd);
void announce_reset(Connection& c, int fd); // a reset that is certain, by connect(2) to AF_UNSPEC
void undo_reset(Connection& c);             // it did not take place
// Before a shutdown in the kernel. Returns how to shut down there now, or -1: nothing. Writing is shut down later, by
// the service, if the peer has yet to get bytes in front of EOF.
int prepare_shutdown(Connection& c, int fd, int how);
// Leaves careful mode if nothing prevents it: both directions are the kernel's from then on.
void settle(Connection& c, int fd);
// The fabric has failed a connection that was on it, or has been, and cannot be reached: another attempt after a pause.
void retry_fabric_later(ConnectionState& s, bool was_on_it);

} // namespace preload::stream
