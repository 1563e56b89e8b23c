// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A control message: a two-sided send of fixed size. Each carries the sender's counters, as totals since the stream
// began, so that a lost or repeated report does no harm and a check needs no history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rstream::wire {

struct Control {
    static constexpr size_t size = 32;

    enum class Type : uint8_t {
        credit = 1, // counters only
        fin = 2,    // no more data will follow
        rst = 3,    // the stream is over and unread data is lost
        data = 4,   // announces a write, on a core whose writes carry no immediate; `argument` is the immediate
        // Buffer resize, see growth.hpp.
        grow = 16,  // the window blocks the sender: requests a larger ring
        offer = 17, // a ring of `argument` bytes; `address` and `key` replace the first two totals
        move = 18,  // from position `argument` (low 32 bits) on, data goes to the ring offered last
    };

    static constexpr uint8_t flag_closed = 1; // with fin: the sender reads no more data either

    Type type = Type::credit;
    uint8_t flags = 0;
    uint32_t argument = 0;
    uint64_t consumed = 0;        // stream bytes consumed from the ring
    uint64_t data_arrived = 0;    // data messages received
    uint64_t control_arrived = 0; // control messages received (type data excluded)
    uint64_t address = 0;         // offer only
    uint64_t key = 0;

    void encode(std::span<std::byte, size> out) const;

    // Nothing for a message that is not exactly of this form.
    static std::optional<Control> decode(std::span<const std::byte> data);

    friend bool operator==(const Control&, const Control&) = default;
};

} // namespace rstream::wire
