// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_stream_connect: connections made and closed one after the other, by one client. -p verbs makes bare endpoints,
// each with a CQ, as a program would that moves data over them; -p rsocket sockets of librsocket-ofi, -p rdma-core
// those of rdma-core.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/transport.hpp"
#include "util/common/json.hpp"

using namespace fabtests;

namespace {

// One end, of whatever kind: the client's is connected, the server's accepted.
class End {
  public:
    virtual ~End() = default; // closes it
};

class Maker {
  public:
    virtual ~Maker() = default;
    // Of the client: connects, and waits until that is done.
    virtual std::unique_ptr<End> connect() = 0;
    // Of the server: accepts as many connections, and waits until each is closed by the client.
    virtual void serve(const Options& options, size_t count) = 0;
};

struct StreamEnd : End {
    StreamEnd(Host& host, fi_info* info) : stream(host, info) {}
    [[nodiscard]] fid_ep* get() const { return stream.get(); }
    void progress() {} // makes its own
    Stream stream;
};

struct CoreEnd : End {
    CoreEnd(Host& host, fi_info* info) : bare(host, info) {}
    CoreEnd(const CoreEnd&) = delete;
    ~CoreEnd() override { (void)fi_shutdown(bare.ep.get(), 0); } // the peer's may have come first
    [[nodiscard]] fid_ep* get() const { return bare.ep.get(); }
    void progress() {
        fi_cq_data_entry entry{};
        (void)fi_cq_read(bare.cq.get(), &entry, 1);
    }
    BareEndpoint bare;
};

template <class Ep> class FabricMaker : public Maker {
  public:
    explicit FabricMaker(const Options& options) : host_(request_for(options)) {}

    std::unique_ptr<End> connect() override {
        auto end = std::make_unique<Ep>(host_, nullptr);
        check("fi_connect", fi_connect(end->get(), host_.info->dest_addr, nullptr, 0));
        for (;;) {
            const Event event = host_.next_event(); // an earlier one's end may come first
            if (event.error) {
                throw Error("connecting", -event.err);
            }
            if (event.type == FI_CONNECTED && event.subject == &end->get()->fid) {
                return end;
            }
        }
    }

    void serve(const Options& options, size_t count) override {
        Listener listener(host_);
        announce_port(options, listener.port());
        std::map<const fid*, std::unique_ptr<Ep>> ends;
        while (count != 0) {
            // The tcp core sees the end of a connection only while its CQ is read.
            constexpr int turn_ms = 5;
            uint32_t next = 0;
            while (fi_eq_sread(host_.eq.get(), &next, nullptr, 0, turn_ms, FI_PEEK) == -FI_EAGAIN) {
                for (const auto& [key, end] : ends) {
                    end->progress();
                }
            }
            const Event event = host_.next_event();
            if (event.error) {
                throw Error("accepting", -event.err);
            }
            if (event.type == FI_CONNREQ) {
                const Info info(event.info);
                auto end = std::make_unique<Ep>(host_, info.get());
                check("fi_accept", fi_accept(end->get(), nullptr, 0));
                const fid* key = &end->get()->fid;
                ends[key] = std::move(end);
            } else if (event.type == FI_SHUTDOWN && ends.erase(event.subject) != 0) {
                --count;
            }
        }
    }

  private:
    Host host_;
};

struct Calls {
    int (*socket)(int, int, int);
    int (*connect)(int, const sockaddr*, socklen_t);
    int (*bind)(int, const sockaddr*, socklen_t);
    int (*listen)(int, int);
    int (*accept)(int, sockaddr*, socklen_t*);
    int (*getsockname)(int, sockaddr*, socklen_t*);
    ssize_t (*recv)(int, void*, size_t, int);
    int (*close)(int);
};
constexpr Calls kernel_calls{::socket, ::connect, ::bind, ::listen, ::accept, ::getsockname, ::recv, ::close};

// Those of a library with the rsocket API, which stays loaded.
Calls load(const char* library) {
    void* loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr) {
        throw std::runtime_error(dlerror());
    }
    Calls calls{};
    const auto find = [&](auto& call, const char* name) {
        void* found = dlsym(loaded, name);
        if (found == nullptr) {
            throw std::runtime_error(std::string(library) + " has no " + name);
        }
        call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(found);
    };
    find(calls.socket, "rsocket");
    find(calls.connect, "rconnect");
    find(calls.bind, "rbind");
    find(calls.listen, "rlisten");
    find(calls.accept, "raccept");
    find(calls.getsockname, "rgetsockname");
    find(calls.recv, "rrecv");
    find(calls.close, "rclose");
    return calls;
}

