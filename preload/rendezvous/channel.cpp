// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/channel.hpp"

#include <algorithm>

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/loop.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service.hpp"

namespace preload::rendezvous {

bool Channel::has_space() const {
    int queued = 0;
    return sys::call(SYS_ioctl, fd_, SIOCOUTQ, &queued) == 0 && static_cast<size_t>(queued) < buffer_ / 2;
}

bool Channel::send(const Proposal& proposal, int fd) { return send_with(fd_, &proposal, sizeof(proposal), fd); }

Channel::Received Channel::receive(Proposal& out, int& fd) {
    std::array<uint8_t, sizeof(Proposal) + 1> bytes{};
    iovec part{bytes.data(), bytes.size()};
    Control control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof(control.bytes);
    Passed passed{};
    const long n = receive_with(fd_, header, passed, user_);
    if (n == -EAGAIN || n == -EINTR) {
        return Received::nothing;
    }
    fd = passed[0];
    descriptors::close(passed[1]);
    const auto proposal = parse<Proposal>({bytes.data(), static_cast<size_t>(std::max(n, 0L))});
    if (!proposal) { // EOF, or a peer that does not use this protocol
        return Received::ended;
    }
    out = *proposal;
    return Received::message;
}

bool Channels::wants(uint64_t service) const {
    return service != service::own_name() && std::none_of(channels_.begin(), channels_.end(), [&](const Channel& one) {
               return one.in_use() && one.service_ == service;
           });
}

Channel* Channels::to_replace() {
    Channel* oldest = &channels_[0];
    for (Channel& one : channels_) {
        if (!one.in_use()) {
            return nullptr;
        }
        oldest = one.used_ < oldest->used_ ? &one : oldest;
    }
    return oldest;
}

bool Channels::add(int socket, uint64_t service, const Upgrade& upgrade) {
    const auto found =
        std::find_if(channels_.begin(), channels_.end(), [](const Channel& one) { return !one.in_use(); });
    if (found == channels_.end()) {
        return false;
    }
    Channel& made = *found;
    int buffer = 0;
    socklen_t length = sizeof(buffer);
    if (sys::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer, &length) != 0 ||
        !watch(epoll_, socket, EPOLLIN, event_of(made))) {
        return false;
    }
    made = Channel();
    made.fd_ = socket;
    made.buffer_ = static_cast<size_t>(buffer);
    made.service_ = service;
    made.user_ = upgrade.user;
    note_use(made, upgrade.ends);
    return true;
}

void Channels::close(Channel& channel) {
    for (Ready& one : ready_) {
        if (one.channel == &channel) {
            one.channel = nullptr;
        }
    }
    unwatch(epoll_, channel.fd_);
    close_of_user(channel.fd_, channel.user_);
    channel = Channel();
}

void Channels::close_all() {
    for (Channel& one : channels_) {
        if (one.in_use()) {
            close(one);
        }
    }
}

// A server's channel is found by its address. A client's is not, but the client finds the channel by the address to
// which it has connected.
Channels::Candidates Channels::candidates(const Upgrade& upgrade) {
    Candidates found;
    for (Channel& one : channels_) {
        if (!one.in_use() || one.user_ != upgrade.user ||
            (one.last_.peer != upgrade.ends.peer && one.last_.own != upgrade.ends.own)) {
            continue;
        }
        if (found.count < max_candidates) {
            found.channels[found.count++] = &one;
            continue;
        }
        const auto oldest = std::min_element(found.channels.begin(), found.channels.end(),
                                             [](const Channel* a, const Channel* b) { return a->used_ < b->used_; });
        if ((*oldest)->used_ < one.used_) {
            *oldest = &one;
        }
    }
    return found;
}

void Channels::note_use(Channel& channel, const Ends& ends) {
    channel.used_ = ++clock_;
    channel.last_ = ends;
}

// Without a notification, the deadlines of those that wait end the wait.
void Channels::watch_space(Channel& channel, bool wanted) {
    watch(epoll_, channel.fd_, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, event_of(channel));
}

uint64_t Channels::event_of(const Channel& channel) const {
    return channel_mark | static_cast<uint64_t>(&channel - channels_.data());
}

Channels::Ready& Channels::ready_at(const Ends& ends) {
    return ready_[(ends.own.port * 31U + ends.peer.port) % ready_.size()];
}

void Channels::note_ready(Channel& channel, const Ends& ends) { ready_at(ends) = {ends, &channel}; }

Channel* Channels::ready_received_on(const Ends& ends) {
    const Ready& found = ready_at(ends);
    return found.ends == ends ? found.channel : nullptr;
}

} // namespace preload::rendezvous
