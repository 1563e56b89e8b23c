/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* SPDX-FileCopyrightText: The rstream authors */

/*
 * Calls of librsocket-ofi for the worker of the preload library, beyond those of <rdma/rsocket.h>. Private to this
 * project; the number in the name changes with the meaning.
 */
#ifndef RSOCKET_LOADING_H
#define RSOCKET_LOADING_H

#ifdef __cplusplus
extern "C" {
#endif

/* Loads libfabric's providers now instead of with the first connection, which takes some tenths of a second. If that
 * fails, the first connection reports why. Thread safe. */
void rsocket_load_providers_1(void);

#ifdef __cplusplus
}
#endif

#endif /* RSOCKET_LOADING_H */
