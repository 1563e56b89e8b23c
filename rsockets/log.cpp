// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/log.hpp"

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace rsockets {

namespace {

constexpr std::array names{"", "error", "warn", "info", "debug"};

int wanted_level() {
    static const int level = [] {
        const char* asked = getenv("RS_LOG");
        for (size_t i = 1; asked != nullptr && i < names.size(); ++i) {
            if (strcmp(asked, names[i]) == 0) {
                return static_cast<int>(i);
            }
        }
        return 0;
    }();
    return level;
}

// In one call, so that lines of threads do not interleave. What cannot be written is lost: there is no other place to
// report it.
void write_line(const char* line, size_t length) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, length);
}

} // namespace

bool logs(Level level) { return static_cast<int>(level) <= wanted_level(); }

void log(Level level, const char* format, ...) {
    if (!logs(level)) {
        return;
    }
    const int saved = errno;
    std::array<char, 512> line{};
    const int head =
        snprintf(line.data(), line.size(), "rsocket[%d] %s: ", getpid(), names[static_cast<size_t>(level)]);
    va_list args;
    va_start(args, format);
    // One byte is reserved for the newline.
    const auto space = line.size() - static_cast<size_t>(head) - 1;
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
    const int body = vsnprintf(line.data() + head, space, format, args);
    va_end(args);
    size_t length = static_cast<size_t>(head) + (body < 0 ? 0 : std::min<size_t>(static_cast<size_t>(body), space - 1));
    line[length++] = '\n';
    write_line(line.data(), length);
    errno = saved;
}

} // namespace rsockets
