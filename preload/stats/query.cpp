// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A query of a socket's path for tests, by dlsym. No program needs it.
#include "preload/calls/export.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/table.hpp"

using namespace preload;

// 0: kernel; 1: careful; 2: one direction is in the ring; 3: both are. -1: not a tracked connection.
PRELOAD_EXPORT int rspreload_path(int fd) {
    const Connection* c = table::connection(fd);
    if (c == nullptr) {
        return -1;
    }
    const ConnectionState& s = *c->state.load();
    if ((s.gate.load() & gate::careful) == 0) {
        return 0;
    }
    return 1 + static_cast<int>(s.out_epoch.load() & 1) + static_cast<int>(s.in_epoch.load() & 1);
}
