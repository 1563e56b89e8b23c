// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The hello, which the two ends exchange in the private data of the core's connection set-up, in front of the user's
// own private data. The RDMA CM over InfiniBand and RoCE leaves 56 bytes in a request and always delivers all of them,
// padded with zeros: hence a small hello, and the length of the user's data inside it.
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

    // Feature bits. The receiver ignores unknown bits; a feature that it must support takes a new version.
    static constexpr uint8_t feature_headers = 1;    // data is announced by a send after the write, not by an immediate
    static constexpr uint8_t feature_growth = 16;    // the sender's ring may be resized on request, see growth.hpp
    static constexpr uint8_t feature_data_acks = 32; // the sender supports the short form of an immediate
    static constexpr uint8_t feature_shrink = 64;    // the sender accepts offers of smaller rings, see growth.hpp

    uint8_t features = 0;
    uint64_t session = 0;      // identifies the stream for its whole life, on any connection
    uint64_t ring_address = 0; // receive ring of the sender of this hello: address,
    uint64_t ring_key = 0;     // remote key,
    uint32_t ring_size = 0;    // bytes; 4 KiB .. 1 GiB
    uint16_t data_credits = 0; // data messages that may be in flight to it at once
    uint8_t control_credits = 0;
    uint8_t user_length = 0; // bytes of the user's private data after the hello
    uint16_t maps = 0;       // iomaps that the peer may announce; 0 also without support for iomaps

    enum class Error : uint8_t { none, too_short, magic, version, ring_size, credits, user_length };

    void encode(std::span<std::byte, size> out) const;

    // Reads the private data of a request or a reply. On success `hello` is filled in.
    static Error parse(std::span<const std::byte> data, Hello& hello);

    friend bool operator==(const Hello&, const Hello&) = default;
};

// Precedes the user's own data in a rejection, so that the connecting side can log the reason.
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
