// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a program sees of its sockets: cases that say what calls return. Each is run as a process of its own without and
// with the preloaded library, by calls.sh, and must say the same both times.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace calls {

struct Registered {
    Registered(const char* name, void (*body)());
};
#define CALLS_CASE(name)                                                                                               \
    static void case_##name();                                                                                         \
    static const calls::Registered registered_##name(#name, case_##name);                                              \
    static void case_##name()

// A line of what is compared; never numbers that differ from run to run, such as ports.
__attribute__((format(printf, 1, 2))) void say(const char* format, ...);
// The result of a call, with its errno.
long say_result(const char* what, long result);
#define SAY(call) calls::say_result(#call, static_cast<long>(call))
// Ends the process with a line that says where.
void must(bool condition, const char* what);
#define MUST(condition) calls::must(condition, #condition)

int listener(int flags = 0);
sockaddr_in address_of(int fd);
inline sockaddr* generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }
int connected_to(int listener);
struct Pair {
    int listener;
    int client;
    int server;
};
Pair pair();
// At the beginning of each connection: CALLS_EXCHANGES bytes each way, if any, and then more until the library has
// upgraded it, for CALLS_UPGRADE_MS at most.
void exchange(int client, int server);
// A number from the environment.
int setting(const char* name, int otherwise);
// The library upgrades connections here, but has not upgraded this one yet.
bool may_be_upgraded(int fd);
bool may_still_move(int fd); // the same of its first direction
void close_all(const Pair& pair);
// Bytes go both ways.
void say_echo(int client, int server);
// Waits for it at most ten seconds, and says what came.
void say_poll(const char* what, int fd, short events);
// A port of loopback where nobody listens.
sockaddr_in closed_port();

} // namespace calls
