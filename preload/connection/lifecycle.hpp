// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Numbers that begin and end to stand for a TCP connection. Only TCP sockets are known; any other descriptor costs one
// look at the table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "preload/connection/table.hpp"

namespace preload::lifecycle {

// A socket of this process's own making: after connect and accept, or as it listens. Null: not a TCP socket, no memory.
Connection* began(int fd, Role role);
// A descriptor that came from elsewhere (exec, SCM_RIGHTS): if it is a TCP socket, it is counted from here on.
void adopt(int fd);

// Closes a number with close_number(), which is given the chance only once all is prepared. Its result.
template <class Close> int close(int fd, Close&& close_number);
// The number is about to stand for something else, or is gone: nothing but the table changes.
void forget(int fd);
void free_abandoned(Connection& c); // closed while the service worked on it
// made stands for what fd stands for.
void duplicate(int fd, int made);

struct Closing {
    Connection* connection = nullptr;
    bool locked = false;
};
// In two steps, since the kernel's close comes in between.
Closing before_close(int fd);
void after_close(int fd, Closing& closing);

template <class Close> int close(int fd, Close&& close_number) {
    Closing closing = before_close(fd);
    const int result = close_number();
    after_close(fd, closing);
    return result;
}

// The process gets a filter of system calls, which may end it at one that the program itself does not make: the library
// makes no more of its own.
void leave_everything_to_the_kernel();

// A child is about to be made that pthread_atfork does not tell of.
void note_unseen_child();
// Whether the calling thread is in such a child. One of vfork shares all memory with its parent.
bool in_vfork_child();

// Before another program may inherit epoll sets: one that does not know of the library finds its own descriptors in
// none.
void leave_inheritable_sets();

// This process ends, or becomes another program: it holds its connections no more.
void leave_process();
void stay_in_process(); // it goes on, since exec has failed
void before_fork();
void after_fork_in_parent(bool made);
void after_fork_in_child();

} // namespace preload::lifecycle
