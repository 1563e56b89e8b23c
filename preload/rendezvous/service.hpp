// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The service thread of a process: it agrees with peers on a path for connections that are worth one, and answers peers
// while the program computes. The first such connection starts it; a process without one has no service. Its
// descriptors are numbered above the program's.
#pragma once

#include <cstdint>

#include "preload/connection/connection.hpp"

namespace preload::service {

// Requests a path for the connection. Returns at once.
void request(Connection& c);
// The name of this process's service; 0: it does not run.
uint64_t own_name();
// Requests the service of one end of a segment to attend to its connection. False: there is no such service any more.
bool ask(path::Segment& segment, unsigned end);
// Requests the peer's service to wake the waiter of this id, and to send its descriptor. False: the request cannot be
// sent.
bool ask_to_wake(Connection& c, uint64_t id);
// The name that the service has, or will have once it runs; 0: no random number is available.
uint64_t promised_name();
// Notifies another process that this one waits in the same epoll set.
void announce_shared_set(uint64_t service);
// The connection has the token now. On the service's thread.
void note_token(uint64_t token, Connection& c);
// A thread is about to sleep where only the service sees the kernel's events of the connection.
void guard(Connection& c);
void guard_again(Connection& c); // by another fd
// The service calls stream::on_time() by then, for all connections. False: there is no service.
bool take_steps_at(uint64_t due_ns);
// The same, at once, for what a call has begun on a connection and does not wait for.
bool go_on_with(Connection& c);
// A connection that the service works on was closed.
void abandoned();
// As ask(), for the process of this end that has the memory.
bool ask_holder(uint64_t service, uint64_t token);
// Records the signal mask of a thread that connects or accepts, which usually is not in a handler: the service thread
// is not started in a handler.
void note_signal_mask();
// Ends the thread for a while, for a call of the program's that a process with several threads cannot make, or that
// changes the calling thread only. What the thread has to do waits. False: there is no thread, and no need to resume.
bool pause();
// False: no thread can be made.
bool resume();
// No upgrades from now on.
void refuse();
// The same, and the service ends: the process gets a system call filter.
void stop();

void after_fork_in_child();

} // namespace preload::service
