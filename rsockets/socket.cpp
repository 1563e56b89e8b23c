// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <netinet/in.h>
#include <sys/epoll.h>

#include "rsockets/call.hpp"
#include "rsockets/listener.hpp"
#include "rsockets/log.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

namespace {

using State = Socket::State;

struct Move {
    State from;
    State to;
};
// Allowed transitions. A lost connection stays `connected`, as the program sees it, until the socket is closed.
constexpr std::array moves{
    Move{State::closed, State::listening},     //
    Move{State::closed, State::connecting},    //
    Move{State::connecting, State::connected}, //
    Move{State::connecting, State::closed},    // it failed, or was cancelled
    Move{State::listening, State::closed},     // shutdown(2), connect(2) to AF_UNSPEC
    Move{State::connected, State::closed},     // connect(2) to AF_UNSPEC
};

bool allowed(State from, State to) {
    for (const Move& move : moves) {
        if (move.from == from && move.to == to) {
            return true;
        }
    }
    return false;
}

// The kernel's error for the buffer of an address, which may be null if its length is 0.
int bad_address_buffer(const sockaddr* address, const socklen_t* length) {
    if (length == nullptr) {
        return EFAULT;
    }
    if (static_cast<int>(*length) < 0) {
        return EINVAL;
    }
    return address == nullptr && *length != 0 ? EFAULT : 0;
}

} // namespace

Socket::Socket(Library& library, int family, bool nonblocking)
    : Object(own_kind), library_(library), family_(family), nonblocking_(nonblocking),
      options_(family, library.config()) {}

Socket::~Socket() { hang_up(); }

void Socket::move_to(State next) {
    const State now = state();
    if (!allowed(now, next)) {
        log(Level::error, "a socket cannot go from state %d to %d", static_cast<int>(now), static_cast<int>(next));
        abort();
    }
    moves_.fetch_add(1, std::memory_order_relaxed);
    state_.store(next, std::memory_order_release);
    const bool setting_up = next == State::connecting;
    if (setting_up != setting_up_) {
        setting_up_ = setting_up;
        setting_up ? library_.setup_begins() : library_.setup_ends();
    }
}

int Socket::bind(const sockaddr* address, socklen_t length) {
    const Guard lock(mutex_);
    if (address == nullptr) {
        return -EFAULT;
    }
    if (state() != State::closed || bound_.held()) {
        // For any address, the kernel's own order of checks comes first.
        const base::Descriptor scratch = options_.kernel().socket({{IPPROTO_IPV6, IPV6_V6ONLY}});
        if (!scratch.open()) {
            return -errno;
        }
        if (::bind(scratch.get(), address, length) != 0 && errno != EADDRINUSE) {
            return -errno;
        }
        return -EINVAL;
    }
    const int error = bound_.bind(options_.kernel(), address, length);
    const Address bound = bound_.asked();
    if (error == 0 && family_ == AF_INET6 && !bound.wildcard() && !bound.v4_mapped()) { // as in inet6_bind
        options_.kernel().note(IPPROTO_IPV6, IPV6_V6ONLY, 1);
        options_.read_v6_only();
    }
    return -error;
}

// A listener that is shut down keeps the address that it was bound to, and may listen again.
void Socket::shut_listener() {
    Address kept;
    kept.length = sizeof(kept.storage);
    const bool named = name(kept.get(), &kept.length) == 0;
    stop_listening();
    const Guard lock(mutex_);
    if (state() == State::closed && bound_.asked().set() && named && !bound_.held()) { // else another thread uses it
        bound_.hold_again(options_.kernel(), kept);
    }
}

Address Socket::present_name() const {
    if (listener_) {
        return listener_->name();
    }
    Connection* present = connection();
    return present != nullptr ? present->name() : Address();
}

void Socket::set_number(int fd) {
    const Guard lock(mutex_);
    if (!counters_.move_to(fd)) {
        show();
    }
}

// Shows the socket in rsstat once it has a descriptor, and listens or is connected.
void Socket::show() {
    const Connection* present = connection();
    if (counters_.number() < 0 || (!listener_ && (state() != State::connected || present == nullptr))) {
        return;
    }
    if (listener_) {
        counters_.show(Counters::Role::listen, present_name(), Address(), listener_->transport().core());
        return;
    }
    counters_.show(accepted_ ? Counters::Role::accept : Counters::Role::connect, present->name(), peer_,
                   present->device());
    const Sizes buffers = present->sizes();
    counters_.set_buffers(buffers.recv_buffer, buffers.send_buffer);
}

