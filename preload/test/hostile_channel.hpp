// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that was met, and says on the channel what it likes: of connections that it has, and of others.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/path/segment.hpp"
#include "preload/rendezvous/message.hpp"

namespace hostile {

// A message with descriptors beside it. False: it could not be sent.
using SendFiles = std::function<bool(int socket, const void* data, size_t size, const std::vector<int>& files)>;
// A memory file, right or wrong in some way, with this token; -1: none.
using MakeFile = std::function<int(uint64_t token)>;

class ChannelAbuse {
  public:
    ChannelAbuse(int channel, std::mt19937_64& random, SendFiles send, MakeFile file)
        : channel_(channel), random_(random), send_(std::move(send)), file_(std::move(file)) {}
    ~ChannelAbuse() {
        for (const int fd : connections_) {
            close(fd);
        }
    }
    ChannelAbuse(const ChannelAbuse&) = delete;
    ChannelAbuse& operator=(const ChannelAbuse&) = delete;

    // fd: to the victim, which has echoed what makes it worth an upgrade.
    void add(int fd) { connections_.push_back(fd); }

    void run(int steps) {
        for (int i = 0; i < steps; ++i) {
            step();
            take_what_came();
        }
    }

  private:
    uint64_t draw(uint64_t limit) { return random_() % limit; }

    static preload::rendezvous::Address address_of(const sockaddr_in& from) {
        preload::rendezvous::Address address;
        address.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        memcpy(address.bytes.data() + 12, &from.sin_addr, 4);
        address.port = ntohs(from.sin_port);
        return address;
    }

    preload::rendezvous::Ends some_ends() {
        preload::rendezvous::Ends ends;
        if (connections_.empty()) {
            return ends;
        }
        const int fd = connections_[draw(connections_.size())];
        sockaddr_in own{};
        sockaddr_in peer{};
        socklen_t length = sizeof(own);
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length);
        length = sizeof(peer);
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length);
        ends = {address_of(own), address_of(peer)};
        if (draw(4) == 0) {
            ends.own.port = static_cast<uint16_t>(random_()); // another process's, perhaps
        }
        return ends;
    }

    void say(uint32_t kind, uint64_t token) {
        preload::rendezvous::Proposal proposal;
        proposal.kind = kind;
        proposal.token = token;
        proposal.ends = some_ends();
        proposal.bytes = draw(4) == 0 ? static_cast<uint32_t>(random_()) : preload::path::file_bytes;
        std::vector<int> files;
        int file = -1;
        if (kind == preload::rendezvous::Proposal::offer && (file = file_(token)) >= 0) {
            files.push_back(file);
        }
        (void)send_(channel_, &proposal, sizeof(proposal), files);
        if (file >= 0) {
            close(file);
        }
    }

    void step() {
        using preload::rendezvous::Proposal;
        switch (draw(12)) {
        case 0: // nobody's message, which ends the channel
            if (draw(8) == 0) {
                std::array<uint64_t, 16> bytes{};
                for (uint64_t& word : bytes) {
                    word = random_();
                }
                (void)send_(channel_, bytes.data(), draw(sizeof(bytes)), {0, 1});
            }
            break;
        case 1:
        case 2:
        case 3:
            say(Proposal::offer, random_() | 1);
            break;
        case 4:
            say(Proposal::taken, draw(2) == 0 && last_token_ != 0 ? last_token_ : random_() | 1);
            break;
        case 5:
            say(Proposal::declined, draw(2) == 0 && last_token_ != 0 ? last_token_ : random_() | 1);
            break;
        case 6:
            for (int i = 0; i < 200; ++i) {
                say(Proposal::ready, 0);
            }
            break;
        default:
            say(Proposal::ready, 0);
        }
    }

    void take_what_came() {
        if (draw(6) == 0) {
            return;
        }
        pollfd one{channel_, POLLIN, 0};
        while (poll(&one, 1, draw(4) == 0 ? 2 : 0) > 0) {
            preload::rendezvous::Proposal proposal;
            iovec part{&proposal, sizeof(proposal)};
            alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
            msghdr message{};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            message.msg_control = control.data();
            message.msg_controllen = control.size();
            if (recvmsg(channel_, &message, MSG_DONTWAIT) <= 0) {
                return;
            }
            if (CMSG_FIRSTHDR(&message) != nullptr) {
                int file = -1;
                memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
                close(file);
                last_token_ = proposal.token;
            }
        }
    }

    const int channel_;
    std::mt19937_64& random_;
    SendFiles send_;
    MakeFile file_;
    std::vector<int> connections_;
    uint64_t last_token_ = 0;
};

} // namespace hostile
