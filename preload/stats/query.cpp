// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What tests ask the library about a socket, by dlsym. No program needs it.
#include "preload/calls/export.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/table.hpp"

using namespace preload;

// 0: the kernel's; 1: careful; 2: what it writes goes to the ring; 3: what it reads comes from there, too. -1: not a
// connection that is known.
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
