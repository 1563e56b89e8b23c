// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The public libfabric API with owners and exceptions, for test programs. Nothing here depends on provider internals.
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

// Parameters for fi_getinfo.
struct Request {
    std::string provider = "rstream";
    std::string core;   // the core provider; empty: any
    std::string domain; // empty: any
    std::string node;
    std::string service;
    bool source = false; // node and service are the local address
    bool iwarp = false;
    fi_ep_type type = FI_RSTREAM_EP_STREAM;
};
Info get_info(const Request& request);

// An event of the EQ: an ordinary one, or an error.
struct Event {
    bool error = false;
    uint32_t type = 0;
    fid* subject = nullptr;
    fi_info* info = nullptr; // of a connection request: owned by the receiver of the event
    int err = 0;
    void* context = nullptr;     // of an error
    std::vector<std::byte> data; // private data, also of a rejection
    [[nodiscard]] std::string text() const { return {reinterpret_cast<const char*>(data.data()), data.size()}; }
};

// A fabric, a domain and an event queue, which any end of a connection needs.
class Host {
  public:
    explicit Host(Info info, fi_wait_obj wait = FI_WAIT_FD);
    explicit Host(const Request& request) : Host(get_info(request)) {}

    // The next event; throws an Error with -FI_ETIMEDOUT if there is none in time.
    Event next_event(int timeout_ms = 10000);
    // The next event, which must have this type and this fid.
    Event expect(uint32_t type, const fid* subject, int timeout_ms = 10000);

    Info info;
    Owned<fid_fabric> fabric;
    Owned<fid_domain> domain;
    Owned<fid_eq> eq;
};

// How a blocking call waits.
enum class Wait { spin, poll };

// A stream endpoint, with blocking calls.
class Stream {
  public:
    explicit Stream(Host& host, fi_info* info = nullptr);

    // Sets the size of a buffer or queue, before the stream is enabled.
    void set_option(int option, size_t value);
    [[nodiscard]] size_t get_option(int option) const;
    void set_buffers(size_t bytes);

    void connect(const void* address, const std::string& data = {});
    void accept(const std::string& data = {});

    // Sends everything, or throws an Error.
    void send_all(const void* data, size_t length);
    // Receives everything, or less at EOF; or throws an Error.
    size_t recv_all(void* data, size_t length);
    // Waits until fi_recv returns something other than -FI_EAGAIN, and returns that.
    ssize_t recv_some(void* data, size_t length);
    // Waits until the endpoint may have changed. False if the timeout expired.
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

// A bare endpoint of a core with a CQ that supports waiting, as a program would open it, enabled.
struct BareEndpoint {
    explicit BareEndpoint(Host& host, fi_info* info = nullptr);

    Owned<fid_cq> cq;
    Owned<fid_ep> ep;
};

uint16_t port_of(const std::vector<std::byte>& address);

// Two connected streams in one process.
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
