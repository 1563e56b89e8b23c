// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/formats.hpp"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "util/common/json.hpp"
#include "util/rsstat/reasons.hpp"
#include "util/rsstat/table.hpp"

namespace rsstat {

namespace {

using util::Json;

uint64_t age_of(const Snapshot& now, const Socket& s) {
    return now.taken_ns > s.began_ns ? now.taken_ns - s.began_ns : 0;
}

Json json_of(const Traffic& t) {
    return {{"bytes", t.bytes},     {"path_bytes", t.path_bytes}, {"calls", t.calls},
            {"wakeups", t.wakeups}, {"blocked", t.blocked},       {"buffer_bytes", t.buffer_bytes}};
}

Json json_of(const Snapshot& now, const Snapshot* before, const ProcessView& process, const SocketView& view) {
    const Socket& s = view.counters;
    Json socket = {{"fd", s.fd},
                   {"role", name_of(s.role)},
                   {"local", view.addresses.local},
                   {"peer", view.addresses.peer},
                   {"path", path_of(s)},
                   {"age_seconds", static_cast<double>(age_of(now, s)) / 1e9}};
    if (s.role == base::stats::Role::listen) {
        return socket;
    }
    if (s.device.empty()) {
        socket["reason"] = name_of_reason(s.reason);
    }
    socket["received"] = json_of(s.in);
    socket["sent"] = json_of(s.out);
    socket["sleeps"] = s.sleeps;
    socket["upgrades"] = s.upgrades;
    socket["fallbacks"] = s.returns;
    socket["kernel_receive_queue"] = view.addresses.receive_queue;
    socket["kernel_send_queue"] = view.addresses.send_queue;
    if (before != nullptr) {
        const SocketView* found = same_socket(*before, process, view);
        const Socket old = found != nullptr ? found->counters : Socket();
        const uint64_t ns = now.taken_ns - before->taken_ns;
        socket["rates"] = {{"received_bytes", rate(old.in.bytes, s.in.bytes, ns)},
                           {"sent_bytes", rate(old.out.bytes, s.out.bytes, ns)},
                           {"received_calls", rate(old.in.calls, s.in.calls, ns)},
                           {"sent_calls", rate(old.out.calls, s.out.calls, ns)}};
    }
    return socket;
}

Json json_of(const Snapshot& now, const Snapshot* before, const ProcessView& process) {
    const Page& page = process.page;
    const Totals t = totals_of(process);
    Json reasons = Json::object();
    for (uint32_t i = 0; i < page.ended.reasons.size(); ++i) {
        if (page.ended.reasons[i] != 0) {
            reasons[name_of_reason(i)] = page.ended.reasons[i];
        }
    }
    Json sockets = Json::array();
    for (const SocketView& view : process.sockets) {
        sockets.push_back(json_of(now, before, process, view));
    }
    return {{"pid", process.pid},
            {"program", process.facts.program},
            {"user", process.facts.effective_user},
            {"library", name_of(page.library)},
            {"sleeps", page.sleeps},
            {"slept_seconds", static_cast<double>(page.slept_ns) / 1e9},
            {"wakeups", t.wakeups},
            {"upgrades", t.upgrades},
            {"fallbacks", t.returns},
            {"buffer_bytes", t.buffer_bytes},
            {"pinned_bytes", process.facts.pinned_bytes},
            {"locked_bytes", process.facts.locked_bytes},
            {"not_listed", page.without_row + page.torn},
            {"ended",
             {{"sockets", page.ended.sockets},
              {"upgraded", page.ended.upgraded},
              {"received_bytes", page.ended.bytes[0]},
              {"sent_bytes", page.ended.bytes[1]},
              {"reasons", reasons}}},
            {"sockets", sockets}};
}

// Puts a value for each path: of all, those not by the kernel's TCP, of which librsocket-ofi has only those of the
// fabric.
template <class Put>
void put_by_path(const ProcessView& p, const std::string& labels, uint64_t all, uint64_t by_path, uint64_t by_fabric,
                 Put&& put) {
    const bool is_preload = p.page.library == base::stats::Library::preload;
    if (is_preload) {
        put(labels + "path=\"shm\"", by_path - std::min(by_fabric, by_path)); // a process may write anything
    }
    put(labels + "path=\"fabric\"", is_preload ? by_fabric : by_path);
    put(labels + "path=\"kernel\"", all - by_path);
}

// Inside quotes, backslash, quote and newline must be escaped. Names contain printable characters only.
std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        out += c == '\\' || c == '"' ? std::string{'\\', c} : std::string{c};
    }
    return out;
}

