// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "preload/base/system.hpp"

namespace preload::fabric {

using path::MirrorFields;

namespace {

constexpr uint64_t millisecond = 1000000;
constexpr uint64_t listening_time = 10000 * millisecond; // the far end's upgrade is due after the same bytes, but late
constexpr uint64_t connecting_time = 2000 * millisecond;
constexpr uint64_t greeting_time = 2000 * millisecond;
constexpr uint64_t attaching_time = 60000 * millisecond; // a call of the program may be blocked in the kernel
constexpr uint64_t proving_time = 20000 * millisecond;   // the program's bytes in front of an urgent one must be read
constexpr uint64_t last_time = 60000 * millisecond; // for the far end's answer to a close; then the fabric has failed
// The error of a socket for an address that no device of the cores has.
bool is_of_no_device(int error) { return error == ENODEV || error == EADDRNOTAVAIL; }
bool has_no_route(int error) { return error == EHOSTUNREACH || error == ENETUNREACH; }

constexpr size_t max_queued = size_t{256} << 10;
constexpr size_t max_read = size_t{256} << 10;

} // namespace

Link::Link(LinkOwner& owner, const Control& task, path::Segment* segment, int tcp)
    : owner_(owner), task_(task), segment_(segment), tcp_(tcp) {
    const uint64_t now = sys::now_ns();
    give_up_ = now + (task.accepted != 0 ? connecting_time : listening_time);
    if (task.accepted != 0) {
        targets_ = owner_.other_devices().targets(task.ends.peer, now);
    }
    begin(now);
}

Link::~Link() { close_all(); }

void Link::drop() { close_all(); }

void Link::begin(uint64_t now) {
    if (task_.accepted == 0) {
        listen();
    } else {
        connect(now);
    }
}

// By the other devices, too, if the far end has been told of them. Not at any address: Linux's siw then accepts nothing
// that comes by another interface.
void Link::listen() {
    const rendezvous::Address& own = task_.ends.own;
    std::vector<rendezvous::Address> at{own};
    if (owner_.other_devices().knows(task_.ends.peer)) {
        for (const HostAddress& other : owner_.other_devices().of_this_host(own, sys::now_ns())) {
            if (other != HostAddress{}) {
                at.push_back({other, own.port});
            }
        }
    }
    int failed = 0; // of the first one
    for (const rendezvous::Address& one : at) {
        FabricSocket made = FabricSocket::listening(one);
        if (!made && errno == EADDRINUSE && one == own) {
            // The tcp core uses the kernel's ports: a listener may have that of a connected socket if both set
            // SO_REUSEADDR.
            const int yes = 1;
            setsockopt(tcp_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
            made = FabricSocket::listening(own);
        }
        if (made && owner_.watch(made.fd(), token(), false)) {
            listening_.push_back(std::move(made));
        } else if (failed == 0) {
            failed = made ? ENOMEM : errno;
        }
    }
    phase_ = Phase::listening;
    deadline_ = give_up_;
    if (listening_.empty()) {
        fail(is_of_no_device(failed) ? Reason::no_device
             : failed == EADDRINUSE  ? Reason::port_taken
                                     : Reason::no_memory);
    }
}

// To the far end's own address from this one's, and if that fails, to the others of its host: the kernel chooses the
// device from which these are reached.
void Link::connect(uint64_t now) {
    const rendezvous::Address& target = targets_[target_];
    socket_ = FabricSocket::connecting(target == task_.ends.peer ? &task_.ends.own : nullptr, target);
    if (socket_ && owner_.watch(socket_.fd(), token(), true)) {
        phase_ = Phase::connecting;
        deadline_ = give_up_;
        return;
    }
    not_connected(now, socket_ ? ENOMEM : errno);
}

void Link::not_connected(uint64_t now, int error) {
    constexpr uint64_t max_pause = 50 * millisecond;
    socket_.close();
    if (is_of_no_device(error)) {
        next_target(now, Reason::no_device);
    } else if (now >= give_up_ || (has_no_route(error) && target_ + 1 < targets_.size())) {
        next_target(now, Reason::no_peer);
    } else {
        phase_ = Phase::waiting;
        pause_ = std::min(pause_ != 0 ? 2 * pause_ : millisecond, max_pause);
        deadline_ = now + pause_;
    }
}

// why: of the one so far. That of the first is told.
void Link::next_target(uint64_t now, Reason why) {
    socket_.close();
    first_failure_ = target_ == 0 ? why : first_failure_;
    if (target_ + 1 == targets_.size()) {
        fail(first_failure_);
        return;
    }
    ++target_;
    pause_ = 0;
    give_up_ = now + connecting_time;
    connect(now);
}

void Link::on_time(uint64_t now) {
    if (now < deadline_) {
        return;
    }
    if (phase_ == Phase::waiting) {
        begin(now);
    } else if (phase_ == Phase::closing) {
        go_on_leaving(now);
    } else if (phase_ == Phase::guarding) {
        guard(now);
    } else if (phase_ == Phase::recovering) {
        recover();
    } else if (phase_ == Phase::acknowledging) {
        await_acknowledgement(now);
    } else if (phase_ == Phase::connecting) {
        next_target(now, Reason::no_peer);
    } else if (phase_ != Phase::over) {
        fail(phase_ == Phase::moving ? Reason::fabric_lost : Reason::no_peer);
    }
}

void Link::on_event(uint32_t events, uint64_t now) {
    switch (phase_) {
    case Phase::listening:
        on_accept(now);
        return;
    case Phase::connecting:
        if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
            on_connected(now);
        }
        return;
    case Phase::recovering:
        recover();
        return;
    case Phase::waiting:
    case Phase::guarding:
    case Phase::handing_over:
    case Phase::acknowledging:
    case Phase::over:
        return;
    default:
        break;
    }
    if ((events & EPOLLOUT) != 0 && !flush()) {
        return;
    }
    receive();
}

void Link::on_accept(uint64_t now) {
    for (const FabricSocket& one : listening_) {
        rendezvous::Address from;
        FabricSocket made = one.accept(from);
        // From another address than the far end's, it gets no data, and the far end may still connect.
        if (made && owner_.other_devices().is_of(from, task_.ends.peer)) {
            socket_ = std::move(made);
            break;
        }
    }
    if (!socket_) {
        return;
    }
    listening_.clear();
    if (!owner_.watch(socket_.fd(), token(), false)) {
        fail(Reason::no_memory);
        return;
    }
    greet(now);
}

void Link::on_connected(uint64_t now) {
    if (const int error = socket_.connected(); error != 0) {
        not_connected(now, error);
        return;
    }
    greet(now);
}

void Link::greet(uint64_t now) {
    Hello hello;
    hello.ends = task_.ends;
    phase_ = Phase::greeting;
    deadline_ = now + greeting_time;
    wants_space_ = true; // so that flush() sets the watched events anew
    send(Kind::hello, &hello, sizeof(hello));
}

void Link::send(Kind kind, const void* body, size_t bytes) {
    Header header;
    header.kind = kind;
    header.bytes = static_cast<uint32_t>(bytes);
    const auto* head = reinterpret_cast<const uint8_t*>(&header);
    out_.insert(out_.end(), head, head + sizeof(header));
    const auto* from = static_cast<const uint8_t*>(body);
    if (bytes != 0) {
        out_.insert(out_.end(), from, from + bytes);
    }
    flush();
}

// False: the link is over.
bool Link::flush() {
    while (flushed_ != out_.size()) {
        const ssize_t n = socket_.send(out_.data() + flushed_, out_.size() - flushed_);
        if (n == -EAGAIN || n == -EINTR) {
            break;
        }
        if (n <= 0) {
            end_of_stream();
            return false;
        }
        flushed_ += static_cast<size_t>(n);
    }
    if (flushed_ == out_.size()) {
        out_.clear();
        flushed_ = 0;
    } else if (flushed_ > max_queued) { // a stream that takes less than comes is never done
        out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(flushed_));
        flushed_ = 0;
    }
    if (const bool wants = !out_.empty(); wants != wants_space_) {
        wants_space_ = wants;
        if (!owner_.watch(socket_.fd(), token(), wants)) {
            fail(Reason::no_memory);
            return false;
        }
    }
    return true;
}

