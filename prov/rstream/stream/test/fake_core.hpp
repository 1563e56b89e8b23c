// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A core without a network: libfabric's tables of operations, filled with functions that note what is asked for and
// answer what a test says. A CoreEndpoint made on it serves the parts of a stream as one of a real core does.
//
// Fixtures own one: cmocka's asserts leave by longjmp.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/eventfd.h>

#include "base/descriptor.hpp"
#include "prov/rstream/core/endpoint.hpp"

namespace rstream {

class FakeCore {
  public:
    enum class Kind : uint8_t { recv, send, inject, read, write, inject_write };
    // An operation that was given to the core.
    struct Operation {
        Kind kind;
        std::string bytes; // that it sends
        uint64_t data;     // the immediate, if `flags` or the call say that there is one
        uint64_t flags;
        void* context;
        uint64_t address; // remote
        uint64_t key;
    };

    // `properties`: what the table of cores would say; but there are no events. `inject_size`: bytes that the core can
    // take at once.
    explicit FakeCore(CoreProperties properties = {}, size_t inject_size = 0) : wait_(eventfd(0, EFD_CLOEXEC)) {
        properties.queue_shows_end = true;
        fill_tables();
        Info info(fi_allocinfo());
        info->domain_attr->cq_data_size = 4;
        info->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
        info->tx_attr->inject_size = inject_size;
        info->ep_attr->max_msg_size = size_t{1} << 20;
        endpoint_ = std::make_unique<CoreEndpoint>(&fabric_, CoreTraits(*info, true), properties);
        opened_ = domains_.open(&fabric_, *info) == 0 && endpoint_->open_queue(domains_, *info, 64) == 0 &&
                  endpoint_->open(&events_, nullptr) == 0;
    }
    ~FakeCore() { endpoint_.reset(); }
    FakeCore(const FakeCore&) = delete;
    FakeCore& operator=(const FakeCore&) = delete;

    [[nodiscard]] bool opened() const { return opened_; }
    CoreEndpoint& endpoint() { return *endpoint_; }

    std::vector<Operation> operations;
    int refusal = 0;             // what further operations but receives get; 0: they are taken
    std::optional<Kind> refused; // if only this kind of them
    std::deque<fi_cq_data_entry> completions;
    std::optional<fi_cq_err_entry> error; // which the queue gives before them
    int queue_failure = 0;                // or what reading it gives
    bool refuse_receives = false;         // what is received then cannot be posted
    size_t regions = 0;                   // registered and not closed
    int registration = 0;                 // what registrations get

    // The number of operations of one kind, and the last one.
    [[nodiscard]] size_t count(Kind kind) const {
        size_t found = 0;
        for (const Operation& operation : operations) {
            found += operation.kind == kind ? 1 : 0;
        }
        return found;
    }
    [[nodiscard]] const Operation& last() const { return operations.back(); }
    void complete(void* context, uint64_t flags, size_t length = 0, uint64_t data = 0) {
        completions.push_back({context, flags, length, nullptr, data});
    }

  private:
    template <class Base> struct Object : Base { FakeCore* core; };
    struct Region : fid_mr {
        FakeCore* core;
    };
    template <class Base> static FakeCore& of(Base* base) { return *static_cast<Object<Base>*>(base)->core; }

    static int close_nothing(AnyFid* /*fid*/) { return 0; }
    static int close_region(AnyFid* fid) {
        const std::unique_ptr<Region> region(static_cast<Region*>(reinterpret_cast<fid_mr*>(fid)));
        --region->core->regions;
        return 0;
    }
    static int bind(AnyFid* /*fid*/, AnyFid* /*to*/, uint64_t /*flags*/) { return 0; }
    static int control_queue(AnyFid* fid, int command, void* argument) {
        if (command == FI_GETWAIT) {
            *static_cast<int*>(argument) = of(reinterpret_cast<fid_cq*>(fid)).wait_.get();
        }
        return 0;
    }

    static int open_domain(fid_fabric* fabric, fi_info* /*info*/, fid_domain** out, void* /*context*/) {
        *out = &of(fabric).domain_;
        return 0;
    }
    static int open_queue(fid_domain* domain, fi_cq_attr* /*attr*/, fid_cq** out, void* /*context*/) {
        *out = &of(domain).queue_;
        return 0;
    }
    static int open_endpoint(fid_domain* domain, fi_info* /*info*/, fid_ep** out, void* /*context*/) {
        *out = &of(domain).ep_;
        return 0;
    }
    static int register_region(AnyFid* fid, const void* /*memory*/, size_t /*length*/, uint64_t /*access*/,
                               uint64_t /*offset*/, uint64_t /*key*/, uint64_t /*flags*/, fid_mr** out,
                               void* /*context*/) {
        FakeCore& core = of(reinterpret_cast<fid_domain*>(fid));
        if (core.registration != 0) {
            return core.registration;
        }
        auto region = std::make_unique<Region>();
        region->fid.ops = &core.region_fid_;
        region->key = ++core.keys_;
        region->core = &core;
        ++core.regions;
        *out = region.release();
        return 0;
    }

    ssize_t take(Operation&& operation) {
        if (refusal != 0 && (!refused || *refused == operation.kind)) {
            return refusal;
        }
        operations.push_back(std::move(operation));
        return 0;
    }
    static std::string text(const void* from, size_t length) { return {static_cast<const char*>(from), length}; }

