// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A control message about a map: memory that its sender lets the peer write to, beside the stream. It has the size of
// the others, and no counters: 32 bytes just hold what the peer has to know. A map is named by its offset, of which
// there is one at a time in each direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "prov/rstream/wire/control.hpp"

namespace rstream::wire {

struct MapMessage {
    static constexpr size_t size = Control::size;

    enum class Type : uint8_t {
        map = 32,      // there it is
        unmap = 33,    // write there no more, and say so
        unmapped = 34, // the answer to unmap: nothing will be written there from here on
    };

    static constexpr uint64_t end_of_offsets = uint64_t{1} << 63; // which are those of files
    static constexpr uint64_t max_length = (uint64_t{1} << 48) - 1;

    Type type = Type::map;
    uint64_t offset = 0;
    // With map alone, zero otherwise.
    uint64_t length = 0;  // bytes, 1 .. max_length
    uint64_t address = 0; // of the first of them, as the core names remote memory
    uint64_t key = 0;     // remote key

    void encode(std::span<std::byte, size> out) const;

    // Nothing for a message that is not exactly of this form, or whose numbers leave their ranges.
    static std::optional<MapMessage> decode(std::span<const std::byte> data);

    friend bool operator==(const MapMessage&, const MapMessage&) = default;
};

} // namespace rstream::wire
