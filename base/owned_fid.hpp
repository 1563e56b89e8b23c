// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Smart pointers that own libfabric objects.
#pragma once

#include <memory>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

namespace base {

template <class Fid> struct FidCloser {
    void operator()(Fid* f) const noexcept { fi_close(&f->fid); }
};
template <class Fid> using Owned = std::unique_ptr<Fid, FidCloser<Fid>>;

struct InfoFree {
    void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoFree>;

} // namespace base
