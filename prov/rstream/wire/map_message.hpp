// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A control message about an iomap: memory that its sender lets the peer write to, out of band. It has the size of the
// other control messages, and no counters: 32 bytes just hold the fields of an iomap. An iomap is identified by its
// offset, which is unique at any time in each direction.
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
        map = 32,      // announces an iomap
        unmap = 33,    // the peer must write there no more, and confirm it
        unmapped = 34, // confirms an unmap: no write follows from here on
    };

    static constexpr uint64_t end_of_offsets = uint64_t{1} << 63; // the range of file offsets
    static constexpr uint64_t max_length = (uint64_t{1} << 48) - 1;

    Type type = Type::map;
    uint64_t offset = 0;
    // For type map only, zero otherwise.
    uint64_t length = 0;  // bytes, 1 .. max_length
    uint64_t address = 0; // of the first byte, as the core addresses remote memory
    uint64_t key = 0;     // remote key

    void encode(std::span<std::byte, size> out) const;

    // Nothing for a message that is not exactly of this format, or has values out of range.
    static std::optional<MapMessage> decode(std::span<const std::byte> data);

    friend bool operator==(const MapMessage&, const MapMessage&) = default;
};

} // namespace rstream::wire
