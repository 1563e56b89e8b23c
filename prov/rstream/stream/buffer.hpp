// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whole pages from the kernel: a ring shares no page with other data, costs no memory before it is used, and a
// registration for a peer contains no page of other data.
#pragma once

#include <cstddef>
#include <utility>

namespace rstream {

class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Buffer() { reset(); }

    // 0 or -FI_ENOMEM.
    int allocate(size_t size);
    void reset();
    // Releases the memory and keeps the addresses reserved, inaccessible: a late access by a holder of an address
    // cannot reach other data.
    void retire();
    // The inverse of `retire`: zeroed memory at the same addresses. 0 or -FI_ENOMEM.
    int revive();

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] size_t size() const { return size_; }

  private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

} // namespace rstream
