// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Lines for the file that RSPRELOAD_LOG names. Without it there are none: standard error is the program's.
#pragma once

namespace preload {

__attribute__((format(printf, 1, 2))) void log(const char* format, ...);

// Appends a line to a file with one write(2), so that those of threads and processes do not mix.
void append(const char* path, const char* line, unsigned long length);

} // namespace preload
