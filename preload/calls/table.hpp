// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The calls of libc that the library makes, most of which it also interposes. A new one is a line here, its function in
// one of the files of this folder, and, if programs call it, its name in preload.map.
#pragma once

#define PRELOAD_CALLS(X)                                                                                               \
    X(_Fork)                                                                                                           \
    X(accept)                                                                                                          \
    X(accept4)                                                                                                         \
    X(aio_read)                                                                                                        \
    X(aio_write)                                                                                                       \
    X(clone)                                                                                                           \
    X(close)                                                                                                           \
    X(close_range)                                                                                                     \
    X(connect)                                                                                                         \
    X(dup)                                                                                                             \
    X(dup2)                                                                                                            \
    X(dup3)                                                                                                            \
    X(epoll_create)                                                                                                    \
    X(epoll_create1)                                                                                                   \
    X(epoll_ctl)                                                                                                       \
    X(epoll_pwait)                                                                                                     \
    X(epoll_pwait2)                                                                                                    \
    X(epoll_wait)                                                                                                      \
    X(execve)                                                                                                          \
    X(execvpe)                                                                                                         \
    X(fclose)                                                                                                          \
    X(fcntl)                                                                                                           \
    X(fdopen)                                                                                                          \
    X(fexecve)                                                                                                         \
    X(getsockopt)                                                                                                      \
    X(ioctl)                                                                                                           \
    X(listen)                                                                                                          \
    X(poll)                                                                                                            \
    X(posix_spawn)                                                                                                     \
    X(posix_spawn_file_actions_adddup2)                                                                                \
    X(posix_spawnp)                                                                                                    \
    X(ppoll)                                                                                                           \
    X(prctl)                                                                                                           \
    X(preadv2)                                                                                                         \
    X(pselect)                                                                                                         \
    X(pwritev2)                                                                                                        \
    X(read)                                                                                                            \
    X(readv)                                                                                                           \
    X(recv)                                                                                                            \
    X(recvfrom)                                                                                                        \
    X(recvmmsg)                                                                                                        \
    X(recvmsg)                                                                                                         \
    X(select)                                                                                                          \
    X(send)                                                                                                            \
    X(sendfile)                                                                                                        \
    X(sendmmsg)                                                                                                        \
    X(sendmsg)                                                                                                         \
    X(sendto)                                                                                                          \
    X(setsockopt)                                                                                                      \
    X(shutdown)                                                                                                        \
    X(socket)                                                                                                          \
    X(splice)                                                                                                          \
    X(syscall)                                                                                                         \
    X(vdprintf)                                                                                                        \
    X(write)                                                                                                           \
    X(writev)
