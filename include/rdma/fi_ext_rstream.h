/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * What a program can ask of the rstream provider beyond libfabric's own headers. Plain C. See fi_rstream(7).
 */
#ifndef FI_EXT_RSTREAM_H
#define FI_EXT_RSTREAM_H

#include <errno.h>
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
 *                      after what had arrived gives -FI_ECONNRESET.
 */
#define FI_RSTREAM_SHUT_WR FI_SEND
#define FI_RSTREAM_ABORT (1ULL << 0)

/*
 * Options of fi_setopt and fi_getopt at level FI_OPT_ENDPOINT beside libfabric's own, as size_t or uint32_t. At any
 * time; those of a connected endpoint are in force at once. A peer that was not heard of for KEEPALIVE_IDLE is asked
 * whether it is there, in a way that takes no help of its program; when KEEPALIVE_COUNT times KEEPALIVE_INTERVAL have
 * gone by without an answer the connection is lost, with -FI_ETIMEDOUT or -FI_ECONNRESET.
 *
 * FI_RSTREAM_OPT_KEEPALIVE_IDLE      milliseconds, 0 (never; the default) to 32767000
 * FI_RSTREAM_OPT_KEEPALIVE_INTERVAL  milliseconds, 1 to 32767000; 75000 by default
 * FI_RSTREAM_OPT_KEEPALIVE_COUNT     1 to 127; 9 by default
 *
 * Errors: -FI_EINVAL for a value out of range or of another width. Setting one on a connected endpoint also gives
 * whatever error keeps it from being in force.
 */
#define FI_PROV_SPECIFIC_RSTREAM (0x757 << 16)
enum {
    FI_RSTREAM_OPT_KEEPALIVE_IDLE = -FI_PROV_SPECIFIC_RSTREAM,
    FI_RSTREAM_OPT_KEEPALIVE_INTERVAL,
    FI_RSTREAM_OPT_KEEPALIVE_COUNT,
};

#ifdef __cplusplus
}
#endif

#endif /* FI_EXT_RSTREAM_H */
