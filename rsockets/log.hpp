// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the library has to say, on standard error, and only if RS_LOG asks for it: error, warn, info or debug.
#pragma once

namespace rsockets {

enum class Level : int { error = 1, warn, info, debug };

// Whether anything of that level is written at all.
bool logs(Level level);

[[gnu::format(printf, 2, 3)]] void log(Level level, const char* format, ...);

} // namespace rsockets
