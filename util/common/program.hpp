// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The options that the tools share, and how a program ends.
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
    std::string provider;  // for the fabric backend; empty: verbs if it reaches the address, else tcp
    unsigned timeout = 60; // seconds; 0: never
    bool timeout_given = false;
    bool json = false;
    bool help = false;
    bool version = false;

    // The end of the timeout that begins now.
    [[nodiscard]] Clock::time_point deadline() const;
};

// Return values of getopt_long for the long options without a letter.
enum : int { backend_option = 256, provider_option, timeout_option, json_option, version_option };
#define UTIL_BASIC_LONG_OPTIONS                                                                                        \
    {"timeout", required_argument, nullptr, util::timeout_option}, {"json", no_argument, nullptr, util::json_option},  \
        {"help", no_argument, nullptr, 'h'}, {"version", no_argument, nullptr, util::version_option}, {}
// The common long options, plus those for a program that has backends.
#define UTIL_COMMON_LONG_OPTIONS                                                                                       \
    {"backend", required_argument, nullptr, util::backend_option},                                                     \
        {"provider", required_argument, nullptr, util::provider_option}, UTIL_BASIC_LONG_OPTIONS

extern const char* const basic_help;
extern const char* const common_help;

// Parses the options of a command line, argv[0] included, and returns the other words. Calls take for each option; an
// unknown option, or one without its argument, is a Failure. letters may begin with + as for getopt: the first word
// that is not an option then ends the options.
std::vector<std::string> parse_options(const std::vector<std::string>& arguments, const std::string& letters,
                                       const option* longs, const std::function<void(int, const std::string&)>& take);

// Parses a command line, argv[0] included. Calls take for each option that is not a common one; an unknown option, one
// without its argument, or any other word is a Failure.
void parse_command_line(const std::vector<std::string>& arguments, const char* letters, const option* longs,
                        CommonOptions& common, const std::function<void(int, const std::string&)>& take);

// Runs a program's body: an exception becomes one line on stderr, and exit status 1.
int run(const char* program, const std::function<int()>& body);

// The name that the program was started with, without folders.
std::string program_name(const char* argv0);

} // namespace util
