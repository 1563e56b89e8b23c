// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Marks of an interposed function.
#pragma once

#define PRELOAD_EXPORT extern "C" __attribute__((visibility("default")))

// Another name under which libc's headers, or older programs, know the same call.
#define PRELOAD_ALIAS(name, of) PRELOAD_EXPORT __attribute__((alias(#of))) decltype(of) name
