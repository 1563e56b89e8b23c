// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/options.hpp"

#include <climits>

#include "util/common/failure.hpp"
#include "util/common/number.hpp"
#include "util/common/program.hpp"

namespace rsstat {

namespace {

enum : int { processes_option = 300, reasons_option, json_option, prometheus_option };
const option longs[] = {{"pid", required_argument, nullptr, 'p'},
                        {"interval", required_argument, nullptr, 'i'},
                        {"count", required_argument, nullptr, 'n'},
                        {"processes", no_argument, nullptr, processes_option},
                        {"reasons", no_argument, nullptr, reasons_option},
                        {"json", no_argument, nullptr, json_option},
                        {"prometheus", no_argument, nullptr, prometheus_option},
                        {"help", no_argument, nullptr, 'h'},
                        {"version", no_argument, nullptr, util::version_option},
                        {}};

void choose(Options& options, View view) {
    if (options.view != View::sockets && options.view != view) {
        util::fail("--processes, --reasons, --json and --prometheus exclude each other");
    }
    options.view = view;
}

} // namespace

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    const auto rest = util::parse_options(arguments, "p:i:n:h", longs, [&](int letter, const std::string& value) {
        switch (letter) {
        case 'p':
            options.pids.push_back(static_cast<pid_t>(util::parse_number("-p", value, 1, INT_MAX)));
            break;
        case 'i':
            options.interval = static_cast<unsigned>(util::parse_number("-i", value, 1, 86400));
            break;
        case 'n':
            options.repetitions = static_cast<unsigned>(util::parse_number("-n", value, 1, UINT_MAX));
            break;
        case processes_option:
            choose(options, View::processes);
            break;
        case reasons_option:
            choose(options, View::reasons);
            break;
        case json_option:
            choose(options, View::json);
            break;
        case prometheus_option:
            choose(options, View::prometheus);
            break;
        case 'h':
            options.help = true;
            break;
        default:
            options.version = true;
            break;
        }
    });
    if (!rest.empty()) {
        util::fail("'{}' is no option; try --help", rest.front());
    }
    if (options.interval && (options.view == View::prometheus || options.view == View::reasons)) {
        util::fail("-i: there are no rates in {}", options.view == View::prometheus ? "--prometheus" : "--reasons");
    }
    if (options.repetitions && !options.interval) {
        util::fail("-n needs -i");
    }
    return options;
}

std::string help_text(const std::string& program) {
    return fmt::format(
        "{0}: shows the sockets of programs that run under rsrun or use rsockets, and the path of each\n\n"
        "  {0} [OPTIONS]\n\n"
        "  -p, --pid PID           show only this process; may be repeated\n"
        "  -i, --interval SECONDS  print rates at this interval\n"
        "  -n, --count COUNT       with -i: stop after COUNT reports\n"
        "      --processes         a line for each process\n"
        "      --reasons           count sockets on kernel TCP by reason, with advice\n"
        "      --json              print a JSON object; with -i, one per line\n"
        "      --prometheus        print text for node exporter's textfile collector\n"
        "  -h, --help              this text\n"
        "      --version\n\n"
        "Processes of other users are shown to root alone.\n",
        program);
}

} // namespace rsstat