// The program has learnt from the far end by TCP that the fabric has failed, before this worker did.
bool Link::program_has_lost_it() const {
    return phase_ == Phase::moving && segment_->mirror.stage.load() == MirrorFields::lost;
}

void Link::end_of_stream() {
    if (continues_without_stream()) {
        return;
    }
    if (program_has_lost_it()) {
        begin_to_hand_over();
        return;
    }
    if (phase_ == Phase::closing) {
        socket_.close();
        leaving_->without_stream_ns = sys::now_ns();
        go_on_leaving(leaving_->without_stream_ns);
        return;
    }
    if (phase_ == Phase::moving && (mirror_->far_has_closed() || mirror_->has_closed())) {
        segment_->mirror.stage.store(MirrorFields::ended);
        if (!has_closed()) {
            owner_.attend(*segment_, task_.direction);
        }
        close_all();
        return;
    }
    socket_.close();
    fail(phase_ == Phase::moving ? Reason::fabric_lost : Reason::no_peer);
}

bool Link::receive() {
    for (size_t total = 0; total < max_read;) {
        constexpr size_t piece = size_t{64} << 10;
        const size_t before = in_.size();
        in_.resize(before + piece);
        const ssize_t n = socket_.receive(in_.data() + before, piece);
        in_.resize(before + static_cast<size_t>(std::max(n, ssize_t{0})));
        if (n == -EAGAIN || n == -EINTR) {
            return true;
        }
        received_ += static_cast<uint64_t>(std::max(n, ssize_t{0}));
        if (n > 0 && !take_all()) {
            fail(phase_ == Phase::moving ? Reason::broken : Reason::failed);
            return false;
        }
        if (n <= 0) {
            end_of_stream();
            return false;
        }
        if (!socket_) {
            return false; // the link is over, or continues without it
        }
        total += static_cast<size_t>(n);
        if (static_cast<size_t>(n) < piece) {
            return true; // epoll reports further bytes
        }
    }
    return true;
}

