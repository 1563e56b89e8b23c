/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * What a program can ask of the rstream provider beyond libfabric's own headers. Plain C. See fi_rstream(7).
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
 * on that name stands for FI_EP_UNSPEC, while the number still passes through. Use this name with any version.
 * A request with FI_EP_UNSPEC is served too if it says FI_PROTO_RSTREAM or names the provider "rstream".
 */
#define FI_RSTREAM_EP_STREAM ((enum fi_ep_type)4)

/* Sending where nobody reads any more. Like all of libfabric's codes it is the system's; <rdma/fi_errno.h> lacks it. */
#ifndef FI_EPIPE
#define FI_EPIPE EPIPE
#endif

/*
 * Flags of fi_shutdown(ep, flags) on a stream endpoint. 0 ends both directions: what was sent is delivered, then the
 * peer reads the end of the stream, and its sends fail with -FI_EPIPE.
 *
 * FI_RSTREAM_SHUT_WR   ends sending only; data still flows from the peer.
 * FI_RSTREAM_ABORT     drops what was not yet handed to the core and resets the connection: the peer's next receive
 *                      after what had arrived gives -FI_ECONNRESET. Connecting, it gives the attempt up.
 */
#define FI_RSTREAM_SHUT_WR FI_SEND
#define FI_RSTREAM_ABORT (1ULL << 0)

/*
 * Options of fi_setopt and fi_getopt at level FI_OPT_ENDPOINT beside libfabric's own. Each may be set at any time; on a
 * connected endpoint it is in force at once.
 *
 * FI_OPT_RSTREAM_KEEPALIVE_IDLE      size_t or uint32_t; milliseconds, 0 (never; the default) to 32767000
 * FI_OPT_RSTREAM_KEEPALIVE_INTERVAL  size_t or uint32_t; milliseconds, 1 to 32767000; 75000 by default
 * FI_OPT_RSTREAM_KEEPALIVE_COUNT     size_t or uint32_t; 1 to 127; 9 by default
 *     A peer that was not heard of for KEEPALIVE_IDLE is asked whether it is there, in a way that takes no help of its
 *     program; when KEEPALIVE_COUNT times KEEPALIVE_INTERVAL have gone by without an answer the connection is lost,
 * with -FI_ETIMEDOUT.
 *
 * FI_OPT_RSTREAM_USER_TIMEOUT        size_t or uint32_t; milliseconds, 0 to 32767000; 925000 by default
 *     When something that was sent is not acknowledged by the peer's adapter or kernel for that long, the connection is
 *     lost in the same way: within a quarter more. 0: the core repeats it for as long as it does. An idle end is not
 * asked.
 *
 * FI_OPT_RSTREAM_LINGER   size_t; milliseconds, 0 to 3600000; FI_RSTREAM_LINGER by default. How long fi_close waits
 * until all that was sent is with the core. What is left then goes on in the background.
 *
 * FI_OPT_RSTREAM_STATUS   struct fi_rstream_status; get only. What is known of the connection at this moment. It makes
 *                         no progress and changes nothing, fi_trywait's answers included. Thread safe. Of a passive
 *                         endpoint, what is known of its core: FI_RSTREAM_MANUAL and FI_RSTREAM_KERNEL_PORTS.
 *
 * FI_OPT_RSTREAM_MAPS     size_t; 0 to 4096, larger values count as 4096; 0 by default; before the endpoint is enabled,
 *                         -FI_EOPBADSTATE after that. How many maps of the peer's the endpoint can be told of: see
 * below.
 *
 * Errors: -FI_EINVAL for a value out of range or of another width. Setting keepalive on a connected endpoint also gives
 * whatever keeps it from being in force.
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
#define FI_RSTREAM_PEER_CLOSED (1ULL << 1)   /* and will not receive any more either */
#define FI_RSTREAM_PEER_RESET (1ULL << 2)    /* the peer has reset the connection */
#define FI_RSTREAM_LOST (1ULL << 3)          /* the core's connection is gone, or never was made */
#define FI_RSTREAM_UNACKED (1ULL << 4)       /* something that was sent, or its end, is not known to have arrived */
#define FI_RSTREAM_WAITING (1ULL << 5)       /* something that was sent goes on only within further calls */
#define FI_RSTREAM_MANUAL (1ULL << 6)        /* so does what the peer writes to a map: the core's progress is manual */
#define FI_RSTREAM_KERNEL_PORTS (1ULL << 7)  /* the core's ports are those of the kernel's TCP */

