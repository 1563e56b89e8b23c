/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * What the preload shim needs of librsocket-ofi beyond the calls of <rdma/rsocket.h>: to put a socket onto a number
 * that is the program's, and to take it off again. Private to this project; the entry's version changes with the table.
 *
 * All calls return -1 and set errno where nothing else is said. Numbers are descriptors of the kernel's.
 */
#ifndef RSOCKET_CARRYING_H
#define RSOCKET_CARRYING_H

#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rsocket_report {
    uint64_t sent; /* bytes */
    uint64_t received;
    char core[32];    /* the fabric below, for example "tcp"; empty while there is none */
    int kernel_ports; /* that fabric's ports are those of the kernel's TCP */
};

struct rsocket_carrying {
    /* `number`, which the caller has made a duplicate of `from`, stands for the same object from now on. What it stood
     * for before loses it. */
    int (*share)(int from, int number);
    /* `number` stands for nothing of ours any more; it stays open. The object ends if that was its last number. */
    int (*drop)(int number);
    /* 1 if the number is that of a socket of ours, 0 if not. */
    int (*is_socket)(int number);
    /* As Socket::set_alternative: a connect that fails in the background is kept from those who wait; rpoll, rselect
     * and epoll_wait below fail with ESTALE instead. */
    int (*set_alternative)(int number, int on);
    /* 0: connected. EINPROGRESS; ECANCELED: the program gave it up; any other errno: it failed. */
    int (*outcome)(int number);
    /* raccept of `number` gives also what the kernel's non-blocking listening socket takes, as descriptors of the
     * kernel's. `kernel` must stay open until `number` is closed. */
    int (*listen_beside)(int number, int kernel);
    /* A set like those of repoll_create, around the kernel's epoll descriptor `kernel`: what that one watches is
     * watched on. Takes `kernel` over; the new number. */
    int (*epoll_around)(int kernel);
    /* What repoll_ctl was given for `number`, which is a socket or set of ours. */
    int (*epoll_interest)(int set, int number, struct epoll_event* event);
    /* epoll_pwait2(2). */
    int (*epoll_wait)(int set, struct epoll_event* events, int most, const struct timespec* timeout,
                      const sigset_t* mask);
    int (*report)(int number, struct rsocket_report* report);
    /* libfabric loads its providers now instead of at the first connection. */
    void (*load_providers)(void);
};

const struct rsocket_carrying* rsocket_carrying_2(void);

#ifdef __cplusplus
}
#endif

#endif /* RSOCKET_CARRYING_H */
