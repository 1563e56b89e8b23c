// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/options.hpp"

#include <limits>

#include <strings.h>

#include "util/common/failure.hpp"
#include "util/common/number.hpp"

namespace streaming {

using util::AddressFormat;
using util::fail;
using util::parse_number;

namespace {

enum : int { histogram_option = 512 };
const option longs[] = {{"server", required_argument, nullptr, 's'},
                        {"bind", required_argument, nullptr, 'b'},
                        {"format", required_argument, nullptr, 'f'},
                        {"buffers", required_argument, nullptr, 'B'},
                        {"inline", required_argument, nullptr, 'i'},
                        {"iterations", required_argument, nullptr, 'I'},
                        {"transfers", required_argument, nullptr, 'C'},
                        {"size", required_argument, nullptr, 'S'},
                        {"port", required_argument, nullptr, 'p'},
                        {"test", required_argument, nullptr, 'T'},
                        {"histogram", no_argument, nullptr, histogram_option},
                        UTIL_BASIC_LONG_OPTIONS};
constexpr const char* rstream_letters = "s:b:f:B:i:I:C:S:p:T:k:h";
constexpr const char* riostream_letters = "s:b:f:B:i:I:C:S:p:T:h";

AddressFormat parse_format(const std::string& value) {
    const struct {
        const char* name;
        AddressFormat format;
    } formats[] = {{"name", AddressFormat::name}, {"ip", AddressFormat::ip}, {"ipv6", AddressFormat::ipv6}};
    for (const auto& [name, format] : formats) {
        if (strcasecmp(value.c_str(), name) == 0) {
            return format;
        }
    }
    if (strcasecmp(value.c_str(), "gid") == 0) {
        fail("-f gid: streams have IP addresses only; give the address of the device's port");
    }
    fail("-f {}: not one of name, ip and ipv6", value);
}

// Finds a test option by its letter or its word.
char parse_test(Program program, const std::string& value) {
    const struct {
        const char* word;
        bool of_riostream;
    } words[] = {{"async", true},   {"blocking", true}, {"nonblocking", true}, {"verify", true},
                 {"socket", false}, {"fork", false},    {"resolve", false}};
    for (const auto& [word, of_riostream] : words) {
        const bool named = strcasecmp(value.c_str(), word) == 0 || (value.size() == 1 && value[0] == word[0]) ||
                           (word[0] == 's' && strcasecmp(value.c_str(), "sockets") == 0);
        if (named && (of_riostream || program == Program::rstream)) {
            return word[0];
        }
    }
    fail("-T {}: not one of {}", value.empty() ? "''" : value,
         program == Program::rstream
             ? "a (async), b (blocking), f (fork), n (nonblocking), r (resolve), s (socket) and v (verify)"
             : "a (async), b (blocking), n (nonblocking) and v (verify)");
}

// Parses the options, and records what must be checked at the end.
class Parser {
  public:
    explicit Parser(Options& options) : options_(options) {}

    void take(int letter, const std::string& value) {
        switch (letter) {
        case 's':
            if (value.empty()) {
                fail("-s '': not an address");
            }
            options_.server = value;
            break;
        case 'b':
            options_.bind = value;
            break;
        case 'f':
            options_.format = parse_format(value);
            break;
        case 'B':
            options_.buffers = parse_number("-B", value, 1, max_size, true);
            break;
        case 'i':
            options_.inline_size = static_cast<int>(parse_number("-i", value, 0, 65536));
            break;
        case 'k':
            options_.keepalive = static_cast<int>(parse_number("-k", value, 1, 32767));
            break;
        case 'I':
            iterations_ = parse_number("-I", value, 1, max_count);
            break;
        case 'C':
            transfers_ = parse_number("-C", value, 1, max_count);
            break;
        case 'S':
            options_.all = strcasecmp(value.c_str(), "all") == 0;
            size_given_ = !options_.all;
            if (size_given_) {
                options_.size = parse_number("-S", value, 1, max_size, true);
            }
            break;
        case 'p':
            options_.port = static_cast<uint16_t>(parse_number("-p", value, 0, 65535));
            break;
        case 'T':
            take_test(parse_test(options_.program, value));
            break;
        default:
            options_.histogram = true;
            break;
        }
    }

