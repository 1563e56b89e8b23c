// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a socket has while it listens: the core's passive endpoint, the requests that wait for room in the backlog, the
// sockets that are made of requests, and those that can be accepted. A socket has one while its state is `listening`.
//
// Threads: the listening socket's mutex guards it, but for `open`, `attach`, `listen` and `detach`, which call the core
// and may wait for events that are being handed over.
#pragma once

#include <cstddef>
#include <deque>
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
    // Opens what listening needs. `limit`: connections that may be made before they are accepted. 0 or an errno.
    static int open(Library& library, const Address& address, size_t limit, std::shared_ptr<Listener>& out);
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    ~Listener();

    // Whom requests come to. 0 or -errno.
    int attach(EventTarget* target);
    // From here on they come. 0 or -errno.
    int listen();
    // None comes any more, and none is being handed over, when this returns.
    void detach();

    [[nodiscard]] Transport& transport() const { return *transport_; }
    [[nodiscard]] Address name() const;                           // not set: the core does not tell
    [[nodiscard]] int signal_fd() const { return signal_.get(); } // readable while one can be accepted
    [[nodiscard]] size_t limit() const { return limit_; }
    void set_limit(size_t limit) { limit_ = limit; }

    // ---- requests
    [[nodiscard]] bool has_room() const { return ready_.size() + opening_.size() < limit_; }
    void refuse(const fi_info& request);
    // As with TCP the peer waits, up to a number of them; it is refused beyond that.
    void wait_for_room(base::Info request);
    // The next of those that wait; none if there is no room for it.
    base::Info next_request();

    // ---- sockets made of requests: first opening, then ready, then the program's
    void add(const Ref<Socket>& opening);
    // Each of the two is for one that is opening, and false or none if this is not.
    bool make_ready(const Socket& child);
    Ref<Socket> remove(const Socket& child);
    // None if none is ready.
    Ref<Socket> take();
    // What was taken, and is the next one again.
    void put_back(const Ref<Socket>& taken);
    [[nodiscard]] const std::vector<Ref<Socket>>& opening() const { return opening_; }
    [[nodiscard]] const std::deque<Ref<Socket>>& ready() const { return ready_; }

  private:
    explicit Listener(size_t limit);
    int open_endpoint(Library& library, const Address& address);
    [[nodiscard]] std::vector<Ref<Socket>>::iterator find(const Socket& child);
    void update_signal();

    Transport* transport_ = nullptr;
    base::Owned<fid_pep> pep_;
    size_t limit_;
    std::deque<base::Info> requests_; // go before the endpoint that they came to
    std::vector<Ref<Socket>> opening_;
    std::deque<Ref<Socket>> ready_;
    base::Descriptor signal_;
    bool signaled_ = false;
};

} // namespace rsockets
