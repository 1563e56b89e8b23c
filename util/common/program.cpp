// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/program.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "util/common/failure.hpp"
#include "util/common/number.hpp"

namespace util {

#define BASIC_HELP                                                                                                     \
    "      --timeout SECONDS give up when nothing happens for so long (default 60; 0: never)\n"                        \
    "      --json            the summary as one line of JSON\n"                                                        \
    "  -h, --help            this text\n"                                                                              \
    "      --version\n"

const char* const basic_help = BASIC_HELP;
const char* const common_help =
    "      --backend NAME    fabric (libfabric) or rdmacm (librdmacm); default: rdmacm where the address routes over\n"
    "                        an RDMA device, else fabric\n"
    "      --provider NAME   the core provider of the fabric backend: tcp, verbs, ...; default: verbs where it\n"
    "                        reaches, else tcp\n" BASIC_HELP;

Clock::time_point CommonOptions::deadline() const {
    return timeout == 0 ? Clock::time_point::max() : Clock::now() + std::chrono::seconds(timeout);
}

namespace {

// What getopt_long complains about by '?' or ':'. `last` is the argument that it has read last.
[[noreturn]] void fail_at(int complaint, const std::string& last, const std::string& letters) {
    const bool is_letter = optopt > 0 && optopt < 256;
    const std::string letter = is_letter ? fmt::format("-{}", static_cast<char>(optopt)) : "";
    if (complaint == ':') {
        fail("{} needs an argument; try --help", last.starts_with("--") ? last : letter);
    }
    // Only a long option that takes no argument has a value here that is known.
    if (optopt >= 256 || (is_letter && letters.find(static_cast<char>(optopt)) != std::string::npos)) {
        fail("{} takes no argument; try --help", last.substr(0, last.find('=')));
    }
    fail("{} is not an option that is known; try --help", is_letter ? letter : last);
}

bool take_common(CommonOptions& common, int option, const std::string& value) {
    switch (option) {
    case backend_option:
        if (value != "fabric" && value != "rdmacm") {
            fail("--backend {}: neither fabric nor rdmacm", value);
        }
        common.backend = value == "fabric" ? BackendChoice::fabric : BackendChoice::rdmacm;
        return true;
    case provider_option:
        common.provider = value;
        return true;
    case timeout_option:
        common.timeout = static_cast<unsigned>(parse_number("--timeout", value, 0, 1000000));
        common.timeout_given = true;
        return true;
    case json_option:
        common.json = true;
        return true;
    case 'h':
        common.help = true;
        return true;
    case version_option:
        common.version = true;
        return true;
    default:
        return false;
    }
}

} // namespace

std::vector<std::string> parse_options(const std::vector<std::string>& arguments, const std::string& letters,
                                       const option* longs, const std::function<void(int, const std::string&)>& take) {
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (const auto& argument : arguments) {
        argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    const int argc = static_cast<int>(arguments.size());
    // The colon suppresses getopt's messages: this function reports errors itself, by an exception.
    const bool stops = letters.starts_with('+');
    const std::string quiet = (stops ? "+:" : ":") + letters.substr(stops ? 1 : 0);
    optind = 0; // restart the scan, since this may be called repeatedly
    for (int c; (c = getopt_long(argc, argv.data(), quiet.c_str(), longs, nullptr)) != -1;) {
        if (c == '?' || c == ':') {
            fail_at(c, argv[static_cast<size_t>(optind - 1)], letters);
        }
        take(c, optarg != nullptr ? optarg : "");
    }
    return {argv.begin() + optind, argv.begin() + argc};
}

void parse_command_line(const std::vector<std::string>& arguments, const char* letters, const option* longs,
                        CommonOptions& common, const std::function<void(int, const std::string&)>& take) {
    const auto words = parse_options(arguments, letters, longs, [&](int option, const std::string& value) {
        if (!take_common(common, option, value)) {
            take(option, value);
        }
    });
    if (!words.empty()) {
        fail("{}: not an option; try --help", words.front());
    }
    if (!common.provider.empty()) {
        if (common.backend == BackendChoice::rdmacm) {
            fail("--provider {}: the rdmacm backend has no providers; use --backend fabric", common.provider);
        }
        common.backend = BackendChoice::fabric;
    }
}

int run(const char* program, const std::function<int()>& body) {
    setvbuf(stdout, nullptr, _IOLBF, 0); // so that a reader of a pipe sees each line at once
    int status = 1;
    try {
        status = body();
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "{}: not enough memory; try a smaller -S or -C\n", program);
    } catch (const std::exception& e) {
        fmt::print(stderr, "{}: {}\n", program, e.what());
    }
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        fmt::print(stderr, "{}: cannot write to the standard output: {}\n", program, strerror(errno));
        status = 1;
    }
    return status;
}

std::string program_name(const char* argv0) {
    const char* slash = argv0 == nullptr ? nullptr : strrchr(argv0, '/');
    return slash != nullptr ? slash + 1 : argv0 != nullptr ? argv0 : "";
}

} // namespace util
