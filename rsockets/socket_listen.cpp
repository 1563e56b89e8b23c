// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "rsockets/log.hpp"
#include "rsockets/option_sizes.hpp"
#include "rsockets/provider.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

namespace {

// Requests beyond the backlog wait, as with TCP the peer's does; beyond this many they are refused.
constexpr size_t most_waiting = 4096;
constexpr size_t largest_backlog = 4096; // net.core.somaxconn's default

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
            listener_->limit = limit;
        } else if (state() != State::closed) {
            return -EINVAL;
        }
    }
    if (state() == State::listening) {
        serve_waiting(); // there may be room for them now
        return 0;
    }
    auto listener = std::make_unique<Listener>();
    listener->limit = limit;
    listener->signal = base::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!listener->signal.open()) {
        return -errno;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(fd, EPOLL_CTL_ADD, listener->signal.get(), &event) != 0) {
        return -errno;
    }
    Address bound;
    {
        const Guard lock(mutex_);
        bound = bound_name();
    }
    if (const int error = open_passive(bound, *listener); error != 0) {
        log(Level::info, "cannot listen: %s", strerror(error));
        return -error;
    }
    fid_pep* pep = listener->pep.get();
    Transport& transport = *listener->transport;
    {
        const Guard lock(mutex_);
        if (state() != State::closed) {
            return -EINVAL; // another thread was quicker
        }
        listener_ = std::move(listener);
        receive_shut_.store(false);
        send_shut_.store(false);
        move_to(State::listening);
    }
    int ret = transport.attach(pep, this);
    if (ret == 0) {
        ret = fi_listen(pep);
    }
    if (ret != 0) {
        stop_listening();
        return ret;
    }
    const Guard lock(mutex_);
    if (kernel_listens()) {
        reserved_.reset(); // the core holds the address from now on
    }
    number_ = fd;
    show();
    return 0;
}

// Whether the core listens by a socket of the kernel's. Where it has a port space of its own, the address stays
// reserved against the kernel's sockets besides.
bool Socket::kernel_listens() const {
    const Address at = bound_name();
    const base::Descriptor probe = options_.socket({{IPPROTO_IPV6, IPV6_V6ONLY}});
    const int on = 1;
    return reserved_.open() && probe.open() &&
           setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
           ::bind(probe.get(), at.get(), at.length) != 0;
}

int Socket::open_passive(const Address& address, Listener& listener) {
    const base::Info wishes = hints();
    if (!wishes) {
        return ENOMEM;
    }
    const Address local = address.unmapped();
    wishes->addr_format = local.family() == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    wishes->src_addr = malloc(local.length);
    if (wishes->src_addr == nullptr) {
        return ENOMEM;
    }
    memcpy(wishes->src_addr, local.get(), local.length);
    wishes->src_addrlen = local.length;
    base::Info found;
    int ret = provider::get_info(*wishes, found);
    if (ret != 0) {
        return ret == -FI_ENODATA ? EADDRNOTAVAIL : -ret;
    }
    if ((ret = library_.transport_for(*found, listener.transport)) != 0) {
        return -ret;
    }
    fid_pep* pep = nullptr;
    if ((ret = fi_passive_ep(listener.transport->fabric(), found.get(), &pep, nullptr)) != 0) {
        return -ret;
    }
    listener.pep.reset(pep);
    return 0;
}

void Socket::stop_listening() {
    std::unique_ptr<Listener> gone;
    {
        const Guard lock(mutex_);
        if (!listener_) {
            return;
        }
        gone = std::move(listener_);
        move_to(State::closed);
    }
    gone->transport->detach(&gone->pep->fid);
    for (auto* list : {&gone->opening}) {
        for (const Ref<Socket>& child : *list) {
            const Guard lock(child->mutex_);
            child->parent_ = Ref<Socket>();
        }
    }
    // Nobody will ever read from these: as with TCP, their peers are told.
    for (const Ref<Socket>& child : gone->ready) {
        (void)child->connection()->abort();
    }
    gone->requests.clear();
    gone->pep.reset();
    bell_.ring();
}

void Socket::on_request(base::Info request) {
    {
        const Guard lock(mutex_);
        if (!listener_) {
            return;
        }
        if (v6_only_ && is_v4(request->dest_addr, request->dest_addrlen)) { // the core listens for both
            (void)fi_reject(listener_->pep.get(), request->handle, nullptr, 0);
            return;
        }
        if (listener_->ready.size() + listener_->opening.size() >= listener_->limit) {
            if (listener_->requests.size() < most_waiting) {
                listener_->requests.push_back(std::move(request));
            } else {
                (void)fi_reject(listener_->pep.get(), request->handle, nullptr, 0);
            }
            return;
        }
    }
    open_request(std::move(request));
}

