// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_getinfo: the conversion of a request to hints for cores, and of their infos to ours. No state is kept; the
// caller's hints are never changed. fi_getinfo(3), fi_rstream(7).
#pragma once

#include "prov/rstream/fid.hpp"
#include "prov/rstream/params.hpp"

namespace rstream {

constexpr uint64_t stream_caps = FI_MSG | FI_SEND | FI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;
constexpr uint64_t stream_domain_caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
// Operation flags without an effect here: every send is copied, and nothing completes later.
constexpr uint64_t stream_op_flags = FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE;
constexpr uint32_t stream_protocol_version = 1;
constexpr size_t stream_iov_limit = 1024; // as IOV_MAX: every segment is copied, so no core limit applies

// The getinfo entry of struct fi_provider.
int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
            fi_info** info);

// Our info over a core's: capabilities, limits, names. libfabric fills in `prov_name`.
int info_over_core(const fi_info& core, const Params& params, uint32_t api_version, Info& out);

} // namespace rstream