class Socket : public End {
  public:
    Socket(const Calls& calls, int fd, const char* what) : calls_(calls), fd_(fd) {
        if (fd < 0) {
            throw std::runtime_error(std::string(what) + ": " + strerror(errno));
        }
    }
    Socket(const Socket&) = delete;
    ~Socket() override { calls_.close(fd_); }
    void check(const char* what, int result) const {
        if (result < 0) {
            throw std::runtime_error(std::string(what) + ": " + strerror(errno));
        }
    }
    [[nodiscard]] int get() const { return fd_; }

  private:
    const Calls& calls_;
    int fd_;
};

class SocketMaker : public Maker {
  public:
    SocketMaker(const Calls& calls, const Options& options) : calls_(calls), address_(resolve(options)) {}

    std::unique_ptr<End> connect() override {
        auto end = std::make_unique<Socket>(calls_, calls_.socket(address_->ai_family, SOCK_STREAM, 0), "socket");
        end->check("connect", calls_.connect(end->get(), address_->ai_addr, address_->ai_addrlen));
        return end;
    }

    void serve(const Options& options, size_t count) override {
        const Socket listener(calls_, calls_.socket(address_->ai_family, SOCK_STREAM, 0), "socket");
        sockaddr_storage name{};
        socklen_t length = sizeof(name);
        auto* bound = reinterpret_cast<sockaddr*>(&name);
        listener.check("bind", calls_.bind(listener.get(), address_->ai_addr, address_->ai_addrlen));
        listener.check("listen", calls_.listen(listener.get(), 16));
        listener.check("getsockname", calls_.getsockname(listener.get(), bound, &length));
        announce_port(options, ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                                                : reinterpret_cast<sockaddr_in&>(name).sin_port));
        for (; count != 0; --count) {
            const Socket end(calls_, calls_.accept(listener.get(), nullptr, nullptr), "accept");
            char byte = 0;
            (void)calls_.recv(end.get(), &byte, 1, 0); // returns when the client closes
        }
    }

  private:
    Calls calls_;
    AddressInfo address_;
};

std::unique_ptr<Maker> make(const Options& o) {
    if (o.provider == "rsocket") {
        return std::make_unique<SocketMaker>(load("librsocket-ofi.so.1"), o);
    }
    if (o.provider == "rdma-core") {
        return std::make_unique<SocketMaker>(load("librdmacm.so.1"), o);
    }
    switch (o.kind()) {
    case Kind::stream:
        return std::make_unique<FabricMaker<StreamEnd>>(o);
    case Kind::core:
        return std::make_unique<FabricMaker<CoreEnd>>(o);
    case Kind::kernel:
        return std::make_unique<SocketMaker>(kernel_calls, o);
    }
    return nullptr;
}

double median(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

} // namespace

int main(int argc, char** argv) {
    Options defaults;
    defaults.repeated = "connections";
    defaults.iterations = 100;
    const Options o = parse_options(argc, argv, "fi_stream_connect: connections made and closed in a row", defaults);
    return run(o, [&] {
        const std::unique_ptr<Maker> maker = make(o);
        if (!o.is_client()) {
            maker->serve(o, o.warmup + o.iterations);
            return 0;
        }
        using Microseconds = std::chrono::duration<double, std::micro>;
        std::vector<double> connecting;
        std::vector<double> closing;
        std::vector<double> both;
        for (size_t i = 0; i < o.warmup + o.iterations; ++i) {
            const auto begun = Clock::now();
            std::unique_ptr<End> end = maker->connect();
            const auto connected = Clock::now();
            end.reset();
            if (i >= o.warmup) {
                connecting.push_back(Microseconds(connected - begun).count());
                const auto closed = Clock::now();
                closing.push_back(Microseconds(closed - connected).count());
                both.push_back(Microseconds(closed - begun).count());
            }
        }
        const double connect_us = median(connecting);
        const double close_us = median(closing);
        const double both_us = median(both);
        if (o.json) {
            const util::Json json = {{"test", "connect"},          {"provider", o.provider},
                                     {"iterations", o.iterations}, {"connect_p50_us", connect_us},
                                     {"close_p50_us", close_us},   {"both_p50_us", both_us}};
            printf("%s\n", util::json_text(json).c_str());
        } else {
            printf("%-9s %12s %12s %12s %12s\n", "provider", "connections", "connect, us", "close, us", "both, us");
            printf("%-9s %12zu %12.0f %12.0f %12.0f\n", o.provider.c_str(), o.iterations, connect_us, close_us,
                   both_us);
        }
        return 0;
    });
}
