// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whole pages from the kernel: a ring shares no page with other data, costs no memory before it is used, and what is
// registered for a peer ends at a page of its own.
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
    // Gives the memory back and keeps the addresses, where nothing can be read or written any more: whoever still has
    // one of them can meet nothing else there.
    void retire();

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] size_t size() const { return size_; }

  private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

} // namespace rstream
