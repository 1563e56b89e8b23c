// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Stands for the preload library in rsrun's tests: tells of two sockets as soon as it is loaded, and does nothing else.
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

namespace {

__attribute__((constructor)) void tell() {
    const char* path = getenv("RSPRELOAD_EXPLAIN");
    const int fd = path != nullptr ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (fd >= 0) {
        dprintf(fd, "%d\tprogram\t3\tconnect\t10.0.0.1:4000\t10.0.0.2:80\tcarried\ttcp\t10\t20\t-\n", getpid());
        dprintf(fd, "%d\tprogram\t4\tlisten\t[::1]:90\t-\tkernel\t-\t-\t-\ta loopback address\n", getpid());
        close(fd);
    }
}

} // namespace