int Socket::name(sockaddr* address, socklen_t* length) {
    if (const int error = bad_address_buffer(address, length); error != 0) {
        return -error;
    }
    const Guard lock(mutex_);
    const Address found = present_name();
    (found.set() ? found.for_family(family_) : bound_.name(family_)).give(address, length);
    return 0;
}

int Socket::peer(sockaddr* address, socklen_t* length) {
    Connection* present = established();
    if (present == nullptr || left_behind(*present)) {
        return -ENOTCONN;
    }
    return came_from(address, length);
}

int Socket::came_from(sockaddr* address, socklen_t* length) {
    const Connection* present = connection();
    if (present == nullptr) {
        return -ENOTCONN;
    }
    if (const int error = bad_address_buffer(address, length); error != 0) {
        return -error;
    }
    const Guard lock(mutex_);
    peer_.for_family(family_).give(address, length);
    return 0;
}

// Whether TCP would have ended the connection: both ends were shut down, or it was reset.
bool Socket::left_behind(Connection& present) {
    find_loss(present);
    return ending_.lost.load() ||
           (ending_.send_shut.load() && (present.status().flags & FI_RSTREAM_PEER_FINISHED) != 0);
}

// Marks directions as shut, and returns what the connection has to be told. Nothing is marked if another thread has
// changed the state or the connection since the caller read them: the socket may be connected again.
Socket::Shut Socket::mark_shut(State in, const Connection* present, bool receive, bool send) {
    const Guard lock(mutex_);
    if (state() != in || (present != nullptr && connection() != present)) {
        return Shut::nothing;
    }
    ending_.receive_shut.store(ending_.receive_shut.load() || receive);
    const bool first = send && !ending_.send_shut.exchange(true);
    return ending_.receive_shut.load() && ending_.send_shut.load() ? Shut::both : first ? Shut::sending : Shut::nothing;
}

int Socket::shutdown(int how) {
    if (how < SHUT_RD || how > SHUT_RDWR) {
        return -EINVAL;
    }
    const bool receive = how != SHUT_WR;
    const bool send = how != SHUT_RD;
    int ret = 0;
    switch (state()) {
    case State::closed:
        mark_shut(State::closed, nullptr, receive, send);
        ret = -ENOTCONN;
        break;
    case State::listening:
        if (receive) {
            shut_listener();
        }
        break;
    case State::connecting: {
        const Connections::Handling handling(connections_);
        Connection* given_up = nullptr;
        bool ended = false;
        {
            const Guard lock(mutex_);
            ended = state() == State::connecting;
            if (ended) {
                move_to(State::closed);
                ending_.error.store(ECONNRESET);
                attempt_.report();
                given_up = connections_.give_up();
            }
        }
        if (!ended) {
            return shutdown(how); // the attempt has just come to an end by itself
        }
        abort_given_up(given_up);
        break;
    }
    case State::connected: {
        Connection* present = connection();
        if (present == nullptr || left_behind(*present)) {
            ret = -ENOTCONN;
            break;
        }
        const Shut shut = mark_shut(State::connected, present, receive, send);
        if (shut == Shut::both) {
            present->end_both(); // what the peer sends from now on is refused
        } else if (shut == Shut::sending) {
            present->end_sending();
        }
        break;
    }
    }
    wait_queue_.notify_all();
    return ret;
}

// Of a caller that has given it up together with the change of state, since another thread may connect again at once. A
// thread may still use it, so it is destroyed with the socket.
void Socket::abort_given_up(Connection* given_up) {
    if (given_up != nullptr) {
        given_up->forget_target();
        given_up->abort();
    }
}

// Nobody polls it any more, and the socket's descriptor would stay readable with it.
void Socket::stop_watching(int fd, const Connection* given_up) {
    if (given_up != nullptr) {
        epoll_ctl(fd, EPOLL_CTL_DEL, given_up->wait_fd(), nullptr);
    }
}

// connect(2) to AF_UNSPEC: resets the socket, except for its options.
int Socket::disconnect(int fd) {
    if (state() == State::listening) {
        shut_listener();
        return 0;
    }
    const Connections::Handling handling(connections_);
    Connection* const present = established();
    const bool over = present != nullptr && left_behind(*present); // nothing is left to reset, as in tcp_disconnect
    Connection* given_up = nullptr;
    uint64_t last_attempt = 0;
    {
        const Guard lock(mutex_);
        if (state() == State::connected || state() == State::connecting) {
            disconnects_.fetch_add(1);
            move_to(State::closed);
            if (!over || connection() != present) {
                ending_.error.store(ECONNRESET); // for calls that still use it
            }
        }
        attempt_.report();
        last_attempt = attempt_.number();
        given_up = connections_.give_up();
    }
    // A core with its own port space cannot connect again from the port: the previous connection holds it there.
    const bool kernels_ports = given_up == nullptr || given_up->has_kernel_ports();
    stop_watching(fd, given_up);
    abort_given_up(given_up);
    {
        const Guard lock(mutex_);
        if (attempt_.number() == last_attempt) { // else another thread has begun the next one
            const Address asked = bound_.asked();
            if (kernels_ports && asked.set() && asked.port() != 0 && !bound_.held()) { // kept, as in tcp_disconnect
                bound_.hold_again(options_.kernel(), asked);
            }
            ending_.begin_anew();
        }
    }
    wait_queue_.notify_all();
    return 0;
}

