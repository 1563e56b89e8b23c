// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/table.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "util/rsstat/reasons.hpp"

namespace rsstat {

namespace {

std::string scaled(uint64_t value, uint64_t step) {
    constexpr const char* units[] = {"", "K", "M", "G", "T", "P", "E"};
    size_t unit = 0;
    double left = static_cast<double>(value);
    while (left >= static_cast<double>(step) && unit + 1 < std::size(units)) {
        left /= static_cast<double>(step);
        ++unit;
    }
    if (unit == 0) {
        return fmt::format("{}", value);
    }
    return fmt::format("{:.{}f}{}", left, left < 10 ? 1 : 0, units[unit]);
}

// Columns are as wide as their contents; numbers are right-aligned.
class Table {
  public:
    struct Column {
        const char* title;
        bool is_number;
    };
    explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {
        for (const Column& column : columns_) {
            widths_.push_back(std::string_view(column.title).size());
        }
    }
    void add(std::vector<std::string> row) {
        for (size_t i = 0; i < row.size() && i < widths_.size(); ++i) {
            widths_[i] = std::max(widths_[i], row[i].size());
        }
        rows_.push_back(std::move(row));
    }
    [[nodiscard]] std::string text() const {
        std::vector<std::string> titles;
        for (const Column& column : columns_) {
            titles.emplace_back(column.title);
        }
        std::string text = line(titles);
        for (const auto& row : rows_) {
            text += line(row);
        }
        return text;
    }

  private:
    [[nodiscard]] std::string line(const std::vector<std::string>& cells) const {
        std::string text;
        for (size_t i = 0; i < cells.size(); ++i) {
            text += i != 0 ? "  " : "";
            text += columns_[i].is_number ? fmt::format("{:>{}}", cells[i], widths_[i])
                                          : fmt::format("{:<{}}", cells[i], widths_[i]);
        }
        text.erase(text.find_last_not_of(' ') + 1);
        return text + "\n";
    }

