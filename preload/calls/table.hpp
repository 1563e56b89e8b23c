// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The libc calls that the library interposes. This list determines what the library exports (exports.map.in), its
// references to libc's own functions (real.hpp), and what test/exports.sh expects. A new call needs a line here, and
// its function in a file of this folder. Preprocessor text only, so that all three can read it.
#ifndef PRELOAD_CALLS_TABLE_HPP
#define PRELOAD_CALLS_TABLE_HPP

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
    X(daemon)                                                                                                          \
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
    X(execveat)                                                                                                        \
    X(execvpe)                                                                                                         \
    X(fclose)                                                                                                          \
    X(fcntl)                                                                                                           \
    X(fdopen)                                                                                                          \
    X(fexecve)                                                                                                         \
    X(fork)                                                                                                            \
    X(getsockopt)                                                                                                      \
    X(ioctl)                                                                                                           \
    X(lio_listio)                                                                                                      \
    X(listen)                                                                                                          \
    X(poll)                                                                                                            \
    X(popen)                                                                                                           \
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
    X(system)                                                                                                          \
    X(vdprintf)                                                                                                        \
    X(write)                                                                                                           \
    X(writev)

// Other names of these calls in libc's headers or older programs, and libc functions that call these internally and
// would bypass the library. The library itself needs none of them.
#define PRELOAD_OTHER_NAMES(X)                                                                                         \
    X(_Exit)                                                                                                           \
    X(__close)                                                                                                         \
    X(__connect)                                                                                                       \
    X(__dprintf_chk)                                                                                                   \
    X(__dup2)                                                                                                          \
    X(__fcntl)                                                                                                         \
    X(__fork)                                                                                                          \
    X(__poll)                                                                                                          \
    X(__poll_chk)                                                                                                      \
    X(__ppoll_chk)                                                                                                     \
    X(__read)                                                                                                          \
    X(__read_chk)                                                                                                      \
    X(__recv_chk)                                                                                                      \
    X(__recvfrom_chk)                                                                                                  \
    X(__select)                                                                                                        \
    X(__send)                                                                                                          \
    X(__vdprintf_chk)                                                                                                  \
    X(__vfork)                                                                                                         \
    X(__write)                                                                                                         \
    X(_exit)                                                                                                           \
    X(aio_read64)                                                                                                      \
    X(aio_write64)                                                                                                     \
    X(capset)                                                                                                          \
    X(closefrom)                                                                                                       \
    X(dprintf)                                                                                                         \
    X(execl)                                                                                                           \
    X(execle)                                                                                                          \
    X(execlp)                                                                                                          \
    X(execv)                                                                                                           \
    X(execvp)                                                                                                          \
    X(fcntl64)                                                                                                         \
    X(getrlimit)                                                                                                       \
    X(getrlimit64)                                                                                                     \
    X(lio_listio64)                                                                                                    \
    X(preadv64v2)                                                                                                      \
    X(prlimit)                                                                                                         \
    X(prlimit64)                                                                                                       \
    X(pthread_exit)                                                                                                    \
    X(pwritev64v2)                                                                                                     \
    X(sendfile64)                                                                                                      \
    X(setns)                                                                                                           \
    X(setrlimit)                                                                                                       \
    X(setrlimit64)                                                                                                     \
    X(thrd_exit)                                                                                                       \
    X(unshare)                                                                                                         \
    X(vfork)

#endif
