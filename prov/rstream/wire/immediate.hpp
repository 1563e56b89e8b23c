// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The 32-bit immediate that travels with every write into the peer's receive ring. Cores disagree on what the target of
// a write is told about it (tcp of libfabric 1.17 reports a length of 0), so the length is in here and nothing else is
// believed. 32 bits because that is all that verbs carries.
//
//   31   29 28      27      24 23                      0
//   +------+---------+----------+-----------------------+
//   | 0b101| wanted  | acks     | length, 1 .. 2^24 - 1 |
//   +------+---------+----------+-----------------------+
#pragma once

#include <cstdint>
#include <optional>

namespace rstream::wire {

struct Immediate {
    static constexpr uint32_t max_length = (1U << 24) - 1;
    static constexpr uint32_t max_acks = 15;

    uint32_t length = 0;        // bytes that this write put into the ring
    uint32_t control_acks = 0;  // control messages received since the last report
    bool credit_wanted = false; // the sender holds data back until its credit returns

    [[nodiscard]] constexpr uint32_t encode() const {
        return tag << 29 | static_cast<uint32_t>(credit_wanted) << 28 | (control_acks & max_acks) << 24 |
               (length & max_length);
    }

    // `raw` is what the core reported, up to 64 bits wide; bits beyond the 32nd must be clear.
    static constexpr std::optional<Immediate> decode(uint64_t raw) {
        if (raw >> 29 != tag || (raw & max_length) == 0) {
            return std::nullopt;
        }
        const auto bits = static_cast<uint32_t>(raw);
        return Immediate{bits & max_length, bits >> 24 & max_acks, (bits >> 28 & 1) != 0};
    }

  private:
    static constexpr uint32_t tag = 0b101; // neither zero nor all ones, which a stray write is likely to carry
};

} // namespace rstream::wire
