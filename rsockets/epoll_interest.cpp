// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A socket or set in an epoll set: how it tells the set that it must be polled.
#include <sys/epoll.h>

#include "base/eventfd.hpp"
#include "rsockets/epoll_set.hpp"

namespace rsockets {

EpollSet::Interest::Interest(EpollSet& set, int fd, const Ref<Object>& object)
    : set_(set), fd_(fd), object_(object), socket_(as_kind<Socket>(object.get())),
      nested_(as_kind<EpollSet>(object.get())) {}

void EpollSet::Interest::notify() {
    queue();
    set_.outer_.notify_all();
}

void EpollSet::Interest::queue() {
    const Guard lock(set_.notified_mutex_);
    if (notified_) {
        return; // queued already
    }
    set_.notified_.push_back(id_);
    notified_ = true;
    if (set_.notified_.size() == 1) {
        base::notify(set_.wake_.get());
    }
}

void EpollSet::Interest::let_go() {
    const base::Descriptor duplicate(duplicate_.exchange(-1));
    if (const int fd = watched_.exchange(-1); fd >= 0) {
        epoll_ctl(set_.kernel_.get(), EPOLL_CTL_DEL, duplicate.open() ? duplicate.get() : fd, nullptr);
    }
}

WaitQueue& EpollSet::Interest::wait_queue() { return socket_ != nullptr ? socket_->wait_queue() : nested_->outer_; }

} // namespace rsockets
