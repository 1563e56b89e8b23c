// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The command line of ucmatose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "util/common/program.hpp"

namespace ucmatose {

constexpr size_t max_size = size_t{64} << 20;
constexpr size_t max_connections = 65535;
constexpr size_t max_count = 1000000000;

struct Options {
    std::string server; // empty: this is the server
    std::string bind;
    util::AddressFormat format = util::AddressFormat::any;
    uint16_t port = 7471;
    size_t connections = 1;
    size_t count = 10; // messages a connection, each way
    size_t size = 100;
    bool migrate = false;
    util::PathSettings path;
    util::CommonOptions common;

    [[nodiscard]] bool is_client() const { return !server.empty(); }
};

// Throws a Failure that describes an error. With --help or --version nothing else is checked.
Options parse_options(const std::vector<std::string>& arguments);
std::string help_text(const std::string& program);

} // namespace ucmatose