    std::vector<Column> columns_;
    std::vector<size_t> widths_;
    std::vector<std::vector<std::string>> rows_;
};

// For a socket that is new in this snapshot, all of its counters.
uint64_t shown(uint64_t before, uint64_t now, uint64_t ns) {
    return ns == 0 ? now : static_cast<uint64_t>(rate(before, now, ns));
}

} // namespace

double rate(uint64_t before, uint64_t now, uint64_t ns) {
    return now < before || ns == 0 ? 0 : static_cast<double>(now - before) * 1e9 / static_cast<double>(ns);
}

std::string short_number(uint64_t value) { return scaled(value, 1000); }
std::string short_bytes(uint64_t value) { return scaled(value, 1024); }

std::string short_time(uint64_t ns) {
    const uint64_t seconds = ns / 1000000000;
    if (seconds < 60) {
        return fmt::format("{}s", seconds);
    }
    if (seconds < 3600) {
        return fmt::format("{}m{:02}", seconds / 60, seconds % 60);
    }
    if (seconds < 86400) {
        return fmt::format("{}h{:02}", seconds / 3600, seconds / 60 % 60);
    }
    return fmt::format("{}d{:02}h", seconds / 86400, seconds / 3600 % 24);
}

const char* name_of(base::stats::Role role) {
    using base::stats::Role;
    switch (role) {
    case Role::connect:
        return "connect";
    case Role::accept:
        return "accept";
    case Role::listen:
        return "listen";
    case Role::inherited:
        return "inherited";
    case Role::none:
        break;
    }
    return "-";
}

std::string path_of(const Socket& socket) {
    if (!socket.device.empty()) {
        return socket.device;
    }
    std::string path = socket.over_fabric ? "fabric" : "shm";
    switch (socket.path) {
    case base::stats::receives_by_path | base::stats::sends_by_path:
        return path;
    case base::stats::receives_by_path:
        return path + "/kernel";
    case base::stats::sends_by_path:
        return "kernel/" + path;
    default:
        return "kernel";
    }
}

std::string sockets_text(const Snapshot& now, const Snapshot* before) {
    const uint64_t ns = before != nullptr ? now.taken_ns - before->taken_ns : 0;
    Table table({{"PID", true},
                 {"PROGRAM", false},
                 {"FD", true},
                 {"ROLE", false},
                 {"LOCAL", false},
                 {"PEER", false},
                 {"PATH", false},
                 {"AGE", true},
                 {before != nullptr ? "IN/s" : "IN", true},
                 {before != nullptr ? "OUT/s" : "OUT", true},
                 {before != nullptr ? "RECV/s" : "RECV", true},
                 {before != nullptr ? "SEND/s" : "SEND", true},
                 {before != nullptr ? "SLEEP/s" : "SLEEP", true},
                 {before != nullptr ? "WAKE/s" : "WAKE", true},
                 {"UP", true},
                 {"BACK", true},
                 {"BUFFER", true},
                 {"WHY", false}});
    const SocketView none;
    for (const ProcessView& process : now.processes) {
        for (const SocketView& view : process.sockets) {
            const Socket& s = view.counters;
            const SocketView* found = before != nullptr ? same_socket(*before, process, view) : nullptr;
            const Socket& old = (found != nullptr ? *found : none).counters;
            std::vector<std::string> row = {fmt::format("{}", process.pid), process.facts.program,
                                            fmt::format("{}", s.fd),        name_of(s.role),
                                            view.addresses.local,           view.addresses.peer};
            if (s.role == base::stats::Role::listen) {
                row.insert(row.end(), {s.device.empty() ? "kernel" : s.device,
                                       short_time(now.taken_ns > s.began_ns ? now.taken_ns - s.began_ns : 0)});
                table.add(std::move(row));
                continue;
            }
            const uint64_t buffers = s.path != 0 ? s.in.buffer_bytes + s.out.buffer_bytes
                                                 : view.addresses.receive_queue + view.addresses.send_queue;
            const std::string why = text_of_reason(s);
            row.insert(
                row.end(),
                {path_of(s), short_time(now.taken_ns > s.began_ns ? now.taken_ns - s.began_ns : 0),
                 short_bytes(shown(old.in.bytes, s.in.bytes, ns)), short_bytes(shown(old.out.bytes, s.out.bytes, ns)),
                 short_number(shown(old.in.calls, s.in.calls, ns)), short_number(shown(old.out.calls, s.out.calls, ns)),
                 short_number(shown(old.sleeps, s.sleeps, ns)),
                 short_number(shown(old.in.wakeups + old.out.wakeups, s.in.wakeups + s.out.wakeups, ns)),
                 fmt::format("{}", s.upgrades), fmt::format("{}", s.returns), short_bytes(buffers),
                 why.empty() ? "-" : why});
            table.add(std::move(row));
        }
    }
    return table.text();
}

std::string processes_text(const Snapshot& now, const Snapshot* before) {
    const uint64_t ns = before != nullptr ? now.taken_ns - before->taken_ns : 0;
    Table table({{"PID", true},
                 {"PROGRAM", false},
                 {"LIBRARY", false},
                 {"SOCKETS", true},
                 {"UPGRADED", true},
                 {"ENDED", true},
                 {before != nullptr ? "IN/s" : "IN", true},
                 {before != nullptr ? "OUT/s" : "OUT", true},
                 {before != nullptr ? "RECV/s" : "RECV", true},
                 {before != nullptr ? "SEND/s" : "SEND", true},
                 {before != nullptr ? "SLEEP/s" : "SLEEP", true},
                 {"ASLEEP", true},
                 {before != nullptr ? "WAKE/s" : "WAKE", true},
                 {"UP", true},
                 {"BACK", true},
                 {"BUFFERS", true},
                 {"PINNED", true}});
    for (const ProcessView& process : now.processes) {
        const ProcessView* found = before != nullptr ? same_process(*before, process) : nullptr;
        const Totals t = totals_of(process);
        const Totals old = found != nullptr ? totals_of(*found) : Totals();
        table.add({fmt::format("{}", process.pid), process.facts.program, name_of(process.page.library),
                   short_number(t.open), short_number(t.by_path), short_number(process.page.ended.sockets),
                   short_bytes(shown(old.bytes[0], t.bytes[0], ns)), short_bytes(shown(old.bytes[1], t.bytes[1], ns)),
                   short_number(shown(old.calls[0], t.calls[0], ns)), short_number(shown(old.calls[1], t.calls[1], ns)),
                   short_number(shown(found != nullptr ? found->page.sleeps : 0, process.page.sleeps, ns)),
                   short_time(process.page.slept_ns), short_number(shown(old.wakeups, t.wakeups, ns)),
                   short_number(t.upgrades), short_number(t.returns), short_bytes(t.buffer_bytes),
                   short_bytes(process.facts.pinned_bytes + process.facts.locked_bytes)});
    }
    return table.text();
}

} // namespace rsstat
