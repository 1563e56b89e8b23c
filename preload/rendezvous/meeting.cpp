// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/meeting.hpp"

#include <utility>

#include <sys/random.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/positions.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/holders.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"

namespace preload::rendezvous {

namespace {

constexpr uint64_t millisecond = 1000000;
constexpr uint64_t listening_time = 10000 * millisecond; // the other end is worth it after the same bytes, but late
constexpr uint64_t connecting_time = 300 * millisecond;
constexpr uint64_t answering_time = 1000 * millisecond;

bool has_time_limit(int fd) {
    for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
        timeval limit{};
        socklen_t length = sizeof(limit);
        if (sys::getsockopt(fd, SOL_SOCKET, name, &limit, &length) != 0 || limit.tv_sec != 0 || limit.tv_usec != 0) {
            return true;
        }
    }
    return false;
}

} // namespace

bool Meeting::watch(int fd, int operation) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = this;
    return sys::call(SYS_epoll_ctl, epoll_, operation, fd, &event) == 0;
}

Meeting::Result Meeting::fail(Reason why, bool for_good) {
    why_ = why;
    for_good_ = for_good;
    return Result::failed;
}

// The peer does not answer, or not any more: perhaps since its program has closed the connection meanwhile.
Meeting::Result Meeting::fail_unanswered() {
    Positions now;
    if (table::connection(fd_) == connection_ && read_positions(fd_, now) && now.established) {
        return fail(Reason::no_peer);
    }
    return fail(Reason::young);
}

void Meeting::end() {
    descriptors::close(listener_);
    descriptors::close(socket_);
    path::unmap_segment(segment_);
    *this = Meeting();
}

Meeting::Result Meeting::begin(Connection& c, int epoll) {
    connection_ = &c;
    epoll_ = epoll;
    fd_ = c.fd.load();
    if (table::connection(fd_) != &c || !Ends::of(fd_, ends_)) {
        return fail(Reason::none);
    }
    if (ends_.own == ends_.peer) {
        return fail(Reason::self_connected, true);
    }
    if (const Reason reason = decide(ends_, c.role); reason != Reason::none) {
        return fail(reason, true);
    }
    Positions before;
    Positions after;
    uint64_t peer_received = 0;
    if (!read_positions(fd_, before)) {
        return fail(Reason::none);
    }
    if (!before.established) {
        return fail(Reason::half_closed, true);
    }
    switch (peer_owner(ends_, user_, peer_received)) {
    case Owner::absent: // also after a reset
        return read_positions(fd_, after) && after.established ? fail(Reason::remote, true) : fail(Reason::young, true);
    case Owner::closed:
        return fail(Reason::young, true);
    case Owner::unaccepted:
        return fail(Reason::none); // later, perhaps
    case Owner::unknown:
        return fail(Reason::sandboxed, true);
    case Owner::found:
        break;
    }
    std::atomic<Uncounted>& uncounted = c.state.load()->uncounted;
    if ((c.role == Role::adopted || uncounted != Uncounted::no) && !is_sole_holder(fd_)) {
        return fail(Reason::several); // who has passed it may still close it, or move bytes past the library
    }
    Uncounted moved = Uncounted::yes;
    uncounted.compare_exchange_strong(moved, Uncounted::before);
    if (c.role == Role::adopted) {
        // Whether the SYN counts is known once the peer has all that was sent.
        if (!read_positions(fd_, after) || after.sent != before.sent ||
            (before.sent != peer_received && before.sent != peer_received + 1)) {
            return fail(Reason::none);
        }
        c.state.load()->connected_out = before.sent == peer_received + 1 ? 1 : 0;
    } else {
        c.state.load()->connected_out = c.role == Role::connect ? 1 : 0;
    }
    give_up_ = sys::now_ns() + (ends_.is_first() ? listening_time : connecting_time);
    return ends_.is_first() ? listen_for_peer() : connect_to_peer();
}

