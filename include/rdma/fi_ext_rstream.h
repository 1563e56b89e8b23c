/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * Extensions of the rstream provider to libfabric's own headers. Plain C. See fi_rstream(7).
 */
#ifndef FI_EXT_RSTREAM_H
#define FI_EXT_RSTREAM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The value of fi_ep_attr::type for stream endpoints. Headers up to libfabric 1.20 call it FI_EP_SOCK_STREAM; from 1.21
 * on that name is an alias of FI_EP_UNSPEC, while libfabric still passes the value through. Use this name with any
 * version. A request with FI_EP_UNSPEC is served too if it sets FI_PROTO_RSTREAM or names the provider "rstream".
 */
#define FI_RSTREAM_EP_STREAM ((enum fi_ep_type)4)

/* A send to a peer that no longer receives. As all libfabric codes, it is the system's; <rdma/fi_errno.h> lacks it. */
#ifndef FI_EPIPE
#define FI_EPIPE EPIPE
#endif

/*
 * Flags of fi_shutdown(ep, flags) on a stream endpoint. 0 ends both directions: sent data is delivered, then the peer
 * reads EOF, and its sends fail with -FI_EPIPE.
 *
 * FI_RSTREAM_SHUT_WR   ends sending only; data still flows from the peer.
 * FI_RSTREAM_ABORT     drops data that is not yet handed to the core and resets the connection: the peer receives
 *                      what had arrived, then its next receive fails with -FI_ECONNRESET. While connecting, it cancels
 *                      the attempt.
 */
#define FI_RSTREAM_SHUT_WR FI_SEND
#define FI_RSTREAM_ABORT (1ULL << 0)

/*
 * Options of fi_setopt and fi_getopt at level FI_OPT_ENDPOINT, in addition to libfabric's own. Unless stated otherwise,
 * each may be set at any time; on a connected endpoint it takes effect at once.
 *
 * FI_OPT_RSTREAM_KEEPALIVE_IDLE      size_t or uint32_t; milliseconds, 0 (never; the default) to 32767000
 * FI_OPT_RSTREAM_KEEPALIVE_INTERVAL  size_t or uint32_t; milliseconds, 1 to 32767000; 75000 by default
 * FI_OPT_RSTREAM_KEEPALIVE_COUNT     size_t or uint32_t; 1 to 127; 9 by default
 *     A peer that was silent for KEEPALIVE_IDLE is probed; its program need not take part in the answer. After
 *     KEEPALIVE_COUNT times KEEPALIVE_INTERVAL without an answer the connection is lost, with -FI_ETIMEDOUT.
 *
 * FI_OPT_RSTREAM_USER_TIMEOUT        size_t or uint32_t; milliseconds, 0 to 32767000; 925000 by default
 *     If the peer's adapter or kernel does not acknowledge sent data for that long, the connection is lost in the
 *     same way, at most a quarter of that time later. 0: the core's own retransmission limit. An idle end is not
 *     probed.
 *
 * FI_OPT_RSTREAM_LINGER   size_t; milliseconds, 0 to 3600000; FI_RSTREAM_LINGER by default. How long fi_close waits
 * until the core has all sent data. What is left then is sent in the background. Also a command of fi_control on a
 * domain, whose fi_close then waits no longer than that, nor than FI_RSTREAM_LINGER. Thread safe.
 *
 * FI_OPT_RSTREAM_STATUS   struct fi_rstream_status; get only. The state of the connection at this moment. It makes no
 *                         progress and has no side effect, not even on the results of fi_trywait. Thread safe. On a
 *                         passive endpoint, the properties of its core: FI_RSTREAM_MANUAL and FI_RSTREAM_KERNEL_PORTS.
 *
 * FI_OPT_RSTREAM_MAPS     size_t; 0 to 4096, larger values count as 4096; 0 by default; before the endpoint is enabled,
 *                         -FI_EOPBADSTATE after that. The number of iomaps that the peer can have at once: see below.
 *
 * Errors: -FI_EINVAL for a value out of range or of another width. Setting keepalive on a connected endpoint also
 * returns the error that keeps it from taking effect.
 */
#define FI_PROV_SPECIFIC_RSTREAM (0x757 << 16)
enum {
    FI_OPT_RSTREAM_KEEPALIVE_IDLE = -FI_PROV_SPECIFIC_RSTREAM,
    FI_OPT_RSTREAM_KEEPALIVE_INTERVAL,
    FI_OPT_RSTREAM_KEEPALIVE_COUNT,
    FI_OPT_RSTREAM_LINGER,
    FI_OPT_RSTREAM_STATUS,
    FI_OPT_RSTREAM_MAPS,
    FI_OPT_RSTREAM_USER_TIMEOUT,
};

