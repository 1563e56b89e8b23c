/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * What a source written for rdma-core's <rdma/rsocket.h> uses of it, in the language of the user's compiler: each call by
 * a pointer of the type that rsocket(7) and the calls of sockets give it, each constant by its value. rsockets/test/headers.sh
 * compiles it with the flags of rsocket-ofi.pc, as C and as C++, and runs it.
 */
#include <rdma/rsocket.h>

#include <stdio.h>

static int (*volatile p_rsocket)(int, int, int) = rsocket;
static int (*volatile p_rbind)(int, const struct sockaddr *, socklen_t) = rbind;
static int (*volatile p_rlisten)(int, int) = rlisten;
static int (*volatile p_raccept)(int, struct sockaddr *, socklen_t *) = raccept;
static int (*volatile p_raccept4)(int, struct sockaddr *, socklen_t *, int) = raccept4;
static int (*volatile p_rconnect)(int, const struct sockaddr *, socklen_t) = rconnect;
static int (*volatile p_rshutdown)(int, int) = rshutdown;
static int (*volatile p_rclose)(int) = rclose;
static ssize_t (*volatile p_rrecv)(int, void *, size_t, int) = rrecv;
static ssize_t (*volatile p_rrecvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *) = rrecvfrom;
static ssize_t (*volatile p_rrecvmsg)(int, struct msghdr *, int) = rrecvmsg;
static ssize_t (*volatile p_rsend)(int, const void *, size_t, int) = rsend;
static ssize_t (*volatile p_rsendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t) = rsendto;
static ssize_t (*volatile p_rsendmsg)(int, const struct msghdr *, int) = rsendmsg;
static ssize_t (*volatile p_rread)(int, void *, size_t) = rread;
static ssize_t (*volatile p_rreadv)(int, const struct iovec *, int) = rreadv;
static ssize_t (*volatile p_rwrite)(int, const void *, size_t) = rwrite;
static ssize_t (*volatile p_rwritev)(int, const struct iovec *, int) = rwritev;
static ssize_t (*volatile p_rsendfile)(int, int, off_t *, size_t) = rsendfile;
static int (*volatile p_rpoll)(struct pollfd *, nfds_t, int) = rpoll;
static int (*volatile p_rppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *) = rppoll;
static int (*volatile p_rselect)(int, fd_set *, fd_set *, fd_set *, struct timeval *) = rselect;
static int (*volatile p_rpselect)(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *) = rpselect;
static int (*volatile p_repoll_create)(int) = repoll_create;
static int (*volatile p_repoll_ctl)(int, int, int, struct epoll_event *) = repoll_ctl;
static int (*volatile p_repoll_wait)(int, struct epoll_event *, int, int) = repoll_wait;
static int (*volatile p_rgetpeername)(int, struct sockaddr *, socklen_t *) = rgetpeername;
static int (*volatile p_rgetsockname)(int, struct sockaddr *, socklen_t *) = rgetsockname;
static int (*volatile p_rsetsockopt)(int, int, int, const void *, socklen_t) = rsetsockopt;
static int (*volatile p_rgetsockopt)(int, int, int, void *, socklen_t *) = rgetsockopt;
static int (*volatile p_rfcntl)(int, int, ...) = rfcntl;
static int (*volatile p_rioctl)(int, unsigned long, ...) = rioctl;
static int (*volatile p_rdup)(int) = rdup;
static off_t (*volatile p_riomap)(int, void *, size_t, int, int, off_t) = riomap;
static int (*volatile p_riounmap)(int, void *, size_t) = riounmap;
static size_t (*volatile p_riowrite)(int, const void *, size_t, off_t, int) = riowrite;
static int (*volatile p_rdup2)(int, int) = rdup2;

/* As an initializer, a case and a size, where only a constant may stand. */
static const int constants[] = {SOL_RDMA, RDMA_SQSIZE, RDMA_RQSIZE, RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE};
static const int expected[] = {0x10000, 0, 1, 2, 3, 4};

static int well_known(int name)
{
    switch (name) {
    case RDMA_SQSIZE:
    case RDMA_RQSIZE:
    case RDMA_INLINE:
    case RDMA_IOMAPSIZE:
    case RDMA_ROUTE:
        return 1;
    default:
        return 0;
    }
}

int main(void)
{
    size_t i;
    int fd, value = 0, failed = 0;
    socklen_t length = sizeof(value);

    for (i = 0; i < sizeof(constants) / sizeof(*constants); i++)
        failed |= constants[i] != expected[i] || (i != 0 && !well_known(constants[i]));
    failed |= !(p_rbind && p_rlisten && p_raccept && p_raccept4 && p_rconnect && p_rshutdown && p_rrecv && p_rrecvfrom);
    failed |= !(p_rrecvmsg && p_rsend && p_rsendto && p_rsendmsg && p_rread && p_rreadv && p_rwrite && p_rwritev);
    failed |= !(p_rsendfile && p_rpoll && p_rppoll && p_rselect && p_rpselect && p_repoll_create && p_repoll_ctl);
    failed |= !(p_repoll_wait && p_rgetpeername && p_rgetsockname && p_rsetsockopt && p_rfcntl && p_rioctl && p_rdup);
    failed |= !(p_rdup2 && p_riomap && p_riounmap && p_riowrite);

    fd = p_rsocket(PF_INET6, SOCK_STREAM, IPPROTO_TCP);
    failed |= fd < 0 || p_rgetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, &length) != 0 || value <= 0;
    failed |= p_rclose(fd) != 0;
    if (failed)
        fprintf(stderr, "a constant or a call is not as it should be\n");
    return failed;
}
