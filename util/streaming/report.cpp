// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/report.hpp"

#include <fmt/format.h>

#include "util/common/json.hpp"

namespace streaming {

namespace {

double seconds(const Result& result) { return std::chrono::duration<double>(result.time).count(); }
double gigabits(const Result& result) {
    return result.time.count() > 0 ? 8e-9 * static_cast<double>(result.test.bytes()) / seconds(result) : 0;
}
double microseconds_a_transfer(const Result& result) {
    return 1e6 * seconds(result) / static_cast<double>(result.test.all_transfers());
}
double microseconds(uint64_t nanoseconds) { return 1e-3 * static_cast<double>(nanoseconds); }

} // namespace

std::string header_row(const Options& options) {
    return fmt::format("{:<10}{:<8}{:<8}{:<8}{:<8}{:>8}{:>11}{:>13}{}", "name", "bytes", "xfers", "iters", "total",
                       "time", "Gb/sec", "usec/xfer",
                       options.histogram ? fmt::format("{:>11}{:>11}{:>11}", "p50", "p99", "p99.9") : "");
}

std::string result_row(const Options& options, const Result& result) {
    const Test& test = result.test;
    std::string row =
        fmt::format("{:<10}{:<8}{:<8}{:<8}{:<8}{:>8.2f}s{:>10.2f}{:>11.2f}", test.name, short_bytes(test.size),
                    short_count(test.transfers), short_count(test.iterations), short_bytes(test.bytes()),
                    seconds(result), gigabits(result), microseconds_a_transfer(result));
    if (options.histogram) {
        const util::Histogram& l = result.latency;
        row += fmt::format("  {:>11.2f}{:>11.2f}{:>11.2f}", microseconds(l.percentile(50)),
                           microseconds(l.percentile(99)), microseconds(l.percentile(99.9)));
    }
    return row;
}

std::string result_json(const Options& options, const Result& result) {
    util::Json line = {{"program", options.program == Program::rstream ? "rstream" : "riostream"},
                       {"role", options.is_client() ? "client" : "server"},
                       {"transport", options.kernel ? "kernel" : "rsocket"},
                       {"test", result.test.name},
                       {"size", result.test.size},
                       {"transfers", result.test.transfers},
                       {"iterations", result.test.iterations},
                       {"bytes", result.test.bytes()},
                       {"seconds", seconds(result)},
                       {"gbits_per_second", gigabits(result)},
                       {"us_per_transfer", microseconds_a_transfer(result)}};
    if (options.histogram) {
        const util::Histogram& l = result.latency;
        line["latency_us"] = {{"min", microseconds(l.min())},
                              {"mean", 1e-3 * l.mean()},
                              {"p50", microseconds(l.percentile(50))},
                              {"p99", microseconds(l.percentile(99))},
                              {"p99.9", microseconds(l.percentile(99.9))},
                              {"max", microseconds(l.max())}};
    }
    return util::json_text(line);
}

} // namespace streaming
