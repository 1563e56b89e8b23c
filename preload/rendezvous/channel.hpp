// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Channels: connected unix sockets between this process's service and those that it has met. Further connections
// between the same two processes are agreed on there with a few messages, any number at a time. The kernel reports
// which user is at the other end, and when that process has ended. On the service's thread; nothing blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/upgrade.hpp"

namespace preload::rendezvous {

class Channel {
  public:
    [[nodiscard]] bool in_use() const { return fd_ >= 0; }
    // The other end of a connection must belong to this user.
    [[nodiscard]] uid_t user() const { return user_; }
    // Whether there is space for an optional message, and for answers after it.
    [[nodiscard]] bool has_space() const;
    // Passes a descriptor with it, if fd >= 0. False: there is no space, or no receiver.
    bool send(const Proposal& proposal, int fd = -1);
    enum class Received : uint8_t { message, nothing, ended };
    // fd: a kept descriptor (rendezvous/descriptors.hpp) that the caller owns, or -1.
    Received receive(Proposal& out, int& fd);

    size_t offers = 0;    // made here and not answered
    bool waiting = false; // a message could not be sent

  private:
    friend class Channels;
    int fd_ = -1;
    size_t buffer_ = 0; // of the socket, in bytes
    uint64_t service_ = 0;
    uid_t user_ = 0;
    uint64_t used_ = 0; // last use, by Channels::clock_
    Ends last_;         // of a connection between both, as this process sees it
};

class Channels {
  public:
    static constexpr size_t capacity = 32;
    static constexpr size_t max_candidates = 4;

    explicit Channels(int epoll) : epoll_(epoll) {}

    // Whether there is no channel to this service yet, and it is another process's.
    [[nodiscard]] bool wants(uint64_t service) const;
    // The least recently used channel, if one must be closed before another can be added; else null.
    Channel* to_replace();
    // Adds the socket of a meeting that has agreed on an upgrade. False: it could not be added, and stays the caller's.
    bool add(int socket, uint64_t service, const Upgrade& upgrade);
    void close(Channel& channel);
    void close_all();
    Channel* at(uint64_t event) {
        const size_t index = event & ~channel_bits;
        return index < capacity && channels_[index].in_use() ? &channels_[index] : nullptr;
    }
    // The channels on which the other end of a connection is probably reached.
    struct Candidates {
        std::array<Channel*, max_candidates> channels{};
        size_t count = 0;
    };
    Candidates candidates(const Upgrade& upgrade);
    // This channel was used to agree on a connection.
    void note_use(Channel& channel, const Ends& ends);
    // Starts or stops waiting for space.
    void watch_space(Channel& channel, bool wanted);

    // The peer has sent `ready` for a connection while this end was not ready.
    void note_ready(Channel& channel, const Ends& ends);
    Channel* ready_received_on(const Ends& ends);

  private:
    static constexpr uint64_t channel_bits = uint64_t{3} << 62;
    struct Ready {
        Ends ends;
        Channel* channel = nullptr;
    };

    Ready& ready_at(const Ends& ends);
    [[nodiscard]] uint64_t event_of(const Channel& channel) const;

    const int epoll_;
    uint64_t clock_ = 0;
    std::array<Channel, capacity> channels_;
    std::array<Ready, 256> ready_; // a lost entry costs one more message
};

} // namespace preload::rendezvous
