// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The layer between libfabric's C objects and the provider's C++ objects: ownership of a core's fids, the object behind
// a fid of ours, C entry points that call a method, and table entries for unsupported operations.
#pragma once

#include <memory>
#include <new>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "base/owned_fid.hpp"

namespace rstream {

// `fid` is a member of the structs that our objects derive from, so the type needs another name inside them.
using AnyFid = struct ::fid;

using base::Info;
using base::Owned;

// Each of our objects derives from the C struct that the user holds, whose first member is the fid.
template <class Object, class Base> Object* object_of(Base* base) { return static_cast<Object*>(base); }
template <class Object, class Base> Object* object_of(AnyFid* f) {
    return static_cast<Object*>(reinterpret_cast<Base*>(f));
}

// Runs the body of a C entry point; no exception leaves it. Our own code throws only when out of memory.
template <class Body> auto guarded(Body&& body) noexcept -> decltype(body()) {
    try {
        return std::forward<Body>(body)();
    } catch (const std::bad_alloc&) {
        return -FI_ENOMEM;
    } catch (...) {
        return -FI_EOTHER;
    }
}

// `Refuse<decltype(fi_ops_rma::read)>::call` has the signature of the member and returns -FI_ENOSYS.
template <class Function> struct Refuse;
template <class Result, class... Args> struct Refuse<Result (*)(Args...)> {
    static Result call(Args...) { return static_cast<Result>(-FI_ENOSYS); }
};
#define RSTREAM_REFUSE(table, member) Refuse<decltype(table::member)>::call

} // namespace rstream
