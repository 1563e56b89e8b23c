// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_stream_footprint: memory and descriptors of an idle connection. Opens as many connections as --iterations
// specifies, both ends in one process, moves one transfer of --size bytes over each in both directions, and divides by
// the number of ends. -p tcp does the same with bare endpoints of the core, each with a CQ.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
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

struct Footprint {
    size_t kilobytes = resident();
    size_t fds = descriptors();
};

// A bare core endpoint with a CQ that supports waiting, as a program would open it.
struct Bare {
    Bare(Host& host, fi_info* info) {
        fi_cq_attr attr{};
        attr.format = FI_CQ_FORMAT_DATA;
        attr.wait_obj = FI_WAIT_FD;
        fid_cq* q = nullptr;
        check("fi_cq_open", fi_cq_open(host.domain.get(), &attr, &q, nullptr));
        cq.reset(q);
        fid_ep* e = nullptr;
        check("fi_endpoint", fi_endpoint(host.domain.get(), info, &e, nullptr));
        ep.reset(e);
        check("fi_ep_bind", fi_ep_bind(e, &q->fid, FI_TRANSMIT | FI_RECV));
        check("fi_ep_bind", fi_ep_bind(e, &host.eq->fid, 0));
        check("fi_enable", fi_enable(e));
    }
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
    Owned<fid_cq> cq;
    Owned<fid_ep> ep;
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

void exchange(Stream& from, Stream& to, size_t size) {
    std::vector<char> out(size, 'x');
    std::vector<char> in(size);
    for (size_t sent = 0, got = 0; got < size;) {
        if (sent < size) {
            const ssize_t n = fi_send(from.get(), out.data(), size - sent, nullptr, FI_ADDR_UNSPEC, nullptr);
            sent += n == -FI_EAGAIN ? 0 : static_cast<size_t>(check("fi_send", n));
        }
        const ssize_t n = fi_recv(to.get(), in.data(), size, nullptr, FI_ADDR_UNSPEC, nullptr);
        got += n == -FI_EAGAIN ? 0 : static_cast<size_t>(check("fi_recv", n));
    }
}

} // namespace

int main(int argc, char** argv) {
    Options defaults;
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
        if (o.kind() == Kind::core) {
            request.type = FI_EP_MSG;
            request.provider = o.provider;
        }
        Host host(request);
        std::vector<std::unique_ptr<Pair>> streams;
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
                exchange(*streams.back()->client, *streams.back()->server, o.size);
                exchange(*streams.back()->server, *streams.back()->client, o.size);
            }
            if (i == 0) {
                before = Footprint();
            }
        }
        const Footprint after;
        const double ends = 2.0 * static_cast<double>(o.iterations);
        const double kilobytes = static_cast<double>(after.kilobytes - before.kilobytes) / ends;
        const double fds = static_cast<double>(after.fds - before.fds) / ends;
        if (o.json) {
            const util::Json json = {{"test", "footprint"},
                                     {"provider", o.provider},
                                     {"connections", o.iterations},
                                     {"kib_per_end", kilobytes},
                                     {"fds_per_end", fds}};
            printf("%s\n", util::json_text(json).c_str());
        } else {
            printf("%s: %zu connections, %.1f KiB and %.1f descriptors an end\n", o.provider.c_str(), o.iterations,
                   kilobytes, fds);
        }
        return 0;
    });
}
