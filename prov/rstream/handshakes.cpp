// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/handshakes.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

bool listens(int fd) {
    int value = 0;
    socklen_t length = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &length) == 0 && value == 1;
}

// An open socket: this cannot fail.
void do_not_block(int fd) {
    int on = 1;
    ioctl(fd, FIONBIO, &on);
}

// Fails if it is not connected any more, or does not listen: then there is nothing to end.
void end_both_directions(int fd) { ::shutdown(fd, SHUT_RDWR); }

// Whether the core can read its request without blocking, or sees that there is none: a header of 32 bytes, whose third
// and fourth byte are the length of the rest.
bool is_whole(int fd) {
    constexpr ssize_t header = 32;
    constexpr size_t max_more = 256; // the core reads no more than that
    std::array<uint8_t, header + max_more> bytes;
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
        return true;
    }
    const size_t more = got >= header ? static_cast<size_t>(bytes[2] << 8 | bytes[3]) : 0;
    return got >= header && (more > max_more || got >= header + static_cast<ssize_t>(more));
}

} // namespace

// False if out of fds or memory.
bool Handshakes::list(std::vector<Member>& out) {
    for (WatchList& list : sets_) {
        std::vector<Watched> found;
        if (list.read(found)) {
            for (const Watched& one : found) {
                out.push_back({one, list.set()});
            }
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
            return false;
        }
        RSTREAM_WARN(
            FI_LOG_EP_CTRL,
            "/proc/self/fdinfo cannot be read: whoever connects and says half a request holds up this process\n");
        blind_ = true;
        return true;
    }
    return true;
}

void Handshakes::open_held() {
    if (held_.get() < 0) {
        held_ = base::Descriptor(epoll_create1(EPOLL_CLOEXEC));
    }
}

// False: the core can read it now, or it cannot be removed from the core's set.
bool Handshakes::hold(const Member& member, Time now, std::vector<Handshake>& out) {
    const int fd = member.watched.fd;
    if (is_whole(fd)) {
        return false;
    }
    open_held();
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET; // wake for new bytes only
    event.data.fd = fd;
    if (epoll_ctl(held_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        return false;
    }
    epoll_ctl(member.set, EPOLL_CTL_DEL, fd, nullptr);
    out.push_back({fd, member.watched.inode, now, false, member.set, member.watched.data});
    return true;
}

void Handshakes::give_back(Handshake& handshake) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = handshake.data;
    epoll_ctl(held_.get(), EPOLL_CTL_DEL, handshake.fd, nullptr);
    epoll_ctl(handshake.set, EPOLL_CTL_ADD, handshake.fd, &event);
    handshake.set = -1;
}

bool Handshakes::check_held() {
    constexpr int at_once = 64;
    if (held_.get() < 0) {
        return false;
    }
    bool any = false;
    epoll_event events[at_once];
    for (int found = at_once; found == at_once;) {
        found = epoll_wait(held_.get(), events, at_once, 0);
        for (int i = 0; i < found; ++i) {
            const auto one = std::find_if(handshakes_.begin(), handshakes_.end(), [&](const Handshake& handshake) {
                return handshake.fd == events[i].data.fd && handshake.set >= 0;
            });
            if (one != handshakes_.end() && is_whole(one->fd)) {
                give_back(*one);
                handshakes_.erase(one);
                any = true;
            }
        }
    }
    return any;
}

Handshakes::Found Handshakes::check(Time now) {
    std::vector<Member> members;
    if (!blind_ && !list(members)) {
        return Found::unknown;
    }
    bool changed = check_held();
    std::vector<Handshake> present;
    present.reserve(members.size());
    std::copy_if(handshakes_.begin(), handshakes_.end(), std::back_inserter(present),
                 [](const Handshake& one) { return one.set >= 0; });
    std::vector<Member> unknown;
    for (const Member& member : members) {
        const int fd = member.watched.fd;
        const auto known = std::find_if(handshakes_.begin(), handshakes_.end(), [&](const Handshake& one) {
            return one.fd == fd && one.inode == member.watched.inode && one.set < 0;
        });
        if (known != handshakes_.end()) {
            present.push_back(*known);
        } else if (std::find(lasting_.begin(), lasting_.end(), fd) == lasting_.end()) {
            unknown.push_back(member);
        }
    }
    changed = changed || present.size() != handshakes_.size();
    bool inner = false;
    std::sort(present.begin(), present.end(), [](const auto& a, const auto& b) { return a.since < b.since; });
    for (const Member& member : unknown) {
        const int fd = member.watched.fd;
        close_on_exec(fd);
        const bool stream = socket_protocol(fd) == IPPROTO_TCP;
        if (stream && (listener_ >= 0 || !listens(fd))) { // the queue has one listener
            if (member.set != sets_.front().set()) {
                changed = hold(member, now, present) || changed;
                continue;
            }
            do_not_block(fd);
            present.push_back({fd, member.watched.inode, now, false});
            changed = true;
            continue;
        }
        lasting_.push_back(fd);
        if (stream) {
            listener_ = fd;
        } else if (is_epoll_set(fd)) {
            sets_.emplace_back(fd);
            inner = true;
            open_held(); // at the first look, so that a listener's fds do not get more later
        }
    }
    handshakes_ = std::move(present);
    if (inner) { // its members belong to the queue too
        return check(now) == Found::unknown ? Found::unknown : Found::changed;
    }
    size_t waiting = static_cast<size_t>(
        std::count_if(handshakes_.begin(), handshakes_.end(), [](const Handshake& one) { return !one.ended; }));
    for (Handshake& one : handshakes_) {
        if (waiting <= max_) {
            break;
        }
        if (!one.ended) {
            end(one);
            --waiting;
        }
    }
    return changed ? Found::changed : Found::same;
}

// Also discards the bytes that have arrived: else the core would serve a request on a connection that is shut down.
void Handshakes::end(Handshake& handshake) {
    constexpr int max_pieces = 64; // max of a receive buffer; limited, as the sender may be faster
    char scratch[16384];
    end_both_directions(handshake.fd);
    if (handshake.set >= 0) {
        give_back(handshake);
    }
    for (int i = 0; i < max_pieces && recv(handshake.fd, scratch, sizeof(scratch), MSG_DONTWAIT) > 0; ++i) {
    }
    handshake.ended = true;
}

void Handshakes::end_late(Time now) {
    for (Handshake& one : handshakes_) {
        if (!one.ended && now - one.since >= limit_) {
            end(one);
        }
    }
}

void Handshakes::end_all() {
    for (Handshake& one : handshakes_) {
        if (!one.ended) {
            end(one);
        }
    }
}

void Handshakes::stop_listening() {
    if (listener_ >= 0) {
        end_both_directions(listener_);
    }
}

std::optional<Handshakes::Time> Handshakes::deadline() const {
    const auto first =
        std::find_if(handshakes_.begin(), handshakes_.end(), [](const Handshake& one) { return !one.ended; });
    return first == handshakes_.end() ? std::nullopt : std::optional(first->since + limit_);
}

} // namespace rstream
