// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/meeting.hpp"

#include <utility>

#include <sys/random.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/discard.hpp"
#include "preload/rendezvous/loop.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service.hpp"

namespace preload::rendezvous {

namespace {

constexpr uint64_t millisecond = 1000000;
constexpr uint64_t listening_time = 10000 * millisecond; // the peer's upgrade is due after the same bytes, but late
constexpr uint64_t connecting_time = 300 * millisecond;
constexpr uint64_t answering_time = 1000 * millisecond;
constexpr unsigned max_strangers = 16; // each may keep a thread that closes (discard.hpp)

int make_socket() {
    return descriptors::make(
        [] { return sys::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

} // namespace

bool Meeting::watch(int fd) { return rendezvous::watch(epoll_, fd, EPOLLIN, reinterpret_cast<uint64_t>(this)); }

void Meeting::close_socket() {
    if (socket_ >= 0) {
        unwatch(epoll_, socket_);
        close_of_user(socket_, upgrade_->user);
        socket_ = -1;
    }
}

// Others may have connected, and have sent what they like.
void Meeting::close_listener() {
    if (listener_ < 0) {
        return;
    }
    unwatch(epoll_, listener_);
    sys::call(SYS_shutdown, listener_, SHUT_RDWR); // refuses further ones
    for (int left = take_connected(); left >= 0; left = take_connected()) {
        descriptors::discard(left);
    }
    descriptors::close(listener_);
}

void Meeting::end() {
    close_listener();
    close_socket();
    path::unmap_segment(segment_);
    *this = Meeting();
}

int Meeting::take_socket() {
    unwatch(epoll_, socket_);
    return std::exchange(socket_, -1);
}

Outcome Meeting::begin(const Upgrade& upgrade, int epoll) {
    upgrade_ = &upgrade;
    epoll_ = epoll;
    const bool first = upgrade.ends.is_first();
    give_up_ = sys::now_ns() + (first ? listening_time : connecting_time);
    return first ? listen_for_peer() : connect_to_peer();
}

Outcome Meeting::listen_for_peer() {
    constexpr int backlog = 4;
    sockaddr_un name{};
    const socklen_t length = upgrade_->ends.meeting_name(name);
    listener_ = make_socket();
    if (listener_ < 0) {
        return failure(Reason::no_memory);
    }
    if (sys::call(SYS_bind, listener_, &name, length) != 0) {
        return failure(Reason::other_user); // another process has the name
    }
    if (sys::call(SYS_listen, listener_, backlog) != 0 || !watch(listener_)) {
        return failure(Reason::no_memory);
    }
    deadline_ = give_up_;
    return going_on;
}

bool Meeting::is_owner(int socket) const {
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    return sys::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
           credentials.uid == upgrade_->user;
}

Outcome Meeting::connect_to_peer() {
    constexpr uint64_t max_pause = 40 * millisecond;
    sockaddr_un name{};
    const socklen_t length = upgrade_->ends.meeting_name(name);
    const int made = make_socket();
    if (made < 0) {
        return failure(Reason::no_memory);
    }
    const long result = sys::call(SYS_connect, made, &name, length);
    if (result != 0) {
        descriptors::close(made);
        const uint64_t now = sys::now_ns();
        if ((result != -ECONNREFUSED && result != -EAGAIN) || now >= give_up_) {
            return unanswered(*upgrade_);
        }
        pause_ = std::min(pause_ != 0 ? 2 * pause_ : millisecond, max_pause);
        deadline_ = now + pause_;
        return going_on;
    }
    if (!is_owner(made)) {
        descriptors::discard(made);
        return failure(Reason::other_user);
    }
    socket_ = made;
    if (getrandom(&token_, sizeof(token_), GRND_NONBLOCK) != sizeof(token_) || token_ == 0) {
        return failure(Reason::no_memory);
    }
    const int memory = descriptors::make(path::open_memory);
    segment_ = path::make_segment(token_, memory);
    if (segment_ == nullptr) {
        descriptors::close(memory);
        return failure(Reason::no_memory);
    }
    segment_->service[1] = service::own_name();
    Hello hello;
    hello.bytes = path::file_bytes;
    hello.token = token_;
    hello.service = service::own_name();
    const bool sent = send_with(socket_, &hello, sizeof(hello), memory);
    descriptors::close(memory);
    if (!sent || !watch(socket_)) {
        return failure(Reason::no_peer);
    }
    deadline_ = sys::now_ns() + answering_time;
    return going_on;
}

int Meeting::take_connected() const {
    return descriptors::make(
        [&] { return sys::call(SYS_accept4, listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
}

Outcome Meeting::accept_stranger(uint64_t now) {
    const int made = take_connected();
    if (made < 0) {
        return going_on;
    }
    if (!is_owner(made)) {
        descriptors::discard(made); // not the owner: it gets no data, and the owner may still connect
        why_ = Reason::other_user;
        return ++strangers_ < max_strangers ? going_on : failure(why_);
    }
    socket_ = made;
    if (!watch(socket_)) {
        return failure(Reason::no_memory);
    }
    deadline_ = now + answering_time;
    return going_on;
}

Outcome Meeting::take_hello() {
    std::array<uint8_t, sizeof(Hello) + 1> bytes{};
    iovec part{bytes.data(), bytes.size()};
    Control control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    Passed passed{};
    const long n = receive_with(socket_, message, passed, upgrade_->user);
    if (n == -EAGAIN || n == -EINTR) {
        return going_on;
    }
    const int memory = passed[0];
    const auto hello = parse<Hello>({bytes.data(), static_cast<size_t>(n > 0 ? n : 0)});
    const char* why = nullptr;
    path::Segment* segment =
        hello && hello->bytes == path::file_bytes && memory >= 0 ? path::map_segment(memory, why) : nullptr;
    for (const int fd : passed) {
        descriptors::close(fd);
    }
    if (segment == nullptr) {
        return n <= 0 ? unanswered(*upgrade_) : failure(Reason::failed);
    }
    segment->service[0] = service::own_name();
    Answer answer;
    answer.token = hello->token;
    answer.service = service::own_name();
    // Attach before answering: from then on the other end writes into the ring.
    Reason why_not = Reason::none;
    if (!attach(*upgrade_, segment, hello->token, 0, why_not)) {
        path::unmap_segment(segment);
        return failure(why_not);
    }
    peer_service_ = hello->service;
    send_with(socket_, &answer, sizeof(answer), -1); // a peer that does not get it does not consent
    return agreed;
}

Outcome Meeting::take_answer() {
    std::array<uint8_t, sizeof(Answer) + 1> bytes{};
    iovec part{bytes.data(), bytes.size()};
    Control control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    Passed passed{};
    const long n = receive_with(socket_, message, passed, upgrade_->user);
    for (const int fd : passed) { // none is expected
        descriptors::close(fd);
    }
    if (n == -EAGAIN || n == -EINTR) {
        return going_on;
    }
    const auto answer = parse<Answer>({bytes.data(), static_cast<size_t>(n > 0 ? n : 0)});
    if (!answer || answer->token != token_) {
        return n <= 0 ? unanswered(*upgrade_) : failure(Reason::failed);
    }
    Reason why_not = Reason::none;
    if (!attach(*upgrade_, segment_, token_, 1, why_not)) { // it has ended meanwhile, or several processes have it
        return failure(why_not);
    }
    segment_ = nullptr; // owned by the connection
    peer_service_ = answer->service;
    return agreed;
}

Outcome Meeting::on_event(uint64_t now) {
    if (socket_ < 0) {
        return accept_stranger(now);
    }
    return upgrade_->ends.is_first() ? take_hello() : take_answer();
}

Outcome Meeting::on_time(uint64_t now) {
    if (now < deadline_) {
        return going_on;
    }
    if (!upgrade_->ends.is_first() && socket_ < 0) {
        return connect_to_peer();
    }
    if (upgrade_->ends.is_first() && socket_ >= 0 && now < give_up_) {
        close_socket(); // it was silent: another process may connect
        deadline_ = give_up_;
        return going_on;
    }
    return why_ != Reason::none ? failure(why_) : unanswered(*upgrade_);
}

} // namespace preload::rendezvous
