// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/streaming/session.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <sys/wait.h>
#include <unistd.h>

#include "util/common/failure.hpp"
#include "util/common/json.hpp"
#include "util/fabric/info.hpp"

namespace streaming {

using util::Address;
using util::Clock;
using util::fail;

Address Session::resolve(const char* option, const std::string& node, uint16_t port, int family, bool passive) const {
    return options_.resolve ? util::resolve_on_fabric(option, node, port, options_.format, family, passive)
                            : util::resolve_address(option, node, port, options_.format, family);
}

Socket Session::make_socket(int family, const Group& first) const {
    Socket socket(options_, family);
    exchange_.prepare(socket);
    socket.set_inline(first.inline_size);
    return socket;
}

Result Session::run_test(Socket& socket, const Test& test) {
    Result result{test, {}, {}};
    uint64_t iteration = 0;
    const bool client = options_.is_client();
    try {
        exchange_.begin(socket, test);
        const auto start = Clock::now();
        auto before = start;
        for (; iteration < test.iterations; ++iteration) {
            client ? exchange_.send() : exchange_.receive();
            client ? exchange_.receive() : exchange_.send();
            if (options_.histogram) {
                const auto now = Clock::now();
                const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
                result.latency.record(static_cast<uint64_t>(taken) / (2 * test.transfers));
                before = now;
            }
        }
        result.time = Clock::now() - start;
        exchange_.end();
    } catch (const util::Failure& failure) {
        exchange_.abandon();
        fail("{} (in {}, iteration {} of {})", failure.what(), test.name, iteration, test.iterations);
    }
    return result;
}

void Session::run_group(Socket& socket, const Group& group) {
    if (options_.keepalive && !options_.common.json) {
        fmt::print("{}\n", socket.keepalive_text());
    }
    for (const Test& test : group.tests) {
        const Result result = run_test(socket, test);
        fmt::print("{}\n", options_.common.json ? result_json(options_, result) : result_row(options_, result));
    }
    socket.shut();
}

void Session::print_header() const {
    if (!options_.common.json) {
        fmt::print("{}\n", header_row(options_));
    }
}

int Session::run_client() {
    const Address remote =
        resolve("-s", options_.server, options_.port, util::server_family(options_.server, options_.bind), false);
    std::optional<Address> local;
    if (!options_.bind.empty()) {
        local = resolve("-b", options_.bind, 0, remote.family(), true);
    }
    print_header();
    for (const Group& group : plan_) {
        Socket socket = make_socket(remote.family(), group);
        socket.connect(remote, local);
        run_group(socket, group);
    }
    return 0;
}

int Session::run_server() {
    const char* any = options_.format == util::AddressFormat::ipv6 ? "::" : "0.0.0.0";
    const Address local = options_.bind.empty() ? util::resolve_address("-b", any, options_.port)
                                                : resolve("-b", options_.bind, options_.port, AF_UNSPEC, true);
    Socket listener = make_socket(local.family(), plan_.front());
    listener.listen(local);
    if (options_.port == 0) {
        const uint16_t port = listener.local().port();
        fmt::print("{}\n", options_.common.json ? util::json_text({{"event", "listening"}, {"port", port}})
                                                : fmt::format("listening on port {}", port));
    }
    print_header();
    for (const Group& group : plan_) {
        listener.set_inline(group.inline_size);
        if (const int status = serve(listener, group); status != 0) {
            return status;
        }
    }
    return 0;
}

int Session::serve(Socket& listener, const Group& group) {
    Socket socket = listener.accept();
    if (!options_.fork) {
        run_group(socket, group);
        return 0;
    }
    fflush(stdout); // so that the child does not print it again
    const pid_t child = fork();
    if (child < 0) {
        fail("-T f: cannot fork: {}", strerror(errno));
    }
    if (child == 0) {
        _exit(util::run(program_.c_str(), [&] {
            run_group(socket, group);
            return 0;
        }));
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            fail("-T f: waiting for the child: {}", strerror(errno));
        }
    }
    if (WIFSIGNALED(status)) {
        fail("{}: the child that served it was ended by signal {}", socket.peer(), WTERMSIG(status));
    }
    for (const Test& test : group.tests) {
        exchange_.pass_over(test);
    }
    return WEXITSTATUS(status); // if nonzero, the child has printed the reason
}

int Session::run() { return options_.is_client() ? run_client() : run_server(); }

int run_program(Program program, int argc, char** argv, MakeExchange make_exchange) {
    const std::string name = util::program_name(argv[0]);
    return util::run(name.c_str(), [&] {
        const Options options = parse_options(program, {argv, argv + argc});
        if (options.common.help) {
            fmt::print("{}", help_text(program, name));
            return 0;
        }
        if (options.common.version) {
            fmt::print("{} of rstream {}\n", program == Program::rstream ? "rstream" : "riostream", PACKAGE_VERSION);
            return 0;
        }
        const auto exchange = make_exchange(options);
        return Session(name, options, *exchange).run();
    });
}

} // namespace streaming
