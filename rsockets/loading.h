/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * What the worker of the preload library needs of librsocket-ofi beyond the calls of <rdma/rsocket.h>. Private to this
 * project; the name's number changes with its meaning.
 */
#ifndef RSOCKET_LOADING_H
#define RSOCKET_LOADING_H

#ifdef __cplusplus
extern "C" {
#endif

/* libfabric loads its providers now, instead of with the first connection: some tenths of a second. If that fails, the
 * first connection says why. Thread-safe. */
void rsocket_load_providers_1(void);

#ifdef __cplusplus
}
#endif

#endif /* RSOCKET_LOADING_H */