class Metrics {
  public:
    explicit Metrics(const Snapshot& snapshot) : snapshot_(snapshot) {}
    // value(process, put): put(further labels, value) for each sample.
    using Put = std::function<void(const std::string&, double)>;
    void add(const char* name, const char* type, const char* help,
             const std::function<void(const ProcessView&, const Put&)>& value) {
        text_ += fmt::format("# HELP rstream_{} {}\n# TYPE rstream_{} {}\n", name, help, name, type);
        for (const ProcessView& process : snapshot_.processes) {
            value(process, [&](const std::string& labels, double sample) {
                text_ += fmt::format("rstream_{}{{pid=\"{}\",program=\"{}\",library=\"{}\"{}{}}} {:.17g}\n", name,
                                     process.pid, escaped(process.facts.program), name_of(process.page.library),
                                     labels.empty() ? "" : ",", labels, sample);
            });
        }
    }
    [[nodiscard]] const std::string& text() const { return text_; }

  private:
    const Snapshot& snapshot_;
    std::string text_;
};

double number(uint64_t value) { return static_cast<double>(value); }

} // namespace

std::string json_text(const Snapshot& now, const Snapshot* before) {
    Json processes = Json::array();
    for (const ProcessView& process : now.processes) {
        processes.push_back(json_of(now, before, process));
    }
    Json all = {{"processes", processes},
                {"processes_of_other_users", now.refused},
                {"processes_of_other_versions", now.other_versions.size()}};
    if (before != nullptr) {
        all["seconds"] = static_cast<double>(now.taken_ns - before->taken_ns) / 1e9;
    }
    return util::json_text(all) + "\n";
}

std::string prometheus_text(const Snapshot& now) {
    Metrics metrics(now);
    const auto simple = [](uint64_t (*of)(const ProcessView&)) {
        return [of](const ProcessView& process, const Metrics::Put& put) { put("", number(of(process))); };
    };
    metrics.add("sockets", "gauge", "Open TCP connections, by path.",
                [](const ProcessView& p, const Metrics::Put& put) {
                    const Totals t = totals_of(p);
                    put_by_path(p, "", t.open, t.by_path, t.over_fabric, put);
                });
    metrics.add("bytes_total", "counter", "Bytes received and sent, by path.",
                [](const ProcessView& p, const Metrics::Put& put) {
                    const Totals t = totals_of(p);
                    for (size_t i = 0; i < 2; ++i) {
                        put_by_path(p, i == 0 ? "direction=\"received\"," : "direction=\"sent\",", t.bytes[i],
                                    t.path_bytes[i], t.fabric_bytes[i], put);
                    }
                });
    metrics.add("calls_total", "counter", "Calls that moved bytes.", [](const ProcessView& p, const Metrics::Put& put) {
        const Totals t = totals_of(p);
        put("direction=\"received\"", number(t.calls[0]));
        put("direction=\"sent\"", number(t.calls[1]));
    });
    metrics.add("upgrades_total", "counter", "Switches of a connection to shared memory.",
                simple([](const ProcessView& p) { return totals_of(p).upgrades; }));
    metrics.add("fallbacks_total", "counter", "Returns of a connection to the kernel.",
                simple([](const ProcessView& p) { return totals_of(p).returns; }));
    metrics.add("wakeups_total", "counter", "Wake-ups of peers.",
                simple([](const ProcessView& p) { return totals_of(p).wakeups; }));
    metrics.add("sleeps_total", "counter", "Sleeps of threads that waited for connections.",
                simple([](const ProcessView& p) { return p.page.sleeps; }));
    metrics.add("sleep_seconds_total", "counter", "Time that they slept.",
                [](const ProcessView& p, const Metrics::Put& put) { put("", number(p.page.slept_ns) / 1e9); });
    metrics.add("ended_sockets_total", "counter", "Connections closed, by why they were with the kernel at the end.",
                [](const ProcessView& p, const Metrics::Put& put) {
                    for (uint32_t i = 0; i < p.page.ended.reasons.size(); ++i) {
                        if (p.page.ended.reasons[i] != 0) {
                            put(fmt::format("reason=\"{}\"", name_of_reason(i)), number(p.page.ended.reasons[i]));
                        }
                    }
                });
    metrics.add("buffer_bytes", "gauge", "Shared memory in use as buffers.",
                simple([](const ProcessView& p) { return totals_of(p).buffer_bytes; }));
    metrics.add("pinned_bytes", "gauge", "Memory that is pinned or locked.",
                simple([](const ProcessView& p) { return p.facts.pinned_bytes + p.facts.locked_bytes; }));
    return metrics.text();
}

} // namespace rsstat
