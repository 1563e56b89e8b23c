// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/ucmatose/options.hpp"

#include <strings.h>

#include "util/common/failure.hpp"
#include "util/common/number.hpp"

namespace ucmatose {

using util::AddressFormat;
using util::fail;
using util::parse_number;

namespace {

constexpr const char* letters = "s:b:f:P:p:c:C:S:t:a:mh";
const option longs[] = {{"server", required_argument, nullptr, 's'}, {"bind", required_argument, nullptr, 'b'},
                        {"format", required_argument, nullptr, 'f'}, {"port-space", required_argument, nullptr, 'P'},
                        {"port", required_argument, nullptr, 'p'},   {"connections", required_argument, nullptr, 'c'},
                        {"count", required_argument, nullptr, 'C'},  {"size", required_argument, nullptr, 'S'},
                        {"tos", required_argument, nullptr, 't'},    {"ack-timeout", required_argument, nullptr, 'a'},
                        {"migrate", no_argument, nullptr, 'm'},      UTIL_COMMON_LONG_OPTIONS};

bool is(const std::string& value, const char* word) { return strcasecmp(value.c_str(), word) == 0; }

AddressFormat parse_format(const std::string& value) {
    if (is(value, "name")) {
        return AddressFormat::name;
    }
    if (is(value, "ip")) {
        return AddressFormat::ip;
    }
    if (is(value, "ipv6")) {
        return AddressFormat::ipv6;
    }
    if (is(value, "gid")) {
        return AddressFormat::gid;
    }
    fail("-f {}: not one of name, ip, ipv6 and gid", value);
}

bool parse_port_space(const std::string& value) {
    if (!is(value, "ib") && !is(value, "tcp")) {
        fail("-P {}: neither tcp nor ib", value);
    }
    return is(value, "ib");
}

} // namespace

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    util::parse_command_line(arguments, letters, longs, options.common, [&](int letter, const std::string& value) {
        switch (letter) {
        case 's':
            if (value.empty()) {
                fail("-s '': not an address");
            }
            options.server = value;
            break;
        case 'b':
            options.bind = value;
            break;
        case 'f':
            options.format = parse_format(value);
            break;
        case 'P':
            options.path.ib_port_space = parse_port_space(value);
            break;
        case 'p':
            options.port = static_cast<uint16_t>(parse_number("-p", value, 0, 65535));
            break;
        case 'c':
            options.connections = parse_number("-c", value, 1, max_connections);
            break;
        case 'C':
            options.count = parse_number("-C", value, 0, max_count);
            break;
        case 'S':
            options.size = parse_number("-S", value, 1, max_size, true);
            break;
        case 't':
            options.path.type_of_service = static_cast<uint8_t>(parse_number("-t", value, 0, 255));
            break;
        case 'a':
            options.path.ack_timeout = static_cast<uint8_t>(parse_number("-a", value, 0, 31));
            break;
        default:
            options.migrate = true;
            break;
        }
    });
    if (options.common.help || options.common.version) {
        return options;
    }
    if (options.is_client() && options.port == 0) {
        fail("-p 0: only a server can pick a port; give the one that it printed");
    }
    if (!options.is_client() && options.path.type_of_service) {
        fail("-t: only a client (-s) sets the type of service");
    }
    return options;
}

std::string help_text(const std::string& program) {
    return fmt::format("{0}: many connections, messages over each, and their end\n\n"
                       "  {0} [OPTIONS]             the server\n"
                       "  {0} -s ADDRESS [OPTIONS]  the client\n\n"
                       "  -s, --server ADDRESS  the server's address\n"
                       "  -b, --bind ADDRESS    our own address; ::0 listens on any, IPv6 too\n"
                       "  -f, --format FORMAT   how the addresses are written: name, ip, ipv6 or gid\n"
                       "  -P, --port-space NAME tcp (default) or ib\n"
                       "  -p, --port PORT       the server's port (default 7471; 0: a free one, which is printed)\n"
                       "  -c, --connections N   number of connections (default 1)\n"
                       "  -C, --count N         messages over each connection, each way (default 10; 0: none)\n"
                       "  -S, --size BYTES      size of a message, from 1 to 64M (default 100)\n"
                       "  -t, --tos N           type of service of the client's connections, 0 to 255\n"
                       "  -a, --ack-timeout N   ACK timeout of 4.096 * 2^N us, 0 to 31\n"
                       "  -m, --migrate         move all connections to another event channel before they end\n"
                       "{1}",
                       program, util::common_help);
}

} // namespace ucmatose
