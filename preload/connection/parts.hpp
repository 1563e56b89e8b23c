// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The buffers of a call, traversed once from the beginning.
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>

#include <sys/uio.h>

#include "base/copy.hpp"

namespace preload {

class Parts {
  public:
    Parts(const iovec* parts, size_t count) : part_(parts), left_(count) {
        for (size_t i = 0; i < count; ++i) {
            size_ = std::min<uint64_t>(size_ + parts[i].iov_len, SSIZE_MAX); // each is at most that
        }
        skip(0);
    }

    [[nodiscard]] uint64_t size() const { return size_; } // remaining bytes
    [[nodiscard]] bool empty() const { return size_ == 0; }

    // Copy bytes into the buffers or out of them, or skip them.
    void put(const uint8_t* from, uint64_t count) {
        advance(count, [&](char* at, size_t length) {
            base::copy_bytes(at, from, length);
            from += length;
        });
    }
    void get(uint8_t* to, uint64_t count) {
        advance(count, [&](const char* at, size_t length) {
            base::copy_bytes(to, at, length);
            to += length;
        });
    }
    void skip(uint64_t count) {
        advance(count, [](const char*, size_t) {});
    }

    // Fills iovecs for the kernel with at most `limit` bytes. Returns how many iovecs.
    template <size_t N> size_t fill(std::array<iovec, N>& out, uint64_t limit) const {
        size_t used = 0;
        size_t offset = offset_;
        for (size_t i = 0; i < left_ && used < N && limit != 0; ++i) {
            const size_t length = static_cast<size_t>(std::min<uint64_t>(part_[i].iov_len - offset, limit));
            if (length != 0) {
                out[used++] = {within(part_[i], offset), length};
            }
            limit -= length;
            offset = 0;
        }
        return used;
    }

  private:
    // With MSG_TRUNC, a part may have no address, and then nothing is added to it.
    static char* within(const iovec& part, size_t offset) {
        return part.iov_base == nullptr ? nullptr : static_cast<char*>(part.iov_base) + offset;
    }

    template <class Move> void advance(uint64_t count, Move&& move) {
        size_ -= count;
        while (left_ != 0) {
            const size_t length = static_cast<size_t>(std::min<uint64_t>(part_->iov_len - offset_, count));
            if (length != 0) {
                move(within(*part_, offset_), length);
            }
            offset_ += length;
            count -= length;
            if (offset_ < part_->iov_len) {
                return;
            }
            ++part_;
            --left_;
            offset_ = 0;
        }
    }

    const iovec* part_;
    size_t left_;
    size_t offset_ = 0; // within the first remaining part
    uint64_t size_ = 0;
};

} // namespace preload
