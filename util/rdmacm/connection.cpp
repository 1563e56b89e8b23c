// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rdmacm/connection.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>

#include "util/common/failure.hpp"

namespace util {

void QueuePairCloser::operator()(ibv_qp* pair) const noexcept {
    if (id != nullptr) {
        rdma_destroy_qp(id);
    } else {
        ibv_destroy_qp(pair);
    }
}

RdmacmConnection::RdmacmConnection(OwnedId id, std::shared_ptr<VerbsDevice> device)
    : id_(std::move(id)), device_(std::move(device)) {
    id_->context = static_cast<void*>(this);
}

RdmacmConnection::~RdmacmConnection() {
    if (requested_ && !answered_) {
        rdma_reject(id_.get(), nullptr, 0);
    }
    disconnect();
}

void RdmacmConnection::set_remote(const Address& remote, Bytes header) {
    remote_ = remote;
    header_ = std::move(header);
}

void RdmacmConnection::set_requested(const rdma_conn_param& request) {
    requested_ = true;
    responder_resources_ = std::min<uint8_t>(1, request.responder_resources);
    initiator_depth_ = std::min<uint8_t>(1, request.initiator_depth);
}

size_t RdmacmConnection::max_sends() const { return static_cast<size_t>(device_->attributes().max_qp_wr); }
size_t RdmacmConnection::max_receives() const { return static_cast<size_t>(device_->attributes().max_qp_wr); }

void RdmacmConnection::make_queues(const QueueSizes& sizes) {
    const size_t entries = sizes.sends + sizes.receives;
    const auto refuse = [&](const char* what, size_t wanted) {
        fail("{}: no {} of {} entries: {}; the most are {} of a queue pair and {} of a completion queue",
             device_->name(), what, wanted, error_text(), device_->attributes().max_qp_wr,
             device_->attributes().max_cqe);
    };
    errno = 0; // not every driver sets it
    channel_.reset(ibv_create_comp_channel(device_->context()));
    if (!channel_) {
        fail("{}: no completion channel: {}", device_->name(), error_text());
    }
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
    queue_.reset(ibv_create_cq(device_->context(), static_cast<int>(entries), nullptr, channel_.get(), 0));
    if (!queue_) {
        refuse("completion queue", entries);
    }
    ibv_qp_init_attr attributes{};
    attributes.cap.max_send_wr = static_cast<uint32_t>(sizes.sends);
    attributes.cap.max_recv_wr = static_cast<uint32_t>(sizes.receives);
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_sge = 1;
    attributes.qp_type = IBV_QPT_RC;
    attributes.sq_sig_all = 1;
    attributes.send_cq = queue_.get();
    attributes.recv_cq = queue_.get();
    if (!sizes.own) {
        if (rdma_create_qp(id_.get(), device_->domain(), &attributes) != 0) {
            refuse("queue pair", std::max(sizes.sends, sizes.receives));
        }
        pair_ = {id_->qp, QueuePairCloser{id_.get()}};
        return;
    }
    pair_ = {ibv_create_qp(device_->domain(), &attributes), QueuePairCloser{}};
    if (!pair_) {
        refuse("queue pair", std::max(sizes.sends, sizes.receives));
    }
    move_own_pair(IBV_QPS_INIT);
}

// librdmacm provides the attributes of a queue pair of this connection in each state; this function modifies the state.
void RdmacmConnection::move_own_pair(ibv_qp_state state) {
    ibv_qp_attr attributes{};
    int mask = 0;
    attributes.qp_state = state;
    if (rdma_init_qp_attr(id_.get(), &attributes, &mask) != 0 || ibv_modify_qp(pair_.get(), &attributes, mask) != 0) {
        fail("-q: the queue pair cannot go to state {}: {}", static_cast<int>(state), error_text());
    }
}

// The peer's access rights are known only now. They are set in the INIT state, which is therefore set once more.
void RdmacmConnection::connect_own_pair() {
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
        move_own_pair(state);
    }
}

std::unique_ptr<Memory> RdmacmConnection::allocate(size_t size, Access access) {
    return std::make_unique<VerbsMemory>(device_, size, access);
}

void RdmacmConnection::post(Operation operation, Memory& memory, size_t length, const RemoteBuffer& remote) {
    ibv_sge part = dynamic_cast<VerbsMemory&>(memory).part(length);
    int ret = 0;
    if (operation == Operation::receive) {
        ibv_recv_wr request{};
        ibv_recv_wr* bad = nullptr;
        request.wr_id = static_cast<uint64_t>(operation);
        request.sg_list = &part;
        request.num_sge = 1;
        ret = ibv_post_recv(pair_.get(), &request, &bad);
    } else {
        ibv_send_wr request{};
        ibv_send_wr* bad = nullptr;
        request.wr_id = static_cast<uint64_t>(operation);
        request.sg_list = &part;
        request.num_sge = 1;
        request.opcode = operation == Operation::send   ? IBV_WR_SEND
                         : operation == Operation::read ? IBV_WR_RDMA_READ
                                                        : IBV_WR_RDMA_WRITE;
        request.send_flags = IBV_SEND_SIGNALED;
        request.wr.rdma.remote_addr = remote.address;
        request.wr.rdma.rkey = static_cast<uint32_t>(remote.key);
        ret = ibv_post_send(pair_.get(), &request, &bad);
    }
    if (ret != 0) {
        // The event that ends the connection may not have been read yet.
        completions_.push_back(
            {operation, 0, true,
             fmt::format("{}: {}", operation == Operation::receive ? "ibv_post_recv" : "ibv_post_send",
                         strerror(ret))});
    }
}

