// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// USDT probes for bpftrace(8) and similar tools. A probe is an ELF note in the library's file and a nop in the code
// until a tracer attaches. rsstat(1) describes the arguments. Building needs <sys/sdt.h>, running needs nothing.
#pragma once

#if HAVE_SYS_SDT_H
#include <sys/sdt.h>
#define BASE_PROBE(provider, name, a, b) DTRACE_PROBE2(provider, name, a, b)
#else
#define BASE_PROBE(provider, name, a, b) ((void)(a), (void)(b))
#endif
