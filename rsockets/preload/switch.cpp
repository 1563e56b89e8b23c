// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A program's number changes what it stands for.
#include "rsockets/preload/carrier.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>

#include "rsockets/option_table.hpp"
#include "rsockets/preload/epoll_sets.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

using rsockets::Option;

struct Value {
    std::array<char, 64> bytes{};
    socklen_t length = 0;

    explicit Value(int fd, const Option& option) {
        length = bytes.size();
        if (real::getsockopt(fd, option.level, option.name, bytes.data(), &length) != 0) {
            length = 0;
        }
        length = std::min<socklen_t>(length, bytes.size());
    }
    bool operator==(const Value& other) const {
        return length == other.length && memcmp(bytes.data(), other.bytes.data(), length) == 0;
    }
};

} // namespace

const char* copy_options(const Carrier& carrier, int kernel, int rsocket) {
    int domain = AF_INET;
    socklen_t length = sizeof(domain);
    (void)real::getsockopt(kernel, SOL_SOCKET, SO_DOMAIN, &domain, &length);
    const int fresh = real::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fresh < 0) {
        return "no descriptor is free";
    }
    const char* refused = nullptr;
    // Those that the library refuses are here too: a socket that has one stays with the kernel.
    for (const Option& option : rsockets::option_table) {
        if (option.copy == Option::Copy::no || (option.level == IPPROTO_IPV6 && domain != AF_INET6)) {
            continue;
        }
        Value set(kernel, option);
        if (set.length == 0 || set == Value(fresh, option)) {
            continue;
        }
        if (option.copy == Option::Copy::half) {
            int size = 0;
            memcpy(&size, set.bytes.data(), sizeof(size));
            size /= 2;
            memcpy(set.bytes.data(), &size, sizeof(size));
        }
        if (carrier.setsockopt(rsocket, option.level, option.name, set.bytes.data(), set.length) != 0) {
            log("the library has no %s: %s", option.text, strerror(errno));
            refused = option.text;
            break;
        }
    }
    real::close(fresh);
    const auto flags = static_cast<unsigned long>(real::fcntl(kernel, F_GETFL, 0UL));
    if ((flags & O_ASYNC) != 0) {
        return "O_ASYNC";
    }
    (void)carrier.fcntl(rsocket, F_SETFL, flags & O_NONBLOCK);
    return refused;
}

int switch_number(const Carrier& carrier, int number, int from, bool of_library) {
    const Changing changing;
    const caller::Inside inside;
    epoll_sets::Followers followers;
    followers.take_out(carrier, number);
    const bool keeps = (real::fcntl(number, F_GETFD, 0UL) & FD_CLOEXEC) == 0;
    if (!of_library) {
        (void)carrier.own->drop(number);
    }
    int error = 0;
    if (real::dup3(from, number, keeps ? 0 : O_CLOEXEC) < 0 || (of_library && carrier.own->share(from, number) != 0)) {
        error = errno;
    }
    followers.put_back(carrier, number, of_library && error == 0);
    return error;
}

bool become(const Carrier& carrier, int fd, int rsocket, Kind kind, Entry& entry) {
    if (table::entry(fd) != &entry) {
        if (switch_number(carrier, fd, rsocket, true) != 0) {
            return false;
        }
        return table::put(fd, kind, &entry);
    }
    // Its other numbers come along.
    bool all = true;
    table::for_each([&](int one, Kind, Entry* its) {
        if (its == &entry) {
            all = switch_number(carrier, one, rsocket, true) == 0 && all;
        }
    });
    table::change(&entry, kind);
    return all;
}

} // namespace preload
