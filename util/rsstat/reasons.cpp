// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/reasons.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "preload/stats/reasons.hpp"

namespace rsstat {

namespace {

using preload::Reason;

struct Known {
    Reason reason;
    const char* name;
    const char* advice;
};

constexpr Known known[] = {
    {Reason::none, "none", "nothing"},
    {Reason::young, "young",
     "nothing; keep connections open (keep-alive, a pool), or lower RSPRELOAD_UPGRADE, 8 calls by default"},
    {Reason::no_peer, "no_peer", "run the program at the other end under rsrun, too"},
    {Reason::remote, "remote",
     "nothing between hosts without RDMA devices; containers of one host need one network namespace (a pod)"},
    {Reason::other_user, "other_user",
     "look who answers there: a process that does not own the peer's socket; a proxy of sockets, or an attack"},
    {Reason::rule, "rule", "change the rule, if that is not meant: preload_config, --only"},
    {Reason::not_named, "not_named", "add a rule for the address, if it is meant: preload_config, --only"},
    {Reason::never, "never", "unset RSPRELOAD_UPGRADE=never"},
    {Reason::half_closed, "half_closed", "nothing: the connection is ending"},
    {Reason::past_library, "past_library", "switch io_uring off in the program, if it can do without"},
    {Reason::option, "option", "look for an option or flag that the program can do without: rspreload-ofi(7)"},
    {Reason::urgent, "urgent", "nothing: the program uses urgent data"},
    {Reason::stdio, "stdio",
     "set RSPRELOAD_STDIO=unused if the program does not use stdio for its descriptors 0, 1 and 2"},
    {Reason::asynchronous, "asynchronous", "switch aio or signal-driven I/O off in the program, if it can do without"},
    {Reason::passed, "passed", "nothing: it is upgraded again where it is used"},
    {Reason::executed, "executed", "nothing: the next program upgrades it, if it has the library"},
    {Reason::several, "several", "let one process use the connection, and close it in others soon"},
    {Reason::sandboxed, "sandboxed", "allow AF_UNIX and AF_NETLINK: RestrictAddressFamilies=, the seccomp filter"},
    {Reason::no_memory, "no_memory", "raise the limits of memory, descriptors (LimitNOFILE=) or threads (TasksMax=)"},
    {Reason::self_connected, "self_connected", "nothing"},
    {Reason::broken, "broken", "install the same version at both ends; if they are, please report it"},
    {Reason::failed, "failed", "install the same version at both ends; if they are, please report it"},
    {Reason::spliced, "spliced", "switch splice off in the program (haproxy: nosplice)"},
    {Reason::shared_set, "shared_set", "give each process an epoll set of its own"},
    {Reason::fabric_lost, "fabric_lost", "look at the fabric and its devices; bytes that were under way came by TCP"},
    {Reason::no_device, "no_device",
     "nothing, unless a device should have the address: look at rdma link, and at FI_RSTREAM_CORE"},
    {Reason::port_taken, "port_taken",
     "nothing: other connections have other ports; over the tcp core, close idle ones"},
    {Reason::other_netns, "other_netns",
     "nothing, or run the program within the network namespace of its connections (ip netns exec)"},
    {Reason::unseen_wait, "unseen_wait",
     "nothing: the program waits by system calls of its own, or has not waited yet"},
    {Reason::unread, "unread", "nothing, or let the reader read before it sends"},
};

const Known* find(uint32_t reason) {
    for (const Known& one : known) {
        if (static_cast<uint32_t>(one.reason) == reason) {
            return &one;
        }
    }
    return nullptr;
}

struct Count {
    uint32_t reason = 0;
    uint64_t open = 0;
    uint64_t ended = 0;
};

} // namespace

std::string name_of_reason(uint32_t reason) {
    const Known* one = find(reason);
    return one != nullptr ? one->name : fmt::format("reason_{}", reason);
}

std::string text_of_reason(uint32_t reason) {
    if (find(reason) == nullptr) {
        return fmt::format("reason {}, which this rsstat does not know", reason);
    }
    return reason == static_cast<uint32_t>(Reason::none) ? "upgraded" : preload::text_of(static_cast<Reason>(reason));
}

std::string text_of_reason(const Socket& socket) {
    if (socket.path == (base::stats::receives_by_path | base::stats::sends_by_path) ||
        socket.role == base::stats::Role::listen) {
        return "";
    }
    if (socket.reason != static_cast<uint32_t>(Reason::none)) {
        return text_of_reason(socket.reason);
    }
    return socket.path == 0 && socket.upgrades == 0 ? "not upgraded yet" : "";
}

std::string advice_for(uint32_t reason) {
    const Known* one = find(reason);
    return one != nullptr ? one->advice : "use the rsstat of the library's version";
}

std::string reasons_text(const Snapshot& snapshot) {
    std::array<Count, base::stats::max_reasons> counts{};
    uint64_t undecided = 0;
    for (const ProcessView& process : snapshot.processes) {
        if (process.page.library != base::stats::Library::preload) {
            continue; // its sockets use the fabric from the beginning
        }
        for (size_t i = 0; i < counts.size(); ++i) {
            counts[i].ended += process.page.ended.reasons[i];
        }
        for (const SocketView& view : process.sockets) {
            const Socket& socket = view.counters;
            if (socket.role == base::stats::Role::listen) {
                continue;
            }
            if (socket.path == 0 && socket.reason == 0 && socket.upgrades == 0) {
                ++undecided;
            } else {
                ++counts[socket.path != 0 ? 0 : socket.reason].open;
            }
        }
    }
    for (size_t i = 0; i < counts.size(); ++i) {
        counts[i].reason = static_cast<uint32_t>(i);
    }
    std::stable_sort(counts.begin(), counts.end(),
                     [](const Count& a, const Count& b) { return a.open + a.ended > b.open + b.ended; });
    std::string text = fmt::format("{:>8} {:>8}  {}\n", "OPEN", "ENDED", "WHY, AND WHAT TO DO");
    for (const Count& one : counts) {
        if (one.open + one.ended != 0) {
            text += fmt::format("{:>8} {:>8}  {}\n{:19}{}\n", one.open, one.ended, text_of_reason(one.reason), "",
                                advice_for(one.reason));
        }
    }
    if (undecided != 0) {
        text += fmt::format("{:>8} {:>8}  not upgraded yet\n{:19}nothing: a connection is upgraded after some calls\n",
                            undecided, 0, "");
    }
    return text;
}

} // namespace rsstat