Meeting::Result Meeting::listen_for_peer() {
    constexpr int backlog = 4;
    sockaddr_un name{};
    const socklen_t length = ends_.meeting_name(name);
    listener_ = descriptors::keep(
        static_cast<int>(sys::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    if (listener_ < 0) {
        return fail(Reason::no_memory);
    }
    if (sys::call(SYS_bind, listener_, &name, length) != 0) {
        return fail(Reason::other_user); // somebody else has the name
    }
    if (sys::call(SYS_listen, listener_, backlog) != 0 || !watch(listener_, EPOLL_CTL_ADD)) {
        return fail(Reason::no_memory);
    }
    deadline_ = give_up_;
    return Result::going_on;
}

bool Meeting::is_owner(int socket) const {
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    return sys::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 && credentials.uid == user_;
}

Meeting::Result Meeting::connect_to_peer() {
    constexpr uint64_t max_pause = 40 * millisecond;
    sockaddr_un name{};
    const socklen_t length = ends_.meeting_name(name);
    const int made = static_cast<int>(sys::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (made < 0) {
        return fail(Reason::no_memory);
    }
    const long result = sys::call(SYS_connect, made, &name, length);
    if (result != 0) {
        sys::call(SYS_close, made);
        const uint64_t now = sys::now_ns();
        if ((result != -ECONNREFUSED && result != -EAGAIN) || now >= give_up_) {
            return fail_unanswered();
        }
        pause_ = std::min(pause_ != 0 ? 2 * pause_ : millisecond, max_pause);
        deadline_ = now + pause_;
        return Result::going_on;
    }
    if (!is_owner(made)) {
        sys::call(SYS_close, made);
        return fail(Reason::other_user);
    }
    socket_ = descriptors::keep(made);
    if (socket_ < 0 || getrandom(&token_, sizeof(token_), GRND_NONBLOCK) != sizeof(token_) || token_ == 0) {
        return fail(Reason::no_memory);
    }
    int memory = -1;
    segment_ = path::make_segment(token_, memory);
    if (segment_ == nullptr) {
        return fail(Reason::no_memory);
    }
    segment_->service[1] = service::own_name();
    Hello hello;
    hello.bytes = path::file_bytes;
    hello.token = token_;
    hello.service = service::own_name();
    const bool sent = send_with(socket_, &hello, sizeof(hello), memory);
    sys::call(SYS_close, memory);
    if (!sent || !watch(socket_, EPOLL_CTL_ADD)) {
        return fail(Reason::no_peer);
    }
    deadline_ = sys::now_ns() + answering_time;
    return Result::going_on;
}

Meeting::Result Meeting::accept_stranger(uint64_t now) {
    const int made =
        static_cast<int>(sys::call(SYS_accept4, listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (made < 0) {
        return Result::going_on;
    }
    if (!is_owner(made)) {
        sys::call(SYS_close, made); // not who it should be: it learns nothing, and the other one may still come
        why_ = Reason::other_user;
        return Result::going_on;
    }
    socket_ = descriptors::keep(made);
    if (socket_ < 0 || !watch(socket_, EPOLL_CTL_ADD)) {
        return fail(Reason::no_memory);
    }
    deadline_ = now + answering_time;
    return Result::going_on;
}

Meeting::Result Meeting::take_hello() {
    std::array<uint8_t, sizeof(Hello) + 1> bytes{};
    iovec part{bytes.data(), bytes.size()};
    Control control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    const long n = sys::call(SYS_recvmsg, socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == -EAGAIN || n == -EINTR) {
        return Result::going_on;
    }
    const int memory = n >= 0 ? passed_descriptor(message) : -1; // a message of no bytes has some, too
    const auto hello = parse<Hello>({bytes.data(), static_cast<size_t>(n > 0 ? n : 0)});
    const char* why = nullptr;
    path::Segment* segment =
        hello && hello->bytes == path::file_bytes && memory >= 0 ? path::map_segment(memory, why) : nullptr;
    if (memory >= 0) {
        sys::call(SYS_close, memory);
    }
    if (segment == nullptr) {
        return n <= 0 ? fail_unanswered() : fail(Reason::failed);
    }
    segment->service[0] = service::own_name();
    Answer answer;
    answer.token = hello->token;
    answer.service = service::own_name();
    // Only who is attached may answer: the other end then writes into the ring.
    if (!attach(segment, hello->token, 0)) {
        path::unmap_segment(segment);
        return fail(Reason::none);
    }
    (void)send_with(socket_, &answer, sizeof(answer), -1);
    return Result::agreed;
}

Meeting::Result Meeting::take_answer() {
    std::array<uint8_t, sizeof(Answer) + 1> bytes{};
    const long n = sys::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n == -EAGAIN || n == -EINTR) {
        return Result::going_on;
    }
    const auto answer = parse<Answer>({bytes.data(), static_cast<size_t>(n > 0 ? n : 0)});
    if (!answer || answer->token != token_) {
        return n <= 0 ? fail_unanswered() : fail(Reason::failed);
    }
    if (!attach(segment_, token_, 1)) { // it has ended meanwhile, or several processes have it
        return fail(why_);
    }
    segment_ = nullptr; // the connection's
    return Result::agreed;
}

bool Meeting::attach(path::Segment* segment, uint64_t token, unsigned direction) {
    Connection& c = *connection_;
    ConnectionState& s = *c.state.load();
    if (!s.read_lock.acquire()) {
        return false;
    }
    bool done = false;
    if (s.write_lock.acquire()) {
        Ends now;
        if (table::connection(fd_) == &c && (s.gate.load() & (gate::careful | gate::pinned)) == 0 &&
            Ends::of(fd_, now) && now.own == ends_.own && now.peer == ends_.peer) {
            path::unmap_segment(c.segment.exchange(nullptr));
            s.in = s.out = s.out_before = {};
            s.in_epoch = s.out_epoch = 0;
            s.frames_seen = 0;
            s.resume_seen = false;
            s.awaits_resume = false;
            s.giving_back = s.handed_over = false;
            s.taken = s.taken_read = 0;
            for (uint8_t*& area : c.give_back) {
                path::unmap_give_back(std::exchange(area, nullptr));
            }
            s.token = token;
            // Descriptors are given to the own user only; at the limit there are none.
            const bool same_user = is_own_user(user_);
            c.same_user = same_user;
            segment->direction[direction].writer.wakes = same_user ? 1 : 0;
            c.asked_for = 0;
            c.guard = Guard::none;
            c.guarded = 0;
            s.time_limits = has_time_limit(fd_);
            s.holder_service = service::own_name();
            s.hold = false;
            s.out_direction = direction;
            s.reason = Reason::none;
            c.segment = segment;
            // A process that was forked before has no memory of it; one that is forked from now on has. fork counts
            // the holders first.
            done = s.holders.load() == 1;
            c.attached = done;
            if (!done) {
                c.segment = nullptr;
                why_ = Reason::several;
            }
        }
        s.write_lock.release();
    }
    s.read_lock.release();
    if (done) {
        gate::want(c, fd_);
    }
    return done;
}

Meeting::Result Meeting::on_event(uint64_t now) {
    if (socket_ < 0) {
        return accept_stranger(now);
    }
    return ends_.is_first() ? take_hello() : take_answer();
}

Meeting::Result Meeting::on_time(uint64_t now) {
    if (now < deadline_) {
        return Result::going_on;
    }
    if (!ends_.is_first() && socket_ < 0) {
        return connect_to_peer();
    }
    if (ends_.is_first() && socket_ >= 0 && now < give_up_) {
        descriptors::close(socket_); // silent: another one may come
        socket_ = -1;
        deadline_ = give_up_;
        return Result::going_on;
    }
    return why_ != Reason::none ? fail(why_) : fail_unanswered();
}

} // namespace preload::rendezvous