void RdmacmConnection::receive(Memory& memory, size_t length) { post(Operation::receive, memory, length, {}); }
void RdmacmConnection::send(Memory& memory, size_t length) { post(Operation::send, memory, length, {}); }
void RdmacmConnection::read(Memory& memory, size_t length, const RemoteBuffer& from) {
    post(Operation::read, memory, length, from);
}
void RdmacmConnection::write(Memory& memory, size_t length, const RemoteBuffer& to) {
    post(Operation::write, memory, length, to);
}

void RdmacmConnection::collect() {
    ibv_wc entries[16];
    int got = 0;
    while ((got = ibv_poll_cq(queue_.get(), 16, entries)) > 0) {
        for (int i = 0; i < got; ++i) {
            const ibv_wc& entry = entries[i];
            Completion completion;
            completion.operation = static_cast<Operation>(entry.wr_id);
            completion.failed = entry.status != IBV_WC_SUCCESS;
            if (!completion.failed) {
                completion.length = entry.byte_len;
            } else if (entry.status == IBV_WC_LOC_LEN_ERR && completion.operation == Operation::receive) {
                completion.reason = "a message is larger than the receive that was posted for it";
            } else if (entry.status != IBV_WC_WR_FLUSH_ERR) {
                completion.reason = ibv_wc_status_str(entry.status);
            }
            completions_.push_back(std::move(completion));
        }
    }
    if (got < 0) {
        fail("ibv_poll_cq: {}", strerror(-got));
    }
}

std::optional<Completion> RdmacmConnection::completion() {
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

bool RdmacmConnection::may_sleep() {
    if (!queue_) {
        return true;
    }
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) {
        ibv_ack_cq_events(queue, 1);
    }
    if (ibv_req_notify_cq(queue_.get(), 0) != 0) {
        fail("ibv_req_notify_cq: {}", error_text());
    }
    collect(); // completions that came before the request for notification cause no notification
    return completions_.empty();
}

void RdmacmConnection::add_to(std::vector<pollfd>& descriptors) const {
    if (channel_) {
        descriptors.push_back({channel_->fd, POLLIN, 0});
    }
}

rdma_conn_param RdmacmConnection::parameters(std::span<const std::byte> data) const {
    constexpr uint8_t without_end = 7;
    rdma_conn_param result{};
    result.private_data = data.data();
    result.private_data_len = static_cast<uint8_t>(data.size());
    result.responder_resources = responder_resources_;
    result.initiator_depth = initiator_depth_;
    result.retry_count = 7;
    result.rnr_retry_count = without_end; // the peer may be slow to post receives
    if (id_->qp == nullptr) {
        result.qp_num = pair_->qp_num;
    }
    return result;
}

void RdmacmConnection::connect(std::span<const std::byte> data) {
    Bytes all = header_;
    all.insert(all.end(), data.begin(), data.end());
    rdma_conn_param wanted = parameters(all);
    if (rdma_connect(id_.get(), &wanted) != 0) {
        const std::string reason = errno == ECONNREFUSED ? refused : error_text(); // iWARP reports a refusal at once
        fail("{}: {}{}", peer(), reason, refusal_hint(reason));
    }
}

void RdmacmConnection::accept(std::span<const std::byte> data) {
    answered_ = true;
    // iWARP needs no such state changes: the device moves the queue pair when it gets its number.
    if (id_->qp == nullptr && !device_->is_iwarp()) {
        connect_own_pair();
    }
    rdma_conn_param wanted = parameters(data);
    if (rdma_accept(id_.get(), &wanted) != 0) {
        fail("cannot accept {}: {}", peer(), error_text());
    }
    connected_ = true;
}

void RdmacmConnection::establish(bool confirm) {
    if (confirm && !requested_) {
        connect_own_pair();
        if (rdma_establish(id_.get()) != 0) {
            fail("rdma_establish: {}", error_text());
        }
    }
    connected_ = true;
}

void RdmacmConnection::reject(std::span<const std::byte> data) {
    answered_ = true;
    rdma_reject(id_.get(), data.data(), static_cast<uint8_t>(data.size()));
}

void RdmacmConnection::disconnect() {
    if (!connected_) {
        return;
    }
    connected_ = false;
    if (id_->qp == nullptr && pair_) {
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_ERR;
        ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
    }
    rdma_disconnect(id_.get()); // fails if the peer disconnected first
}

std::string RdmacmConnection::peer() const {
    if (remote_.length() != 0 || remote_.is_gid()) {
        return remote_.text();
    }
    const sockaddr* address = rdma_get_peer_addr(id_.get());
    return Address(address,
                   address->sa_family == AF_INET6 ? socklen_t{sizeof(sockaddr_in6)} : socklen_t{sizeof(sockaddr_in)})
        .text();
}

} // namespace util
