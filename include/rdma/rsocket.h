/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * Stream sockets over RDMA fabrics: the socket calls with the prefix r, for SOCK_STREAM over PF_INET and PF_INET6. Each
 * has the arguments, the result and the errno of the call without the r on a TCP socket of Linux; rsocket-ofi(7) lists
 * the differences. All are thread safe. The prototypes and constants are those of rdma-core's header of this name.
 *
 * Sizes are in bytes, times in milliseconds unless a type says otherwise. rsocket, raccept and repoll_create return a
 * kernel descriptor, to be closed with rclose. rpoll, rselect and the repoll calls take any descriptors.
 */
#ifndef RSOCKET_H
#define RSOCKET_H

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/* rdma-core's header includes these, and programs rely on that. Nothing here needs them. */
#if defined(__has_include)
#if __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* socket(2). Types other than SOCK_STREAM fail with the kernel's error for an unsupported type. */
int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr* addr, socklen_t addrlen);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr* addr, socklen_t* addrlen);
int raccept4(int socket, struct sockaddr* addr, socklen_t* addrlen, int flags);
int rconnect(int socket, const struct sockaddr* addr, socklen_t addrlen);
int rshutdown(int socket, int how);
int rclose(int socket);

ssize_t rrecv(int socket, void* buf, size_t len, int flags);
ssize_t rrecvfrom(int socket, void* buf, size_t len, int flags, struct sockaddr* src_addr, socklen_t* addrlen);
ssize_t rrecvmsg(int socket, struct msghdr* msg, int flags);
ssize_t rsend(int socket, const void* buf, size_t len, int flags);
ssize_t rsendto(int socket, const void* buf, size_t len, int flags, const struct sockaddr* dest_addr,
                socklen_t addrlen);
ssize_t rsendmsg(int socket, const struct msghdr* msg, int flags);
ssize_t rread(int socket, void* buf, size_t count);
ssize_t rreadv(int socket, const struct iovec* iov, int iovcnt);
ssize_t rwrite(int socket, const void* buf, size_t count);
ssize_t rwritev(int socket, const struct iovec* iov, int iovcnt);
/* sendfile(2) to an rsocket from a descriptor that supports pread(2). */
ssize_t rsendfile(int socket, int in_fd, off_t* offset, size_t count);

int rpoll(struct pollfd* fds, nfds_t nfds, int timeout);
int rppoll(struct pollfd* fds, nfds_t nfds, const struct timespec* timeout, const sigset_t* sigmask);
int rselect(int nfds, fd_set* readfds, fd_set* writefds, fd_set* exceptfds, struct timeval* timeout);
int rpselect(int nfds, fd_set* readfds, fd_set* writefds, fd_set* exceptfds, const struct timespec* timeout,
             const sigset_t* sigmask);

/* epoll_create1(2), epoll_ctl(2), epoll_wait(2). */
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event* event);
int repoll_wait(int epfd, struct epoll_event* events, int maxevents, int timeout);

int rgetpeername(int socket, struct sockaddr* addr, socklen_t* addrlen);
int rgetsockname(int socket, struct sockaddr* addr, socklen_t* addrlen);

/* Options of level SOL_RDMA: see rsocket-ofi(7). */
#define SOL_RDMA 0x10000
enum { RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE };

int rsetsockopt(int socket, int level, int optname, const void* optval, socklen_t optlen);
int rgetsockopt(int socket, int level, int optname, void* optval, socklen_t* optlen);
/* F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD, F_DUPFD, F_DUPFD_CLOEXEC, F_GETOWN, F_SETOWN. */
int rfcntl(int socket, int cmd, ... /* arg */);
/* FIONREAD, FIONBIO, SIOCOUTQ, SIOCATMARK. */
int rioctl(int socket, unsigned long request, ... /* int * */);

/*
 * Iomaps: memory that the peer writes to directly, outside the byte stream: see riomap(3).
 *
 * riomap maps `len` bytes at `buf` to an offset, and returns it: the given one (0 to 2^63-1), or for -1 one that the
 * library chooses. With PROT_WRITE, the peer's riowrite can write to them; with PROT_NONE, they are only registered.
 * `flags` is ignored, as in rdma-core. The peer can use the iomap once it has received data sent after riomap.
 *   -1: EINVAL (prot, range, len of 0), ENOTCONN, ENOMEM (the peer's RDMA_IOMAPSIZE is used up, or the memory cannot be
 *   registered), EADDRINUSE (another iomap covers some of these offsets)
 *
 * riounmap ends the iomap with the same `buf` and `len`. When it returns 0, the peer writes there no more: it waits for
 * the peer's confirmation, regardless of O_NONBLOCK, for SO_SNDTIMEO at most; the end of the connection confirms too.
 *   -1: EINVAL (not mapped), ENOTCONN (never connected), EINTR, EAGAIN (timeout; call again)
 *
 * riowrite writes to the bytes that the peer has mapped from `offset` on, and returns how many were accepted, as rsend
 * does; (size_t)-1 with errno for an error. They are in place before the peer receives data sent later. `buf` may be
 * reused at once. Flags: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE. (size_t)-1: the errors of rsend, and EINVAL if the peer
 * has not mapped all of these offsets: then nothing was written
 */
off_t riomap(int socket, void* buf, size_t len, int prot, int flags, off_t offset);
int riounmap(int socket, void* buf, size_t len);
size_t riowrite(int socket, const void* buf, size_t count, off_t offset, int flags);

/* Another descriptor for the same socket: dup(2), dup2(2). */
int rdup(int socket);
int rdup2(int socket, int fd);

#ifdef __cplusplus
}
#endif

#endif /* RSOCKET_H */
