// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/stats/explain.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/ends.hpp"
#include "preload/stats/reasons.hpp"
#include "preload/stats/settings.hpp"

namespace preload::explain {

namespace {

using rendezvous::Address;
using Text = std::array<char, 80>;

std::optional<Address> find_address(int fd, long call) {
    sockaddr_storage socket{};
    socklen_t length = sizeof(socket);
    return sys::call(call, fd, &socket, &length) == 0 ? Address::from(socket) : std::nullopt;
}

void write_address(const Address& address, Text& out) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (address.port == 0) {
        snprintf(out.data(), out.size(), "-");
    } else if (address.is_ipv4()) {
        inet_ntop(AF_INET, address.bytes.data() + 12, text.data(), text.size());
        snprintf(out.data(), out.size(), "%s:%u", text.data(), address.port);
    } else {
        inet_ntop(AF_INET6, address.bytes.data(), text.data(), text.size());
        snprintf(out.data(), out.size(), "[%s]:%u", text.data(), address.port);
    }
}

const char* role_of(Role role) {
    switch (role) {
    case Role::listen:
        return "listen";
    case Role::accept:
    case Role::adopted:
        return "accept";
    default:
        return "connect";
    }
}

Reason reason_of(const ConnectionState& s, Role role) {
    const Reason reason = s.reason;
    if (reason != Reason::none || role == Role::listen) {
        return reason;
    }
    return s.upgrades.load() == 0 ? Reason::young : Reason::none;
}

// In one call, so that lines do not mix. What cannot be written is lost: the program must not notice.
void append(int fd, const char* line, size_t size) {
    sys::without_file_limit_signal([&] { return sys::call(SYS_write, fd, line, size); });
}

} // namespace

bool is_wanted() { return settings::explain() != nullptr; }

void note_peer(Connection& c, int fd) {
    if (is_wanted() && c.role != Role::listen) {
        c.peer = find_address(fd, SYS_getpeername).value_or(c.peer);
    }
}

void note_peer(Connection& c, const sockaddr* address, socklen_t length) {
    if (is_wanted()) {
        sockaddr_storage socket{};
        memcpy(&socket, address, std::min<size_t>(length, sizeof(socket)));
        c.peer = Address::from(socket).value_or(c.peer);
    }
}

void record(Connection& c, int fd) {
    const char* path = settings::explain();
    if (path == nullptr || c.role == Role::none) {
        return;
    }
    const ConnectionState& s = *c.state.load();
    if (!c.used.load() && c.role != Role::listen && s.holders.load() > 1) {
        return; // another process has the connection, and records it
    }
    const int saved = errno;
    Text local{};
    Text peer{};
    write_address(find_address(fd, SYS_getsockname).value_or(Address()), local);
    if (c.role == Role::listen) {
        snprintf(peer.data(), peer.size(), "-");
    } else {
        write_address(find_address(fd, SYS_getpeername).value_or(c.peer), peer);
    }
    const uint32_t upgrades = s.upgrades.load();
    std::array<char, 24> when{"-"};
    if (upgrades != 0) {
        snprintf(when.data(), when.size(), "%llu",
                 static_cast<unsigned long long>((s.upgraded_ns.load() - s.began_ns) / 1000000));
    }
    // First what a call makes less after it has made the position more, for threads that go on meanwhile.
    const uint64_t more_out = s.kernel_more_out.load();
    const uint64_t more_in = s.kernel_more_in.load();
    const unsigned long long sent = more_out + s.sent.load() + s.bytes_out.load();
    const unsigned long long received = more_in + s.received.load() + s.bytes_in.load();
    const bool in_ring = (s.out_epoch.load() & 1) != 0 || (s.in_epoch.load() & 1) != 0;
    std::array<char, 512> line{};
    const int length =
        snprintf(line.data(), line.size(), "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%u\t%u\t%s\t%llu\t%llu\t%s\n", getpid(),
                 settings::program(), fd, role_of(c.role), local.data(), peer.data(),
                 in_ring ? (c.mirrored ? "fabric" : "shm") : "kernel", upgrades, s.returns.load(), when.data(), sent,
                 received, text_of(in_ring && !s.broken ? Reason::none : reason_of(s, c.role)));
    const int out = descriptors::make(
        [&] { return sys::call(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY, 0); });
    if (out >= 0) {
        append(out, line.data(), static_cast<size_t>(length));
        descriptors::close(out);
    }
    errno = saved;
}

void record_all() {
    if (is_wanted()) {
        table::for_each_connection([](int fd, Connection& c) {
            if (c.fd.load() == fd) {
                record(c, fd);
            }
        });
    }
}

} // namespace preload::explain
