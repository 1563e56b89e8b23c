// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/ring_buffer.hpp"

#include "prov/rstream/core/endpoint.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

int register_buffer(CoreEndpoint& core, RegisteredBuffer& buffer, uint64_t access) {
    return core.register_memory(buffer.buffer.data(), buffer.buffer.size(), access, buffer.mr);
}

int make_buffer(CoreEndpoint& core, size_t size, uint64_t access, bool registered, RegisteredBuffer& made) {
    const bool reserved = made.buffer.size() == size;
    int ret = reserved ? made.buffer.revive() : made.buffer.allocate(size);
    if (ret == 0 && registered) {
        ret = register_buffer(core, made, access);
    }
    if (ret != 0) {
        RSTREAM_INFO(FI_LOG_EP_DATA, "no memory for a buffer of another size (%zu bytes: %s): it stays as it is\n",
                     size, fi_strerror(-ret));
        reserved ? made.buffer.retire() : made.buffer.reset();
    }
    return ret;
}

} // namespace rstream
