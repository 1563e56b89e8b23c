// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Stands for a preload library in rsrun's tests: tells of three sockets as soon as it is loaded, and does nothing else.
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

namespace {

__attribute__((constructor)) void tell() {
    const char* path = getenv("RSPRELOAD_EXPLAIN");
    const int fd = path != nullptr ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (fd >= 0) {
        const int pid = getpid();
        dprintf(fd, "%d\tprogram\t3\tconnect\t127.0.0.1:4000\t127.0.0.1:80\tshm\t1\t0\t2\t10\t20\t-\n", pid);
        dprintf(fd, "%d\tprogram\t4\tlisten\t[::1]:90\t-\tkernel\t-\t-\t-\t-\t-\t-\n", pid);
        dprintf(
            fd,
            "%d\tprogram\t5\taccept\t[::1]:90\t[::1]:4001\tkernel\t0\t0\t-\t1\t2\tended before an upgrade was due\n",
            pid);
        close(fd);
    }
}

} // namespace
