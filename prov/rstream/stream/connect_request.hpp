// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The private data that a stream sends to connect or to accept, and its attempts to connect. A local port that the core
// chose may be in use; then the stream connects again from another one, with new registrations in the hello.
//
// With the event dispatcher locked, except `set_data`, which is called before.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "prov/rstream/wire/hello.hpp"

namespace rstream {

class ConnectRequest {
  public:
    // `session`: of the stream, the same in each attempt.
    explicit ConnectRequest(uint64_t session) : session_(session) {}

    using Time = std::chrono::steady_clock::time_point;
    // Max attempts to connect, each from another local port.
    static constexpr int max_connects = 8;

    // The program's data, after the hello.
    void set_data(std::span<const std::byte> data) {
        bytes_.resize(wire::Hello::size + data.size());
        std::copy(data.begin(), data.end(), bytes_.begin() + wire::Hello::size);
    }
    // The hello, before the data; its session and `user_length` are set here.
    void set_hello(wire::Hello hello) {
        hello.session = session_;
        hello.user_length = static_cast<uint8_t>(bytes_.size() - wire::Hello::size);
        hello.encode(std::span<std::byte, wire::Hello::size>(bytes_.data(), wire::Hello::size));
    }
    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

    // The first attempt begins.
    void begin() { connects_left_ = max_connects - 1; }
    // The local port is in use. False if no attempt is left; else `take_retry` is true, once.
    bool port_in_use() {
        if (connects_left_ == 0) {
            return false;
        }
        --connects_left_;
        retry_ = true;
        return true;
    }
    [[nodiscard]] bool take_retry() { return std::exchange(retry_, false); }
    void end() { connects_left_ = 0; }

    // The time by which the peer must answer; none if it was not set.
    void set_deadline(Time deadline) { deadline_ = deadline; }
    [[nodiscard]] bool has_deadline() const { return deadline_ != Time(); }
    [[nodiscard]] Time deadline() const { return deadline_; }

  private:
    const uint64_t session_;
    std::vector<std::byte> bytes_;
    int connects_left_ = 0;
    bool retry_ = false;
    Time deadline_;
};

} // namespace rstream
