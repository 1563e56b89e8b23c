// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/map_message.hpp"

#include "prov/rstream/wire/bytes.hpp"

namespace rstream::wire {

void MapMessage::encode(std::span<std::byte, size> out) const {
    Writer w(out);
    w.put(static_cast<uint8_t>(type));
    w.put(uint8_t{0});
    w.put(static_cast<uint16_t>(length >> 32));
    w.put(static_cast<uint32_t>(length));
    w.put(offset);
    w.put(address);
    w.put(key);
}

std::optional<MapMessage> MapMessage::decode(std::span<const std::byte> data) {
    if (data.size() != size) {
        return std::nullopt;
    }
    Reader r(data);
    MapMessage m;
    const auto type = r.get<uint8_t>();
    if (type < static_cast<uint8_t>(Type::map) || type > static_cast<uint8_t>(Type::unmapped) ||
        r.get<uint8_t>() != 0) {
        return std::nullopt;
    }
    m.type = static_cast<Type>(type);
    const auto high = r.get<uint16_t>();
    m.length = uint64_t{high} << 32 | r.get<uint32_t>();
    m.offset = r.get<uint64_t>();
    m.address = r.get<uint64_t>();
    m.key = r.get<uint64_t>();
    const bool sound = m.type == Type::map
                           ? m.length != 0 && m.offset < end_of_offsets && m.length <= end_of_offsets - m.offset &&
                                 m.address <= UINT64_MAX - m.length
                           : m.length == 0 && m.offset < end_of_offsets && m.address == 0 && m.key == 0;
    return sound ? std::optional<MapMessage>(m) : std::nullopt;
}

} // namespace rstream::wire