bool Link::poll() {
    if (phase_ != Phase::moving) {
        return false;
    }
    const uint64_t before = received_;
    return !receive() || received_ != before;
}

bool Link::take_all() {
    while (in_.size() - parsed_ >= sizeof(Header)) {
        Header header;
        memcpy(&header, in_.data() + parsed_, sizeof(header));
        if (header.bytes > max_body) {
            return false;
        }
        if (in_.size() - parsed_ - sizeof(header) < header.bytes) {
            break;
        }
        const std::span<const uint8_t> body(in_.data() + parsed_ + sizeof(header), header.bytes);
        if (!take(header, body)) {
            return false;
        }
        if (!socket_) {
            return true;
        }
        parsed_ += sizeof(header) + header.bytes;
    }
    if (mirror_) {
        notify_program();
    }
    if (parsed_ == in_.size()) {
        in_.clear();
        parsed_ = 0;
    } else if (parsed_ > max_read) {
        in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(parsed_));
        parsed_ = 0;
    }
    return true;
}

bool Link::take(const Header& header, std::span<const uint8_t> body) {
    if (phase_ == Phase::closing && header.kind != Kind::closed) {
        return true; // sent before the far end received `closed`
    }
    switch (header.kind) {
    case Kind::hello:
        return phase_ == Phase::greeting && take_hello(body);
    case Kind::careful:
        if (phase_ != Phase::attaching || far_careful_) {
            return false;
        }
        far_careful_ = true;
        prove();
        return true;
    case Kind::echo:
        return phase_ == Phase::proving && take_echo(body);
    case Kind::proved:
        if (phase_ != Phase::proving || far_proved_ || body.size() != sizeof(others_)) {
            return false;
        }
        memcpy(&others_, body.data(), sizeof(others_));
        far_proved_ = true;
        begin_to_move();
        return true;
    case Kind::closed:
        return take_closed(body);
    default:
        break;
    }
    return mirror_ && mirror_->take(header, body);
}

void Link::notify_program() {
    for (const uint64_t id : {mirror_->data_sleeper(), mirror_->space_sleeper()}) {
        if (id != 0) {
            owner_.wake(*segment_, task_.direction, id);
        }
    }
    if (mirror_->attend_wanted()) {
        owner_.attend(*segment_, task_.direction);
    }
}

bool Link::take_hello(std::span<const uint8_t> body) {
    Hello hello;
    if (body.size() != sizeof(hello)) {
        return false;
    }
    memcpy(static_cast<void*>(&hello), body.data(), sizeof(hello));
    if (hello.magic != Hello::expected_magic || hello.version != protocol_version ||
        hello.ring_bytes != path::ring_bytes || !(hello.ends == task_.ends.reversed())) {
        return false;
    }
    phase_ = Phase::attaching;
    deadline_ = sys::now_ns() + attaching_time;
    attach_asked_ = true;
    owner_.send_control(Control::attach, token(), Reason::none);
    return true;
}

// Both ends count their programs' bytes: an urgent byte can be sent, and its position is known.
void Link::prove() {
    if (phase_ == Phase::attaching && careful_ && far_careful_) {
        phase_ = Phase::proving;
        deadline_ = sys::now_ns() + proving_time;
        send_next_urgent();
    }
}

