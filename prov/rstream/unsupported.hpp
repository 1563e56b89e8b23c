// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Tables for the kinds of transfer that a stream does not support: a call returns -FI_ENOSYS, not a null pointer fault.
#pragma once

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_tagged.h>

#include "prov/rstream/fid.hpp"

namespace rstream {

inline fi_ops_rma no_rma_ops = {
    .size = sizeof(fi_ops_rma),
    .read = RSTREAM_REFUSE(fi_ops_rma, read),
    .readv = RSTREAM_REFUSE(fi_ops_rma, readv),
    .readmsg = RSTREAM_REFUSE(fi_ops_rma, readmsg),
    .write = RSTREAM_REFUSE(fi_ops_rma, write),
    .writev = RSTREAM_REFUSE(fi_ops_rma, writev),
    .writemsg = RSTREAM_REFUSE(fi_ops_rma, writemsg),
    .inject = RSTREAM_REFUSE(fi_ops_rma, inject),
    .writedata = RSTREAM_REFUSE(fi_ops_rma, writedata),
    .injectdata = RSTREAM_REFUSE(fi_ops_rma, injectdata),
};

inline fi_ops_tagged no_tagged_ops = {
    .size = sizeof(fi_ops_tagged),
    .recv = RSTREAM_REFUSE(fi_ops_tagged, recv),
    .recvv = RSTREAM_REFUSE(fi_ops_tagged, recvv),
    .recvmsg = RSTREAM_REFUSE(fi_ops_tagged, recvmsg),
    .send = RSTREAM_REFUSE(fi_ops_tagged, send),
    .sendv = RSTREAM_REFUSE(fi_ops_tagged, sendv),
    .sendmsg = RSTREAM_REFUSE(fi_ops_tagged, sendmsg),
    .inject = RSTREAM_REFUSE(fi_ops_tagged, inject),
    .senddata = RSTREAM_REFUSE(fi_ops_tagged, senddata),
    .injectdata = RSTREAM_REFUSE(fi_ops_tagged, injectdata),
};

inline fi_ops_atomic no_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = RSTREAM_REFUSE(fi_ops_atomic, write),
    .writev = RSTREAM_REFUSE(fi_ops_atomic, writev),
    .writemsg = RSTREAM_REFUSE(fi_ops_atomic, writemsg),
    .inject = RSTREAM_REFUSE(fi_ops_atomic, inject),
    .readwrite = RSTREAM_REFUSE(fi_ops_atomic, readwrite),
    .readwritev = RSTREAM_REFUSE(fi_ops_atomic, readwritev),
    .readwritemsg = RSTREAM_REFUSE(fi_ops_atomic, readwritemsg),
    .compwrite = RSTREAM_REFUSE(fi_ops_atomic, compwrite),
    .compwritev = RSTREAM_REFUSE(fi_ops_atomic, compwritev),
    .compwritemsg = RSTREAM_REFUSE(fi_ops_atomic, compwritemsg),
    .writevalid = RSTREAM_REFUSE(fi_ops_atomic, writevalid),
    .readwritevalid = RSTREAM_REFUSE(fi_ops_atomic, readwritevalid),
    .compwritevalid = RSTREAM_REFUSE(fi_ops_atomic, compwritevalid),
};

inline fi_ops_collective no_collective_ops = [] {
    fi_ops_collective ops{}; // barrier2, which libfabric has since 1.16, stays null: fi_barrier2() checks that
    ops.size = sizeof(ops);
    ops.barrier = RSTREAM_REFUSE(fi_ops_collective, barrier);
    ops.broadcast = RSTREAM_REFUSE(fi_ops_collective, broadcast);
    ops.alltoall = RSTREAM_REFUSE(fi_ops_collective, alltoall);
    ops.allreduce = RSTREAM_REFUSE(fi_ops_collective, allreduce);
    ops.allgather = RSTREAM_REFUSE(fi_ops_collective, allgather);
    ops.reduce_scatter = RSTREAM_REFUSE(fi_ops_collective, reduce_scatter);
    ops.reduce = RSTREAM_REFUSE(fi_ops_collective, reduce);
    ops.scatter = RSTREAM_REFUSE(fi_ops_collective, scatter);
    ops.gather = RSTREAM_REFUSE(fi_ops_collective, gather);
    ops.msg = RSTREAM_REFUSE(fi_ops_collective, msg);
    return ops;
}();

} // namespace rstream
