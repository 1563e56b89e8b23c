// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core's endpoint below one stream, with its completion queue and, where that queue does not show the end of the
// connection, an event queue of its own: a waiter of one connection must not wake for every other.
//
// The completion queue exists from the start. The endpoint is created once its peer is known, as some cores select the
// route and the device at creation; it may be closed and created again, for another attempt to connect.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/mutex.hpp"
#include "prov/rstream/core.hpp"
#include "prov/rstream/core/domains.hpp"
#include "prov/rstream/core/properties.hpp"
#include "prov/rstream/fid.hpp"

namespace rstream {

class CoreEndpoint {
  public:
    CoreEndpoint(fid_fabric* fabric, const CoreTraits& traits, const CoreProperties& properties)
        : fabric_(fabric), traits_(traits), properties_(properties) {}

    [[nodiscard]] const CoreTraits& traits() const { return traits_; }
    [[nodiscard]] const CoreProperties& properties() const { return properties_; }

    // Takes a place on a domain and creates the completion queue. `info` is that of the endpoint, with the core's
    // handle if it answers a request. 0 or libfabric's error, as for the methods below.
    int open_queue(CoreDomains& domains, const fi_info& info, size_t size);
    // Creates the endpoint and binds it. `events`: the queue for its events, unless it has one of its own.
    int open(fid_eq* events, void* context);
    // After the memory is registered.
    int enable();
    // Registrations bound to the endpoint must be closed after it.
    void close();

    // The info that the endpoint is created from.
    [[nodiscard]] fi_info& info() { return *info_; }
    // An endpoint was created from the connection request, which is used up.
    [[nodiscard]] bool request_used() const { return request_used_; }

    [[nodiscard]] fid_ep* get() const { return ep_.get(); } // null while there is none
    // fi_getname and fi_getpeer of it, also while another thread closes it. -FI_EOPBADSTATE: there is none.
    int name(void* address, size_t* length) const;
    int peer(void* address, size_t* length) const;
    [[nodiscard]] fid_cq* completions() const { return completions_.get(); }
    [[nodiscard]] int completions_fd() const { return completions_fd_; }
    // Null and -1 unless it has an event queue of its own.
    [[nodiscard]] fid_eq* events() const { return events_.get(); }
    [[nodiscard]] int events_fd() const { return events_fd_; }

    // Before a thread sleeps on its fds, including that of the completion queue if `completions`. 0, or -FI_EAGAIN if
    // there is activity already.
    int try_wait(bool completions);

    int register_memory(const void* memory, size_t length, uint64_t access, Owned<fid_mr>& out, uint64_t flags = 0);

  private:
    int open_events();
    [[nodiscard]] uint64_t random_key() const;

    fid_fabric* const fabric_;
    const CoreTraits traits_;
    const CoreProperties properties_;
    CoreDomains* domains_ = nullptr;
    CoreDomains::Place domain_; // of all members below
    Info info_;
    mutable base::Mutex naming_; // a leaf: while it is held, `ep_` is neither set nor reset
    // Destroyed in reverse order: the endpoint before the objects that it uses.
    Owned<fid_cq> completions_;
    Owned<fid_eq> events_;
    Owned<fid_ep> ep_;
    int completions_fd_ = -1;
    int events_fd_ = -1;
    bool request_used_ = false;
};

} // namespace rstream