void Link::send_next_urgent() {
    uint8_t byte = 0;
    if (getrandom(&byte, sizeof(byte), 0) != sizeof(byte)) {
        fail(Reason::no_memory);
        return;
    }
    urgent_sent_ = MirrorFields::urgent_of((urgent_sent_ >> 8) + 1, byte);
    segment_->mirror.urgent_to_send.store(urgent_sent_, std::memory_order_release);
    owner_.attend(*segment_, task_.direction);
}

bool Link::take_echo(std::span<const uint8_t> body) {
    Echo echo;
    if (body.size() != sizeof(echo)) {
        return false;
    }
    memcpy(&echo, body.data(), sizeof(echo));
    if (echo.urgent != urgent_sent_ || proved_) {
        return false; // the sender does not hold the other end
    }
    if ((urgent_sent_ >> 8) < MirrorFields::urgent_bytes) {
        send_next_urgent();
        return true;
    }
    proved_ = true;
    segment_->mirror.stage.store(MirrorFields::proved);
    const OtherAddresses others = owner_.other_devices().of_this_host(task_.ends.own, sys::now_ns());
    send(Kind::proved, &others, sizeof(others));
    begin_to_move();
    return true;
}

void Link::begin_to_move() {
    if (phase_ != Phase::proving || !proved_ || !far_proved_) {
        return;
    }
    phase_ = Phase::moving;
    deadline_ = UINT64_MAX;
    mirror_ = std::make_unique<Mirror>(*segment_, task_.direction);
    owner_.other_devices().note_proved(task_.ends.peer, others_, targets_.empty() ? nullptr : &targets_[target_],
                                       sys::now_ns());
    uint32_t proved = MirrorFields::proved;
    segment_->mirror.stage.compare_exchange_strong(proved, MirrorFields::moving); // else it is lost already
}

bool Link::progress() {
    if (phase_ == Phase::attaching && !careful_ &&
        segment_->direction[1 - task_.direction].wake.consent.load() == path::Consent::given) {
        careful_ = true;
        send(Kind::careful, nullptr, 0);
        prove();
        return true;
    }
    if (phase_ == Phase::proving || phase_ == Phase::moving) {
        // The last one may be received when the far end has proved already.
        if (const uint32_t received = segment_->mirror.urgent_received.load(std::memory_order_acquire);
            received != urgent_echoed_) {
            urgent_echoed_ = received;
            const Echo echo{received};
            send(Kind::echo, &echo, sizeof(echo));
            return true;
        }
    }
    if (phase_ == Phase::handing_over) {
        return hand_over();
    }
    if (phase_ != Phase::moving) {
        if (!attach_asked_ && has_closed()) {
            close_all(); // no process is left that could attach
            return false;
        }
        if (attach_asked_ && has_closed() && phase_ < Phase::closing) {
            fail(Reason::none);
        } else if ((phase_ == Phase::attaching || phase_ == Phase::proving) && segment_->mirror.withdraw.load() != 0) {
            leave();
        }
        return false;
    }
    if (program_has_lost_it()) {
        begin_to_hand_over();
        return true;
    }
    bool moved = false;
    if (out_.size() - flushed_ < max_queued) {
        moved = mirror_->collect(out_, flushed_ + max_queued);
    }
    if (moved && !flush()) {
        return true;
    }
    notify_program();
    if (mirror_->is_closing() && deadline_ == UINT64_MAX) {
        deadline_ = sys::now_ns() + last_time;
    }
    if (mirror_->has_closed()) {
        take_frames();
        if (segment_->mirror.closed.load() == MirrorFields::aborted) {
            reset();
        } else if (segment_->mirror.closed.load() != MirrorFields::left && is_unacknowledged()) {
            begin_to_acknowledge();
            return true;
        }
        close_all();
        return true;
    }
    return moved;
}

bool Link::arm(uint64_t id) {
    if (phase_ == Phase::moving) {
        return out_.empty() && mirror_->arm(id);
    }
    if (phase_ == Phase::handing_over) {
        segment_->mirror.sleeper.store(id);
        return segment_->mirror.recovering.load() != 0 || has_closed();
    }
    if (phase_ == Phase::attaching || phase_ == Phase::proving) {
        segment_->mirror.sleeper.store(id);
        const bool careful = segment_->direction[1 - task_.direction].wake.consent.load() == path::Consent::given;
        return (phase_ == Phase::attaching && !careful_ && careful) ||
               (phase_ == Phase::proving && segment_->mirror.urgent_received.load() != urgent_echoed_);
    }
    return false;
}

void Link::attended() {
    if (mirror_) {
        mirror_->attended();
    }
}

} // namespace preload::fabric
