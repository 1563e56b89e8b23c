// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rsstat: prints the counters of the libraries in running programs.
#include <cstdio>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include "util/common/failure.hpp"
#include "util/common/program.hpp"
#include "util/rsstat/formats.hpp"
#include "util/rsstat/options.hpp"
#include "util/rsstat/reasons.hpp"
#include "util/rsstat/snapshot.hpp"
#include "util/rsstat/table.hpp"

namespace {

using rsstat::Options;
using rsstat::Snapshot;
using rsstat::View;

std::string text_of(const Options& options, const Snapshot& now, const Snapshot* before) {
    switch (options.view) {
    case View::processes:
        return rsstat::processes_text(now, before);
    case View::reasons:
        return rsstat::reasons_text(now);
    case View::json:
        return rsstat::json_text(now, before);
    case View::prometheus:
        return rsstat::prometheus_text(now);
    case View::sockets:
        break;
    }
    return rsstat::sockets_text(now, before);
}

// False: standard output has no reader any more.
bool print(const std::string& text) {
    return fwrite(text.data(), 1, text.size(), stdout) == text.size() && fflush(stdout) == 0;
}

void note_others(const Snapshot& snapshot) {
    if (snapshot.refused != 0) {
        fmt::print(stderr, "rsstat: {} more of other users, which root may see\n", snapshot.refused);
    }
    if (!snapshot.other_versions.empty()) {
        fmt::print(stderr, "rsstat: {} more whose library is of another version: use its rsstat, or restart them\n",
                   snapshot.other_versions.size());
    }
}

int run(const Options& options) {
    Snapshot before = rsstat::take_snapshot(options.pids);
    for (const pid_t pid : options.pids) {
        if (const std::string why = rsstat::why_missing(before, pid); !why.empty()) {
            util::fail("{}", why);
        }
    }
    if (options.view != View::json && options.pids.empty()) {
        note_others(before);
    }
    if (!options.interval) {
        return print(text_of(options, before, nullptr)) ? 0 : 1;
    }
    for (unsigned i = 0; !options.repetitions || i < *options.repetitions; ++i) {
        const timespec pause{static_cast<time_t>(*options.interval), 0};
        nanosleep(&pause, nullptr);
        Snapshot now = rsstat::take_snapshot(options.pids);
        if (!print(text_of(options, now, &before) + (options.view == View::json ? "" : "\n"))) {
            return 1;
        }
        before = std::move(now);
    }
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    const std::string name = util::program_name(argv[0]);
    return util::run(name.c_str(), [&] {
        const Options options = rsstat::parse_options({argv, argv + argc});
        if (options.help) {
            fmt::print("{}", rsstat::help_text(name));
            return 0;
        }
        if (options.version) {
            fmt::print("rsstat of rstream {}\n", PACKAGE_VERSION);
            return 0;
        }
        return run(options);
    });
}
