// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// FI_OPT_RSTREAM_STATUS, whose structure grows: a program gets the members that it was built with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <rdma/fi_errno.h>

#include "include/rdma/fi_ext_rstream.h"

namespace rstream {

inline int store_status(const fi_rstream_status& status, void* value, size_t* length) {
    if (*length < offsetof(fi_rstream_status, arrived)) { // the first member that was added
        return -FI_ETOOSMALL;
    }
    *length = std::min(*length, sizeof(status));
    memcpy(value, &status, *length);
    return 0;
}

} // namespace rstream
