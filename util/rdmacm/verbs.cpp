// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rdmacm/verbs.hpp"

#include <cerrno>
#include <cstring>

#include "util/common/failure.hpp"

namespace util {

std::string error_text() { return errno != 0 ? strerror(errno) : "no reason given"; }

VerbsDevice::VerbsDevice(ibv_context* context) : context_(context), domain_(ibv_alloc_pd(context)) {
    if (!domain_) {
        fail("{}: no protection domain: {}", name(), error_text());
    }
    if (ibv_query_device(context, &attributes_) != 0) {
        fail("{}: cannot query the device: {}", name(), error_text());
    }
}

size_t VerbsDevice::max_message(uint8_t port) const {
    ibv_port_attr attributes{};
    return ibv_query_port(context_, port, &attributes) == 0 ? attributes.max_msg_sz : ~uint32_t{0};
}

VerbsMemory::VerbsMemory(std::shared_ptr<VerbsDevice> device, size_t size, Access access)
    : device_(std::move(device)), bytes_(size) {
    // On iWARP the peer writes the data of an RDMA read, so that the buffer needs remote write access as well.
    const int rights =
        IBV_ACCESS_LOCAL_WRITE | (access == Access::remote ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0);
    region_.reset(ibv_reg_mr(device_->domain(), bytes_.data(), bytes_.size(), rights));
    if (!region_) {
        fail("cannot register {} bytes of memory with {}: {}; is the limit of locked memory (ulimit -l) too low?", size,
             device_->name(), error_text());
    }
}

ibv_sge VerbsMemory::part(size_t length) const {
    return {reinterpret_cast<uintptr_t>(bytes_.data()), static_cast<uint32_t>(length), region_->lkey};
}

} // namespace util
