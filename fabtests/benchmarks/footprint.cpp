// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_stream_footprint: memory and descriptors of an idle connection. Opens as many connections as --iterations
// specifies, both ends in one process, moves one transfer of --size bytes over each in both directions, and divides by
// the number of ends. Where that has let buffers grow, it does so again when they have shrunk. -p tcp measures bare
// endpoints of the core, each with a CQ.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>

#include <sys/resource.h>

#include "fabtests/common/fabric.hpp"
#include "fabtests/common/options.hpp"
#include "util/common/json.hpp"

using namespace fabtests;

namespace {

size_t descriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

// Private resident memory of this process in kilobytes.
size_t resident() {
    std::ifstream status("/proc/self/smaps_rollup");
    std::string line;
    size_t total = 0;
    while (std::getline(status, line)) {
        std::istringstream words(line);
        std::string name;
        size_t kilobytes = 0;
        words >> name >> kilobytes;
        if (name == "Private_Clean:" || name == "Private_Dirty:") {
            total += kilobytes;
        }
    }
    return total;
}

// Memory of this process that devices have pinned, in kilobytes.
size_t pinned() {
    std::ifstream status("/proc/self/status");
    std::string name;
    size_t kilobytes = 0;
    while (status >> name) {
        if (name == "VmPin:") {
            status >> kilobytes;
        }
    }
    return kilobytes;
}

struct Footprint {
    size_t kilobytes = resident();
    size_t pinned_kilobytes = pinned();
    size_t fds = descriptors();
};

// Of one end.
struct Share {
    Share(const Footprint& before, const Footprint& after, size_t ends) {
        const auto divided = [&](size_t from, size_t to) {
            return (static_cast<double>(to) - static_cast<double>(from)) / static_cast<double>(ends);
        };
        kib = divided(before.kilobytes, after.kilobytes);
        pinned_kib = divided(before.pinned_kilobytes, after.pinned_kilobytes);
        fds = divided(before.fds, after.fds);
    }
    double kib;
    double pinned_kib;
    double fds;
};

struct Bare : BareEndpoint {
    using BareEndpoint::BareEndpoint;
    void exchange(Bare& peer, size_t size) {
        std::vector<char> out(size);
        std::vector<char> in(size);
        check("fi_recv", fi_recv(peer.ep.get(), in.data(), size, nullptr, FI_ADDR_UNSPEC, nullptr));
        check("fi_send", fi_send(ep.get(), out.data(), size, nullptr, FI_ADDR_UNSPEC, nullptr));
        fi_cq_data_entry entry{};
        for (int left = 2; left != 0;) {
            for (fid_cq* q : {cq.get(), peer.cq.get()}) {
                const ssize_t got = fi_cq_read(q, &entry, 1);
                if (got != -FI_EAGAIN) {
                    check("fi_cq_read", got);
                    --left;
                }
            }
        }
    }
};

struct BarePair {
    BarePair(Host& host, Listener& listener, size_t size) {
        client = std::make_unique<Bare>(host, host.info.get());
        check("fi_connect", fi_connect(client->ep.get(), listener.name().data(), nullptr, 0));
        const Info info(listener.request().info);
        server = std::make_unique<Bare>(host, info.get());
        check("fi_accept", fi_accept(server->ep.get(), nullptr, 0));
        for (int i = 0; i < 2; ++i) {
            if (host.next_event().type != FI_CONNECTED) {
                throw std::runtime_error("not connected");
            }
        }
        client->exchange(*server, size);
        server->exchange(*client, size);
    }
    std::unique_ptr<Bare> client;
    std::unique_ptr<Bare> server;
};

// `out` and `in` are the caller's: freed ones would leave memory in which the next connections find theirs.
void exchange(Stream& from, Stream& to, std::span<const char> out, std::span<char> in) {
    const size_t size = out.size();
    for (size_t sent = 0, got = 0; got < size;) {
        if (sent < size) {
            const ssize_t n = fi_send(from.get(), out.data(), size - sent, nullptr, FI_ADDR_UNSPEC, nullptr);
            sent += n == -FI_EAGAIN ? 0 : static_cast<size_t>(check("fi_send", n));
        } else {
            (void)from.wait(0); // what was accepted makes progress within calls
        }
        const ssize_t n = fi_recv(to.get(), in.data(), size, nullptr, FI_ADDR_UNSPEC, nullptr);
        got += n == -FI_EAGAIN ? 0 : static_cast<size_t>(check("fi_recv", n));
    }
}

using Pairs = std::vector<std::unique_ptr<Pair>>;

size_t total_of_buffers(const Pairs& pairs) {
    size_t total = 0;
    for (const auto& pair : pairs) {
        for (const Stream* s : {pair->client.get(), pair->server.get()}) {
            total += s->get_option(FI_OPT_SEND_BUF_SIZE) + s->get_option(FI_OPT_RECV_BUF_SIZE);
        }
    }
    return total;
}

// Polls all streams, as an event loop would that has nothing to do, until their buffers are as at first.
void await_small_buffers(const Pairs& pairs, size_t at_first) {
    while (total_of_buffers(pairs) > at_first) {
        for (const auto& pair : pairs) {
            for (Stream* s : {pair->client.get(), pair->server.get()}) {
                (void)s->wait(0);
            }
        }
        usleep(10000);
    }
}

void print(const Options& o, const char* when, const Share& share) {
    if (o.json) {
        const util::Json json = {{"test", "footprint"},         {"provider", o.provider},
                                 {"connections", o.iterations}, {"when", when},
                                 {"kib_per_end", share.kib},    {"pinned_kib_per_end", share.pinned_kib},
                                 {"fds_per_end", share.fds}};
        printf("%s\n", util::json_text(json).c_str());
    } else {
        printf("%s: %zu connections, %s: %.1f KiB, %.1f KiB pinned and %.1f descriptors an end\n", o.provider.c_str(),
               o.iterations, when, share.kib, share.pinned_kib, share.fds);
    }
}

} // namespace

