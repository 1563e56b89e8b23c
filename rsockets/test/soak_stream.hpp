// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection of the soak test: what the client plans for it, and the bytes of each direction.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "fabtests/common/pattern.hpp"
#include "rsockets/test/sockets.hpp"

namespace soak {

inline constexpr size_t processes = 4;       // that connect
inline constexpr size_t connections = 200;   // at a time, all together
inline constexpr size_t most_bytes = 400000; // of a direction
inline constexpr size_t longest_piece = 70000;

enum class Ending : uint32_t { half_close, reset };

// What a connection begins with: the client's plan.
struct Plan {
    uint64_t mark = 0x736f616b;
    uint32_t process = 0;
    Ending ending = Ending::half_close;
    uint64_t seed = 0;
    uint64_t up = 0; // bytes, after this
    uint64_t down = 0;
};

using Random = std::minstd_rand;

inline size_t between(Random& random, size_t from, size_t to) {
    return std::uniform_int_distribution<size_t>(from, to)(random);
}

// One direction: bytes that depend on their place, in pieces of random sizes.
class Sending {
  public:
    void begin(uint64_t seed, uint64_t total) {
        seed_ = seed;
        total_ = total;
    }
    [[nodiscard]] bool done() const { return sent_ == total_; }
    // Bytes that were taken, or -1 with errno.
    ssize_t step(int fd, Random& random) {
        const size_t length = std::min<uint64_t>(between(random, 1, piece_.size()), total_ - sent_);
        fabtests::fill(piece_.data(), length, seed_ + sent_);
        const ssize_t n = rsend(fd, piece_.data(), length, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent_ += n > 0 ? static_cast<uint64_t>(n) : 0;
        return n;
    }

  private:
    std::vector<char> piece_ = std::vector<char>(longest_piece);
    uint64_t seed_ = 0;
    uint64_t total_ = 0;
    uint64_t sent_ = 0;
};

class Receiving {
  public:
    void begin(uint64_t seed) { seed_ = seed; }
    [[nodiscard]] uint64_t received() const { return received_; }
    ssize_t step(int fd, Random& random) {
        const ssize_t n = rrecv(fd, piece_.data(), between(random, 1, piece_.size()), MSG_DONTWAIT);
        if (n > 0) {
            if (!fabtests::matches(piece_.data(), static_cast<size_t>(n), seed_ + received_)) {
                throw fabtests::Failure("a wrong byte behind " + std::to_string(received_));
            }
            received_ += static_cast<uint64_t>(n);
        }
        return n;
    }

  private:
    std::vector<char> piece_ = std::vector<char>(longest_piece);
    uint64_t seed_ = 0;
    uint64_t received_ = 0;
};

inline uint64_t other_seed(uint64_t seed) { return seed + 977; }

inline bool lost(ssize_t n) { return n < 0 && (errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT); }
inline void expect_again(ssize_t n, const char* call) {
    if (n < 0 && errno != EAGAIN) {
        throw fabtests::Failure(std::string(call) + ": " + strerror(errno));
    }
}

} // namespace soak
