// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <sys/epoll.h>

#include "rsockets/listener.hpp"
#include "rsockets/log.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

namespace {

constexpr size_t largest_backlog = 4096; // the default of net.core.somaxconn

bool is_v4(const void* address, size_t length) {
    const Address peer(address, static_cast<socklen_t>(length));
    return peer.unmapped().family() == AF_INET;
}

} // namespace

int Socket::listen(int fd, int backlog) {
    const size_t limit = std::min<size_t>(static_cast<unsigned>(backlog), largest_backlog) + 1;
    {
        const Guard lock(mutex_);
        if (state() == State::listening) {
            listener_->set_limit(limit);
        } else if (state() != State::closed || !attempt_.reported()) { // connect(2) comes first, which tells of it
            return -EINVAL;
        }
    }
    if (state() == State::listening) {
        serve_waiting(); // the backlog may have space now
        return 0;
    }
    Address bound;
    {
        const Guard lock(mutex_);
        bound = bound_.name(family_);
    }
    std::shared_ptr<Listener> made; // kept alive, even if another thread ends it meanwhile
    if (const int error = Listener::open(library_, bound, limit, made); error != 0) {
        log(Level::info, "cannot listen: %s", strerror(error));
        return -error;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(fd, EPOLL_CTL_ADD, made->signal_fd(), &event) != 0) {
        return -errno;
    }
    if (const int ret = made->attach(this); ret != 0) {
        made->detach();
        return ret;
    }
    bool begun = false;
    {
        const Guard lock(mutex_);
        begun = state() == State::closed;
        if (begun) {
            listener_ = made;
            ending_.receive_shut.store(false);
            ending_.send_shut.store(false);
            move_to(State::listening);
        }
    }
    if (!begun) { // another thread changed the state first
        made->detach();
        return -EINVAL;
    }
    if (const int ret = made->listen(); ret != 0) {
        stop_listening(made.get());
        return ret;
    }
    const Guard lock(mutex_);
    if (listener_ != made) {
        return 0; // another thread has stopped it
    }
    if (bound_.kernel_listens(options_.kernel(), family_)) {
        // The core holds the address from now on; otherwise it stays reserved against kernel sockets.
        bound_.release();
    }
    counters_.set_number(fd);
    show();
    return 0;
}

void Socket::stop_listening(const Listener* only) {
    std::shared_ptr<Listener> gone;
    {
        const Guard lock(mutex_);
        if (!listener_ || (only != nullptr && listener_.get() != only)) {
            return;
        }
        gone = std::move(listener_);
        move_to(State::closed);
    }
    gone->detach();
    for (const Ref<Socket>& child : gone->opening()) {
        const Guard lock(child->mutex_);
        child->parent_ = Ref<Socket>();
    }
    // These will never be accepted: as with TCP, their connections are reset.
    for (const Ref<Socket>& child : gone->ready()) {
        child->connection()->abort();
    }
    gone.reset();
    wait_queue_.notify_all();
}

void Socket::on_request(base::Info request) {
    {
        const Guard lock(mutex_);
        if (!listener_) {
            return;
        }
        if (options_.v6_only() && is_v4(request->dest_addr, request->dest_addrlen)) { // the core accepts both
            listener_->refuse(*request);
            return;
        }
        if (!listener_->has_space()) {
            listener_->wait_for_space(std::move(request));
            return;
        }
    }
    open_request(std::move(request));
    serve_waiting(); // others may have come while it took the space, and it may have failed
}

void Socket::begin_as_child_of(Socket& listener, const fi_info& request) {
    options_.inherit(listener.options_);
    cached_.inherit(listener.cached_);
    parent_ = Ref<Socket>(&listener);
    peer_ = Address(request.dest_addr, static_cast<socklen_t>(request.dest_addrlen)).bare();
    accepted_ = true;
    state_.store(State::connecting);
    setting_up_ = true;
    library_.setup_begins();
}

