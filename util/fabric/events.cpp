// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/fabric/events.hpp"

#include <cstdlib>
#include <cstring>

#include <netinet/in.h>

#include "util/fabric/connection.hpp"

namespace util {

FabricListener::FabricListener(FabricBackend& backend, FabricEvents& events, fi_info* info, const Address& local,
                               int backlog)
    : backend_(backend), info_(fi_dupinfo(info)), backlog_(backlog), local_(local) {
    if (!info_) {
        throw std::bad_alloc();
    }
    listen(events);
}

FabricListener::~FabricListener() { events_->reject_requests(); }

void FabricListener::listen(FabricEvents& events) {
    const auto refuse = [&](int ret) {
        const bool elsewhere = ret == -FI_EADDRNOTAVAIL;
        fail("cannot listen on {}: {}; {}", local_.text(), fabric_error(ret),
             elsewhere ? "-a and -b take addresses of this machine" : "is the port taken? -p 0 picks a free one");
    };
    events_ = &events;
    fid_pep* pep = nullptr;
    if (const int ret = fi_passive_ep(backend_.fabric(), info_.get(), &pep, nullptr); ret != 0) {
        refuse(ret);
    }
    pep_.reset(pep);
    check_fabric("fi_pep_bind", fi_pep_bind(pep, &events.get()->fid, 0));
    if (backlog_ > 0) {
        fi_control(&pep->fid, FI_BACKLOG, &backlog_); // best effort
    }
    if (const int ret = fi_listen(pep); ret != 0) {
        refuse(ret);
    }
    sockaddr_storage address{};
    size_t length = sizeof(address);
    check_fabric("fi_getname", fi_getname(&pep->fid, &address, &length));
    local_ = Address(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(length));
}

// fi_pep_bind to a second queue works too, but in libfabric 1.17 the tcp core then never releases the first one.
void FabricListener::move_to(FabricEvents& events) {
    events_->reject_requests();
    pep_.reset();
    free(info_->src_addr);
    info_->src_addrlen = 0;
    info_->src_addr = malloc(local_.length());
    if (info_->src_addr == nullptr) {
        throw std::bad_alloc();
    }
    memcpy(info_->src_addr, local_.get(), local_.length());
    info_->src_addrlen = local_.length();
    listen(events);
}

FabricEvents::FabricEvents(FabricBackend& backend) : backend_(backend) {
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_eq* eq = nullptr;
    check_fabric("fi_eq_open", fi_eq_open(backend.fabric(), &attr, &eq, nullptr));
    eq_.reset(eq);
    check_fabric("fi_control", fi_control(&eq->fid, FI_GETWAIT, &fd_));
}

bool FabricEvents::may_sleep() {
    if (taken_.empty()) {
        if (auto event = take()) {
            taken_.push_back(std::move(*event));
        }
    }
    fid* one[] = {&eq_->fid};
    return taken_.empty() && fi_trywait(backend_.fabric(), one, 1) == 0;
}

void FabricEvents::leave(const fid* subject) {
    if (const auto found = connections_.find(subject); found != connections_.end()) {
        std::erase_if(taken_, [&](const Event& event) { return event.connection == found->second; });
        connections_.erase(found);
    }
}

void FabricEvents::poll() {
    while (auto event = take()) {
        taken_.push_back(std::move(*event));
    }
}

void FabricEvents::reject_requests() noexcept {
    try {
        poll();
        std::erase_if(taken_, [](const Event& event) { return event.type == Event::Type::request; });
    } catch (const std::exception&) {
        taken_.clear(); // events of a failed queue
    }
}

void FabricEvents::add_to(std::vector<pollfd>& descriptors) const { descriptors.push_back({fd_, POLLIN, 0}); }

std::optional<Event> FabricEvents::next() {
    if (taken_.empty()) {
        return take();
    }
    Event event = std::move(taken_.front());
    taken_.pop_front();
    return event;
}

std::optional<Event> FabricEvents::take() {
    for (;;) {
        union {
            fi_eq_cm_entry entry;
            std::byte bytes[sizeof(fi_eq_cm_entry) + 512];
        } buffer;
        uint32_t type = 0;
        const ssize_t got = fi_eq_read(eq_.get(), &type, &buffer, sizeof(buffer), 0);
        if (got == -FI_EAGAIN || got == 0) {
            return std::nullopt;
        }
        if (got == -FI_EAVAIL) {
            if (auto event = take_error()) {
                return event;
            }
            continue;
        }
        if (got < 0) {
            return failure_of_connect(got);
        }
        if (static_cast<size_t>(got) < sizeof(fi_eq_cm_entry)) {
            continue; // not an event of a connection
        }
        std::optional<Event> event;
        if (type == FI_CONNREQ) {
            event = request(buffer.entry.info, buffer.entry.fid);
        } else if (const auto found = connections_.find(buffer.entry.fid);
                   found != connections_.end() && (type == FI_CONNECTED || type == FI_SHUTDOWN)) {
            event.emplace();
            event->type = type == FI_CONNECTED ? Event::Type::established : Event::Type::disconnected;
            event->connection = found->second;
            found->second->set_connecting(false);
            if (type == FI_SHUTDOWN) {
                found->second->note_end();
            }
        }
        if (event) {
            event->data.assign(buffer.bytes + sizeof(fi_eq_cm_entry), buffer.bytes + got);
            return event;
        }
    }
}

std::optional<Event> FabricEvents::take_error() {
    fi_eq_err_entry error{};
    if (fi_eq_readerr(eq_.get(), &error, 0) <= 0) {
        return std::nullopt;
    }
    const auto found = connections_.find(error.fid);
    if (found == connections_.end()) {
        return std::nullopt; // the connection no longer exists
    }
    Event event;
    event.connection = found->second;
    event.reason = error.err == FI_ECONNREFUSED  ? refused
                   : error.err == FI_ENOPROTOOPT ? "what answers there does not speak this provider's protocol"
                                                 : fabric_error(error.err);
    if (const auto* data = static_cast<const std::byte*>(error.err_data); data != nullptr) {
        event.data.assign(data, data + error.err_data_size);
    }
    return event;
}

// The verbs provider connects while the queue is read. If that fails at once, fi_eq_read returns the error without
// naming the connection.
Event FabricEvents::failure_of_connect(ssize_t ret) const {
    for (const auto& [subject, connection] : connections_) {
        if (connection->connecting()) {
            Event event;
            event.connection = connection;
            event.reason = ret == -FI_ECONNREFUSED ? refused : fabric_error(ret);
            return event;
        }
    }
    fail("fi_eq_read: {}", fabric_error(ret));
}

std::optional<Event> FabricEvents::request(fi_info* raw, const fid* listener) {
    Info info(raw);
    if (!info) {
        return std::nullopt;
    }
    Event event;
    event.type = Event::Type::request;
    auto connection = std::make_unique<FabricConnection>(*this, backend_.domain_for(info.get()), std::move(info));
    // All fids here that do not belong to a connection are passive endpoints.
    connection->set_listener(reinterpret_cast<fid_pep*>(const_cast<fid*>(listener)));
    event.request = std::move(connection);
    return event;
}

void FabricEvents::adopt(Connection& connection) { dynamic_cast<FabricConnection&>(connection).migrate(*this); }

void FabricEvents::adopt(Listener& listener) { dynamic_cast<FabricListener&>(listener).move_to(*this); }

} // namespace util
