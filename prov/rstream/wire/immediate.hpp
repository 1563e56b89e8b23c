// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The 32-bit immediate of every write into the peer's receive ring. Cores differ in what they report of a write to its
// target (tcp of libfabric 1.17 reports a length of 0), so the length is in the immediate and no other value is
// trusted. It has 32 bits because verbs carries no more.
//
//   31   29 28      27      24 23                      0
//   +------+---------+----------+-----------------------+
//   | 0b101| wanted  | acks     | length, 1 .. 2^24 - 1 |
//   +------+---------+----------+-----------------------+
//
// A short write has space to acknowledge data messages of the opposite direction, so that requests and replies
// acknowledge each other. The receiver has declared in its hello that it supports this form.
//
//   31   29 28      27      24 23        13 12              0
//   +------+---------+----------+-----------+----------------+
//   | 0b110| wanted  | acks     | data acks | length         |
//   +------+---------+----------+-----------+----------------+
//                                 1 .. 2047   1 .. 8191
#pragma once

#include <cstdint>
#include <optional>

namespace rstream::wire {

struct Immediate {
    static constexpr uint32_t max_length = (1U << 24) - 1;
    static constexpr uint32_t max_acks = 15;
    static constexpr uint32_t max_short_length = (1U << 13) - 1;
    static constexpr uint32_t max_data_acks = (1U << 11) - 1;

    uint32_t length = 0;        // bytes that this write put into the ring
    uint32_t control_acks = 0;  // control messages received since the last report
    bool credit_wanted = false; // the sender holds data back until its credit returns
    uint32_t data_acks = 0;     // data messages received since the last report; short writes only

    [[nodiscard]] constexpr uint32_t encode() const {
        const uint32_t common = static_cast<uint32_t>(credit_wanted) << 28 | (control_acks & max_acks) << 24;
        if (data_acks == 0) {
            return tag << 29 | common | (length & max_length);
        }
        return short_tag << 29 | common | (data_acks & max_data_acks) << 13 | (length & max_short_length);
    }

    // `raw` is the value that the core reported, up to 64 bits wide; bits beyond the 32nd must be clear.
    static constexpr std::optional<Immediate> decode(uint64_t raw) {
        const auto bits = static_cast<uint32_t>(raw);
        Immediate immediate{0, bits >> 24 & max_acks, (bits >> 28 & 1) != 0};
        if (raw >> 29 == tag) {
            immediate.length = bits & max_length;
        } else if (raw >> 29 == short_tag && (bits >> 13 & max_data_acks) != 0) {
            immediate.length = bits & max_short_length;
            immediate.data_acks = bits >> 13 & max_data_acks;
        }
        return immediate.length != 0 ? std::optional(immediate) : std::nullopt;
    }

  private:
    // Neither zero nor all ones, which a stray write is likely to carry; the two differ in two bits.
    static constexpr uint32_t tag = 0b101;
    static constexpr uint32_t short_tag = 0b110;
};

} // namespace rstream::wire