// Accepts a request on a new socket, which inherits the listener's settings, except O_NONBLOCK. One that cannot be
// served is refused. The caller serves the next one: within this call, that could recur as often as there are requests.
void Socket::open_request(base::Info request) {
    Ref<Socket> child;
    std::unique_ptr<Connection> connection;
    int ret = -FI_ENOMEM;
    try {
        child = Ref<Socket>::adopt(new Socket(library_, family_, false));
        ret = open_child(child, *request, connection);
    } catch (const std::bad_alloc&) {
    }
    if (ret == 0) {
        return;
    }
    log(Level::warn, "a connection request cannot be served: %s", fi_strerror(-ret));
    const bool taken = connection || (child && child->connection() != nullptr); // by an endpoint, which refuses it
    Ref<Socket> gone;                                                           // released without our lock
    {
        const Guard lock(mutex_);
        if (listener_ && child) {
            gone = listener_->remove(*child);
        }
        if (listener_ && !taken) {
            listener_->refuse(*request);
        }
    }
    if (child) {
        {
            const Guard lock(child->mutex_);
            child->parent_ = Ref<Socket>();
        }
        child->fail(nullptr, -ret);
    }
}

int Socket::open_child(const Ref<Socket>& child, fi_info& request, std::unique_ptr<Connection>& connection) {
    Transport* transport = nullptr;
    {
        const Guard lock(mutex_);
        if (!listener_) {
            return 0;
        }
        transport = &listener_->transport();
        child->begin_as_child_of(*this, request);
        listener_->add(child);
    }
    Sizes wanted;
    {
        const Guard lock(child->mutex_);
        wanted = child->options_.sizes();
    }
    if (const int ret = Connection::open(*transport, request, child.get(), wanted, connection); ret != 0) {
        return ret;
    }
    Connection& opened = *connection;
    {
        const Guard lock(child->mutex_);
        child->apply_keepalive(opened);
        child->connections_.add(std::move(connection));
    }
    return opened.accept();
}

// Opens queued requests while the backlog has space.
void Socket::serve_waiting() {
    for (;;) {
        base::Info request;
        {
            const Guard lock(mutex_);
            if (listener_) {
                request = listener_->next_request();
            }
        }
        if (!request) {
            return;
        }
        open_request(std::move(request));
    }
}

void Socket::child_connected(Socket& child) {
    {
        const Guard lock(mutex_);
        if (!listener_ || !listener_->make_ready(child)) {
            return;
        }
        connections_made_.fetch_add(1);
    }
    wait_queue_.notify_all();
}

void Socket::child_failed(Socket& child) {
    Ref<Socket> gone; // released without our lock
    {
        const Guard lock(mutex_);
        if (listener_) {
            gone = listener_->remove(child);
        }
    }
    if (gone) {
        serve_waiting();
    }
}

int Socket::accept(bool nonblocking, Ref<Socket>& out) {
    const auto attempt = [&]() -> ssize_t {
        const Guard lock(mutex_);
        if (!listener_) {
            return -EINVAL;
        }
        out = listener_->take();
        return out ? 0 : -EAGAIN;
    };
    const auto ret =
        static_cast<int>(repeat(!this->nonblocking(), Nanoseconds(cached_.receive_timeout.load()), attempt));
    if (ret == 0) {
        out->set_nonblocking(nonblocking);
        serve_waiting();
    }
    return ret;
}

void Socket::put_back(const Ref<Socket>& accepted) {
    bool listens = false;
    {
        const Guard lock(mutex_);
        listens = listener_ != nullptr;
        if (listens) {
            listener_->put_back(accepted);
        }
    }
    if (!listens) {
        accepted->connection()->abort();
    }
    wait_queue_.notify_all();
}

bool Socket::show_in(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(fd, EPOLL_CTL_ADD, connection()->wait_fd(), &event) == 0;
}

} // namespace rsockets
