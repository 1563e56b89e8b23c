// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/listener.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/eventfd.hpp"
#include "rsockets/provider.hpp"
#include "rsockets/socket.hpp"

namespace rsockets {

namespace {

constexpr size_t most_waiting = 4096; // requests

} // namespace

Listener::Listener(size_t limit) : limit_(limit), signal_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Listener::~Listener() = default;

int Listener::open(Library& library, const Address& address, size_t limit, std::shared_ptr<Listener>& out) {
    std::shared_ptr<Listener> made(new Listener(limit));
    if (!made->signal_.open()) {
        return errno;
    }
    const int error = made->open_endpoint(library, address);
    if (error == 0) {
        out = std::move(made);
    }
    return error;
}

int Listener::open_endpoint(Library& library, const Address& address) {
    const base::Info hints = provider::hints();
    if (!hints) {
        return ENOMEM;
    }
    const Address local = address.unmapped();
    hints->addr_format = local.family() == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    hints->src_addr = malloc(local.length);
    if (hints->src_addr == nullptr) {
        return ENOMEM;
    }
    memcpy(hints->src_addr, local.get(), local.length);
    hints->src_addrlen = local.length;
    base::Info found;
    int ret = provider::get_info(*hints, found);
    if (ret != 0) {
        return ret == -FI_ENODATA ? EADDRNOTAVAIL : -ret;
    }
    if ((ret = library.transport_for(*found, transport_)) != 0) {
        return -ret;
    }
    fid_pep* pep = nullptr;
    if ((ret = fi_passive_ep(transport_->fabric(), found.get(), &pep, nullptr)) != 0) {
        return -ret;
    }
    pep_.reset(pep);
    return 0;
}

int Listener::attach(EventHandler* handler) { return transport_->attach(pep_.get(), handler); }

int Listener::listen() { return fi_listen(pep_.get()); }

void Listener::detach() { transport_->detach(&pep_->fid); }

Address Listener::name() const {
    Address found;
    size_t size = sizeof(found.storage);
    if (fi_getname(&pep_->fid, &found.storage, &size) == 0) {
        found.length = static_cast<socklen_t>(size);
    }
    return found;
}

// The peer may have given up meanwhile.
void Listener::refuse(const fi_info& request) { fi_reject(pep_.get(), request.handle, nullptr, 0); }

void Listener::wait_for_space(base::Info request) {
    if (requests_.size() < most_waiting) {
        requests_.push_back(std::move(request));
    } else {
        refuse(*request);
    }
}

base::Info Listener::next_request() {
    base::Info request;
    if (has_space() && !requests_.empty()) {
        request = std::move(requests_.front());
        requests_.pop_front();
    }
    return request;
}

void Listener::add(const Ref<Socket>& opening) { opening_.push_back(opening); }

std::list<Ref<Socket>>::iterator Listener::find(const Socket& child) {
    return std::find_if(opening_.begin(), opening_.end(), [&](const Ref<Socket>& one) { return one.get() == &child; });
}

bool Listener::make_ready(const Socket& child) {
    const auto found = find(child);
    if (found == opening_.end()) {
        return false;
    }
    ready_.splice(ready_.end(), opening_, found); // which needs no memory
    update_signal();
    return true;
}

Ref<Socket> Listener::remove(const Socket& child) {
    Ref<Socket> gone;
    if (const auto found = find(child); found != opening_.end()) {
        gone = std::move(*found);
        opening_.erase(found);
    }
    return gone;
}

Ref<Socket> Listener::take() {
    Ref<Socket> taken;
    if (!ready_.empty()) {
        taken = std::move(ready_.front());
        ready_.pop_front();
        update_signal();
    }
    return taken;
}

void Listener::put_back(const Ref<Socket>& taken) {
    ready_.push_front(taken);
    update_signal();
}

void Listener::update_signal() {
    const bool any = !ready_.empty();
    if (any == std::exchange(signaled_, any)) {
        return;
    }
    any ? base::notify(signal_.get()) : base::consume_notifications(signal_.get());
}

} // namespace rsockets