// A new socket, which nobody else knows.
void Socket::begin_as_child_of(Socket& listener, const fi_info& request) {
    options_.inherit(listener.options_);
    cached_.inherit(listener.cached_);
    v6_only_ = listener.v6_only_;
    for (const Option& option : option_table) {
        if (const auto member = configured(option); member != nullptr && option.inherited) {
            config_.*member = listener.config_.*member;
        }
    }
    parent_ = Ref<Socket>(&listener);
    came_from_ = Address(request.dest_addr, static_cast<socklen_t>(request.dest_addrlen));
    state_.store(State::connecting);
    setting_up_ = true;
    library_.setup_begins();
}

// Makes a connection of a request. Its socket has what the listener was set to, but O_NONBLOCK.
void Socket::open_request(base::Info request) {
    Ref<Socket> child = Ref<Socket>::adopt(new Socket(library_, family_, false));
    Transport* transport = nullptr;
    {
        const Guard lock(mutex_);
        if (!listener_) {
            return;
        }
        transport = listener_->transport;
        child->begin_as_child_of(*this, *request);
        listener_->opening.push_back(child);
    }
    std::unique_ptr<Connection> connection;
    Sizes wanted;
    {
        const Guard lock(child->mutex_);
        wanted = child->sizes();
    }
    int ret = Connection::open(*transport, *request, child.get(), wanted, connection);
    if (ret == 0) {
        Connection& opened = *connection;
        {
            const Guard lock(child->mutex_);
            (void)child->apply_keepalive(opened);
            child->adopt(std::move(connection));
        }
        ret = opened.accept();
    }
    if (ret != 0) {
        log(Level::warn, "a connection request cannot be served: %s", fi_strerror(-ret));
        child->on_failed(-ret);
    }
}

// Opens the next of the requests that wait, if there is room.
void Socket::serve_waiting() {
    for (;;) {
        base::Info request;
        {
            const Guard lock(mutex_);
            if (!listener_ || listener_->requests.empty() ||
                listener_->ready.size() + listener_->opening.size() >= listener_->limit) {
                return;
            }
            request = std::move(listener_->requests.front());
            listener_->requests.pop_front();
        }
        open_request(std::move(request));
    }
}

void Socket::child_connected(Socket& child) {
    {
        const Guard lock(mutex_);
        if (!listener_) {
            return;
        }
        const auto found = std::find_if(listener_->opening.begin(), listener_->opening.end(),
                                        [&](const Ref<Socket>& one) { return one.get() == &child; });
        if (found == listener_->opening.end()) {
            return;
        }
        listener_->ready.push_back(std::move(*found));
        listener_->opening.erase(found);
        connections_made_.fetch_add(1);
        update_signal();
    }
    bell_.ring();
}

void Socket::child_failed(Socket& child) {
    Ref<Socket> gone; // released without our lock
    {
        const Guard lock(mutex_);
        if (!listener_) {
            return;
        }
        const auto found = std::find_if(listener_->opening.begin(), listener_->opening.end(),
                                        [&](const Ref<Socket>& one) { return one.get() == &child; });
        if (found == listener_->opening.end()) {
            return;
        }
        gone = std::move(*found);
        listener_->opening.erase(found);
    }
    serve_waiting();
}

void Socket::update_signal() {
    const bool any = !listener_->ready.empty();
    if (any == std::exchange(listener_->signaled, any)) {
        return;
    }
    uint64_t count = 1;
    if (any) {
        (void)!::write(listener_->signal.get(), &count, sizeof(count));
    } else {
        (void)!::read(listener_->signal.get(), &count, sizeof(count));
    }
}

int Socket::accept(bool nonblocking, Ref<Socket>& out) {
    base::Descriptor none;
    return accept_any(nonblocking, out, none);
}

int Socket::listen_beside(int fd, int kernel) {
    const Guard lock(mutex_);
    if (!listener_) {
        return -EINVAL;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(fd, EPOLL_CTL_ADD, kernel, &event) != 0) {
        return -errno;
    }
    beside_.store(kernel);
    return 0;
}

int Socket::accept_any(bool nonblocking, Ref<Socket>& out, base::Descriptor& kernel) {
    const auto attempt = [&]() -> ssize_t {
        const Guard lock(mutex_);
        if (!listener_) {
            return -EINVAL;
        }
        if (listener_->ready.empty()) {
            const int beside = beside_.load();
            if (beside < 0) {
                return -EAGAIN;
            }
            kernel = base::Descriptor(::accept4(beside, nullptr, nullptr, nonblocking ? SOCK_NONBLOCK : 0));
            return kernel.open() ? 0 : -errno;
        }
        out = std::move(listener_->ready.front());
        listener_->ready.pop_front();
        update_signal();
        return 0;
    };
    const auto ret =
        static_cast<int>(repeat(!this->nonblocking(), Nanoseconds(cached_.receive_timeout.load()), attempt));
    if (ret == 0 && out) {
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
            listener_->ready.push_front(accepted);
            update_signal();
        }
    }
    if (!listens) {
        (void)accepted->connection()->abort();
    }
    bell_.ring();
}

bool Socket::show_in(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(fd, EPOLL_CTL_ADD, connection()->wait_fd(), &event) == 0;
}

} // namespace rsockets
