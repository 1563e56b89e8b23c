// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The service thread of a process: it agrees on a path with the other ends of connections that are worth one, and
// answers peers while the program computes. It is started with the first connection that is worth a path, and is not
// there in a process that has none. Its descriptors are numbered above the program's.
#pragma once

#include <cstdint>

#include "preload/connection/connection.hpp"

namespace preload::service {

// The connection is worth a path. Returns at once.
void request(Connection& c);
// The name at which this process's service is reached; 0: it does not run.
uint64_t own_name();
// Starts it for a connection that a parent has upgraded.
void ensure();
// Asks the service of one end of a segment to look at its connection. False: there is no such service any more.
bool ask(path::Segment& segment, unsigned end);
// Asks the service at the other end to wake the sleeper of this id there, and to give its descriptor. False: it cannot
// be asked.
bool ask_to_wake(Connection& c, uint64_t id);
// The name that it has, or will have once it runs; 0: for want of randomness.
uint64_t promised_name();
// To another process, which waits in an epoll set that this one waits in, too.
void tell_of_shared_set(uint64_t service);
// The connection has the token now. On the service's thread.
void note_token(uint64_t token, Connection& c);
// A thread is to sleep where only the service sees what the kernel has of the connection.
void guard(Connection& c);
void guard_again(Connection& c); // by another number
// A connection that the service works on was closed.
void abandoned();
// The same for the process of this end that has the memory.
bool ask_holder(uint64_t service, uint64_t token);
// The mask of signals of a thread that connects or accepts: no handler's, as a rule. A thread is not made in a handler.
void note_signal_mask();
// No upgrades from now on: the process has a filter of system calls.
void stop();

void after_fork_in_child();

} // namespace preload::service
