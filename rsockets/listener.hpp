// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// State of a listening socket: the passive endpoint, the requests that wait for space in the backlog, the sockets being
// made of requests, and those that can be accepted. A socket has one while its state is `listening`.
//
// Threads: the listening socket's mutex guards it, except for `open`, `attach`, `listen` and `detach`, which call the
// core and may wait for running event handlers.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "base/descriptor.hpp"
#include "rsockets/address.hpp"
#include "rsockets/library.hpp"
#include "rsockets/object.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

class Socket;

class Listener {
  public:
    // Opens the endpoint. `limit`: connections that may be established before they are accepted. 0 or an errno.
    static int open(Library& library, const Address& address, size_t limit, std::shared_ptr<Listener>& out);
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    ~Listener();

    // Sets the handler of requests. 0 or -errno.
    int attach(EventHandler* handler);
    // Requests arrive from here on. 0 or -errno.
    int listen();
    // When this returns, no handler is running, and none will be called.
    void detach();

    [[nodiscard]] Transport& transport() const { return *transport_; }
    [[nodiscard]] Address name() const;                           // not set: the core does not report it
    [[nodiscard]] int signal_fd() const { return signal_.get(); } // readable while one can be accepted
    [[nodiscard]] size_t limit() const { return limit_; }
    void set_limit(size_t limit) { limit_ = limit; }

    // ---- requests
    [[nodiscard]] bool has_space() const { return ready_.size() + opening_.size() < limit_; }
    void refuse(const fi_info& request);
    // Queues a request: as with TCP, the peer waits. Refuses it if the queue is full.
    void wait_for_space(base::Info request);
    // The next queued request; null if there is none, or no space for it.
    base::Info next_request();

    // ---- sockets made of requests: first opening, then ready, then accepted
    void add(const Ref<Socket>& opening);
    // Both are for an opening child: false or null for any other.
    bool make_ready(const Socket& child);
    Ref<Socket> remove(const Socket& child);
    // Null if none is ready.
    Ref<Socket> take();
    // Returns a taken socket to the head of the queue.
    void put_back(const Ref<Socket>& taken);
    [[nodiscard]] const std::list<Ref<Socket>>& opening() const { return opening_; }
    [[nodiscard]] const std::list<Ref<Socket>>& ready() const { return ready_; }

  private:
    explicit Listener(size_t limit);
    int open_endpoint(Library& library, const Address& address);
    [[nodiscard]] std::list<Ref<Socket>>::iterator find(const Socket& child);
    void update_signal();

    Transport* transport_ = nullptr;
    base::Owned<fid_pep> pep_;
    size_t limit_;
    std::deque<base::Info> requests_; // destroyed before the endpoint that they came to
    std::list<Ref<Socket>> opening_;
    std::list<Ref<Socket>> ready_;
    base::Descriptor signal_;
    bool signaled_ = false;
};

} // namespace rsockets
