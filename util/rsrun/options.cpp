// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/options.hpp"

#include "preload/rules/rule.hpp"
#include "util/common/failure.hpp"
#include "util/common/number.hpp"
#include "util/common/program.hpp"

namespace rsrun {

using util::fail;
using util::parse_number;

namespace {

// The buffer sizes that the socket library accepts.
constexpr uint64_t largest_buffer = uint64_t{1} << 30;

enum : int {
    core_option = 300,
    sndbuf_option,
    rcvbuf_option,
    only_option,
    config_option,
    log_option,
    explain_option,
    path_option
};
const option longs[] = {{"core", required_argument, nullptr, core_option},
                        {"sndbuf", required_argument, nullptr, sndbuf_option},
                        {"rcvbuf", required_argument, nullptr, rcvbuf_option},
                        {"only", required_argument, nullptr, only_option},
                        {"config", required_argument, nullptr, config_option},
                        {"log", required_argument, nullptr, log_option},
                        {"path", required_argument, nullptr, path_option},
                        {"explain", optional_argument, nullptr, explain_option},
                        {"verbose", no_argument, nullptr, 'v'},
                        {"help", no_argument, nullptr, 'h'},
                        {"version", no_argument, nullptr, util::version_option},
                        {}};

void check_rule(const std::string& text) {
    preload::Rule rule;
    preload::Fault fault;
    std::string_view host;
    if (!parse_rule(text, rule, host, fault)) {
        fail("--only {}: {} (at character {}); a rule is PORT[-PORT], ADDRESS[/PREFIX][:PORT[-PORT]] or "
             "NAME[:PORT[-PORT]], with IPv6 in brackets",
             text.empty() ? "''" : text, fault.what, fault.position + 1);
    }
}

Options::Path parse_path(const std::string& value) {
    if (value == "auto") {
        return Options::Path::automatic;
    }
    if (value == "memory") {
        return Options::Path::memory;
    }
    if (value == "fabric") {
        return Options::Path::fabric;
    }
    fail("--path {}: there is no such path; it is auto, memory or fabric", value.empty() ? "''" : value);
}

const std::string& not_empty(const char* option, const std::string& value) {
    if (value.empty()) {
        fail("{} '': there is nothing in it", option);
    }
    return value;
}

} // namespace

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    options.command = util::parse_options(arguments, "+vh", longs, [&](int letter, const std::string& value) {
        switch (letter) {
        case core_option:
            options.core = not_empty("--core", value);
            break;
        case sndbuf_option:
            options.send_buffer = parse_number("--sndbuf", value, 1, largest_buffer, true);
            break;
        case rcvbuf_option:
            options.recv_buffer = parse_number("--rcvbuf", value, 1, largest_buffer, true);
            break;
        case only_option:
            check_rule(value);
            options.only.push_back(value);
            break;
        case config_option:
            options.config = not_empty("--config", value);
            break;
        case log_option:
            options.log = not_empty("--log", value);
            break;
        case path_option:
            options.path = parse_path(value);
            break;
        case explain_option:
            options.explain = true;
            options.explain_file = value;
            break;
        case 'v':
            options.verbose = true;
            break;
        case 'h':
            options.help = true;
            break;
        default:
            options.version = true;
            break;
        }
    });
    if (!options.help && !options.version && options.command.empty()) {
        fail("there is no program to run; try --help");
    }
    return options;
}

std::string help_text(const std::string& program) {
    return fmt::format(
        "{0}: runs a program whose TCP connections take a faster path where there is one\n\n"
        "  {0} [OPTIONS] PROGRAM [ARGUMENTS...]\n\n"
        "Connections between programs on this host that both run under {0} move to shared memory;\n"
        "those between addresses of RDMA devices move to the fabric. All others stay kernel TCP.\n\n"
        "      --only RULE       upgrade only connections that the rule matches; may be repeated:\n"
        "                        PORT[-PORT], ADDRESS[/PREFIX][:PORT[-PORT]] or NAME[:PORT[-PORT]],\n"
        "                        IPv6 in brackets\n"
        "      --config FILE     read rules from FILE instead of the administrator's file\n"
        "      --explain[=FILE]  when the program has ended, print a line for each of its sockets: its path,\n"
        "                        and why not another; to FILE, separated by tabs\n"
        "      --log FILE        append errors in rules and rule files to FILE\n"
        "      --path PATH       auto (default); memory: connections to other hosts stay kernel TCP; fabric:\n"
        "                        an error if what the fabric needs is not installed\n"
        "      --core NAMES      use the fabric, by these core providers in this order (default verbs,\n"
        "                        where an RDMA device has an active port)\n"
        "      --sndbuf BYTES    send buffer of each socket on the fabric, with an optional suffix K, M or G\n"
        "      --rcvbuf BYTES    receive buffer, likewise\n"
        "  -v, --verbose         print the settings before the program starts\n"
        "  -h, --help            this text\n"
        "      --version\n",
        program);
}

} // namespace rsrun
