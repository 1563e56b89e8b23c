// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/hello.hpp"

#include "prov/rstream/wire/bytes.hpp"
#include "prov/rstream/wire/limits.hpp"

namespace rstream::wire {

namespace {
constexpr uint32_t magic = 0x7254534d; // "MSTr" in a dump of the little-endian bytes
} // namespace

void Hello::encode(std::span<std::byte, size> out) const {
    Writer w(out);
    w.put(magic);
    w.put(protocol_version);
    w.put(features);
    w.put(data_credits);
    w.put(session);
    w.put(ring_address);
    w.put(ring_key);
    w.put(ring_size);
    w.put(control_credits);
    w.put(user_length);
    w.put(maps);
}

Hello::Error Hello::parse(std::span<const std::byte> data, Hello& hello) {
    if (data.size() < size) {
        return Error::too_short;
    }
    Reader r(data);
    if (r.get<uint32_t>() != magic) {
        return Error::magic;
    }
    if (r.get<uint8_t>() != protocol_version) {
        return Error::version;
    }
    Hello h;
    h.features = r.get<uint8_t>();
    h.data_credits = r.get<uint16_t>();
    h.session = r.get<uint64_t>();
    h.ring_address = r.get<uint64_t>();
    h.ring_key = r.get<uint64_t>();
    h.ring_size = r.get<uint32_t>();
    h.control_credits = r.get<uint8_t>();
    h.user_length = r.get<uint8_t>();
    h.maps = r.get<uint16_t>();
    if (h.ring_size < min_buffer || h.ring_size > max_buffer) {
        return Error::ring_size;
    }
    if (h.data_credits < min_queue || h.data_credits > max_queue || h.control_credits < min_control_credits) {
        return Error::credits;
    }
    if (h.user_length > data.size() - size) {
        return Error::user_length;
    }
    hello = h;
    return Error::none;
}

void Reject::encode(std::span<std::byte, size> out) const {
    Writer w(out);
    w.put(magic);
    w.put(protocol_version);
    w.put(static_cast<uint8_t>(reason));
    w.put(user_length);
    w.put(uint8_t{0});
}

std::optional<Reject> Reject::parse(std::span<const std::byte> data) {
    if (data.size() < size) {
        return std::nullopt;
    }
    Reader r(data);
    if (r.get<uint32_t>() != magic) {
        return std::nullopt;
    }
    r.skip(sizeof(uint8_t)); // any version: the rejection by a peer of another one must stay readable
    Reject reject;
    const auto reason = r.get<uint8_t>();
    reject.reason = reason <= static_cast<uint8_t>(Reason::resources) ? static_cast<Reason>(reason) : Reason::resources;
    reject.user_length = r.get<uint8_t>();
    if (reject.user_length > data.size() - size) {
        return std::nullopt;
    }
    return reject;
}

const char* to_string(Hello::Error error) {
    switch (error) {
    case Hello::Error::none:
        return "no error";
    case Hello::Error::too_short:
        return "no rstream hello in the private data";
    case Hello::Error::magic:
        return "not an rstream peer (magic differs)";
    case Hello::Error::version:
        return "rstream protocol version differs";
    case Hello::Error::ring_size:
        return "receive buffer size out of range";
    case Hello::Error::credits:
        return "number of credits out of range";
    case Hello::Error::user_length:
        return "length of the user's private data exceeds what came";
    }
    return "unknown error";
}

const char* to_string(Reject::Reason reason) {
    switch (reason) {
    case Reject::Reason::user:
        return "rejected by the program";
    case Reject::Reason::hello:
        return "the peer could not read our hello";
    case Reject::Reason::version:
        return "the peer speaks another protocol version";
    case Reject::Reason::backlog:
        return "the peer's backlog is full";
    case Reject::Reason::resources:
        return "the peer is out of resources";
    }
    return "unknown reason";
}

} // namespace rstream::wire
