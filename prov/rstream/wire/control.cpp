// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/control.hpp"

#include "prov/rstream/wire/bytes.hpp"

namespace rstream::wire {

void Control::encode(std::span<std::byte, size> out) const {
    Writer w(out);
    w.put(static_cast<uint8_t>(type));
    w.put(flags);
    w.put(uint16_t{0});
    w.put(argument);
    w.put(consumed);
    w.put(data_arrived);
    w.put(control_arrived);
}

std::optional<Control> Control::decode(std::span<const std::byte> data) {
    if (data.size() != size) {
        return std::nullopt;
    }
    Reader r(data);
    Control c;
    const auto type = r.get<uint8_t>();
    if (type < static_cast<uint8_t>(Type::credit) || type > static_cast<uint8_t>(Type::data)) {
        return std::nullopt;
    }
    c.type = static_cast<Type>(type);
    c.flags = r.get<uint8_t>();
    if ((c.flags & ~flag_closed) != 0 || (c.flags != 0 && c.type != Type::fin) || r.get<uint16_t>() != 0) {
        return std::nullopt;
    }
    c.argument = r.get<uint32_t>();
    c.consumed = r.get<uint64_t>();
    c.data_arrived = r.get<uint64_t>();
    c.control_arrived = r.get<uint64_t>();
    return c;
}

} // namespace rstream::wire
