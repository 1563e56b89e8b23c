// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rdmacm/events.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>

#include "util/common/failure.hpp"
#include "util/rdmacm/connection.hpp"

namespace util {

namespace {

// The channel owns an event until it is acknowledged.
using OwnedEvent = std::unique_ptr<rdma_cm_event, VerbsCloser<rdma_ack_cm_event>>;

std::string reason_of(const rdma_cm_event& event) {
    // The cause of a rejection depends on the transport: IB has reject codes, iWARP an errno.
    constexpr int no_service = 8;
    constexpr int by_consumer = 28;
    switch (event.event) {
    case RDMA_CM_EVENT_REJECTED:
        if (event.status == no_service || event.status == by_consumer || event.status == -ECONNREFUSED) {
            return refused;
        }
        return event.status < 0 ? fmt::format("{}: {}", refused, strerror(-event.status))
                                : fmt::format("{} with code {}", refused, event.status);
    case RDMA_CM_EVENT_UNREACHABLE:
        return fmt::format("unreachable: {}", strerror(event.status < 0 ? -event.status : ETIMEDOUT));
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return "the RDMA device has been removed";
    default:
        return fmt::format("{} ({})", rdma_event_str(event.event),
                           event.status < 0 ? strerror(-event.status) : std::to_string(event.status));
    }
}

} // namespace

Address RdmacmListener::local() const {
    const sockaddr* address = rdma_get_local_addr(id_.get());
    if (address->sa_family == AF_INET || address->sa_family == AF_INET6) {
        return {address,
                address->sa_family == AF_INET ? socklen_t{sizeof(sockaddr_in)} : socklen_t{sizeof(sockaddr_in6)}};
    }
    return {};
}

RdmacmEvents::RdmacmEvents(RdmacmBackend& backend) : backend_(backend), channel_(rdma_create_event_channel()) {
    if (!channel_) {
        fail("rdma_create_event_channel: {}; is the module rdma_ucm loaded, and may this user open "
             "/dev/infiniband/rdma_cm?",
             error_text());
    }
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
}

// The kernel queues the events; its descriptor is readable while there are any.
bool RdmacmEvents::may_sleep() { return true; }

void RdmacmEvents::add_to(std::vector<pollfd>& descriptors) const { descriptors.push_back({channel_->fd, POLLIN, 0}); }

std::optional<Event> RdmacmEvents::next() {
    for (;;) {
        rdma_cm_event* raw = nullptr;
        if (rdma_get_cm_event(channel_.get(), &raw) != 0) {
            if (errno == EAGAIN || errno == EINTR) {
                return std::nullopt;
            }
            fail("rdma_get_cm_event: {}", error_text());
        }
        const OwnedEvent event(raw);
        if (auto translated = translate(*event)) {
            return translated;
        }
    }
}

std::optional<Event> RdmacmEvents::translate(rdma_cm_event& event) {
    Event result;
    result.connection = static_cast<RdmacmConnection*>(event.id->context);
    auto* connection = static_cast<RdmacmConnection*>(event.id->context);
    switch (event.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        result = request(event);
        break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
    case RDMA_CM_EVENT_ESTABLISHED:
        result.type = Event::Type::established;
        try {
            connection->establish(event.event == RDMA_CM_EVENT_CONNECT_RESPONSE);
        } catch (const Failure& failure) {
            result.type = Event::Type::failed;
            result.reason = failure.what();
        }
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        result.type = Event::Type::disconnected;
        break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        if (connection == nullptr) {
            fail("the listener has failed: {}", reason_of(event));
        }
        result.type = Event::Type::failed;
        result.reason = reason_of(event);
        break;
    default:
        return std::nullopt; // neither begins nor ends a connection
    }
    if (event.event != RDMA_CM_EVENT_DISCONNECTED && event.event != RDMA_CM_EVENT_DEVICE_REMOVAL &&
        event.param.conn.private_data != nullptr) {
        const auto* data = static_cast<const std::byte*>(event.param.conn.private_data);
        result.data.assign(data, data + event.param.conn.private_data_len);
    }
    return result;
}

Event RdmacmEvents::request(rdma_cm_event& event) {
    OwnedId id(event.id);
    Event result;
    result.type = Event::Type::request;
    auto connection = std::make_unique<RdmacmConnection>(std::move(id), backend_.device_of(event.id));
    connection->set_requested(event.param.conn);
    result.request = std::move(connection);
    return result;
}

void RdmacmEvents::adopt(Connection& connection) {
    if (rdma_migrate_id(dynamic_cast<RdmacmConnection&>(connection).get(), channel_.get()) != 0) {
        fail("-m: rdma_migrate_id: {}", error_text());
    }
}

void RdmacmEvents::adopt(Listener& listener) {
    if (rdma_migrate_id(dynamic_cast<RdmacmListener&>(listener).get(), channel_.get()) != 0) {
        fail("-m: rdma_migrate_id: {}", error_text());
    }
}

} // namespace util
