// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A table of cores in which libfabric's tcp is a core that nothing is known of: a plugin with this table shows that the
// provider works with the defaults of every property. plain_core_test runs functional tests on it.
#include "prov/rstream/core/properties.hpp"

#include <rdma/fabric.h>

namespace rstream {

namespace {
constexpr Core table[] = {{"tcp", FI_PROTO_UNSPEC, 0, true, CoreProperties{}}};
} // namespace

std::span<const Core> core_table() { return table; }

} // namespace rstream
