// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The socket library, which is loaded when the first socket is to be carried, and what happens to a socket that is: the
// program's number, which is a socket of the kernel's at first, becomes one of the library's, and may become the
// kernel's again. What the program has set it to is kept both times.
#pragma once

#include <rdma/rsocket.h>

#include "rsockets/carrying.h"
#include "rsockets/preload/caller.hpp"
#include "rsockets/preload/table.hpp"

namespace preload {

struct Carrier {
    const rsocket_carrying* own = nullptr;
#define PRELOAD_CARRIER_CALLS(X)                                                                                       \
    X(socket)                                                                                                          \
    X(bind)                                                                                                            \
    X(listen)                                                                                                          \
    X(accept4)                                                                                                         \
    X(connect)                                                                                                         \
    X(shutdown)                                                                                                        \
    X(close)                                                                                                           \
    X(recv)                                                                                                            \
    X(recvfrom)                                                                                                        \
    X(recvmsg)                                                                                                         \
    X(send)                                                                                                            \
    X(sendto)                                                                                                          \
    X(sendmsg)                                                                                                         \
    X(read)                                                                                                            \
    X(readv)                                                                                                           \
    X(write)                                                                                                           \
    X(writev)                                                                                                          \
    X(sendfile)                                                                                                        \
    X(ppoll)                                                                                                           \
    X(pselect)                                                                                                         \
    X(getpeername)                                                                                                     \
    X(getsockname)                                                                                                     \
    X(setsockopt)                                                                                                      \
    X(getsockopt)                                                                                                      \
    X(fcntl)                                                                                                           \
    X(ioctl)
// NOLINTNEXTLINE(bugprone-macro-parentheses): it is the name of a member
#define PRELOAD_MEMBER(name) decltype(&::r##name) name = nullptr;
    PRELOAD_CARRIER_CALLS(PRELOAD_MEMBER)
#undef PRELOAD_MEMBER
    decltype(&::repoll_ctl) epoll_ctl = nullptr;

    // Loaded if need be; null, and a line in the log, if it cannot be.
    static const Carrier* get();
    static bool is_ready();
    // The one that is loaded; only for those who have found something carried.
    static const Carrier& loaded();
};

// A number of the kernel's beyond those that the program counts with, for what the shim keeps: a duplicate of `fd`.
// Closed on exec. -1 and errno.
int keep(int fd);
// The same for a descriptor that the library has just made: the new number instead of it, marked as internal.
int move_away(int fd);

// connect.cpp
// The kernel's socket `fd` is to connect. True if that is done here, and `ret` is what the program gets.
bool carry_connect(int fd, const sockaddr* address, socklen_t length, int& ret);
// A pending number after something may have happened to it: carried once it is connected; the kernel's if it failed,
// with the kernel's own attempt under way. False: it is the kernel's.
bool settle(int fd);
void settle_all();

// listen.cpp
bool carry_listen(int fd, int backlog, int& ret);
// In a child after a fork: the parent's listener is made anew. False: it is the kernel's now.
bool make_anew(int fd);

// switch.cpp
// What the kernel's socket was set to is set on the library's too. Null, or what cannot be.
const char* copy_options(const Carrier& carrier, int kernel, int rsocket);
// The number stands for the file behind `from` from now on, in all epoll sets too; its flags stay. With `of_library`,
// that is an object of the library's, else a descriptor of the kernel's. 0 or an errno.
int switch_number(const Carrier& carrier, int number, int from, bool of_library);

// All numbers of the entry, which `fd` is one of or becomes, are those of the library's socket from now on.
bool become(const Carrier& carrier, int fd, int rsocket, Kind kind, Entry& entry);

// epoll_sets.cpp
// The epoll set becomes one of the library's. 0 or an errno.
int convert_set(const Carrier& carrier, int set);

// descriptors.cpp
// close(2) for the program.
int close_number(int fd);

// fork.cpp
// In a process that shares its parent's memory until it execs: nothing of the table may change there.
bool in_vfork_child();
// A number that was inherited at a fork is used.
bool revive(int fd);

// Whether a number that is not plain is to be dealt with by the library; if not, it is the kernel's.
inline bool ours(int fd, const void* caller) {
    const Kind kind = table::kind(fd);
    if (kind <= Kind::last_plain || caller::is_internal(caller)) {
        return false;
    }
    switch (kind) {
    case Kind::pending:
        return settle(fd);
    case Kind::inherited:
    case Kind::inherited_listener:
        return revive(fd);
    default:
        return true;
    }
}

} // namespace preload
