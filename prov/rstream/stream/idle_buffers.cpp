// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/idle_buffers.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace rstream {

bool IdleBuffers::take(size_t size, Buffer& out) {
    const std::lock_guard lock(mutex_);
    // From the end: what was used last is in the caches.
    const auto found =
        std::find_if(buffers_.rbegin(), buffers_.rend(), [size](const Buffer& idle) { return idle.size() == size; });
    if (found == buffers_.rend()) {
        return false;
    }
    out = std::move(*found);
    buffers_.erase(std::prev(found.base()));
    return true;
}

int IdleBuffers::allocate(size_t size, Buffer& out) { return take(size, out) ? 0 : out.allocate(size); }

int IdleBuffers::allocate_cleared(size_t size, Buffer& out) {
    if (!take(size, out)) {
        return out.allocate(size);
    }
    std::memset(out.data(), 0, size);
    return 0;
}

void IdleBuffers::give(Buffer&& buffer) {
    Buffer idle = std::move(buffer);
    if (idle.size() == 0 || idle.size() > max_size) {
        return;
    }
    Buffer oldest; // released without the lock
    const std::lock_guard lock(mutex_);
    try {
        if (buffers_.size() == limit) { // perhaps of a size that no stream has any more
            oldest = std::move(buffers_.front());
            buffers_.erase(buffers_.begin());
        }
        buffers_.push_back(std::move(idle));
    } catch (const std::bad_alloc&) { // it is released
    }
}

size_t IdleBuffers::count() const {
    const std::lock_guard lock(mutex_);
    return buffers_.size();
}

} // namespace rstream
