// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/explain.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "preload/rules/rules.hpp"
#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/eligible.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/real.hpp"
#include "rsockets/preload/settings.hpp"

namespace preload::explain {

namespace {

constexpr std::array role_names{"-", "connect", "listen", "accept"};

using Text = std::array<char, INET6_ADDRSTRLEN + 16>;

Text text_of(const sockaddr_storage& address) {
    Text out{"-"};
    std::array<char, INET6_ADDRSTRLEN> name{};
    if (address.ss_family == AF_INET) {
        sockaddr_in four{};
        memcpy(&four, &address, sizeof(four));
        inet_ntop(AF_INET, &four.sin_addr, name.data(), name.size());
        snprintf(out.data(), out.size(), "%s:%u", name.data(), ntohs(four.sin_port));
    } else if (address.ss_family == AF_INET6) {
        sockaddr_in6 six{};
        memcpy(&six, &address, sizeof(six));
        inet_ntop(AF_INET6, &six.sin6_addr, name.data(), name.size());
        snprintf(out.data(), out.size(), "[%s]:%u", name.data(), ntohs(six.sin6_port));
    }
    return out;
}

void kernel_bytes(int fd, rsocket_report& report) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (real::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0) {
        report.sent = info.tcpi_bytes_acked;
        report.received = info.tcpi_bytes_received;
    }
}

void write_record(int fd, Kind kind, Entry& entry) {
    const char* file = settings::explain();
    if (file == nullptr) {
        return;
    }
    const bool carried = kind != Kind::noted;
    if (!carried && !settings::explain_kernel()) {
        return;
    }
    rsocket_report report{};
    if (carried) {
        const caller::Inside inside;
        (void)Carrier::loaded().own->report(fd, &report);
    } else {
        kernel_bytes(fd, report);
    }
    if (entry.local.ss_family == AF_UNSPEC) {
        note_names(entry, fd, carried);
    }
    std::array<char, 32>& core = entry.core;
    core[strcspn(core.data(), "@")] = '\0'; // the name of the fabric goes on with an address
    const char* reason = entry.reason != nullptr ? entry.reason : "-";
    std::array<char, 768> line{};
    const char* const path = !carried ? "kernel" : core[0] != '\0' ? core.data() : "-";
    // Carried from its beginning to its end: no upgrades, returns or time of the upgrade.
    const int length =
        snprintf(line.data(), line.size(), "%d\t%s\t%d\t%s\t%s\t%s\t%s\t-\t-\t-\t%" PRIu64 "\t%" PRIu64 "\t%s\n",
                 getpid(), Rules::get().program(), fd, role_names[static_cast<size_t>(entry.role)],
                 text_of(entry.local).data(), text_of(entry.peer).data(), path, static_cast<uint64_t>(report.sent),
                 static_cast<uint64_t>(report.received), reason);
    append(file, line.data(), std::min(static_cast<size_t>(std::max(length, 0)), line.size() - 1));
}

// Sockets that are open when the program exits.
__attribute__((destructor)) void at_exit() {
    if (settings::explain() != nullptr && !in_vfork_child()) {
        table::for_each([](int fd, Kind, Entry*) { closing(fd); });
    }
}

} // namespace

bool wanted() { return settings::explain() != nullptr; }

void note_kernel(int fd, Entry::Role role, const char* reason, const sockaddr* peer, socklen_t length) {
    if (!wanted() || !settings::explain_kernel() || caller::Inside::depth > 0) {
        return;
    }
    const int saved = errno;
    Entry* entry = table::entry(fd);
    if (entry == nullptr) {
        entry = table::new_entry();
        if (entry != nullptr && !table::put(fd, Kind::noted, entry)) {
            entry = nullptr;
        }
    }
    if (entry != nullptr) {
        entry->role = role;
        entry->reason = reason;
        if (peer != nullptr) {
            memcpy(&entry->peer, peer, std::min<size_t>(length, sizeof(entry->peer)));
        }
    }
    errno = saved;
}

void note_names(Entry& entry, int fd, bool carried) {
    if (!wanted()) {
        return;
    }
    const int saved = errno;
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    const caller::Inside inside;
    rsocket_report report{};
    if (carried && Carrier::loaded().own->report(fd, &report) == 0) {
        memcpy(entry.core.data(), report.core, sizeof(report.core));
    }
    if ((carried ? Carrier::loaded().getsockname(fd, generic(name), &length)
                 : real::getsockname(fd, generic(name), &length)) == 0) {
        memcpy(&entry.local, &name, sizeof(name));
    }
    length = sizeof(name);
    if ((carried ? Carrier::loaded().getpeername(fd, generic(name), &length)
                 : real::getpeername(fd, generic(name), &length)) == 0) {
        memcpy(&entry.peer, &name, sizeof(name));
    }
    errno = saved;
}

void closing(int fd) {
    const Kind kind = table::kind(fd);
    Entry* entry = table::entry(fd);
    const bool socket = kind == Kind::noted || kind == Kind::carried || kind == Kind::pending || kind == Kind::listener;
    if (socket && entry != nullptr && entry->numbers.load() == 1 && entry->role != Entry::Role::none) {
        write_record(fd, kind, *entry);
        entry->role = Entry::Role::none;
    }
}

} // namespace preload::explain
