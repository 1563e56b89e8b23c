// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Lies about sleepers: ids in the memory that nobody has, or that this end has seen elsewhere, and messages to the
// victim's service that ask for descriptors or give some that nobody has asked for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "preload/path/segment.hpp"
#include "preload/rendezvous/message.hpp"

namespace hostile {

class Sleepers {
  public:
    explicit Sleepers(std::mt19937_64& random) : random_(random) {}

    // What the victim has written is remembered, and told to other connections.
    uint64_t any(const preload::path::Segment& segment) {
        for (const preload::path::Direction& d : segment.direction) {
            see(d.wake.data_wanted);
            see(d.wake.space_wanted);
        }
        const uint64_t seen = count_ != 0 ? seen_[draw(std::min<uint64_t>(count_, seen_.size()))] : random_();
        switch (draw(6)) {
        case 0:
            return preload::path::nobody;
        case 1:
            return preload::path::by_frame;
        case 2:
            return random_();
        case 3:
            return seen ^ draw(64); // another one of that process, or none of its own
        case 4:
            return UINT64_MAX - draw(3);
        default:
            return seen;
        }
    }

    // To the services of both ends, one of which is the victim's.
    void send_message(const preload::path::Segment& segment) {
        const int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        const uint64_t token = draw(4) != 0 ? segment.token : random_();
        for (const auto& service : segment.service) {
            sockaddr_un to{};
            to.sun_family = AF_UNIX;
            const int length = snprintf(to.sun_path + 1, sizeof(to.sun_path) - 1, "rspreload/%016llx",
                                        static_cast<unsigned long long>(service.load()));
            const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
            if (draw(2) == 0) {
                preload::rendezvous::WakeupWanted wanted;
                wanted.token = token;
                wanted.id = any(segment);
                (void)sendto(from, &wanted, sizeof(wanted), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to), size);
            } else {
                preload::rendezvous::WakeupGiven given;
                given.token = token;
                given.id = any(segment);
                send_given(from, given, to, size);
            }
        }
        close(from);
    }

  private:
    uint64_t draw(uint64_t limit) { return random_() % limit; }
    void see(uint64_t sleeper) {
        if (sleeper > preload::path::by_frame) {
            seen_[count_++ % seen_.size()] = sleeper;
        }
    }
    void send_given(int from, const preload::rendezvous::WakeupGiven& given, sockaddr_un& to, socklen_t size) {
        int file = -1;
        switch (draw(3)) {
        case 0:
            file = eventfd(0, EFD_CLOEXEC);
            break;
        case 1:
            file = open("/dev/null", O_WRONLY | O_CLOEXEC);
            break;
        default: // none
            break;
        }
        iovec part{const_cast<preload::rendezvous::WakeupGiven*>(&given), sizeof(given)};
        msghdr message{};
        message.msg_name = &to;
        message.msg_namelen = size;
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
        if (file >= 0) {
            message.msg_control = control.data();
            message.msg_controllen = control.size();
            cmsghdr* header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(header), &file, sizeof(file));
        }
        (void)sendmsg(from, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (file >= 0) {
            close(file);
        }
    }

    std::mt19937_64& random_;
    std::array<uint64_t, 64> seen_{};
    uint64_t count_ = 0;
};

} // namespace hostile
