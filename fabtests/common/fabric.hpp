// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The public libfabric API with owners and exceptions, for test programs. Nothing here knows the provider's inside.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext_rstream.h>

#include "base/owned_fid.hpp"

namespace fabtests {

using Clock = std::chrono::steady_clock;

struct Error : std::runtime_error {
    Error(const std::string& what, ssize_t code)
        : std::runtime_error(what + ": " + fi_strerror(static_cast<int>(code < 0 ? -code : code))), code(code) {}
    ssize_t code; // as libfabric returned it
};

inline ssize_t check(const char* what, ssize_t ret) {
    if (ret < 0) {
        throw Error(what, ret);
    }
    return ret;
}

using base::Info;
using base::Owned;

// What to ask fi_getinfo for.
struct Request {
    std::string provider = "rstream";
    std::string core;   // below a stream; empty: any
    std::string domain; // empty: any
    std::string node;
    std::string service;
    bool source = false; // node and service are our own
    bool iwarp = false;
    fi_ep_type type = FI_RSTREAM_EP_STREAM;
};
Info get_info(const Request& request);

// An event of the EQ: an ordinary one, or an error.
struct Event {
    bool error = false;
    uint32_t type = 0;
    fid* subject = nullptr;
    fi_info* info = nullptr; // of a connection request: the taker's
    int err = 0;
    void* context = nullptr;     // of an error
    std::vector<std::byte> data; // private data, or that of a rejection
    [[nodiscard]] std::string text() const { return {reinterpret_cast<const char*>(data.data()), data.size()}; }
};

// A fabric, a domain and an event queue: what any end of a connection needs.
class Host {
  public:
    explicit Host(Info info, fi_wait_obj wait = FI_WAIT_FD);
    explicit Host(const Request& request) : Host(get_info(request)) {}

    // The next event; an Error with -FI_ETIMEDOUT if there is none in time.
    Event next_event(int timeout_ms = 10000);
    // The next event, which must be of this type and about this fid.
    Event expect(uint32_t type, const fid* subject, int timeout_ms = 10000);

    Info info;
    Owned<fid_fabric> fabric;
    Owned<fid_domain> domain;
    Owned<fid_eq> eq;
};

// How a blocked call passes the time.
enum class Wait { spin, poll };

// A stream endpoint, with calls that wait.
class Stream {
  public:
    explicit Stream(Host& host, fi_info* info = nullptr);

    // The size of a buffer or queue, before the stream is enabled.
    void set_option(int option, size_t value);
    [[nodiscard]] size_t get_option(int option) const;
    void set_buffers(size_t bytes);

    void connect(const void* address, const std::string& data = {});
    void accept(const std::string& data = {});

    // All of it, or an Error.
    void send_all(const void* data, size_t length);
    // All of it; or less at the end of the stream; or an Error.
    size_t recv_all(void* data, size_t length);
    // Until there is something to take: what fi_recv says, -FI_EAGAIN excepted.
    ssize_t recv_some(void* data, size_t length);
    // Until the endpoint may have changed, at most that long. False if the time ran out.
    bool wait(int timeout_ms = 10000);

    [[nodiscard]] std::vector<std::byte> name() const;
    fid_ep* get() const { return ep.get(); }

    Host& host;
    Owned<fid_ep> ep;
    Wait mode = Wait::poll;

  private:
    void pass_time(Clock::time_point& since);
};

class Listener {
  public:
    explicit Listener(Host& host, int backlog = 0);
    // The address to connect to.
    [[nodiscard]] std::vector<std::byte> name() const;
    [[nodiscard]] uint16_t port() const;
    // The next connection request.
    Event request(int timeout_ms = 10000);

    Host& host;
    Owned<fid_pep> pep;
};

uint16_t port_of(const std::vector<std::byte>& address);

// Two connected streams of one process.
struct Pair {
    explicit Pair(const std::string& core = {}, size_t buffers = 0, const std::string& node = "127.0.0.1");
    Pair(Host& host, size_t buffers);
    ~Pair();

    std::unique_ptr<Host> own_host;
    std::unique_ptr<Stream> client;
    std::unique_ptr<Stream> server;

  private:
    void connect(Host& host, size_t buffers);
};

} // namespace fabtests
