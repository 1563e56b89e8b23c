// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waking a thread or an epoll set of another process without TCP: by an eventfd that it sleeps on, which costs half of
// what a frame does. Each process has a few of them. A sleeper writes its id where the peer looks for sleepers (see
// WakeFields); the peer asks the service of the other process for the descriptor once, and keeps it.
//
// The eventfd is for processes of one user only: who holds it can take wake-ups away that are meant for another
// connection. Peers of other users write into a pipe, see wakeup_pipe.hpp. Frames are for whoever has neither, and
// whenever several threads or processes sleep for one connection.
#pragma once

#include <cstdint>

#include <sys/types.h>

namespace preload::wakeup {

// Names an eventfd on this host. Those below `least` are no names, see path::Sleeper.
using Id = uint64_t;

// One that nobody of this process sleeps on. 0: there is none, or no descriptor for it.
Id acquire();
void release(Id id);
int descriptor(Id id); // of one that is acquired

// Of one that is acquired: the end of the pipe that other users' processes write into, made when it is first asked for.
// It does not block. -1: there is none.
int pipe_reader(Id id);
int pipe_writer(Id id); // what they are given; -1: the reader was not asked for, or cannot be made
void drain(Id id);      // see wakeup_pipe::drain()

// Of one that is acquired: when somebody has notified it, in ns as sys::now_ns(); 0: nobody has since it was cleared.
// Whoever looks at what that may be about, clears it first. A notified one is not notified again: it must not go to
// sleep without having looked.
uint64_t notified_at(Id id);
inline bool is_notified(Id id) { return notified_at(id) != 0; }
void clear(Id id);

bool is_own(Id id);
void wake_own(Id id); // that of another process: nothing happens
// False: its descriptor is not known, or was given by another user's process than this one's: ids are read from memory
// that a peer writes to, and it could name somebody else's.
bool wake(Id id, uid_t user);
// Another process's, which it has given: the descriptor belongs to this process from now on. Service thread only.
// False: there is no number or place for it, and it is closed.
// board: the memory file of that process's board, or -1.
bool learn(Id id, uid_t user, int fd, int board);
int board_file(); // of this process; -1: it has none
// The same for the writer of a pipe, which stays the caller's.
bool learn_pipe(Id id, uid_t user, int writer);
void after_fork_in_child(); // its descriptors are closed elsewhere

// One for as long as a thread may sleep.
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
