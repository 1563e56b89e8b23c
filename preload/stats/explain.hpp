// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Writes a line for each TCP socket of the program to the file that RSPRELOAD_EXPLAIN names: which path it took, and
// why. Columns, separated by tabs:
//
//     pid program fd role local peer path upgrades returns upgraded_ms sent received reason
#pragma once

#include "preload/connection/connection.hpp"

namespace preload::explain {

// Saves the peer's address, for a record that is written after the kernel has dropped it (after a reset, or both ends'
// FIN).
void note_peer(Connection& c, int fd);
void note_peer(Connection& c, const sockaddr* address, socklen_t length);
bool is_wanted();
// Before its last fd in this process is closed. Writes nothing if this process moved no bytes and others have the
// connection.
void record(Connection& c, int fd);
void record_all(); // at exit and before exec

} // namespace preload::explain
