// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/log.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include <fcntl.h>

#include "preload/rules/rules.hpp"
#include "rsockets/preload/real.hpp"
#include "rsockets/preload/settings.hpp"

namespace preload {

void append(const char* path, const char* line, unsigned long length) {
    const int saved = errno;
    const int fd = real::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd >= 0) {
        (void)real::write(fd, line, length);
        real::close(fd);
    }
    errno = saved;
}

void log(const char* format, ...) {
    const char* path = settings::log();
    if (path == nullptr) {
        return;
    }
    const int saved = errno;
    std::array<char, 512> line{};
    const int head = snprintf(line.data(), line.size(), "%s[%d]: ", Rules::get().program(), getpid());
    const auto begin = static_cast<size_t>(std::clamp(head, 0, static_cast<int>(line.size()) / 2));
    const size_t room = line.size() - begin - 1; // one byte is kept for the end of the line
    va_list args;
    va_start(args, format);
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
    const int body = vsnprintf(line.data() + begin, room, format, args);
    va_end(args);
    size_t length = begin + std::min(static_cast<size_t>(std::max(body, 0)), room - 1);
    line[length++] = '\n';
    append(path, line.data(), length);
    errno = saved;
}

} // namespace preload