    static ssize_t recv(fid_ep* ep, void* /*buffer*/, size_t length, void* /*desc*/, fi_addr_t /*from*/,
                        void* context) {
        if (of(ep).refuse_receives) {
            return -FI_ENOTCONN;
        }
        of(ep).operations.push_back({Kind::recv, std::string(length, '.'), 0, 0, context, 0, 0});
        return 0;
    }
    static ssize_t sendmsg(fid_ep* ep, const fi_msg* m, uint64_t flags) {
        return of(ep).take(
            {Kind::send, text(m->msg_iov->iov_base, m->msg_iov->iov_len), m->data, flags, m->context, 0, 0});
    }
    static ssize_t inject(fid_ep* ep, const void* buffer, size_t length, fi_addr_t /*to*/) {
        return of(ep).take({Kind::inject, text(buffer, length), 0, 0, nullptr, 0, 0});
    }
    static ssize_t readmsg(fid_ep* ep, const fi_msg_rma* m, uint64_t flags) {
        return of(ep).take({Kind::read, "", 0, flags, m->context, m->rma_iov->addr, m->rma_iov->key});
    }
    static ssize_t writemsg(fid_ep* ep, const fi_msg_rma* m, uint64_t flags) {
        return of(ep).take({Kind::write, text(m->msg_iov->iov_base, m->msg_iov->iov_len), m->data, flags, m->context,
                            m->rma_iov->addr, m->rma_iov->key});
    }
    static ssize_t inject_write(fid_ep* ep, const void* buffer, size_t length, fi_addr_t /*to*/, uint64_t address,
                                uint64_t key) {
        return of(ep).take({Kind::inject_write, text(buffer, length), 0, 0, nullptr, address, key});
    }
    static ssize_t inject_writedata(fid_ep* ep, const void* buffer, size_t length, uint64_t data, fi_addr_t /*to*/,
                                    uint64_t address, uint64_t key) {
        return of(ep).take({Kind::inject_write, text(buffer, length), data, 0, nullptr, address, key});
    }

    static ssize_t read_queue(fid_cq* cq, void* buffer, size_t count) {
        FakeCore& core = of(cq);
        if (core.error || core.queue_failure != 0) {
            return core.error ? -FI_EAVAIL : core.queue_failure;
        }
        auto* to = static_cast<fi_cq_data_entry*>(buffer);
        size_t taken = 0;
        for (; taken < count && !core.completions.empty(); ++taken) {
            to[taken] = core.completions.front();
            core.completions.pop_front();
        }
        return taken != 0 ? static_cast<ssize_t>(taken) : -FI_EAGAIN;
    }
    static ssize_t read_error(fid_cq* cq, fi_cq_err_entry* out, uint64_t /*flags*/) {
        FakeCore& core = of(cq);
        if (!core.error) {
            return -FI_EAGAIN;
        }
        *out = *core.error;
        core.error.reset();
        return 1;
    }

    // Operations that are not here must not be asked for.
    void fill_tables() {
        plain_fid_ = {};
        plain_fid_.close = close_nothing;
        plain_fid_.bind = bind;
        queue_fid_ = plain_fid_;
        queue_fid_.control = control_queue;
        region_fid_ = plain_fid_;
        region_fid_.close = close_region;
        fabric_ops_.domain = open_domain;
        domain_ops_.cq_open = open_queue;
        domain_ops_.endpoint = open_endpoint;
        mr_ops_.reg = register_region;
        cq_ops_.read = read_queue;
        cq_ops_.readerr = read_error;
        msg_ops_.recv = recv;
        msg_ops_.sendmsg = sendmsg;
        msg_ops_.inject = inject;
        rma_ops_.readmsg = readmsg;
        rma_ops_.writemsg = writemsg;
        rma_ops_.inject = inject_write;
        rma_ops_.injectdata = inject_writedata;
        fabric_.core = domain_.core = queue_.core = ep_.core = this;
        fabric_.fid.ops = domain_.fid.ops = ep_.fid.ops = events_.fid.ops = &plain_fid_;
        queue_.fid.ops = &queue_fid_;
        fabric_.ops = &fabric_ops_;
        domain_.ops = &domain_ops_;
        domain_.mr = &mr_ops_;
        queue_.ops = &cq_ops_;
        ep_.msg = &msg_ops_;
        ep_.rma = &rma_ops_;
    }

    base::Descriptor wait_;
    fi_ops plain_fid_{};
    fi_ops queue_fid_{};
    fi_ops region_fid_{};
    fi_ops_fabric fabric_ops_{};
    fi_ops_domain domain_ops_{};
    fi_ops_mr mr_ops_{};
    fi_ops_cq cq_ops_{};
    fi_ops_msg msg_ops_{};
    fi_ops_rma rma_ops_{};
    Object<fid_fabric> fabric_{};
    Object<fid_domain> domain_{};
    Object<fid_cq> queue_{};
    Object<fid_ep> ep_{};
    fid_eq events_{};
    uint64_t keys_ = 0;
    bool opened_ = false;
    CoreDomains domains_;
    std::unique_ptr<CoreEndpoint> endpoint_;
};

} // namespace rstream
