// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the tests of the sending half share: one on a core that is a test's, and the peer's answers.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "prov/rstream/stream/test/parts_scene.hpp"
#include "prov/rstream/stream/transmit.hpp"

namespace rstream {

inline constexpr size_t queue_size = 16;
inline constexpr size_t chunk = PartsScene::staging_size / 2; // two writes at once

struct TransmitScene final : PartsScene, Transmit::Events {
    explicit TransmitScene(const Config& config, size_t staging_limit = 0)
        : PartsScene(config),
          transmit({core.endpoint(), link, messages, lifecycle, readiness, keepalive}, staging_limit, *this),
          maps(4, 4) {
        ready = ready && transmit.open(staging_size, queue_size, idle) == 0;
        open_link(config.headers, &maps);
        transmit.start();
    }
    virtual ~TransmitScene() = default;
    void on_needs_progress(bool wanted) override {
        if (std::exchange(no_memory, false)) {
            throw std::bad_alloc();
        }
        needs = wanted;
    }
    void on_post_error(int failure) override { post_error = failure; }

    ssize_t send(const std::string& bytes, bool more = false) {
        const iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
        return transmit.send(&iov, 1, more, left);
    }
    ssize_t send(size_t length) { return send(std::string(length, 'x')); }
    ssize_t write(size_t length, uint64_t offset) {
        const std::string bytes(length, 'w');
        return transmit.write(&maps, reinterpret_cast<const std::byte*>(bytes.data()), length, offset, false, left);
    }
    // The core is done with all that it was given.
    void complete_all() {
        for (; completed < core.operations.size(); ++completed) {
            if ((core.operations[completed].flags & FI_COMPLETION) != 0) {
                transmit.complete(core.operations[completed].context);
            }
        }
    }
    // The peer has read all, and returns the credit.
    void acknowledge_all() {
        sent_before += count_bytes();
        const char* found = link.on_control(wire::report(sent_before, messages_sent(), controls_sent()));
        broken = broken != nullptr ? broken : found;
    }
    [[nodiscard]] size_t count_bytes() {
        size_t bytes = 0;
        for (; counted < core.operations.size(); ++counted) {
            const auto& operation = core.operations[counted];
            bytes += operation.kind == FakeCore::Kind::write || operation.kind == FakeCore::Kind::inject_write
                         ? operation.bytes.size()
                         : 0;
        }
        return bytes;
    }
    [[nodiscard]] uint64_t messages_sent() const {
        return core.count(FakeCore::Kind::write) + core.count(FakeCore::Kind::inject_write);
    }
    [[nodiscard]] uint64_t controls_sent() const {
        return core.count(FakeCore::Kind::send) + core.count(FakeCore::Kind::inject);
    }

    Transmit transmit;
    wire::Maps maps;
    Transmit::Leftover left;
    bool needs = false;
    bool no_memory = false; // the next report of `needs` throws
    int post_error = 0;
    size_t completed = 0;
    size_t counted = 0;
    uint64_t sent_before = 0;
    const char* broken = nullptr; // a rule, by the test itself
};

inline int make_scene(void** state, const PartsScene::Config& config, size_t staging_limit = 0, bool connected = true) {
    auto scene = std::make_unique<TransmitScene>(config, staging_limit);
    if (connected) {
        scene->connect();
    }
    const bool ready = scene->ready;
    *state = scene.release();
    return ready ? 0 : -1;
}

inline int tear_down_scene(void** state) {
    const std::unique_ptr<TransmitScene> scene(static_cast<TransmitScene*>(*state));
    return 0;
}

inline TransmitScene& scene_of(void** state) { return *static_cast<TransmitScene*>(*state); }

} // namespace rstream