    void finish() {
        if (options_.all) {
            options_.series_iterations = iterations_;
            options_.series_transfers = transfers_;
        } else {
            options_.custom = size_given_ || iterations_ || transfers_;
            options_.iterations = iterations_.value_or(options_.iterations);
            options_.transfers = transfers_.value_or(options_.transfers);
        }
        const uint64_t most = std::numeric_limits<int64_t>::max() / 2;
        if (options_.transfers > most / options_.iterations ||
            options_.size > most / options_.iterations / options_.transfers) {
            fail("-I {} -C {} -S {}: more bytes than can be counted", options_.iterations, options_.transfers,
                 options_.size);
        }
        if (options_.is_client() && options_.port == 0) {
            fail("-p 0: only a server can pick a port; give the one that it printed");
        }
        if (blocking_ && (asynchronous_ || nonblocking_)) {
            fail("-T b and -T {}: calls either block or do not", asynchronous_ ? 'a' : 'n');
        }
        options_.mode = blocking_ ? Mode::blocking : asynchronous_ ? Mode::asynchronous : Mode::nonblocking;
        if (options_.fork && options_.is_client()) {
            fail("-T f: only a server forks; its clients need -T s");
        }
        if (options_.kernel && options_.inline_size) {
            fail("-i: the kernel's sockets (-T s, -T f) have no inline size");
        }
    }

  private:
    void take_test(char letter) {
        switch (letter) {
        case 'a':
            asynchronous_ = true;
            break;
        case 'b':
            blocking_ = true;
            break;
        case 'n':
            nonblocking_ = true;
            break;
        case 'v':
            options_.verify = true;
            break;
        case 'r':
            options_.resolve = true;
            break;
        case 'f':
            options_.fork = true;
            options_.kernel = true; // an rsocket works only in the process that created it
            break;
        default:
            options_.kernel = true;
            break;
        }
    }

    Options& options_;
    bool size_given_ = false;
    std::optional<uint64_t> iterations_;
    std::optional<uint64_t> transfers_;
    bool asynchronous_ = false;
    bool blocking_ = false;
    bool nonblocking_ = false;
};

} // namespace

Options parse_options(Program program, const std::vector<std::string>& arguments) {
    Options options;
    options.program = program;
    Parser parser(options);
    util::parse_command_line(arguments, program == Program::rstream ? rstream_letters : riostream_letters, longs,
                             options.common, [&](int letter, const std::string& value) { parser.take(letter, value); });
    if (!options.common.help && !options.common.version) {
        parser.finish();
    }
    return options;
}

std::string help_text(Program program, const std::string& name) {
    const bool rstream = program == Program::rstream;
    return fmt::format(
        "{0}: latency and bandwidth of {1}\n\n"
        "  {0} [OPTIONS]             the server\n"
        "  {0} -s ADDRESS [OPTIONS]  the client\n\n"
        "Without -S, -I and -C, a series of tests. The same of -S, -I, -C and -T v must be given to both ends.\n\n"
        "  -s, --server ADDRESS  the server's address\n"
        "  -b, --bind ADDRESS    our own address\n"
        "  -f, --format FORMAT   how the addresses are written: name, ip or ipv6\n"
        "  -B, --buffers BYTES   size of the send and of the receive buffer (default 512K)\n"
        "  -i, --inline BYTES    what may be sent inline (RDMA_INLINE)\n"
        "  -I, --iterations N    how often it goes there and back (default 1; -S all: in each latency test)\n"
        "  -C, --transfers N     transfers one way before it turns (default 1000; -S all: in each bandwidth test)\n"
        "  -S, --size BYTES      size of a transfer (default 1000), or all: a series of many sizes\n"
        "  -p, --port PORT       the server's port (default 7471; 0: a free one, which is printed)\n"
        "{2}"
        "  -T, --test OPTION     may be given several times\n"
        "      a, async          poll before each call\n"
        "      b, blocking       calls that block\n"
        "      n, nonblocking    calls that do not, repeated (default)\n"
        "      v, verify         check each byte\n"
        "{3}"
        "      --histogram       50th, 99th and 99.9th percentile of the time of a transfer\n"
        "{4}",
        name, rstream ? "streams" : "writes into mapped memory of the peer",
        rstream ? "  -k SECONDS            keepalive after so many idle seconds\n" : "",
        rstream ? "      s, socket         the kernel's sockets instead of rsockets\n"
                  "      f, fork           serve in a child, over the kernel's sockets\n"
                  "      r, resolve        resolve addresses through libfabric\n"
                : "",
        util::basic_help);
}

} // namespace streaming
