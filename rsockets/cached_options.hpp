// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Options that calls read without a lock: those whose effect is `cached` in option_table.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "rsockets/kernel_options.hpp"

namespace rsockets {

// linger, aligned to its size. Without that, clang has libatomic's functions read and write one that is atomic: another
// library to link, and ThreadSanitizer does not see what they do.
struct alignas(sizeof(linger)) AlignedLinger : linger {};

struct CachedOptions {
    std::atomic<int64_t> receive_timeout{0}; // nanoseconds; 0: none
    std::atomic<int64_t> send_timeout{0};
    std::atomic<size_t> low_water{1};
    std::atomic<bool> corked{false};
    std::atomic<AlignedLinger> closing{AlignedLinger{}};

    void read(const KernelOptions& options) {
        receive_timeout = nanoseconds(options.value<timeval>(SOL_SOCKET, SO_RCVTIMEO));
        send_timeout = nanoseconds(options.value<timeval>(SOL_SOCKET, SO_SNDTIMEO));
        low_water = static_cast<size_t>(std::max(1, options.value<int>(SOL_SOCKET, SO_RCVLOWAT)));
        corked = options.value<int>(IPPROTO_TCP, TCP_CORK) != 0;
        closing = AlignedLinger{options.value<linger>(SOL_SOCKET, SO_LINGER)};
    }
    // As `read` from inherited options, without system calls for those that were not set.
    void inherit(const CachedOptions& from) {
        receive_timeout = from.receive_timeout.load();
        send_timeout = from.send_timeout.load();
        low_water = from.low_water.load();
        corked = from.corked.load();
        closing = from.closing.load();
    }

  private:
    static constexpr int64_t max_time = 1000000000; // seconds, some thirty years: more means no limit
    static int64_t nanoseconds(const timeval& time) {
        return time.tv_sec > max_time ? 0 : int64_t{1000000000} * time.tv_sec + int64_t{1000} * time.tv_usec;
    }
};

} // namespace rsockets
