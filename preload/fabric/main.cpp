// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rspreload-fabric: started by the preload library, with a socket to it as descriptor 3. Not to be run by hand.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <sys/socket.h>

#include "preload/fabric/worker.hpp"
#include "preload/rendezvous/descriptors.hpp"

int main() {
    int type = 0;
    socklen_t length = sizeof(type);
    if (getsockopt(preload::fabric::control_fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET) {
        fputs("rspreload-fabric is started by the preload library, see rsrun(1)\n", stderr);
        return 2;
    }
    preload::descriptors::own_all();
    // Sockets register a buffer once: libfabric's cache would only keep those of closed connections pinned.
    setenv("FI_MR_CACHE_MONITOR", "disabled", 0);
    // Most connections carry small requests, or nothing for hours: their buffers, which are pinned, start small.
    setenv("RS_MEM_DEFAULT", "0", 0);
    setenv("RS_WMEM_DEFAULT", "0", 0);
    // The provider's default has tcp as well, which listens for strangers and is for tests: it must be asked for.
    setenv("FI_RSTREAM_CORE", "verbs", 0);
    // RoCE repeats for ever what nobody acknowledges. But TCP may still work, or is in any case what programs expect.
    setenv("FI_RSTREAM_USER_TIMEOUT", "5000", 0);
    // The dispositions and the mask that the program has set are not for the worker.
    for (int number = 1; number < NSIG; ++number) {
        signal(number, SIG_DFL);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_IGN);
    try {
        preload::fabric::Worker().run();
    } catch (const std::exception& error) {
        fprintf(stderr, "rspreload-fabric: %s\n", error.what());
        return 1;
    }
    return 0;
}
