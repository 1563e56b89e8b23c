// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Event queue and passive endpoint of the fabric backend.
#pragma once

#include <deque>
#include <map>

#include "util/fabric/fabric.hpp"

namespace util {

class FabricConnection;

class FabricListener : public Listener {
  public:
    FabricListener(FabricBackend& backend, class FabricEvents& events, fi_info* info, const Address& local,
                   int backlog);
    FabricListener(const FabricListener&) = delete;
    FabricListener& operator=(const FabricListener&) = delete;
    ~FabricListener() override;
    // Closes the endpoint and listens again at the same address, with the events of another queue.
    void move_to(class FabricEvents& events);
    [[nodiscard]] Address local() const override { return local_; }
    [[nodiscard]] fid_pep* get() const { return pep_.get(); }

  private:
    void listen(class FabricEvents& events);

    FabricBackend& backend_;
    class FabricEvents* events_ = nullptr;
    Info info_;
    int backlog_;
    Owned<fid_pep> pep_;
    Address local_;
};

class FabricEvents : public EventQueue {
  public:
    explicit FabricEvents(FabricBackend& backend);

    bool may_sleep() override;
    void add_to(std::vector<pollfd>& descriptors) const override;
    std::optional<Event> next() override;
    void adopt(Connection& connection) override;
    void adopt(Listener& listener) override;

    [[nodiscard]] fid_eq* get() const { return eq_.get(); }
    // Reads the available events. They stay for `next`; ended connections are marked at once.
    void poll();
    // Called before a listener closes: none of its requests may remain.
    void reject_requests() noexcept;
    // Registers the connection that receives the events of this fid, for as long as it exists.
    void enter(const fid* subject, FabricConnection* connection) { connections_[subject] = connection; }
    void leave(const fid* subject);

  private:
    std::optional<Event> take();
    std::optional<Event> take_error();
    [[nodiscard]] Event failure_of_connect(ssize_t ret) const;
    std::optional<Event> request(fi_info* info, const fid* listener);

    FabricBackend& backend_;
    Owned<fid_eq> eq_;
    int fd_ = -1;
    std::map<const fid*, FabricConnection*> connections_;
    std::deque<Event> taken_; // read, but not returned by `next` yet
};

} // namespace util
