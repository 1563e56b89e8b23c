// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Channels: connected unix sockets between this process's service and those that it has met. Further connections
// between the same two processes are agreed on there with a few messages, in any number at once. The kernel says who is
// at the other end, and when that one is gone. On the service's thread; nothing blocks.
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
    // Whoever owns the other end of a connection has to be this one.
    [[nodiscard]] uid_t user() const { return user_; }
    // Whether a message can be sent that need not be. Answers find room then as well.
    [[nodiscard]] bool has_room() const;
    // With a descriptor beside it, if fd >= 0. False: there is no room, or nobody.
    bool send(const Proposal& proposal, int fd = -1);
    enum class Received : uint8_t { message, nothing, ended };
    // fd: kept (rendezvous/descriptors.hpp), and the caller's, or -1.
    Received receive(Proposal& out, int& fd);

    size_t offers = 0;    // made here and not answered
    bool waiting = false; // something could not be sent

  private:
    friend class Channels;
    int fd_ = -1;
    size_t buffer_ = 0; // of the socket, in bytes
    uint64_t service_ = 0;
    uid_t user_ = 0;
    uint64_t used_ = 0; // when, by Channels::clock_
    Ends last_;         // of a connection between both, as this process sees it
};

class Channels {
  public:
    static constexpr size_t capacity = 32;
    static constexpr size_t max_candidates = 4;

    explicit Channels(int epoll) : epoll_(epoll) {}

    // Whether there is none with this service, and it is another process's.
    [[nodiscard]] bool wants(uint64_t service) const;
    // The one used longest ago, if no further one can be added before it is closed.
    Channel* to_replace();
    // The socket of a meeting that has agreed on an upgrade. False: it could not be added, and is the caller's.
    bool add(int socket, uint64_t service, const Upgrade& upgrade);
    void close(Channel& channel);
    Channel* at(uint64_t event) {
        const size_t index = event & ~channel_bits;
        return index < capacity && channels_[index].in_use() ? &channels_[index] : nullptr;
    }
    // Those at which the other end of a connection is probably found.
    struct Candidates {
        std::array<Channel*, max_candidates> channels{};
        size_t count = 0;
    };
    Candidates candidates(const Upgrade& upgrade);
    // A connection was agreed on here.
    void note_use(Channel& channel, const Ends& ends);
    // Asks for an event when there is room, or does not.
    void watch_room(Channel& channel, bool wanted);

    // A service has said that the connection's other end is ready there, when this one was not.
    void note_heard(Channel& channel, const Ends& ends);
    Channel* heard(const Ends& ends);

  private:
    static constexpr uint64_t channel_bits = uint64_t{3} << 62;
    struct Heard {
        Ends ends;
        Channel* channel = nullptr;
    };

    Heard& heard_at(const Ends& ends);
    [[nodiscard]] uint64_t event_of(const Channel& channel) const;

    const int epoll_;
    uint64_t clock_ = 0;
    std::array<Channel, capacity> channels_;
    std::array<Heard, 256> heard_; // what is forgotten costs a message more
};

} // namespace preload::rendezvous
