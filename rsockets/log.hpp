// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Log messages on standard error, only if RS_LOG sets a level: error, warn, info or debug.
#pragma once

namespace rsockets {

enum class Level : int { error = 1, warn, info, debug };

// Whether messages of that level are written.
bool logs(Level level);

[[gnu::format(printf, 2, 3)]] void log(Level level, const char* format, ...);

} // namespace rsockets
