// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/wait_set.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace rstream {

namespace {

int add_to(const base::Descriptor& set, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

} // namespace

int WaitSet::add(int fd) {
    const base::Guard lock(mutex_);
    if (set_.open()) {
        if (const int ret = add_to(set_, fd); ret != 0) {
            return ret;
        }
    }
    added_.push_back(fd);
    return 0;
}

void WaitSet::remove(int fd) {
    const base::Guard lock(mutex_);
    if (std::erase(added_, fd) != 0 && set_.open()) {
        epoll_ctl(set_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
}

int WaitSet::fd() {
    const base::Guard lock(mutex_);
    return set_.get();
}

int WaitSet::notify_fd() {
    const base::Guard lock(mutex_);
    return event_.get();
}

int WaitSet::open_set(std::span<const int> fds) {
    base::Descriptor set(epoll_create1(EPOLL_CLOEXEC));
    base::Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!set.open() || !event.open()) {
        return -errno;
    }
    int ret = add_to(set, event.get());
    for (const auto& members : {fds, std::span<const int>(added_)}) {
        for (size_t i = 0; i < members.size() && ret == 0; ++i) {
            ret = add_to(set, members[i]);
        }
    }
    if (ret == 0) {
        set_ = std::move(set);
        event_ = std::move(event);
    }
    return ret;
}

void WaitSet::notify() {
    const base::Guard lock(mutex_);
    if (!signaled_ && event_.open()) {
        signal();
    }
}

void WaitSet::signal() {
    const uint64_t one = 1;
    signaled_ = ::write(event_.get(), &one, sizeof(one)) == sizeof(one);
}

void WaitSet::unsignal() {
    uint64_t count = 0;
    signaled_ = ::read(event_.get(), &count, sizeof(count)) < 0 && errno != EAGAIN;
}

} // namespace rstream
