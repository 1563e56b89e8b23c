// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/common/options.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <getopt.h>
#include <unistd.h>

#include "fabtests/common/fabric.hpp"

namespace fabtests {

namespace {

constexpr const char* help_text =
    "  -p, --provider NAME   rstream (default), a core provider (tcp, verbs), or kernel for plain sockets\n"
    "  -c, --core NAME       the core provider below rstream (default: rstream's own choice)\n"
    "  -d, --domain NAME     the domain (lo, eth0, mlx5_0)\n"
    "  -s, --source ADDRESS  our own address; a server listens there (default: all, or 127.0.0.1)\n"
    "  -B, -P, --port PORT   the server's port (default 9228; 0: any free one)\n"
    "      --port-file FILE  a server writes its port into FILE once it listens\n"
    "  -S, --size BYTES      size of each transfer, up to 1G, with K, M or G (default %zu)\n"
    "  -I, --iterations N    number of %s (default %zu)\n"
    "  -w, --warmup N        number of %s before the measurement (default %zu)\n"
    "  -b, --buffers BYTES   send and receive buffers, 4K to 1G (default: the provider's)\n"
    "      --wait spin|poll  how to wait (default spin)\n"
    "      --iwarp           ask for the iWARP protocol\n"
    "  -v, --verify          check every byte\n"
    "  -t, --timeout SECONDS give up after that (default %d)\n"
    "      --json            one line of JSON instead of a table\n"
    "  -h, --help            this text\n";

[[noreturn]] void usage(const char* program, const std::string& complaint) {
    fprintf(stderr, "%s: %s; try --help\n", program, complaint.c_str());
    exit(1);
}

size_t number(const char* program, const char* option, const char* text, size_t min, size_t max) {
    char* end = nullptr;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = 0;
    switch (*end) {
    case 'k':
    case 'K':
        shift = 10;
        break;
    case 'm':
    case 'M':
        shift = 20;
        break;
    case 'g':
    case 'G':
        shift = 30;
        break;
    default:
        break;
    }
    end += shift != 0 ? 1 : 0;
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value > (max >> shift) || (value << shift) < min) {
        usage(program, std::string(option) + " " + (*text == '\0' ? "''" : text) + ": not a number from " +
                           std::to_string(min) + " to " + std::to_string(max));
    }
    return static_cast<size_t>(value) << shift;
}

// The colon suppresses getopt's own messages, which do not name --help.
constexpr const char* letters = ":p:c:d:s:P:B:S:I:w:b:vt:f:h";

// What getopt_long complains about by '?' or ':'. `last` is the argument that it has read last.
[[noreturn]] void usage_of_option(const char* program, int complaint, const std::string& last) {
    const bool is_letter = optopt > 0 && optopt < 256;
    const std::string letter = is_letter ? std::string("-") + static_cast<char>(optopt) : last;
    if (complaint == ':') {
        usage(program, (last.compare(0, 2, "--") == 0 ? last : letter) + " needs an argument");
    }
    // Only a long option that takes no argument has a value here that is known.
    if (optopt >= 256 || (is_letter && strchr(letters, optopt) != nullptr)) {
        usage(program, last.substr(0, last.find('=')) + " takes no argument");
    }
    usage(program, letter + " is not an option that is known");
}

// What the options ask of libfabric, whose errors name none of it.
std::string request_text(const Options& options) {
    std::string text = "provider " + (options.core.empty() ? options.provider : options.core + ";" + options.provider);
    const auto add = [&](const char* what, const std::string& value) {
        if (!value.empty()) {
            text += ", " + (what + value);
        }
    };
    add("domain ", options.domain);
    add("", options.iwarp ? "iWARP" : "");
    add("server ", options.host);
    add("local address ", options.source);
    add("port ", options.port);
    return text;
}

} // namespace

Kind Options::kind() const {
    return provider == "rstream" ? Kind::stream : provider == "kernel" ? Kind::kernel : Kind::core;
}

