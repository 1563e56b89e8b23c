// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Owners of librdmacm and libibverbs objects.
#pragma once

#include <memory>
#include <string>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "util/common/backend.hpp"

namespace util {

// The text of errno, for a Failure.
std::string error_text();

template <auto Close> struct VerbsCloser {
    template <class Object> void operator()(Object* object) const noexcept { Close(object); }
};
using OwnedId = std::unique_ptr<rdma_cm_id, VerbsCloser<rdma_destroy_id>>;
using OwnedChannel = std::unique_ptr<rdma_event_channel, VerbsCloser<rdma_destroy_event_channel>>;
using OwnedAddresses = std::unique_ptr<rdma_addrinfo, VerbsCloser<rdma_freeaddrinfo>>;
using OwnedDomain = std::unique_ptr<ibv_pd, VerbsCloser<ibv_dealloc_pd>>;
using OwnedCompletionChannel = std::unique_ptr<ibv_comp_channel, VerbsCloser<ibv_destroy_comp_channel>>;
using OwnedQueue = std::unique_ptr<ibv_cq, VerbsCloser<ibv_destroy_cq>>;
using OwnedRegion = std::unique_ptr<ibv_mr, VerbsCloser<ibv_dereg_mr>>;

// A device, and the protection domain that all connections over it share.
class VerbsDevice {
  public:
    explicit VerbsDevice(ibv_context* context);

    [[nodiscard]] ibv_context* context() const { return context_; }
    [[nodiscard]] ibv_pd* domain() const { return domain_.get(); }
    [[nodiscard]] const ibv_device_attr& attributes() const { return attributes_; }
    [[nodiscard]] bool is_iwarp() const { return context_->device->transport_type == IBV_TRANSPORT_IWARP; }
    [[nodiscard]] std::string name() const { return ibv_get_device_name(context_->device); }
    [[nodiscard]] size_t max_message(uint8_t port) const;

  private:
    ibv_context* context_; // owned by librdmacm
    OwnedDomain domain_;
    ibv_device_attr attributes_{};
};

class VerbsMemory : public Memory {
  public:
    VerbsMemory(std::shared_ptr<VerbsDevice> device, size_t size, Access access);

    [[nodiscard]] std::span<std::byte> bytes() override { return bytes_; }
    [[nodiscard]] uint64_t remote_address() const override { return reinterpret_cast<uintptr_t>(bytes_.data()); }
    [[nodiscard]] uint64_t remote_key() const override { return region_->rkey; }
    [[nodiscard]] ibv_sge part(size_t length) const;

  private:
    std::shared_ptr<VerbsDevice> device_;
    Bytes bytes_;
    OwnedRegion region_;
};

} // namespace util
