// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Starts and ends the tracking of fds that refer to TCP connections. Only TCP sockets are tracked; any other descriptor
// costs one table lookup.
#pragma once

#include <cstddef>
#include <cstdint>

#include "preload/connection/table.hpp"

namespace preload::lifecycle {

// A socket made by this process: after connect and accept, or when it listens. Null: no memory, or a seccomp filter.
Connection* began(int fd, Role role);
// A descriptor from elsewhere (exec, SCM_RIGHTS): if it is a TCP socket, its bytes are counted from here on.
void adopt(int fd);
void adopt_inherited(); // when the program begins

// Closes an fd with close_number(too_late), which is called only after all preparations. Returns its result. too_late:
// while this call waited, another thread has closed the fd; it may refer to something else by now.
template <class Close> int close(int fd, Close&& close_number);
// The fd is about to refer to something else, or is closed: nothing but the table changes.
void forget(int fd);
void free_abandoned(Connection& c); // closed while the service worked on it
// The socket was connected, and is not any more: its fds refer to an unconnected TCP socket.
void disconnected(Connection& c);
// `made` is a duplicate of fd.
void duplicate(int fd, int made);

struct Closing {
    Connection* connection = nullptr;
    bool locked = false;
    bool too_late = false;
    int cancel_state = -1; // to be restored; cancelled between the two steps, the thread would leave a half-closed fd
};
// In two steps: the kernel's close comes in between.
Closing before_close(int fd);
void after_close(int fd, Closing& closing);

template <class Close> int close(int fd, Close&& close_number) {
    Closing closing = before_close(fd);
    const int result = close_number(closing.too_late);
    after_close(fd, closing);
    return result;
}

// The process installs a seccomp filter, which may kill it for a call that the program itself does not make; or it can
// have no thread of the library's any more, or it has an io_uring. The library makes no further system calls of its
// own. reason: that of its connections from now on.
void leave_everything_to_the_kernel(Reason reason = Reason::sandboxed);

// A child is about to be made without pthread_atfork handlers.
void note_unseen_child();
// Whether the calling thread is in such a child. A vfork child shares all memory with its parent.
bool in_vfork_child();

// Another program, possibly without the library, may inherit epoll sets: removes the library's descriptors from them.
void leave_inheritable_sets();

// This process ends, or executes another program: it gives up its connections.
void leave_process();
void stay_in_process(); // exec has failed
// Makes a child that shares the connections, by a call that runs the handlers of pthread_atfork(3).
pid_t forked(pid_t (*make)());
// The same in two steps, around a call that runs none. made: what it returned, in each process that it did in.
void before_forking();
void after_forking(long made);

} // namespace preload::lifecycle
