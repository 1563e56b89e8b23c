// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The memory of connections. It is reused, and never unmapped: a thread may still look at a connection that another one
// closes.
#pragma once

#include "preload/connection/connection.hpp"

namespace preload {

// As the last user left it, apart from `requested`. Null: no memory, or a signal handler has interrupted this function.
Connection* new_connection();
void free_connection(Connection& c);
// The service thread uses this connection, or none: one that it uses is not recycled. See connection/kept_state.hpp.
void keep_connection(const Connection* c);
void connections_after_fork(); // in the child: the calls of its parent's other threads are not its own

} // namespace preload
