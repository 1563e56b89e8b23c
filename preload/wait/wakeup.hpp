// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waking a thread or an epoll set of another process without TCP: by an eventfd that it sleeps on, at half the cost of
// a frame. Each process has a few of them. A waiter stores its id where the peer checks for waiters (see WakeFields);
// the peer requests the descriptor from the other process's service once, and keeps it.
//
// Only processes of the same user get the eventfd: a holder can consume wake-ups that are meant for another connection.
// Peers of other users write to a pipe, see wakeup_pipe.hpp. Frames wake waiters that have neither, and several threads
// or processes that sleep on one connection.
#pragma once

#include <cstdint>

#include <sys/types.h>

namespace preload::wakeup {

// Identifies an eventfd on this host. The values of path::Sleeper are not ids.
using Id = uint64_t;

// Returns an id that no thread or set of this process uses. 0: there is none, or no descriptor for it.
Id acquire();
void release(Id id);
int descriptor(Id id); // of an acquired id

// Of an acquired id: the read end of the pipe that other users' processes write to, made at the first call.
// Nonblocking. -1: there is none.
int pipe_reader(Id id);
int pipe_writer(Id id); // the end that they get; -1: pipe_reader() was not called, or has failed
void drain(Id id);      // see wakeup_pipe::drain()

// Of an acquired id: when it was notified, in ns as sys::now_ns(); 0: not since it was cleared. A waiter clears it
// before it checks for events. A notified id is not notified again: the waiter must not sleep without that check.
uint64_t notified_at(Id id);
inline bool is_notified(Id id) { return notified_at(id) != 0; }
void clear(Id id);

bool is_own(Id id);
void wake_own(Id id); // no effect on an id of another process
// False: its descriptor is not known, or did not come from a process of this user: ids are read from memory that a peer
// writes, which could name another process's id.
bool wake(Id id, uid_t user);
// Stores the descriptor that another process has passed for its id, and takes ownership of it. Service thread only.
// False: there is no fd number or place for it, and it is closed. page: the memory file of that process's page, or
// -1.
bool learn(Id id, uid_t user, int fd, int page);
int page_file(); // of this process; -1: it has none
// The same for the write end of a pipe, which stays the caller's.
bool learn_pipe(Id id, uid_t user, int writer);
// Closes the descriptors of other processes' ids that were not used for a while. Service thread only. Returns when to
// call it again, in ns as sys::now_ns().
uint64_t sweep(uint64_t now);
void after_fork_in_child(); // its descriptors are closed elsewhere

// Holds an id while a thread may sleep.
class Own {
  public:
    explicit Own(bool wanted) : id_(wanted ? acquire() : 0) {}
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;
    ~Own() {
        if (id_ != 0) {
            release(id_);
        }
    }
    [[nodiscard]] Id id() const { return id_; }

  private:
    const Id id_;
};

} // namespace preload::wakeup
