// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the larger parts of a stream share, on a core that is a test's: a stream that is connected to a peer of which
// there are only its messages.
#pragma once

#include "prov/rstream/stream/keepalive.hpp"
#include "prov/rstream/stream/lifecycle.hpp"
#include "prov/rstream/stream/message_slots.hpp"
#include "prov/rstream/stream/readiness.hpp"
#include "prov/rstream/stream/test/fake_core.hpp"
#include "prov/rstream/test/wire_test.hpp"

namespace rstream {

struct PartsScene {
    static constexpr size_t staging_size = 8192;
    static constexpr size_t ring_size = 65536;
    static constexpr uint64_t ring_address = 0x10000000;
    static constexpr uint64_t ring_key = 77;

    struct Config {
        CoreProperties properties{};
        size_t inject_size = 0;
        bool headers = false;
        size_t ring_limit = 0;
    };

    explicit PartsScene(const Config& config)
        : core(config.properties, config.inject_size), link({staging_size, ring_size, 384, config.ring_limit}),
          keepalive(core.endpoint(), {}) {
        ready = core.opened() && messages.open(wire::control_credits, 16, false, idle) == 0;
    }
    // The peer offers its ring; and the stream is connected.
    void open_link(bool headers, wire::Maps* maps = nullptr) {
        wire::Hello hello = wire::peer_hello(ring_size);
        hello.ring_address = ring_address;
        hello.ring_key = ring_key;
        hello.features = wire::Hello::feature_growth | wire::Hello::feature_shrink;
        link.open(hello, headers, wire::Immediate::max_length, maps);
    }
    void connect() {
        lifecycle.move(State::preparing);
        lifecycle.move(State::connecting);
        lifecycle.move(State::connected);
    }

    FakeCore core;
    IdleBuffers idle;
    wire::Link link;
    MessageSlots messages;
    Lifecycle lifecycle;
    Readiness readiness;
    Keepalive keepalive;
    bool ready = false;
};

// A message as the core was given it.
inline std::optional<wire::Control> control_of(const FakeCore::Operation& operation) {
    return wire::Control::decode(std::as_bytes(std::span(operation.bytes)));
}

} // namespace rstream
