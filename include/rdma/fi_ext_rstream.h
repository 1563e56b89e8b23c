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

#ifdef __cplusplus
}
#endif

#endif /* FI_EXT_RSTREAM_H */
