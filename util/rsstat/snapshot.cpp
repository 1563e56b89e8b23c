// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/snapshot.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include "util/rsstat/segments.hpp"

namespace rsstat {

namespace {

uint64_t now_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000U + static_cast<uint64_t>(time.tv_nsec);
}

std::pair<pid_t, base::stats::Library> key_of(const ProcessView& process) {
    return {process.pid, process.page.library};
}

} // namespace

bool belongs_to(const Page& page, uid_t user, const ProcessFacts& facts) {
    constexpr uint64_t tick_ns = 20000000; // resolution of the kernel's start times
    return page.made_ns + tick_ns >= facts.started_ns &&
           (user == 0 || user == facts.real_user || user == facts.effective_user);
}

Snapshot take_snapshot(const std::vector<pid_t>& wanted) {
    Snapshot snapshot;
    KernelSockets kernel;
    snapshot.refused = for_each_segment([&](const Segment& segment, const void* memory) {
        const pid_t pid = segment.creator;
        if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), pid) == wanted.end()) {
            return;
        }
        auto page = read_page(memory, segment.bytes);
        if (!page && is_of_other_version(memory, segment.bytes)) {
            snapshot.other_versions.push_back(pid);
        }
        auto facts = page ? facts_of(pid) : std::nullopt;
        if (!facts || !belongs_to(*page, segment.user, *facts)) {
            return;
        }
        const bool known =
            std::any_of(snapshot.processes.begin(), snapshot.processes.end(),
                        [&](const ProcessView& one) { return one.pid == pid && one.page.library == page->library; });
        if (known) {
            return; // a process has one page of each library; further pages are ignored
        }
        ProcessView process;
        process.pid = pid;
        process.facts = std::move(*facts);
        process.page = std::move(*page);
        for (const Socket& socket : process.page.sockets) {
            if (process.page.library == base::stats::Library::sockets) {
                process.sockets.push_back({socket, {socket.local, socket.peer, 0, 0}});
                continue;
            }
            const Addresses* addresses = kernel.find(pid, socket.fd);
            process.sockets.push_back({socket, addresses != nullptr ? *addresses : Addresses{"-", "-", 0, 0}});
        }
        process.page.sockets.clear();
        std::sort(process.sockets.begin(), process.sockets.end(),
                  [](const SocketView& a, const SocketView& b) { return a.counters.fd < b.counters.fd; });
        snapshot.processes.push_back(std::move(process));
    });
    snapshot.taken_ns = now_ns();
    std::sort(snapshot.processes.begin(), snapshot.processes.end(),
              [](const ProcessView& a, const ProcessView& b) { return key_of(a) < key_of(b); });
    return snapshot;
}

std::string why_missing(const Snapshot& snapshot, pid_t pid) {
    const auto& others = snapshot.other_versions;
    const auto is_it = [pid](const ProcessView& one) { return one.pid == pid; };
    if (std::any_of(snapshot.processes.begin(), snapshot.processes.end(), is_it)) {
        return "";
    }
    const auto facts = facts_of(pid);
    if (!facts) {
        return fmt::format("there is no process {}", pid);
    }
    if (std::find(others.begin(), others.end(), pid) != others.end()) {
        return fmt::format("process {} ({}) has a library of another version: use its rsstat, or restart the process",
                           pid, facts->program);
    }
    const uid_t user = geteuid();
    if (user != 0 && user != facts->real_user && user != facts->effective_user) {
        return fmt::format("process {} ({}) is another user's, which only root may see", pid, facts->program);
    }
    return fmt::format("process {} ({}) has no counters: it does not run under rsrun and has no rsockets, or has had "
                       "no TCP socket yet",
                       pid, facts->program);
}

const char* name_of(base::stats::Library library) {
    return library == base::stats::Library::preload ? "rspreload-ofi" : "rsocket-ofi";
}

Totals totals_of(const ProcessView& process) {
    Totals totals;
    const Ended& ended = process.page.ended;
    for (size_t i = 0; i < 2; ++i) {
        totals.bytes[i] = ended.bytes[i];
        totals.path_bytes[i] = ended.path_bytes[i];
        totals.fabric_bytes[i] = ended.fabric_bytes[i];
        totals.calls[i] = ended.calls[i];
    }
    totals.wakeups = ended.wakeups;
    totals.upgrades = ended.upgrades;
    totals.returns = ended.returns;
    for (const SocketView& view : process.sockets) {
        const Socket& socket = view.counters;
        if (socket.role == base::stats::Role::listen) {
            ++totals.listeners;
            continue;
        }
        ++totals.open;
        totals.by_path += socket.path != 0 ? 1 : 0;
        totals.over_fabric += socket.path != 0 && socket.over_fabric ? 1 : 0;
        const Traffic* ways[] = {&socket.in, &socket.out};
        for (size_t i = 0; i < 2; ++i) {
            totals.bytes[i] += ways[i]->bytes;
            totals.path_bytes[i] += ways[i]->path_bytes;
            totals.fabric_bytes[i] += socket.over_fabric ? ways[i]->path_bytes : 0;
            totals.calls[i] += ways[i]->calls;
            totals.wakeups += ways[i]->wakeups;
            totals.blocked += ways[i]->blocked;
            totals.buffer_bytes += ways[i]->buffer_bytes;
        }
        totals.upgrades += socket.upgrades;
        totals.returns += socket.returns;
    }
    return totals;
}

const ProcessView* same_process(const Snapshot& in, const ProcessView& process) {
    const auto found = std::lower_bound(in.processes.begin(), in.processes.end(), key_of(process),
                                        [](const ProcessView& one, const auto& key) { return key_of(one) < key; });
    return found != in.processes.end() && key_of(*found) == key_of(process) &&
                   found->page.made_ns == process.page.made_ns
               ? &*found
               : nullptr;
}

const SocketView* same_socket(const Snapshot& in, const ProcessView& process, const SocketView& socket) {
    const ProcessView* before = same_process(in, process);
    if (before == nullptr) {
        return nullptr;
    }
    const auto end = before->sockets.end();
    const auto by_fd = [](const SocketView& one, int fd) { return one.counters.fd < fd; };
    for (auto at = std::lower_bound(before->sockets.begin(), end, socket.counters.fd, by_fd);
         at != end && at->counters.fd == socket.counters.fd; ++at) {
        if (at->counters.row == socket.counters.row && at->counters.began_ns == socket.counters.began_ns) {
            return &*at;
        }
    }
    return nullptr;
}

} // namespace rsstat
