// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/test/calls/calls.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include <arpa/inet.h>
#include <dlfcn.h>

namespace calls {

namespace {

std::map<std::string, void (*)()>& cases() {
    static std::map<std::string, void (*)()> all;
    return all;
}

constexpr unsigned longest = 40; // seconds that a case may take
constexpr int patience = 10000;  // milliseconds to wait for what must come

} // namespace

Registered::Registered(const char* name, void (*body)()) { cases()[name] = body; }

void say(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments); // NOLINT(clang-analyzer-valist.Uninitialized): it was made two lines above
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

long say_result(const char* what, long result) {
    const int error = errno;
    if (result < 0) {
        say("%s = %ld %s", what, result, strerrorname_np(error));
    } else {
        say("%s = %ld", what, result);
    }
    return result;
}

void must(bool condition, const char* what) {
    if (!condition) {
        say("not so: %s (%s)", what, strerror(errno));
        exit(1);
    }
}

int listener(int flags) {
    const int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(fd >= 0 && bind(fd, generic(any), sizeof(any)) == 0 && listen(fd, 16) == 0, "a listener");
    return fd;
}

sockaddr_in address_of(int fd) {
    sockaddr_in name{};
    socklen_t length = sizeof(name);
    must(getsockname(fd, generic(name), &length) == 0, "a name");
    return name;
}

int connected_to(int listener) {
    sockaddr_in to = address_of(listener);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    // A number that connect(2) chooses may be that of other tests' connections in TIME_WAIT, too: then the tcp core,
    // which has the kernel's ports, cannot listen there.
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(fd >= 0 && bind(fd, generic(own), sizeof(own)) == 0, "a free number");
    must(connect(fd, generic(to), sizeof(to)) == 0, "a connection");
    return fd;
}

int setting(const char* name, int otherwise) {
    const char* given = getenv(name);
    return given != nullptr ? atoi(given) : otherwise;
}

Pair pair() {
    Pair made{};
    made.listener = listener();
    made.client = connected_to(made.listener);
    made.server = accept(made.listener, nullptr, nullptr);
    must(made.server >= 0, "an accepted connection");
    exchange(made.client, made.server); // it is upgraded when the case begins
    return made;
}

namespace {

// What is less may still come.
bool reaches(int fd, int path) {
    static auto* path_of = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "rspreload_path")); // stats/query.cpp
    return setting("CALLS_EXCHANGES", 0) <= 0 || path_of == nullptr || path_of(fd) >= path;
}

} // namespace

bool may_be_upgraded(int fd) { return !reaches(fd, 3); }
bool may_still_move(int fd) { return !reaches(fd, 2); }

void exchange(int client, int server) {
    const auto exchange_once = [&] {
        char byte = 'x';
        for (const auto& [from, to] : {std::pair{client, server}, std::pair{server, client}}) {
            must(write(from, &byte, 1) == 1 && recv(to, &byte, 1, 0) == 1, "an exchange");
        }
    };
    for (int left = setting("CALLS_EXCHANGES", 0); left > 0; --left) {
        exchange_once();
    }
    // On a busy machine it takes the library longer. Some connections are never upgraded.
    for (int left = setting("CALLS_UPGRADE_MS", 2000); left > 0 && (may_be_upgraded(client) || may_be_upgraded(server));
         --left) {
        usleep(1000);
        exchange_once();
    }
}

void close_all(const Pair& pair) {
    must(close(pair.client) == 0 && close(pair.server) == 0 && close(pair.listener) == 0, "closing");
}

void say_echo(int client, int server) {
    char buffer[16] = {};
    say_result("write", write(client, "there", 5));
    say_result("recv", recv(server, buffer, 5, MSG_WAITALL));
    say_result("write", write(server, "back!", 5));
    say_result("recv", recv(client, buffer + 5, 5, MSG_WAITALL));
    say("%s", buffer);
}

void say_poll(const char* what, int fd, short events) {
    pollfd one{fd, events, 0};
    const int ret = poll(&one, 1, patience);
    say("%s: poll = %d, events %#x", what, ret, static_cast<unsigned>(one.revents));
}

sockaddr_in closed_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(bind(fd, generic(name), sizeof(name)) == 0, "a port");
    name = address_of(fd);
    close(fd);
    return name;
}

} // namespace calls

// Without arguments: the names of all cases.
int main(int argc, char** argv) {
    using namespace calls;
    if (argc < 2) {
        for (const auto& [name, body] : cases()) {
            printf("%s\n", name.c_str());
        }
        return 0;
    }
    const auto found = cases().find(argv[1]);
    if (found == cases().end()) {
        fprintf(stderr, "there is no case %s\n", argv[1]);
        return 2;
    }
    alarm(longest);
    found->second();
    return 0;
}