#define FI_RSTREAM_PEER_FINISHED (1ULL << 0) /* the peer has ended its sending; bytes may be left to receive */
#define FI_RSTREAM_PEER_CLOSED (1ULL << 1)   /* the peer does not receive any more either */
#define FI_RSTREAM_PEER_RESET (1ULL << 2)    /* the peer has reset the connection */
#define FI_RSTREAM_LOST (1ULL << 3)          /* the core's connection is gone, or was never established */
#define FI_RSTREAM_UNACKED (1ULL << 4)       /* sent data, or the EOF behind it, is not known to have arrived */
#define FI_RSTREAM_WAITING (1ULL << 5)       /* sent data moves on only within further calls */
#define FI_RSTREAM_MANUAL (1ULL << 6)        /* so do the peer's writes to iomaps: the core's progress is manual */
#define FI_RSTREAM_KERNEL_PORTS (1ULL << 7)  /* the core uses the port space of the kernel's TCP */

struct fi_rstream_status {
    uint64_t flags;
    size_t readable;  /* bytes that have arrived and are not received yet */
    size_t writable;  /* bytes that a send would accept */
    size_t unsent;    /* accepted bytes that the core does not have yet, or is not known to have */
    uint64_t arrived; /* bytes that have arrived since the connection began */
};

/*
 * Iomaps: memory of the program that the peer writes to directly, outside the byte stream. The peer addresses it by
 * offsets, in bytes, from 0 to 2^63-1, which are per connection and direction. Operations of an endpoint:
 *
 *     struct fi_ops_rstream_map *ops;
 *     fi_open_ops(&ep->fid, FI_RSTREAM_MAP_OPS, 0, (void **)&ops, NULL);
 *
 * All are thread safe and return at once. The operations stay valid as long as the provider is loaded.
 */
#define FI_RSTREAM_MAP_OPS "rstream_map_1"

#define FI_RSTREAM_MAP_ANY UINT64_MAX     /* the provider chooses the offset */
#define FI_RSTREAM_UNATTENDED (1ULL << 0) /* unmap: the caller does not wait for the answer */

struct fi_ops_rstream_map {
    size_t size; /* of this structure */

    /*
     * Maps `len` bytes at `buf` to *offset, or, for FI_RSTREAM_MAP_ANY, to an offset that is chosen and stored there.
     * `access`: FI_REMOTE_WRITE, the peer may write to them; 0, they are only registered with the core. The peer learns
     * of the iomap before it receives data sent after this call. The memory must stay valid until it is unmapped, or
     * the endpoint is closed.
     *
     * Returns 0; -FI_EINVAL (range, access, null); -FI_ENOTCONN; -FI_ENOSPC: the peer has no capacity for more iomaps
     * (its FI_OPT_RSTREAM_MAPS); -FI_EADDRINUSE: some of these offsets are mapped; -FI_ECONNRESET, -FI_ETIMEDOUT,
     * -FI_ECONNABORTED: the connection is lost; or the error with which the core fails to register the memory.
     */
    int (*map)(struct fid_ep* ep, void* buf, size_t len, uint64_t access, uint64_t* offset);

    /*
     * Ends the iomap with this `buf` and `len`. The peer is asked to stop writing there; the iomap is gone when the
     * peer has agreed, when it has ended its sending, or when the connection is lost.
     *
     * Returns 0: the iomap is gone, and nothing is written there any more; -FI_EAGAIN: the peer was asked and has not
     * answered: call again when the endpoint's descriptor is readable (fi_trywait reports the answer too, until this
     * call is repeated, or is made with FI_RSTREAM_UNATTENDED); -FI_EINVAL: no such iomap, or an unknown flag.
     */
    int (*unmap)(struct fid_ep* ep, void* buf, size_t len, uint64_t flags);

    /*
     * Writes to the bytes that the peer has mapped from `offset` on. The write is part of the stream in order, space
     * and errors: the bytes are in place before the peer receives data sent later, take space in the send buffer, and
     * the errors are those of fi_send. `flags`: 0 or FI_MORE.
     *
     * Returns the number of accepted bytes, which may be fewer than given; -FI_EAGAIN; -FI_EINVAL: the peer has not
     * mapped all of them, or has asked for some of them back; nothing was written; or an error of fi_send. Accepted
     * bytes that the peer asks back before they are on their way are dropped.
     */
    ssize_t (*write)(struct fid_ep* ep, const void* buf, size_t len, uint64_t offset, uint64_t flags);
};

#ifdef __cplusplus
}
#endif

#endif /* FI_EXT_RSTREAM_H */
