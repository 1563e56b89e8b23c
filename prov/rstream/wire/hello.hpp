// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the two ends tell each other in the private data of the core's connection set-up, in front of the user's own
// private data. The RDMA CM over InfiniBand and RoCE leaves 56 bytes in a request and always delivers all of them,
// padded with zeros: hence a small hello, and the user's length inside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rstream::wire {

constexpr uint8_t protocol_version = 1;

struct Hello {
    static constexpr size_t size = 40;

    // Feature bits. A bit that the receiver does not know is ignored; what must be understood takes a new version.
    static constexpr uint8_t feature_headers = 1; // data is announced by a send behind the write, not by an immediate
    static constexpr uint8_t feature_growth = 16; // the sender's ring may grow: it can be asked to, see growth.hpp
    static constexpr uint8_t feature_data_acks = 32; // the sender reads the short form of an immediate

    uint8_t features = 0;
    uint64_t session = 0;      // names the stream for its whole life, on whichever connection it travels
    uint64_t ring_address = 0; // where the sender of this hello may be written to: address,
    uint64_t ring_key = 0;     // remote key,
    uint32_t ring_size = 0;    // bytes; 4 KiB .. 1 GiB
    uint16_t data_credits = 0; // data messages that may be on their way to it at once
    uint8_t control_credits = 0;
    uint8_t user_length = 0; // bytes of the user's private data behind the hello
    uint16_t maps = 0;       // of the peer's that the sender wants to be told of; 0 of one that knows no maps

    enum class Error : uint8_t { none, too_short, magic, version, ring_size, credits, user_length };

    void encode(std::span<std::byte, size> out) const;

    // Reads the private data of a request or a reply. On success `hello` is filled in.
    static Error parse(std::span<const std::byte> data, Hello& hello);

    friend bool operator==(const Hello&, const Hello&) = default;
};

// In front of the user's own data when a request is turned down, so that the log of the caller can tell the reason.
struct Reject {
    static constexpr size_t size = 8;

    enum class Reason : uint8_t { user = 0, hello = 1, version = 2, backlog = 3, resources = 4 };

    Reason reason = Reason::user;
    uint8_t user_length = 0;

    void encode(std::span<std::byte, size> out) const;
    static std::optional<Reject> parse(std::span<const std::byte> data);
};

const char* to_string(Hello::Error error);
const char* to_string(Reject::Reason reason);

} // namespace rstream::wire
