// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the command lines of the tools have in common, and how a program ends.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <getopt.h>

#include "util/common/backend.hpp"

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "of no version"
#endif

namespace util {

enum class BackendChoice { automatic, fabric, rdmacm };

struct CommonOptions {
    BackendChoice backend = BackendChoice::automatic;
    std::string provider;  // of the fabric backend; empty: verbs where it reaches, else tcp
    unsigned timeout = 60; // seconds; 0: never
    bool timeout_given = false;
    bool json = false;
    bool help = false;
    bool version = false;

    // When something has to have happened.
    [[nodiscard]] Clock::time_point deadline() const;
};

// What getopt_long returns for the long options that have no letter.
enum : int { backend_option = 256, provider_option, timeout_option, json_option, version_option };
#define UTIL_BASIC_LONG_OPTIONS                                                                                        \
    {"timeout", required_argument, nullptr, util::timeout_option}, {"json", no_argument, nullptr, util::json_option},  \
        {"help", no_argument, nullptr, 'h'}, {"version", no_argument, nullptr, util::version_option}, {}
// Those, for a program that has backends.
#define UTIL_COMMON_LONG_OPTIONS                                                                                       \
    {"backend", required_argument, nullptr, util::backend_option},                                                     \
        {"provider", required_argument, nullptr, util::provider_option}, UTIL_BASIC_LONG_OPTIONS

extern const char* const basic_help;
extern const char* const common_help;

// Goes through the options of a command line, argv[0] included, and returns what is none. take is given the options;
// one that is not known, or lacks its argument, is a Failure. letters may begin with + as getopt has it: the first word
// that is no option ends them.
std::vector<std::string> parse_options(const std::vector<std::string>& arguments, const std::string& letters,
                                       const option* longs, const std::function<void(int, const std::string&)>& take);

// Goes through a command line, argv[0] included. what takes an option that is not a common one; whatever is not known,
// lacks its argument, or is no option at all is a Failure.
void parse_command_line(const std::vector<std::string>& arguments, const char* letters, const option* longs,
                        CommonOptions& common, const std::function<void(int, const std::string&)>& take);

// Runs a program's body: an exception becomes one line on stderr, and exit status 1.
int run(const char* program, const std::function<int()>& body);

// The name that it was started by, without folders.
std::string program_name(const char* argv0);

} // namespace util
