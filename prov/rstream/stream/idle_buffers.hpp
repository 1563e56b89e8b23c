// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory of closed streams, for the next ones. A device pins what is registered with it, so that each page of a new
// buffer costs a page fault before a connection can be made, and releasing the pages of an old one interrupts the other
// processors that the process runs on: on emulated devices a quarter of what a connection takes.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "prov/rstream/stream/buffer.hpp"

namespace rstream {

class IdleBuffers {
  public:
    static constexpr size_t limit = 12;                   // three for each of four connections
    static constexpr size_t max_size = size_t{128} << 10; // bytes of one; larger ones are released

    // Memory of a closed stream, with any contents, or new memory. 0 or -FI_ENOMEM.
    int allocate(size_t size, Buffer& out);
    // The same, of zeros: a peer that announces bytes which it did not send must not make the program read, and perhaps
    // send, those of another connection.
    int allocate_cleared(size_t size, Buffer& out);
    // `buffer` is not registered any more, and nothing accesses it.
    void give(Buffer&& buffer);

    [[nodiscard]] size_t count() const;

  private:
    bool take(size_t size, Buffer& out);

    mutable std::mutex mutex_; // a leaf
    std::vector<Buffer> buffers_;
};

} // namespace rstream
