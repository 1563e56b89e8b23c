// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/buffer.hpp"

#include <rdma/fi_errno.h>
#include <sys/mman.h>

namespace rstream {

int Buffer::allocate(size_t size) {
    reset();
    void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        return -FI_ENOMEM;
    }
    data_ = static_cast<std::byte*>(pages);
    size_ = size;
    return 0;
}

void Buffer::retire() {
    if (data_ != nullptr &&
        mmap(data_, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        madvise(data_, size_, MADV_DONTNEED); // no more mappings are allowed: release at least the memory
    }
}

int Buffer::revive() {
    return mmap(data_, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED
               ? 0
               : -FI_ENOMEM;
}

void Buffer::reset() {
    if (data_ != nullptr) {
        munmap(data_, size_);
        data_ = nullptr;
        size_ = 0;
    }
}

} // namespace rstream
