// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Owners of libfabric objects, and conversion of error codes to a Failure.
#pragma once

#include <memory>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "base/owned_fid.hpp"
#include "util/common/failure.hpp"

namespace util {

using base::Info;
using base::Owned;

inline const char* fabric_error(ssize_t ret) { return fi_strerror(static_cast<int>(ret < 0 ? -ret : ret)); }

inline ssize_t check_fabric(const char* call, ssize_t ret) {
    if (ret < 0) {
        fail("{}: {}", call, fabric_error(ret));
    }
    return ret;
}

} // namespace util
