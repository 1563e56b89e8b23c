// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rping/options.hpp"

#include "util/common/failure.hpp"
#include "util/common/number.hpp"

namespace rping {

using util::fail;
using util::parse_number;

namespace {

constexpr const char* letters = "sca:I:p:vVdC:S:Pqh";
const option longs[] = {{"server", no_argument, nullptr, 's'},
                        {"client", no_argument, nullptr, 'c'},
                        {"address", required_argument, nullptr, 'a'},
                        {"source", required_argument, nullptr, 'I'},
                        {"port", required_argument, nullptr, 'p'},
                        {"verbose", no_argument, nullptr, 'v'},
                        {"validate", no_argument, nullptr, 'V'},
                        {"debug", no_argument, nullptr, 'd'},
                        {"count", required_argument, nullptr, 'C'},
                        {"size", required_argument, nullptr, 'S'},
                        {"persistent", no_argument, nullptr, 'P'},
                        {"own-queues", no_argument, nullptr, 'q'},
                        UTIL_COMMON_LONG_OPTIONS};

void check_roles(const Options& options, bool client) {
    if (options.server == client) {
        fail("{} of -s (server) and -c (client) is needed; try --help", client ? "only one" : "one");
    }
    if (client && options.address.empty()) {
        fail("-c: the server's address is missing, give it with -a");
    }
    if (client && options.persistent) {
        fail("-P: only a server (-s) can be persistent");
    }
    if (client && options.port == 0) {
        fail("-p 0: only a server (-s) can pick a port; give the one that it printed");
    }
    if (options.server && !options.source.empty()) {
        fail("-I: only a client (-c) has a source address; a server listens on -a");
    }
}

} // namespace

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    bool client = false;
    util::parse_command_line(arguments, letters, longs, options.common, [&](int letter, const std::string& value) {
        switch (letter) {
        case 's':
            options.server = true;
            break;
        case 'c':
            client = true;
            break;
        case 'a':
            options.address = value;
            break;
        case 'I':
            options.source = value;
            break;
        case 'p':
            options.port = static_cast<uint16_t>(parse_number("-p", value, 0, 65535));
            break;
        case 'v':
            options.verbose = true;
            break;
        case 'V':
            options.validate = true;
            break;
        case 'd':
            options.debug = true;
            break;
        case 'C':
            options.count = parse_number("-C", value, 0, INT32_MAX);
            break;
        case 'S':
            options.size = parse_number("-S", value, min_size, max_size, true);
            options.size_given = true;
            break;
        case 'P':
            options.persistent = true;
            break;
        default:
            options.own_queues = true;
            break;
        }
    });
    if (!options.common.help && !options.common.version) {
        check_roles(options, client);
    }
    return options;
}

std::string help_text(const std::string& program) {
    return fmt::format(
        "{0}: pings and their echoes, by RDMA read and write\n\n"
        "  {0} -s [OPTIONS]             the server\n"
        "  {0} -c -a ADDRESS [OPTIONS]  a client\n\n"
        "  -a, --address ADDRESS the server's address; ::0 listens on any, IPv6 too\n"
        "  -I, --source ADDRESS  the client's own address\n"
        "  -p, --port PORT       the server's port (default 7174; 0: a free one, which is printed)\n"
        "  -C, --count N         number of pings (default: no end, until interrupted)\n"
        "  -S, --size BYTES      size of a message, from {1} to 64M (default {2}, {3} with rdma-core's)\n"
        "  -v, --verbose         print the data of each ping\n"
        "  -V, --validate        check each byte\n"
        "  -d, --debug           say what happens, on the standard error\n"
        "  -P, --persistent      serve many clients at once, until interrupted\n"
        "  -q, --own-queues      make the queue pair, or endpoint and its queues, by hand\n"
        "{4}",
        program, min_size, default_size, default_size_of_others, util::common_help);
}

} // namespace rping
