// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/control.hpp"

#include "prov/rstream/wire/bytes.hpp"

namespace rstream::wire {

namespace {

bool is_known(uint8_t type) {
    switch (static_cast<Control::Type>(type)) {
    case Control::Type::credit:
    case Control::Type::fin:
    case Control::Type::rst:
    case Control::Type::data:
    case Control::Type::grow:
    case Control::Type::offer:
    case Control::Type::move:
        return true;
    }
    return false;
}

} // namespace

void Control::encode(std::span<std::byte, size> out) const {
    Writer w(out);
    w.put(static_cast<uint8_t>(type));
    w.put(flags);
    w.put(uint16_t{0});
    w.put(argument);
    w.put(type == Type::offer ? address : consumed);
    w.put(type == Type::offer ? key : data_arrived);
    w.put(control_arrived);
}

std::optional<Control> Control::decode(std::span<const std::byte> data) {
    if (data.size() != size) {
        return std::nullopt;
    }
    Reader r(data);
    Control c;
    const auto type = r.get<uint8_t>();
    if (!is_known(type)) {
        return std::nullopt;
    }
    c.type = static_cast<Type>(type);
    c.flags = r.get<uint8_t>();
    if ((c.flags & ~flag_closed) != 0 || (c.flags != 0 && c.type != Type::fin) || r.get<uint16_t>() != 0) {
        return std::nullopt;
    }
    c.argument = r.get<uint32_t>();
    (c.type == Type::offer ? c.address : c.consumed) = r.get<uint64_t>();
    (c.type == Type::offer ? c.key : c.data_arrived) = r.get<uint64_t>();
    c.control_arrived = r.get<uint64_t>();
    return c;
}

} // namespace rstream::wire