struct fi_rstream_status {
    uint64_t flags;
    size_t readable; /* bytes that have arrived and were not received */
    size_t writable; /* bytes that a send would accept */
    size_t unsent;   /* bytes that were accepted and are not with the core yet, or not known to be */
};

/*
 * Maps: memory of the program that the peer writes to directly, beside the stream. The peer names it by offsets, in
 * bytes, from 0 to 2^63-1, which are those of the connection and direction. Operations of an endpoint:
 *
 *     struct fi_ops_rstream_map *ops;
 *     fi_open_ops(&ep->fid, FI_RSTREAM_MAP_OPS, 0, (void **)&ops, NULL);
 *
 * All are thread safe, and return at once. The operations live as long as the provider does.
 */
#define FI_RSTREAM_MAP_OPS "rstream_map_1"

#define FI_RSTREAM_MAP_ANY UINT64_MAX     /* an offset of the provider's choice */
#define FI_RSTREAM_UNATTENDED (1ULL << 0) /* unmap: nobody waits for the answer */

struct fi_ops_rstream_map {
    size_t size; /* of this structure */

    /*
     * Maps `len` bytes at `buf` to *offset, or to one that is chosen and stored there for FI_RSTREAM_MAP_ANY. `access`:
     * FI_REMOTE_WRITE, the peer may write to them; 0, they are registered with the core and no more. The peer knows of
     * the map before it receives what is sent after this call. Memory that is mapped must stay valid until it is
     * unmapped, or the endpoint is closed.
     *
     * 0; -FI_EINVAL (range, access, null); -FI_ENOTCONN; -FI_ENOSPC: the peer has room for no more maps (its
     * FI_OPT_RSTREAM_MAPS); -FI_EADDRINUSE: some of these offsets are mapped; -FI_ECONNRESET, -FI_ETIMEDOUT,
     * -FI_ECONNABORTED: the connection is lost; or what keeps the core from registering the memory.
     */
    int (*map)(struct fid_ep* ep, void* buf, size_t len, uint64_t access, uint64_t* offset);

    /*
     * Ends the map that was made with this `buf` and `len`. The peer is asked to write there no more; the map is gone
     * when it has agreed, when it has ended its sending, or when the connection is lost.
     *
     * 0: it is gone, and nothing is written there any more; -FI_EAGAIN: the peer was asked and has not answered: to be
     * called again when the endpoint's descriptor is readable (fi_trywait tells too, until this call was made again,
     * or was made with FI_RSTREAM_UNATTENDED); -FI_EINVAL: no such map, or an unknown flag.
     */
    int (*unmap)(struct fid_ep* ep, void* buf, size_t len, uint64_t flags);

    /*
     * Writes to what the peer has mapped at `offset` and behind it. Part of the stream as to order, room and errors: it
     * is there before the peer receives what is sent after it, takes its place in the send buffer, and gives what
     * fi_send gives. `flags`: 0 or FI_MORE.
     *
     * The number of bytes that were taken, which may be fewer than were given; -FI_EAGAIN; -FI_EINVAL: the peer has not
     * mapped all of them, or has asked for some of them back; nothing was written; or an error of fi_send. Bytes that
     * were taken and that the peer asks back before they are on their way are dropped.
     */
    ssize_t (*write)(struct fid_ep* ep, const void* buf, size_t len, uint64_t offset, uint64_t flags);
};

#ifdef __cplusplus
}
#endif

#endif /* FI_EXT_RSTREAM_H */
