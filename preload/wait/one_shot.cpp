// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/one_shot.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/epoll.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"

namespace preload {

// Of its flags, epoll_ctl(2)'s are left then (proc(5), fdinfo).
bool is_shot(int epfd, int fd) {
    constexpr uint32_t flags = EPOLLONESHOT | EPOLLET | EPOLLWAKEUP | EPOLLEXCLUSIVE;
    std::array<char, 1024> text{};
    snprintf(text.data(), text.size(), "/proc/self/fdinfo/%d", epfd);
    const int file =
        descriptors::make([&] { return sys::call(SYS_openat, AT_FDCWD, text.data(), O_RDONLY | O_CLOEXEC); });
    bool shot = false;
    size_t kept = 0; // of a line's beginning
    for (long n = 0; file >= 0 && (n = sys::call(SYS_read, file, text.data() + kept, text.size() - kept - 1)) > 0;) {
        text[kept + static_cast<size_t>(n)] = '\0';
        char* line = text.data();
        for (char* end = nullptr; (end = strchr(line, '\n')) != nullptr; line = end + 1) {
            int number = -1;
            uint32_t events = 0;
            shot = shot || (sscanf(line, "tfd: %d events: %x", &number, &events) == 2 && number == fd &&
                            (events & ~flags) == 0);
        }
        kept = strlen(line);
        memmove(text.data(), line, kept);
    }
    descriptors::close(file);
    return shot;
}

} // namespace preload
