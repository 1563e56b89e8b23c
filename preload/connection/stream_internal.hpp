// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the files of stream.hpp have in common: reading, writing, waiting, ending, handing over.
#pragma once

#include "preload/connection/stream.hpp"
#include "preload/path/frame.hpp"

#include <cerrno>

namespace preload::stream {

// Releases the write lock; frames that came due meanwhile are sent first.
void release_write(Connection& c, int fd);

// The lock of one direction, and the certainty that the number is still this connection's.
class Section {
  public:
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;
    explicit operator bool() const { return error_ == 0; }
    [[nodiscard]] int error() const { return error_; }

  protected:
    Section(Connection& c, int fd, OwnerLock& lock);
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
    WriteSection(Connection& c, int fd) : Section(c, fd, c.state.load()->write_lock) {}
    ~WriteSection() {
        if (error_ == 0) {
            release_write(c_, fd_);
        }
    }
};

// With the read lock.
ssize_t read_locked(Connection& c, int fd, Parts& parts, int flags, bool will_sleep);
// Follows the writer's switches as far as that takes no byte of the program's; takes frames where the ring is empty, or
// in any case.
void follow(Connection& c, int fd, bool all_frames);
long unread_in_kernel(int fd); // negative: -errno
// The same of the program's bytes, also those behind an urgent byte of the proof. With the read lock.
long unread_with_hidden(const Connection& c, int fd);

// Bytes taken from the kernel, frames included; the peer knows by it what it need not miss. With the read lock.
void count_received(Connection& c, uint64_t n);

enum class Taken { nothing, frames, end, failed };
// Takes frames from TCP, only ever up to Frame::resume, since bytes follow it. Quietly: without asking for more than is
// there, so that an error, which the kernel tells once, stays to be told. With the read lock.
Taken take_frames(Connection& c, int fd, bool quietly, ssize_t& error);
// A byte that TCP has brought is about to be taken: those who sleep on the socket, and are woken by it, are given some
// time to wake.
void let_others_wake(const Connection& c, int fd);
// The peer has broken the protocol: whatever it says is not believed any more.
ssize_t violation(Connection& c, int fd);
// Goes on to the next epoch of the peer's direction.
void follow_to(Connection& c, uint32_t epoch);

// One step towards a peer's direction of which nothing is in the ring, see stream_hand_over.cpp. With the read lock.
// 0: so it is; -EAGAIN: the peer's service has to be asked; else an error, and bytes are lost.
ssize_t give_back_step(Connection& c, int fd);
void begin_to_give_back(Connection& c);
// The peer's service is to take its next step. A worker tells the far end of each change by itself, so that this is
// seldom said: two ends that wait for each other would have their services, and the workers, do nothing but ask and
// answer. False: the peer's process has ended.
bool ask_for_step(Connection& c);
void give_back_ended(Connection& c, int fd, ssize_t result); // of give_back_step()
// What was taken, if the peer has ended before it could send it again.
ssize_t read_taken(Connection& c, Parts& parts, int flags);
// By Request::halt, for as long as the peer can be expected to ask for the kernel next.
bool is_halted(const ConnectionState& s, uint32_t epoch);
// Whether the peer has read all of what was in the ring: then it follows Frame::resume by itself.
bool is_clear(const path::Direction& ring, uint32_t epoch);
// One step towards an own direction of which nothing is in the ring any more, after return_out(). Results as above.
ssize_t clear_step(Connection& c, int fd);
// Steps until then, for some milliseconds: what is left is the peer's to read from the ring. False: what was asked for
// again could not be sent in seconds.
bool clear_out(Connection& c, int fd);
// Whether the peer waits for something to be sent again, or some of that has not been.
bool is_awaited(const Connection& c);
// One step of handing over; results as of give_back_step(), or the section's error.
ssize_t hand_over_step(Connection& c, int fd);

inline bool has_backlog(const ConnectionState& s) {
    return s.backlog_from.load() != s.backlog_to.load() || s.give_from.load() != s.give_to.load();
}

// Of a connection to another host (stream_mirrored.cpp, stream_recovery.cpp).
// Whether the far end knows the own epoch, and has all in front of it: else nothing of it may go by TCP.
bool far_end_knows(const Connection& c);
// The epoch that the peer's direction is in, as far as is known here. Of a connection that goes on without the fabric,
// the worker may still write into the segment what it had heard before.
uint32_t published_epoch(const Connection& c);
bool is_at_mark(int fd);     // TCP's next byte is an urgent one, which a read steps over
void step_over_mark(int fd); // where nothing is behind it: an urgent byte that is unread makes a reset of a close
bool is_proving(const Connection& c);
void hear(Connection& c, int fd); // an urgent byte of the far end's; with the read lock
bool has_to_say(const Connection& c);
void say(Connection& c, int fd);               // one of this end's; with the write lock
void send_wanted_frame(Connection& c, int fd); // with the write lock
bool is_recovering(const Connection& c);
void begin_recovery(Connection& c); // the fabric has failed
ssize_t take_record(Connection& c, int fd);
void recover(Connection& c, int fd); // a step; without a lock
void leave_mirror(Connection& c);    // it is the kernel's, for somebody who knows nothing of the ring
void count_sent(Connection& c, uint64_t n);

// With the write lock.
ssize_t write_locked(Connection& c, int fd, Parts& parts, int flags);
// Goes back to the kernel: Frame::resume is due from now on.
void return_out(Connection& c, bool resend);
// Requests of the peer's, and the switch to the ring where that is possible.
void advance_out(Connection& c);
// Asks the peer's service to do the same, the more seldom the longer it does not.
void ask_to_switch(Connection& c);
// What is due before the program's next byte: 0, or -errno.
ssize_t flush_due(Connection& c, int fd);
// Frame::resume waits for the program's next byte: a peer that closes is not to get anything that the program has not
// sent, since that resets the connection, and what the peer's kernel has not yet sent is lost. A peer that asks for
// what is in the ring waits for it, and is there.
void flush_if_awaited(Connection& c, int fd);
// Somebody sleeps who has not said how: in another process, or since before.
void want_frame(std::atomic<uint64_t>& wanted);
// The peer's sleeper, which it has named. False: it cannot be woken so.
bool wake_by_id(Connection& c, uint64_t sleeper);
// Bytes were written: the reader is woken if it says that it sleeps.
void data_written(Connection& c, int fd);
// Bytes were read: the peer's writer is woken if it says that it sleeps. With the read lock.
void space_made(Connection& c, int fd);
// Whether a frame of the peer's can reach a writer that sleeps.
bool can_wait_for_space(const Connection& c);

} // namespace preload::stream
