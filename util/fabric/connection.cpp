// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/fabric/connection.hpp"

#include <algorithm>

#include <rdma/fi_rma.h>

#include "util/fabric/events.hpp"

namespace util {

namespace {
// A core that accepts nothing for this long, while its completions are read, is considered stuck.
constexpr std::chrono::seconds longest_stall{30};
} // namespace

FabricMemory::FabricMemory(std::shared_ptr<FabricDomain> domain, size_t size, Access access)
    : domain_(std::move(domain)), bytes_(size) {
    if (access == Access::local && !domain_->has_mode(FI_MR_LOCAL)) {
        return;
    }
    const uint64_t rights =
        FI_SEND | FI_RECV | FI_READ | FI_WRITE | (access == Access::remote ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
    fid_mr* region = nullptr;
    const int ret =
        fi_mr_reg(domain_->get(), bytes_.data(), bytes_.size(), rights, 0, domain_->new_key(), 0, &region, nullptr);
    if (ret != 0) {
        fail("cannot register {} bytes of memory: {}; is the limit of locked memory (ulimit -l) too low?", size,
             fabric_error(ret));
    }
    region_.reset(region);
}

uint64_t FabricMemory::remote_address() const {
    return domain_->has_mode(FI_MR_VIRT_ADDR) ? reinterpret_cast<uintptr_t>(bytes_.data()) : 0;
}

uint64_t FabricMemory::remote_key() const { return region_ ? fi_mr_key(region_.get()) : 0; }

FabricConnection::FabricConnection(FabricEvents& events, std::shared_ptr<FabricDomain> domain, Info info)
    : events_(&events), domain_(std::move(domain)), info_(std::move(info)) {}

FabricConnection::~FabricConnection() {
    if (listener_ != nullptr && !answered_) {
        fi_reject(listener_, info_->handle, nullptr, 0);
    }
    if (endpoint_) {
        events_->leave(&endpoint_->fid);
    }
}

void FabricConnection::open_queue(size_t size, uint64_t flags, Owned<fid_cq>& queue) {
    fi_cq_attr attr{};
    attr.size = size;
    attr.format = FI_CQ_FORMAT_MSG;
    attr.wait_obj = FI_WAIT_FD;
    fid_cq* cq = nullptr;
    const int ret = fi_cq_open(domain_->get(), &attr, &cq, nullptr);
    if (ret != 0) {
        fail("cannot make a completion queue of {} entries: {}", size, fabric_error(ret));
    }
    queue.reset(cq);
    check_fabric("fi_ep_bind", fi_ep_bind(endpoint_.get(), &cq->fid, flags));
}

// With queues of the application's own (-q), each direction has a completion queue, and all queues have exactly the
// required size. By default the sizes of the endpoint's queues are the provider's, and one completion queue serves both
// directions.
void FabricConnection::make_queues(const QueueSizes& sizes) {
    size_t& tx = info_->tx_attr->size;
    size_t& rx = info_->rx_attr->size;
    tx = sizes.own ? sizes.sends : std::max(tx, sizes.sends);
    rx = sizes.own ? sizes.receives : std::max(rx, sizes.receives);
    fid_ep* endpoint = nullptr;
    int ret = fi_endpoint(domain_->get(), info_.get(), &endpoint, nullptr);
    if (ret != 0) {
        answered_ = listener_ != nullptr; // libfabric does not say who owns the request now; a reject may crash
        fail("cannot make an endpoint for {}: {}", peer(), fabric_error(ret));
    }
    endpoint_.reset(endpoint);
    events_->enter(&endpoint->fid, this);
    check_fabric("fi_ep_bind", fi_ep_bind(endpoint, &events_->get()->fid, 0));
    if (sizes.own) {
        open_queue(sizes.sends, FI_TRANSMIT, queue_);
        open_queue(sizes.receives, FI_RECV, receive_queue_);
    } else {
        open_queue(sizes.sends + sizes.receives, FI_TRANSMIT | FI_RECV, queue_);
    }
    ret = fi_enable(endpoint);
    if (ret != 0) {
        fail("the device has no queues of {} sends and {} receives: {}", tx, rx, fabric_error(ret));
    }
}

std::unique_ptr<Memory> FabricConnection::allocate(size_t size, Access access) {
    return std::make_unique<FabricMemory>(domain_, size, access);
}

FabricConnection::Pending* FabricConnection::new_pending(Operation operation) {
    if (free_.empty()) {
        free_.push_back(&pending_.emplace_back());
    }
    Pending* pending = free_.back();
    free_.pop_back();
    pending->operation = operation;
    return pending;
}

template <class Call> void FabricConnection::post(const char* name, Operation operation, Call call) {
    Pending* pending = new_pending(operation);
    const auto start = Clock::now();
    ssize_t ret = 0;
    while ((ret = call(&pending->context)) == -FI_EAGAIN && !ended_ && Clock::now() - start < longest_stall) {
        collect();       // frees queue entries
        events_->poll(); // in libfabric 2, the tcp core returns EAGAIN for ever once the connection has ended
    }
    if (ret != 0) {
        free_.push_back(pending);
        const bool end = ret == -FI_EAGAIN && ended_;
        // The event that ends the connection may not have been read yet.
        completions_.push_back({operation, 0, true, end ? "" : fmt::format("{}: {}", name, fabric_error(ret))});
    }
}

void FabricConnection::receive(Memory& memory, size_t length) {
    auto& m = dynamic_cast<FabricMemory&>(memory);
    post("fi_recv", Operation::receive, [&](void* context) {
        return fi_recv(endpoint_.get(), m.bytes().data(), length, m.descriptor(), FI_ADDR_UNSPEC, context);
    });
}

void FabricConnection::send(Memory& memory, size_t length) {
    auto& m = dynamic_cast<FabricMemory&>(memory);
    post("fi_send", Operation::send, [&](void* context) {
        return fi_send(endpoint_.get(), m.bytes().data(), length, m.descriptor(), FI_ADDR_UNSPEC, context);
    });
}

void FabricConnection::read(Memory& memory, size_t length, const RemoteBuffer& from) {
    auto& m = dynamic_cast<FabricMemory&>(memory);
    post("fi_read", Operation::read, [&](void* context) {
        return fi_read(endpoint_.get(), m.bytes().data(), length, m.descriptor(), FI_ADDR_UNSPEC, from.address,
                       from.key, context);
    });
}

void FabricConnection::write(Memory& memory, size_t length, const RemoteBuffer& to) {
    auto& m = dynamic_cast<FabricMemory&>(memory);
    post("fi_write", Operation::write, [&](void* context) {
        return fi_write(endpoint_.get(), m.bytes().data(), length, m.descriptor(), FI_ADDR_UNSPEC, to.address, to.key,
                        context);
    });
}

Completion FabricConnection::failure_of(fid_cq* queue) {
    fi_cq_err_entry error{};
    Completion completion;
    completion.failed = true;
    if (fi_cq_readerr(queue, &error, 0) <= 0) {
        completion.reason = "fi_cq_readerr has nothing to say of an error";
        return completion;
    }
    if (auto* pending = static_cast<Pending*>(error.op_context); pending != nullptr) {
        completion.operation = pending->operation;
        free_.push_back(pending);
    }
    // Operations in flight when the connection ends are flushed: on verbs that is status 5 of the work completion.
    constexpr int flushed = 5;
    const bool end = error.err == FI_ECANCELED || error.err == FI_ENOTCONN || error.err == FI_ESHUTDOWN ||
                     (error.err == FI_EIO && error.prov_errno == flushed);
    if (!end) {
        completion.reason = error.err == FI_ETRUNC ? "a message is larger than the receive that was posted for it"
                                                   : fabric_error(error.err);
    }
    return completion;
}

void FabricConnection::collect_from(fid_cq* queue) {
    for (;;) {
        fi_cq_msg_entry entries[16];
        const ssize_t got = fi_cq_read(queue, entries, 16);
        if (got == -FI_EAGAIN || got == 0) {
            return;
        }
        if (got == -FI_EAVAIL) {
            completions_.push_back(failure_of(queue));
            continue;
        }
        check_fabric("fi_cq_read", got);
        for (ssize_t i = 0; i < got; ++i) {
            auto* pending = static_cast<Pending*>(entries[i].op_context);
            if (pending != nullptr) {
                completions_.push_back({pending->operation, entries[i].len, false, {}});
                free_.push_back(pending);
            }
        }
    }
}

void FabricConnection::collect() {
    collect_from(queue_.get());
    if (receive_queue_) {
        collect_from(receive_queue_.get());
    }
}

std::optional<Completion> FabricConnection::completion() {
    if (completions_.empty() && queue_) {
        collect();
    }
    if (completions_.empty()) {
        return std::nullopt;
    }
    Completion completion = std::move(completions_.front());
    completions_.pop_front();
    return completion;
}

bool FabricConnection::may_sleep() {
    if (!queue_) {
        return true;
    }
    collect();
    fid* queues[] = {&queue_->fid, receive_queue_ ? &receive_queue_->fid : nullptr};
    return completions_.empty() && fi_trywait(domain_->fabric(), queues, receive_queue_ ? 2 : 1) == 0;
}

void FabricConnection::add_to(std::vector<pollfd>& descriptors) const {
    for (fid_cq* queue : {queue_.get(), receive_queue_.get()}) {
        if (queue != nullptr) {
            pollfd one{-1, POLLIN, 0};
            check_fabric("fi_control", fi_control(&queue->fid, FI_GETWAIT, &one.fd));
            descriptors.push_back(one);
        }
    }
}

// Omits private data that exceeds the core's limit: the connection works without it.
std::span<const std::byte> FabricConnection::fitting(std::span<const std::byte> data) const {
    size_t capacity = 0;
    size_t length = sizeof(capacity);
    const bool known =
        endpoint_ && fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &capacity, &length) == 0;
    return known && capacity < data.size() ? std::span<const std::byte>() : data;
}

void FabricConnection::connect(std::span<const std::byte> data) {
    data = fitting(data);
    const int ret = fi_connect(endpoint_.get(), info_->dest_addr, data.data(), data.size());
    if (ret != 0) {
        const std::string reason = ret == -FI_ECONNREFUSED ? refused : fabric_error(ret);
        fail("{}: {}{}", peer(), reason, refusal_hint(reason));
    }
    connecting_ = true;
    connected_ = true;
}

void FabricConnection::accept(std::span<const std::byte> data) {
    data = fitting(data);
    answered_ = true;
    const int ret = fi_accept(endpoint_.get(), data.data(), data.size());
    if (ret != 0) {
        fail("cannot accept {}: {}", peer(), fabric_error(ret));
    }
    connected_ = true;
}

void FabricConnection::reject(std::span<const std::byte> data) {
    answered_ = true;
    fi_reject(listener_, info_->handle, data.data(), data.size());
}

void FabricConnection::disconnect() {
    if (connected_) {
        connected_ = false;
        fi_shutdown(endpoint_.get(), 0); // fails if the peer disconnected first
    }
}

void FabricConnection::migrate(FabricEvents& events) {
    if (const int ret = fi_ep_bind(endpoint_.get(), &events.get()->fid, 0); ret != 0) {
        fail("-m: provider {} cannot move an endpoint to another event queue ({}); --backend rdmacm can, over an RDMA "
             "device",
             info_->fabric_attr->prov_name, fabric_error(ret));
    }
    events_->leave(&endpoint_->fid);
    events_ = &events;
    events.enter(&endpoint_->fid, this);
}

std::string FabricConnection::peer() const {
    if (remote_.length() != 0) {
        return remote_.text();
    }
    if (info_->dest_addr != nullptr) {
        return Address(static_cast<const sockaddr*>(info_->dest_addr), static_cast<socklen_t>(info_->dest_addrlen))
            .text();
    }
    sockaddr_storage address{};
    size_t length = sizeof(address);
    if (endpoint_ && fi_getpeer(endpoint_.get(), &address, &length) == 0) {
        return Address(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(length)).text();
    }
    return "a peer that has no address";
}

} // namespace util
