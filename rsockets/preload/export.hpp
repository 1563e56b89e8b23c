// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A call of libc's that the shim has too. What it was called from is PRELOAD_CALLER, which counts in the call itself
// only.
#pragma once

#define PRELOAD_EXPORT extern "C" __attribute__((visibility("default")))

// The name under which libc's own headers, and programs of old, know a call too.
#define PRELOAD_ALIAS(name, of) PRELOAD_EXPORT __attribute__((alias(#of))) decltype(of) name
