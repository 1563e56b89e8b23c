// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// USDT probes, for bpftrace(8) and the like: notes in the library's file, and a nop in the code, until somebody traces.
// Arguments are described in rsstat(1). They need <sys/sdt.h> when the library is built, and nothing when it runs.
#pragma once

#if HAVE_SYS_SDT_H
#include <sys/sdt.h>
#define BASE_PROBE(provider, name, a, b) DTRACE_PROBE2(provider, name, a, b)
#else
#define BASE_PROBE(provider, name, a, b) ((void)(a), (void)(b))
#endif
