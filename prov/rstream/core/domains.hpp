// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core's domains below one of ours: one, or, where the core limits the connections on each, more of them as
// connections are opened.
//
// Why not one domain and one completion queue for all connections: a core over TCP sockets reports only the immediate
// to the target of a write, with a null context, so that a shared queue could not identify the stream. And since
// libfabric 1.19 such a core has one epoll set for all sockets of a domain, nested in the fd of each of the domain's
// queues. The kernel limits how often a set is nested (EINVAL from epoll_ctl: 500, 100, 50 and 10 paths for each level
// above it), and each arrival wakes all waiters on any of these queues. Few connections on a domain keep both small,
// whatever sets a program nests our fds in.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>

#include "prov/rstream/core/idle_queues.hpp"
#include "prov/rstream/fid.hpp"

namespace rstream {

class CoreDomains {
    struct Group {
        Owned<fid_domain> domain;
        size_t connections = 0;
    };

  public:
    // One connection's place on a domain, which stays open as long. All objects that the connection has opened there
    // must be closed before.
    class Place {
      public:
        Place() = default;
        Place(const Place&) = delete;
        Place& operator=(const Place&) = delete;
        ~Place();
        [[nodiscard]] fid_domain* get() const { return group_->domain.get(); }

      private:
        friend class CoreDomains;
        CoreDomains* domains_ = nullptr;
        std::list<Group>::iterator group_;
    };

    // The first domain, which stays open. 0 or libfabric's error.
    int open(fid_fabric* fabric, const fi_info& info);
    [[nodiscard]] fid_domain* first() const { return groups_.front().domain.get(); }

    // A place on a domain with fewer than `max` connections, 0 for any number. 0 or libfabric's error.
    int take(size_t max, Place& place);

    [[nodiscard]] size_t count();
    // Of the same fabric.
    [[nodiscard]] IdleQueues& idle_queues() { return idle_queues_; }

  private:
    int open_domain(Owned<fid_domain>& out) const;
    void leave(std::list<Group>::iterator group);

    fid_fabric* fabric_ = nullptr;
    Info info_;
    IdleQueues idle_queues_;
    std::mutex mutex_; // a leaf; guards the list except its first domain
    std::list<Group> groups_;
};

} // namespace rstream
