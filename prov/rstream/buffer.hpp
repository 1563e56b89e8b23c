// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whole pages from the kernel: a ring shares no page with other data, costs no memory before it is used, and what is
// registered for a peer ends at a page of its own.
#pragma once

#include <cstddef>
#include <span>

namespace rstream {

class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { reset(); }

    // 0 or -FI_ENOMEM.
    int allocate(size_t size);
    void reset();

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] size_t size() const { return size_; }

  private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

} // namespace rstream
