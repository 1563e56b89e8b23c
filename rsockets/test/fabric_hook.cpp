// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/test/fabric_hook.hpp"

#include <cstring>
#include <utility>

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "include/rdma/fi_ext_rstream.h"

namespace rsocket_test {

FabricHook fabric_hook;

namespace {

// The provider's table, and the copy of it whose functions are replaced. The first object sets it: the provider has one
// table for all objects of a class.
template <class Ops> class Table {
  public:
    template <class Replace> void put_in(Ops*& ops, const Replace& replace) {
        if (real_ == nullptr) {
            real_ = ops;
            copy_ = *ops;
            replace(copy_);
        }
        ops = &copy_;
    }
    Ops& real() { return *real_; }

  private:
    Ops* real_ = nullptr;
    Ops copy_{};
};
Table<fi_ops_fabric> fabrics;
Table<fi_ops_domain> domains;
Table<fi_ops_eq> queues;
Table<fi_ops_ep> endpoints;
Table<fi_ops_cm> passive_endpoints;

int get_option(fid* endpoint, int level, int name, void* value, size_t* length) {
    if (const auto hook = fabric_hook.before_status.load(); hook != nullptr && name == FI_OPT_RSTREAM_STATUS) {
        hook();
    }
    return endpoints.real().getopt(endpoint, level, name, value, length);
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** out, void* context) {
    if (fabric_hook.no_endpoints.load()) {
        return -FI_ENOMEM;
    }
    const int ret = domains.real().endpoint(domain, info, out, context);
    if (ret == 0) {
        endpoints.put_in((*out)->ops, [](fi_ops_ep& ops) { ops.getopt = get_option; });
    }
    return ret;
}

int listen(fid_pep* endpoint) {
    if (const auto hook = fabric_hook.before_listen.load(); hook != nullptr) {
        hook();
    }
    return passive_endpoints.real().listen(endpoint);
}

int open_passive(fid_fabric* fabric, fi_info* info, fid_pep** out, void* context) {
    const int ret = fabrics.real().passive_ep(fabric, info, out, context);
    if (ret == 0) {
        passive_endpoints.put_in((*out)->cm, [](fi_ops_cm& ops) { ops.listen = listen; });
    }
    return ret;
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** out, void* context) {
    if (fabric_hook.no_domains.load()) {
        return -FI_ENOMEM;
    }
    const int ret = fabrics.real().domain(fabric, info, out, context);
    if (ret == 0) {
        domains.put_in((*out)->ops, [](fi_ops_domain& ops) { ops.endpoint = open_endpoint; });
    }
    return ret;
}

// The library reads on once it has handled an event, one thread at a time.
ssize_t read_queue(fid_eq* queue, uint32_t* event, void* buffer, size_t length, uint64_t flags) {
    static std::atomic<bool> handling{false};
    if (handling.exchange(false)) {
        fabric_hook.requests.fetch_add(1);
        fabric_hook.requests.notify_all();
    }
    const ssize_t got = queues.real().read(queue, event, buffer, length, flags);
    if (got > 0 && *event == FI_CONNREQ) {
        handling.store(true);
    }
    return got;
}

int open_queue(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** out, void* context) {
    const int ret = fabrics.real().eq_open(fabric, attr, out, context);
    if (ret == 0) {
        queues.put_in((*out)->ops, [](fi_ops_eq& ops) { ops.read = read_queue; });
    }
    return ret;
}

} // namespace

} // namespace rsocket_test

extern "C" __attribute__((visibility("default"))) int fi_fabric(fi_fabric_attr* attr, fid_fabric** fabric,
                                                                void* context) {
    using namespace rsocket_test;
    const auto real = reinterpret_cast<decltype(&fi_fabric)>(dlsym(RTLD_NEXT, "fi_fabric"));
    const int ret = real(attr, fabric, context);
    if (ret == 0 && strcmp(attr->prov_name, "rstream") == 0) {
        fabrics.put_in((*fabric)->ops, [](fi_ops_fabric& ops) {
            ops.domain = open_domain;
            ops.eq_open = open_queue;
            ops.passive_ep = open_passive;
        });
    }
    return ret;
}
