// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Shared by the files that implement stream.hpp: reading, writing, switching, waiting, ending, handing over.
#pragma once

#include "preload/connection/stream.hpp"
#include "preload/path/frame.hpp"

#include <cerrno>

namespace preload::stream {

// Releases the write lock; frames that came due meanwhile are sent first.
void release_write(Connection& c, int fd);

// Holds the lock of one direction, and ensures that the fd is still this connection's.
class Section {
  public:
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;
    explicit operator bool() const { return error_ == 0; }
    [[nodiscard]] int error() const { return error_; }

  protected:
    Section(Connection& c, int fd, OwnerLock& lock, bool waits = true);
    ~Section() = default;
    Connection& c_;
    const int fd_;
    OwnerLock& lock_;
    int error_ = 0;
};

class ReadSection : public Section {
  public:
    ReadSection(Connection& c, int fd) : Section(c, fd, c.state.load()->read_lock) {}
    ~ReadSection() {
        if (error_ == 0) {
            lock_.release();
        }
    }
};

class WriteSection : public Section {
  public:
    WriteSection(Connection& c, int fd, bool waits = true) : Section(c, fd, c.state.load()->write_lock, waits) {}
    ~WriteSection() {
        if (error_ == 0) {
            release_write(c_, fd_);
        }
    }
};

// Bytes that a program holds back (stream_cork.cpp). Under the write lock.
// Whether `count` further bytes, written with these flags, are held back.
bool may_hold(Connection& c, uint64_t count, int flags);
void hold(Connection& c); // what is written by now
// The reader sees what was held back, in the ring or by the kernel.
void push_held(Connection& c, int fd);
// For a call without MSG_MORE, until push_held(): the program's option is not set in the kernel while careful.
void cork_in_kernel(int fd, bool on);
// What the kernel has taken, it holds back or not.
void note_held_by_kernel(ConnectionState& s, bool more);
// Behind it nothing must go by the ring yet, for a while.
bool holds_in_kernel(const ConnectionState& s);
// The reader sees all that is written, and is woken.
void publish(Connection& c, int fd);
// Under the read lock, at the end of the stream: what a writer held back that was killed. False: nothing.
bool take_held(Connection& c);
bool has_held(const Connection& c); // whether there would be something to take

// Under the read lock.
ssize_t read_locked(Connection& c, int fd, Parts& parts, int flags, bool will_sleep);
// Follows the writer's switches as far as possible without consuming a byte of the program; consumes frames if the ring
// is empty, or, with all_frames, in any case. if_noted: for waiters, which ask the kernel as well, and note
// that it has something (note_kernel_readable()). Others look at TCP each time: another host's frames are counted late.
void follow(Connection& c, int fd, bool all_frames, bool if_noted = false);
long unread_in_kernel(int fd); // negative: -errno
// The same for the program's bytes, including those behind an urgent byte of the proof. Under the read lock.
long unread_with_hidden(const Connection& c, int fd);

// Counts bytes read from the kernel, frames included; the count shows the peer what was not lost. Under the read lock.
void count_received(Connection& c, uint64_t n);

enum class Taken { nothing, frames, end, failed };
// Consumes frames from TCP, at most up to Frame::resume, since bytes follow it. quietly: reads no more than is there,
// so that an error, which the kernel reports once, stays pending. Under the read lock.
Taken take_frames(Connection& c, int fd, bool quietly, ssize_t& error);
// The same, quietly, for a caller that goes on in any case: the next read reports EOF or an error.
void take_present_frames(Connection& c, int fd);
// Gives threads that sleep on the socket some time to wake, before a byte from TCP that wakes them is consumed.
void let_others_wake(Connection& c, int fd);
// Resets the connection: the peer has violated the protocol, and its values are not trusted any more; or its bytes
// cannot be handed over, for this reason.
void reset(Connection& c, int fd, Reason reason = Reason::broken);
ssize_t violation(Connection& c, int fd, Reason reason = Reason::broken); // the same; returns the error of the call
// Advances to the next epoch of the peer's direction.
void follow_to(Connection& c, uint32_t epoch);

// Whether the peer cannot answer any more (stream_peer.cpp): by the socket; by the peer's own word, or, if unread bytes
// may hide its end, by a question to the kernel, which takes some ten microseconds; and the latter every ten
// milliseconds, while an answer is awaited.
bool peer_has_ended(Connection& c, int fd);
bool peer_has_gone(Connection& c, int fd);
bool peer_has_gone_meanwhile(Connection& c, int fd);

// One step towards a peer's direction with nothing in the ring, see stream_give_back.cpp. Under the read lock. 0: done;
// -EAGAIN: the peer's service must be asked; else an error, and bytes are lost.
ssize_t give_back_step(Connection& c, int fd);
void begin_to_give_back(Connection& c);
bool can_take(Connection& c); // there is memory for what is given back
// Asks the peer's service to take its next step. A worker reports each change to the far end by itself, so requests are
// rate-limited there: two ends that wait for each other would keep their services and the workers busy with nothing
// else. False: the peer's process has ended.
bool ask_for_step(Connection& c);
bool ask_seldom(Connection& c);            // at most every 10 ms
bool ask_after(Connection& c, bool moved); // the first of these if the last step has moved anything, else the second
// How long a call yields to a peer that is about to answer, before it leaves the rest to the service.
inline constexpr uint64_t short_wait_ns = 500000;
// The same for a shutdown, and for a close, for what the service cannot do; and for the end of a process, which has no
// service then.
inline constexpr uint64_t close_wait_ns = 10000000;
inline constexpr uint64_t exit_wait_ns = 100000000;
// A peer that has not answered by then violates the protocol. The fabric may stall, and its failure is noticed sooner.
inline constexpr uint64_t answer_timeout_ns = 5000000000U;
inline constexpr uint64_t far_answer_timeout_ns = 30000000000U;
inline uint64_t answer_limit_ns(const Connection& c) { return c.mirrored ? far_answer_timeout_ns : answer_timeout_ns; }
void give_back_ended(Connection& c, int fd, ssize_t result); // result: of give_back_step()
// Whether the program may still read what was taken: the peer was not asked to send it again.
bool may_read_taken(const Connection& c);
void note_taken_reported(Connection& c); // it has time to read them from now on
// Reads what was taken; also if the peer has ended before it could resend it.
ssize_t read_taken(Connection& c, Parts& parts, int flags);
// Whether Request::halt has begun this epoch, and the peer can still be expected to request the kernel next.
bool is_halted(const ConnectionState& s, uint32_t epoch);
// Whether the peer has read all of the ring: then it follows Frame::resume by itself.
bool is_clear(const path::Direction& ring, uint32_t epoch);
// One step towards an own direction with nothing in the ring, after return_out(). Results as above.
ssize_t clear_step(Connection& c, int fd);
// Repeats the step until done, or for some milliseconds: the peer reads the rest from the ring. False: a requested
// resend could not be sent within seconds, or within the patience.
bool clear_out(Connection& c, int fd, uint64_t patience_ns = UINT64_MAX);
// How long it waits. A peer that has requested nothing may read the rest from the ring.
uint64_t clear_limit_ns(const Connection& c);
bool has_unsent(const ConnectionState& s);
// Whether the peer waits for a resend, or part of one is still unsent.
bool is_awaited(const Connection& c);
// One step towards a shutdown that is due: see prepare_shutdown().
void shut_if_due(Connection& c, int fd);
void shut_now(Connection& c, int fd); // without the locks
// The result of a write while a shutdown is due, with SIGPIPE, as in the kernel.
ssize_t refuse_write(int flags);
// The result of a write that has found the peer gone: the kernel's, which is ECONNRESET, or EPIPE with SIGPIPE.
ssize_t write_to_gone_peer(int fd, int flags);
// The pauses between steps that the service takes begin anew.
void begin_steps(ConnectionState& s);
// One step of a hand-over that no call waits for.
void go_on_to_hand_over(Connection& c, int fd);
// One step of handing over; results as of give_back_step(), or the section's error.
ssize_t hand_over_step(Connection& c, int fd);

// Unread, whatever is in front of them in the kernel.
inline bool has_bytes_in_memory(Connection& c) {
    const ConnectionState& s = *c.state.load();
    return s.taken != 0 || c.in_ring().writer.head.load() != s.in.position;
}

inline bool has_backlog(const ConnectionState& s) {
    return s.backlog_from.load() != s.backlog_to.load() || s.give_from.load() != s.give_to.load();
}

// For a connection to another host (stream_mirrored.cpp, stream_recovery.cpp).
// Whether the far end has seen the own epoch, and has all bytes in front of it: else nothing of it may go by TCP.
bool far_end_knows(const Connection& c);
// The epoch of the peer's direction, as far as it is known here. After recovery it is the one followed: the worker may
// still write stale values into the segment.
uint32_t published_epoch(const Connection& c);
bool is_at_mark(int fd);     // TCP's next byte is an urgent one, which a read skips
void step_over_mark(int fd); // under the read lock: an unread urgent byte turns a close into a reset
bool is_proving(const Connection& c);
void receive_urgent(Connection& c, int fd); // receives an urgent byte of the far end; under the read lock
bool has_urgent_to_send(const Connection& c);
void send_urgent(Connection& c, int fd); // sends one of this end; under the write lock
// Wakes the peer's threads that sleep until a frame comes, or Frame::resume if that is due: at once, or as soon as the
// far end knows the own epoch. Under the write lock.
void wake_by_tcp(Connection& c, int fd);
void send_wanted_frame(Connection& c, int fd); // what could not be sent then; under the write lock
bool is_recovering(const Connection& c);
bool lacks_resent_bytes(const Connection& c);
bool is_cut_off(const Connection& c); // EOF now is not the end of what the far end has sent
void begin_recovery(Connection& c);   // the fabric has failed
ssize_t take_record(Connection& c, int fd);
void recover(Connection& c, int fd); // one step; called without locks
void leave_mirror(Connection& c);    // only the kernel is used from now on, by a holder that does not use the ring
void count_sent(Connection& c, uint64_t n);

// Under the write lock.
ssize_t write_locked(Connection& c, int fd, Parts& parts, int flags);
// Returns to the kernel: Frame::resume is due from now on.
void return_out(Connection& c, bool resend);
// Handles requests of the peer, and switches to the ring if possible.
void advance_out(Connection& c);
// Requests the peer to return, and to send Frame::resume at once, since threads of this end may sleep until a frame
// comes: also if it has returned already, and the frame is due. Not if reading is shut down: its frame would be
// answered with a reset. False: its direction is the kernel's already. Under the read lock.
bool request_return(Connection& c);
// Asks the peer's service to do the same, with exponential backoff.
void ask_to_switch(Connection& c);
// The next bytes of the ring that are due once more: how many are contiguous, and where.
size_t next_of_backlog(const ConnectionState& s);
size_t offset_of_backlog(const ConnectionState& s);
// Sends what is due before the program's next byte. 0, or -errno; the rest stays due, and each later write tries again.
ssize_t flush_due(Connection& c, int fd);
// Frame::resume waits for the program's next byte: a peer that closes must not receive anything that the program has
// not sent, since that resets the connection and loses what the peer's kernel has not yet sent. It is sent at once to a
// peer that requests the ring's bytes: that one waits for it, and is alive.
void flush_if_awaited(Connection& c, int fd);
// Arms a frame for a waiter without an id: in another process, or from before.
void want_frame(std::atomic<uint64_t>& wanted);
// Wakes the peer's waiter by the id that it has armed. False: it cannot be woken that way.
bool wake_by_id(Connection& c, uint64_t sleeper);
// Bytes were written: wakes the reader if it is armed.
void data_written(Connection& c, int fd);
// Bytes were read: wakes the peer's writer if it is armed. Under the read lock.
void space_made(Connection& c, int fd);
// The ring is full, and the writer will wait: the service watches from now on, see leave_full_ring(). Under the write
// lock.
void note_full(Connection& c);
// return_out() by the service, under the write lock; ask_for_return() follows.
void leave_ring(Connection& c, int fd);
// Without the locks: requests the peer to return as well, with a frame for threads of this end that sleep until one
// comes, and wakes those that sleep by an id.
void ask_for_return(Connection& c, int fd);
// Bytes were written: the service watches from now on whether they are read, see wake_reader(). Under the write lock.
void watch_unread(Connection& c);
// Whether threads sleep that only a frame wakes.
bool needs_frame(const Connection& c);
// Wakes waiters that sleep by an id, or in a set: something has changed that no frame reports.
void wake_everybody(Connection& c);
// Whether a frame of the peer can reach a writer that sleeps.
bool can_wait_for_space(const Connection& c);

} // namespace preload::stream
