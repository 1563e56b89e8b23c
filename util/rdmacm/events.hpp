// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Event channel and listening id of the rdmacm backend.
#pragma once

#include "util/rdmacm/rdmacm.hpp"

namespace util {

class RdmacmListener : public Listener {
  public:
    explicit RdmacmListener(OwnedId id) : id_(std::move(id)) {}
    [[nodiscard]] Address local() const override;
    [[nodiscard]] rdma_cm_id* get() const { return id_.get(); }

  private:
    OwnedId id_;
};

class RdmacmEvents : public EventQueue {
  public:
    explicit RdmacmEvents(RdmacmBackend& backend);

    bool may_sleep() override;
    void add_to(std::vector<pollfd>& descriptors) const override;
    std::optional<Event> next() override;
    void adopt(Connection& connection) override;
    void adopt(Listener& listener) override;

    [[nodiscard]] rdma_event_channel* channel() const { return channel_.get(); }

  private:
    std::optional<Event> translate(rdma_cm_event& event);
    Event request(rdma_cm_event& event);

    RdmacmBackend& backend_;
    OwnedChannel channel_;
};

} // namespace util