void Socket::on_connected(const ::fid* subject) {
    Ref<Socket> parent;
    {
        const Guard lock(mutex_);
        const Connection* present = connection();
        if (state() != State::connecting || present == nullptr || !present->is(subject)) {
            return;
        }
        move_to(State::connected);
        passed_on_.store(0);
        connections_.note_connected();
        bound_.release();
        show();
        parent = std::move(parent_);
        attempt_.finish();
    }
    if (parent) {
        parent->child_connected(*this);
    }
    wait_queue_.notify_all();
}

void Socket::on_failed(const ::fid* subject, int error) { fail(subject, error); }

// subject: the endpoint that has failed; null: there is none yet, or no event tells of it.
void Socket::fail(const ::fid* subject, int error) {
    Ref<Socket> parent;
    {
        const Guard lock(mutex_);
        const Connection* present = connection();
        if (state() != State::connecting || (subject != nullptr && (present == nullptr || !present->is(subject)))) {
            return;
        }
        ending_.error.store(error);
        ending_.lost.store(true);
        move_to(State::closed);
        parent = std::move(parent_);
        attempt_.finish();
    }
    if (parent) {
        parent->child_failed(*this); // which releases this socket
        return;
    }
    library_.info_cache().forget(); // the route may have changed
    wait_queue_.notify_all();
}

void Socket::on_shutdown() { wait_queue_.notify_all(); }

void Socket::hang_up() {
    stop_listening();
    close_connection();
    {
        const Guard lock(mutex_);
        counters_.end();
    }
    wait_queue_.notify_all(); // epoll sets drop it
}

// Closes the connection as close(2): with a reset if bytes are unread or SO_LINGER asks for it; otherwise all sent data
// is delivered, in the background unless SO_LINGER asks to wait.
void Socket::close_connection() {
    Connections::List closing;
    linger wanted{};
    {
        const std::lock_guard alone(polling_);
        const Guard lock(mutex_);
        if (setting_up_) {
            setting_up_ = false;
            library_.setup_ends();
        }
        wanted = cached_.closing;
        closing = connections_.take_all();
        wait_queue_.let_go();
    }
    if (closing.empty() || state() != State::connected) {
        return;
    }
    Connection& last = *closing.back();
    const bool reset_wanted = wanted.l_onoff != 0 && wanted.l_linger == 0;
    if (reset_wanted || last.poll_bytes() > 0) {
        last.abort();
        return;
    }
    last.end_both();
    if (wanted.l_onoff != 0) {
        const Deadline deadline = Deadline::in(std::chrono::seconds(wanted.l_linger));
        const HeldSignals signals; // one ends the wait, as in sk_stream_wait_close, and close(2) succeeds
        while (!last.delivered() && !deadline.passed() && !Call::exiting() && last.wait_a_moment(signals) != -EINTR) {
        }
        // The program has waited for the SO_LINGER time. Ending the iomaps takes its own time.
        last.set_linger(last.has_maps() ? std::chrono::seconds(wanted.l_linger) : std::chrono::seconds(0));
    }
    if (last.status().unsent != 0 && !last.has_maps()) { // iomap memory is the program's at the return
        last.forget_target();
        library_.service().linger(closing.back()); // else it is closed here, as the provider is configured
    }
}

// For the exit of the process. Other threads may be inside calls on the connection, so it is not closed.
void Socket::close_at_exit() {
    stop_listening();
    Connection* present = established();
    if (present == nullptr) {
        return;
    }
    if (present->poll_bytes() > 0) {
        present->abort();
        return;
    }
    if (!ending_.send_shut.exchange(true)) {
        present->end_sending();
    }
}

bool Socket::delivered_at_exit() {
    Connection* present = established();
    return present == nullptr || present->delivered();
}

void Socket::wait_at_exit() {
    if (Connection* present = established(); present != nullptr) {
        present->wait_a_moment();
    }
}

} // namespace rsockets