Options parse_options(int argc, char** argv, const char* purpose, const Options& defaults, const char* file_help) {
    enum { port_file = 256, wait_mode, json, iwarp };
    static const option longs[] = {{"provider", required_argument, nullptr, 'p'},
                                   {"core", required_argument, nullptr, 'c'},
                                   {"domain", required_argument, nullptr, 'd'},
                                   {"source", required_argument, nullptr, 's'},
                                   {"port", required_argument, nullptr, 'P'},
                                   {"port-file", required_argument, nullptr, port_file},
                                   {"size", required_argument, nullptr, 'S'},
                                   {"iterations", required_argument, nullptr, 'I'},
                                   {"warmup", required_argument, nullptr, 'w'},
                                   {"buffers", required_argument, nullptr, 'b'},
                                   {"wait", required_argument, nullptr, wait_mode},
                                   {"verify", no_argument, nullptr, 'v'},
                                   {"timeout", required_argument, nullptr, 't'},
                                   {"json", no_argument, nullptr, json},
                                   {"iwarp", no_argument, nullptr, iwarp},
                                   {"file", required_argument, nullptr, 'f'},
                                   {"help", no_argument, nullptr, 'h'},
                                   {}};
    Options options = defaults;
    const char* slash = strrchr(argv[0], '/');
    options.program = slash != nullptr ? slash + 1 : argv[0];
    const char* me = options.program.c_str();
    constexpr size_t any = ~size_t{0};
    for (int c; (c = getopt_long(argc, argv, letters, longs, nullptr)) != -1;) {
        switch (c) {
        case 'p':
            options.provider = optarg;
            break;
        case 'c':
            options.core = optarg;
            break;
        case 'd':
            options.domain = optarg;
            break;
        case 's':
            options.source = optarg;
            break;
        case 'P':
        case 'B':
            options.port = std::to_string(number(me, "--port", optarg, 0, 65535));
            break;
        case port_file:
            options.port_file = optarg;
            break;
        case 'S':
            options.size = number(me, "--size", optarg, 1, size_t{1} << 30);
            break;
        case 'I':
            options.iterations = number(me, "--iterations", optarg, 1, any);
            break;
        case 'w':
            options.warmup = number(me, "--warmup", optarg, 0, any);
            break;
        case 'b':
            options.buffers = number(me, "--buffers", optarg, 4096, size_t{1} << 30);
            break;
        case wait_mode:
            if (strcmp(optarg, "spin") != 0 && strcmp(optarg, "poll") != 0) {
                usage(me, std::string("--wait ") + optarg + ": neither spin nor poll");
            }
            options.poll = strcmp(optarg, "poll") == 0;
            break;
        case 'v':
            options.verify = true;
            break;
        case 't':
            options.timeout = static_cast<int>(number(me, "--timeout", optarg, 1, 86400));
            break;
        case json:
            options.json = true;
            break;
        case iwarp:
            options.iwarp = true;
            break;
        case 'f':
            if (*file_help == '\0') {
                usage(me, "--file has no meaning here");
            }
            options.file = optarg;
            break;
        case 'h':
            printf("%s\n\n", purpose);
            if (defaults.is_client()) { // an address by default: both ends are in one process
                printf("  %s [OPTIONS] [ADDRESS]  both ends, at this local address\n\n", me);
            } else {
                printf("  %s [OPTIONS]          the server\n  %s [OPTIONS] ADDRESS  the client\n\n", me, me);
            }
            printf(help_text, defaults.size, defaults.repeated, defaults.iterations, defaults.repeated, defaults.warmup,
                   defaults.timeout);
            if (*file_help != '\0') {
                printf("  -f, --file FILE       %s\n", file_help);
            }
            exit(0);
        default:
            usage_of_option(me, c, argv[optind - 1]);
        }
    }
    if (optind < argc) {
        options.host = argv[optind++];
    }
    if (optind < argc) {
        usage(me, std::string(argv[optind]) + ": one address at most");
    }
    return options;
}

void announce_port(const Options& options, uint16_t port) {
    if (!options.json) {
        printf("listening on port %u\n", port);
        fflush(stdout);
    }
    if (options.port_file.empty()) {
        return;
    }
    const std::string partial = options.port_file + ".part"; // so that a reader never sees a partial port file
    FILE* file = fopen(partial.c_str(), "w");
    if (file == nullptr || fprintf(file, "%u\n", port) < 0 || fclose(file) != 0 ||
        rename(partial.c_str(), options.port_file.c_str()) != 0) {
        throw std::runtime_error("cannot write " + options.port_file + ": " + strerror(errno));
    }
}

int run(const Options& options, const std::function<int()>& body) {
    static const char* program = nullptr;
    program = options.program.c_str();
    signal(SIGALRM, [](int) {
        static const char text[] = ": time is up, see --timeout\n";
        (void)!write(2, program, strlen(program));
        (void)!write(2, text, sizeof(text) - 1);
        _exit(1);
    });
    alarm(static_cast<unsigned>(options.timeout));
    try {
        return body();
    } catch (const Error& e) {
        fprintf(stderr, "%s: %s (%s)\n", program, e.what(), request_text(options).c_str());
        return 1;
    } catch (const std::exception& e) {
        fprintf(stderr, "%s: %s\n", program, e.what());
        return 1;
    }
}

} // namespace fabtests
