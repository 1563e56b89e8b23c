// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Attributes of an interposed function.
#pragma once

#define PRELOAD_EXPORT extern "C" __attribute__((visibility("default")))

// Another name of the same call in libc's headers, or in older programs.
#define PRELOAD_ALIAS(name, of) PRELOAD_EXPORT __attribute__((alias(#of))) decltype(of) name
