// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/report.hpp"

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
    util::Json line;
    line.add("program", options.program == Program::rstream ? "rstream" : "riostream")
        .add("role", options.is_client() ? "client" : "server")
        .add("transport", options.kernel ? "kernel" : "rsocket")
        .add("test", result.test.name)
        .add("size", result.test.size)
        .add("transfers", result.test.transfers)
        .add("iterations", result.test.iterations)
        .add("bytes", result.test.bytes())
        .add("seconds", seconds(result))
        .add("gbits_per_second", gigabits(result))
        .add("us_per_transfer", microseconds_a_transfer(result));
    if (options.histogram) {
        const util::Histogram& l = result.latency;
        line.add("latency_us", util::Json()
                                   .add("min", microseconds(l.min()))
                                   .add("mean", 1e-3 * l.mean())
                                   .add("p50", microseconds(l.percentile(50)))
                                   .add("p99", microseconds(l.percentile(99)))
                                   .add("p99.9", microseconds(l.percentile(99.9)))
                                   .add("max", microseconds(l.max())));
    }
    return line.text();
}

} // namespace streaming