int main(int argc, char** argv) {
    Options defaults;
    defaults.repeated = "connections";
    defaults.iterations = 200;
    defaults.size = 64;
    defaults.host = "127.0.0.1";
    const Options o = parse_options(argc, argv, "fi_stream_footprint: what an idle connection takes", defaults);
    return run(o, [&] {
        if (o.kind() == Kind::kernel) {
            throw std::runtime_error("-p kernel: only libfabric's endpoints are measured");
        }
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);

        Request request;
        request.core = o.core;
        request.source = true;
        request.node = o.host;
        request.domain = o.domain;
        request.iwarp = o.iwarp;
        if (o.kind() == Kind::core) {
            request.type = FI_EP_MSG;
            request.provider = o.provider;
        }
        Host host(request);
        if (o.kind() == Kind::core && (host.info->domain_attr->mr_mode & FI_MR_LOCAL) != 0) {
            throw std::runtime_error("-p " + o.provider +
                                     ": bare endpoints are measured on cores that need no registered " +
                                     "memory, such as tcp; -c " + o.provider + " measures streams over this one");
        }
        Pairs streams;
        size_t buffers_at_first = 0;
        const std::vector<char> out(o.size, 'x');
        std::vector<char> in(o.size);
        std::vector<std::unique_ptr<BarePair>> bare;
        std::unique_ptr<Listener> listener;
        Footprint before;
        // The first connection includes the one-time allocations of the process.
        for (size_t i = 0; i <= o.iterations; ++i) {
            if (o.kind() == Kind::core) {
                listener = listener ? std::move(listener) : std::make_unique<Listener>(host);
                bare.push_back(std::make_unique<BarePair>(host, *listener, o.size));
            } else {
                streams.push_back(std::make_unique<Pair>(host, o.buffers));
                buffers_at_first = i == 0 ? total_of_buffers(streams) * (o.iterations + 1) : buffers_at_first;
                // The first one's buffers stay small: they are in `before`, and would be given back later.
                const size_t length = i == 0 ? std::min(o.size, defaults.size) : o.size;
                exchange(*streams.back()->client, *streams.back()->server, std::span(out).first(length), in);
                exchange(*streams.back()->server, *streams.back()->client, std::span(out).first(length), in);
            }
            if (i == 0) {
                before = Footprint();
            }
        }
        const size_t ends = 2 * o.iterations;
        print(o, "after the transfer", Share(before, Footprint(), ends));
        if (total_of_buffers(streams) > buffers_at_first) {
            await_small_buffers(streams, buffers_at_first);
            print(o, "idle", Share(before, Footprint(), ends));
        }
        return 0;
    });
}
