// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// path_bench: what one TCP connection of the loopback address, or many, can do. An ordinary program on the kernel's
// socket calls: what it measures under rsrun is the path that rsrun gives it. See ../README.md.
#include <array>
#include <csignal>
#include <optional>

#include <getopt.h>

#include "fabtests/programs/path/modes.hpp"
#include "util/common/number.hpp"

namespace path_bench {

namespace {

using util::fail;
using util::parse_number;

constexpr uint64_t max_size = 64 << 20;

struct Mode {
    const char* name;
    util::Json (*measure)(const Options&);
    uint64_t warm; // by default
};
constexpr std::array<Mode, 5> modes = {Mode{"pingpong", pingpong, 1000}, Mode{"stream", stream, 1000},
                                       Mode{"many", many, 100}, Mode{"pairs", pairs, 1000},
                                       Mode{"fairness", fairness, 1000}};

const char* const help_text = R"(path_bench: what TCP connections between processes of this host can do

  path_bench pingpong [OPTIONS]  half of a round trip, in microseconds
  path_bench stream [OPTIONS]    bytes one way, in megabytes (of 10^6 bytes) a second
  path_bench many [OPTIONS]      requests of 64 bytes on ten connections of many, a second; and how long opening all took
  path_bench pairs [OPTIONS]     pingpongs of several pairs of processes at once, exchanges a second of all
  path_bench fairness [OPTIONS]  how late a loop that is always busy hears of a timer, a pipe and a UNIX socket

  -s, --size BYTES         of a message (default 64)
  -w, --wait HOW           block (default), spin, poll, epoll, or epoll-et; of pingpong, stream and pairs
  -i, --iterations N       exchanges that are measured, of pingpong (default 10000)
      --warm N             exchanges before, on each connection (default 1000; 100 with many)
      --settle MS          a pause behind those, of many (default 200)
  -b, --bytes BYTES        of a stream (default 256M)
  -c, --connections N      of many (default 100)
  -p, --pairs N            (default 2)
  -d, --duration MS        of many, pairs and fairness (default 1000)
  -l, --limit SECONDS      all is over then, with an error (default 60)
  -h, --help

BYTES may have K, M or G behind them. Prints one JSON object.
)";

enum : int { warm_option = 256, settle_option };
const option longs[] = {{"size", required_argument, nullptr, 's'},
                        {"wait", required_argument, nullptr, 'w'},
                        {"iterations", required_argument, nullptr, 'i'},
                        {"warm", required_argument, nullptr, warm_option},
                        {"settle", required_argument, nullptr, settle_option},
                        {"bytes", required_argument, nullptr, 'b'},
                        {"connections", required_argument, nullptr, 'c'},
                        {"pairs", required_argument, nullptr, 'p'},
                        {"duration", required_argument, nullptr, 'd'},
                        {"limit", required_argument, nullptr, 'l'},
                        {"help", no_argument, nullptr, 'h'},
                        {}};

const Mode& mode_of(const std::string& name) {
    for (const Mode& mode : modes) {
        if (name == mode.name) {
            return mode;
        }
    }
    fail("{}: neither pingpong, stream, many, pairs nor fairness; try --help", name.empty() ? "''" : name);
}

Options parse_options(int argc, char** argv) {
    Options options;
    std::optional<uint64_t> warm;
    for (int letter; (letter = getopt_long(argc, argv, ":s:w:i:b:c:p:d:l:h", longs, nullptr)) != -1;) {
        const std::string value = optarg != nullptr ? optarg : "";
        switch (letter) {
        case 's':
            options.size = parse_number("--size", value, 1, max_size, true);
            break;
        case 'w':
            options.wait = parse_wait(value);
            break;
        case 'i':
            options.iterations = parse_number("--iterations", value, 1, 100000000);
            break;
        case warm_option:
            warm = parse_number("--warm", value, 0, 100000000);
            break;
        case settle_option:
            options.settle_ms = parse_number("--settle", value, 0, 3600000);
            break;
        case 'b':
            options.bytes = parse_number("--bytes", value, 1, 1ULL << 50, true);
            break;
        case 'c':
            options.connections = parse_number("--connections", value, 1, 1000000);
            break;
        case 'p':
            options.pairs = parse_number("--pairs", value, 1, 1000);
            break;
        case 'd':
            options.duration_ms = parse_number("--duration", value, 10, 3600000);
            break;
        case 'l':
            options.limit = static_cast<unsigned>(parse_number("--limit", value, 1, 86400));
            break;
        case 'h':
            options.help = true;
            return options;
        default:
            fail("{} {}; try --help", argv[optind - 1], letter == ':' ? "needs an argument" : "is not an option");
        }
    }
    if (optind + 1 != argc) {
        fail("one mode is needed: pingpong, stream, many, pairs or fairness; try --help");
    }
    options.mode = argv[optind];
    options.warm = warm.value_or(mode_of(options.mode).warm);
    return options;
}

int run(int argc, char** argv) {
    const Options options = parse_options(argc, argv);
    if (options.help) {
        fmt::print("{}", help_text);
        return 0;
    }
    std::signal(SIGPIPE, SIG_IGN); // an error instead
    fmt::print("{}\n", util::json_text(mode_of(options.mode).measure(options)));
    return fflush(stdout) == 0 ? 0 : 1;
}

} // namespace

} // namespace path_bench

int main(int argc, char** argv) {
    try {
        return path_bench::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "path_bench: {}\n", error.what());
        return 1;
    }
}
