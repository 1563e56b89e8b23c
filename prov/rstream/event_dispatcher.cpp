// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/event_dispatcher.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

constexpr int most_rounds = 64;
// Added to the handler's address in the epoll data: the fd is one on which data arrives.
constexpr size_t data_tag = 1;
constexpr std::chrono::microseconds check_interval{1000};
constexpr std::chrono::microseconds check_cost{10};

// A core event and the most private data that any core delivers with one.
union CoreEvent {
    fi_eq_cm_entry entry;
    std::byte bytes[sizeof(fi_eq_cm_entry) + 1024];
};

} // namespace

int EventDispatcher::open(fid_fabric* core_fabric) {
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    attr.flags = FI_WRITE;
    fid_eq* eq = nullptr;
    int ret = fi_eq_open(core_fabric, &attr, &eq, nullptr);
    if (ret != 0) {
        return ret;
    }
    core_.reset(eq);
    core_fabric_ = core_fabric;
    watch_fd_ = base::Descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (watch_fd_.get() < 0) {
        return -errno;
    }
    wait_set_ = base::Descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (wait_set_.get() < 0) {
        return -errno;
    }
    ret = fi_control(&eq->fid, FI_GETWAIT, &core_fd_);
    close_queue_on_exec(core_fd_);
    if (ret != 0 || (ret = deadlines_.open()) != 0 || (ret = add_to_wait_set(core_fd_, nullptr)) != 0) {
        return ret;
    }
    return add_to_wait_set(deadlines_.fd(), nullptr);
}

int EventDispatcher::add_to_wait_set(int fd, EventHandler* handler) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = handler;
    return epoll_ctl(wait_set_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

void EventDispatcher::remove_from_wait_set(int fd) { epoll_ctl(wait_set_.get(), EPOLL_CTL_DEL, fd, nullptr); }

int EventDispatcher::add_queue(int fd, EventHandler* handler) {
    queues_.insert(handler);
    const int ret = add_to_wait_set(fd, handler);
    if (ret != 0) {
        queues_.erase(handler);
    }
    return ret;
}

void EventDispatcher::remove_queue(int fd, EventHandler* handler) {
    if (queues_.erase(handler) != 0) {
        remove_from_wait_set(fd);
    }
}

void EventDispatcher::add(AnyFid* core_fid, EventHandler* handler) {
    const std::lock_guard lock(mutex_);
    handlers_[core_fid] = handler;
}

void EventDispatcher::remove(AnyFid* core_fid, EventHandler* handler) {
    const std::lock_guard lock(mutex_);
    AnyFid* core = &core_->fid;
    pollfd event{core_fd_, POLLIN, 0};
    int rounds = 0;
    do {
        drain(core_.get());
        // Without fi_trywait, the fd stays readable after any event.
    } while (++rounds < most_rounds && (fi_trywait(core_fabric_, &core, 1) != 0 || poll(&event, 1, 0) > 0));
    forget(core_fid, handler);
}

void EventDispatcher::forget(AnyFid* core_fid, EventHandler* handler) {
    const std::lock_guard lock(mutex_);
    handlers_.erase(core_fid);
    clear_deadline(handler);
    set_needs_progress(handler, false);
    unwatch_data(handler); // it may have been connected by the last event
}

void EventDispatcher::run_deadlines() {
    if (deadlines_.empty()) {
        return;
    }
    const auto now = std::chrono::steady_clock::now();
    while (EventHandler* handler = deadlines_.take_due(now)) {
        handler->on_deadline();
    }
}

void EventDispatcher::run_queues() {
    if (queues_.empty()) {
        return;
    }
    epoll_event ready[64];
    const int count = epoll_wait(wait_set_.get(), ready, 64, 0);
    for (int i = 0; i < count; ++i) {
        if (auto* handler = static_cast<EventHandler*>(ready[i].data.ptr)) {
            handler->progress();
        }
    }
}

EventDispatcher::Ran EventDispatcher::run() {
    const std::lock_guard lock(mutex_);
    drain(core_.get());
    run_deadlines();
    run_queues();
    Ran ran;
    epoll_event ready[64];
    const int count = watches_.load() != 0 ? epoll_wait(watch_fd_.get(), ready, 64, 0) : 0;
    for (int i = 0; i < count; ++i) {
        auto* tagged = static_cast<std::byte*>(ready[i].data.ptr);
        const bool tag = (reinterpret_cast<uintptr_t>(tagged) & data_tag) != 0;
        auto* handler = reinterpret_cast<EventHandler*>(tag ? tagged - data_tag : tagged);
        ran.moved = ran.moved || tag;
        {
            const std::lock_guard leaf(progress_mutex_);
            unarmed_.insert(handler);
            if (const auto data = data_.find(handler); data != data_.end() && data->second.watched) {
                drop_watch(data->second.fd);
                data->second.watched = false;
                ran.dropped = true;
            }
        }
        handler->progress(); // none is removed meanwhile: `remove` waits for `mutex_`
    }
    std::vector<EventHandler*> rest;
    {
        const std::lock_guard leaf(progress_mutex_);
        ran.dropped = std::exchange(fresh_, false) || ran.dropped;
        rest.assign(need_progress_.begin(), need_progress_.end());
        if (check_due()) {
            std::copy_if(unarmed_.begin(), unarmed_.end(), std::back_inserter(rest), [this](EventHandler* handler) {
                return data_.contains(handler) && !need_progress_.contains(handler);
            });
        }
    }
    for (EventHandler* handler : rest) {
        handler->progress();
    }
    return ran;
}

// Whether to poll the unarmed handlers, whose activity no fd signals: not at each read, as a poll costs a system call,
// and less often the more there are.
bool EventDispatcher::check_due() {
    if (unarmed_.empty()) {
        return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < next_check_) {
        return false;
    }
    next_check_ = now + check_interval + check_cost * unarmed_.size();
    return true;
}

int EventDispatcher::arm(bool watched) {
    const std::lock_guard lock(mutex_);
    AnyFid* queue = &core_->fid;
    if (const int ret = fi_trywait(core_fabric_, &queue, 1); ret != 0) {
        return ret;
    }
    // A copy: a handler may remove its queue within the call.
    for (EventHandler* handler : std::vector(queues_.begin(), queues_.end())) {
        if (const int ret = queues_.contains(handler) ? handler->arm() : 0; ret != 0) {
            return ret;
        }
    }
    if (!watched) {
        return 0;
    }
    std::unordered_set<EventHandler*> unarmed;
    {
        const std::lock_guard leaf(progress_mutex_);
        unarmed.swap(unarmed_);
        for (EventHandler* handler : unarmed) {
            if (!watch_again(handler)) {
                unarmed_.insert(handler); // it is polled with the others, and tried again
            }
        }
    }
    int result = 0;
    for (EventHandler* handler : unarmed) { // none is removed meanwhile: `remove` waits for `mutex_`
        if (handler->arm() != 0) {
            const std::lock_guard leaf(progress_mutex_);
            unarmed_.insert(handler);
            result = -FI_EAGAIN;
        }
    }
    return result;
}

void EventDispatcher::watch(int fd, EventHandler* handler) {
    const std::lock_guard leaf(progress_mutex_);
    unarmed_.insert(handler);
    add_watch(fd, handler, false);
}

void EventDispatcher::unwatch(int fd, EventHandler* handler) {
    const std::lock_guard leaf(progress_mutex_);
    drop_watch(fd);
    unarmed_.erase(handler);
}

void EventDispatcher::watch_data(int fd, EventHandler* handler) {
    const std::lock_guard leaf(progress_mutex_);
    unarmed_.insert(handler);
    data_[handler] = {fd, false};
    fresh_ = true;
}

void EventDispatcher::unwatch_data(EventHandler* handler) {
    const std::lock_guard leaf(progress_mutex_);
    unarmed_.erase(handler);
    if (const auto data = data_.find(handler); data != data_.end()) {
        if (data->second.watched) {
            drop_watch(data->second.fd);
        }
        data_.erase(data);
    }
}

bool EventDispatcher::watch_again(EventHandler* handler) {
    const auto data = data_.find(handler);
    if (data == data_.end()) {
        return true;
    }
    data->second.watched = data->second.watched || add_watch(data->second.fd, handler, true);
    return data->second.watched;
}

bool EventDispatcher::add_watch(int fd, EventHandler* handler, bool data) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = reinterpret_cast<std::byte*>(handler) + (data ? data_tag : 0);
    if (epoll_ctl(watch_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        RSTREAM_WARN(FI_LOG_EQ, "a connection cannot be watched: %s\n", fi_strerror(errno));
        return false;
    }
    watches_.fetch_add(1);
    return true;
}

// The fd need not be a member, since it may be dropped twice.
void EventDispatcher::drop_watch(int fd) {
    if (epoll_ctl(watch_fd_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0) {
        watches_.fetch_sub(1);
    }
}

int EventDispatcher::drain(fid_eq* queue) {
    const std::lock_guard lock(mutex_);
    int ret = 0;
    while ((ret = take(queue)) > 0) {
    }
    return ret;
}

int EventDispatcher::take(fid_eq* queue) {
    const std::lock_guard lock(mutex_);
    CoreEvent event;
    uint32_t kind = 0;
    const ssize_t got = fi_eq_read(queue, &kind, &event, sizeof(event), 0);
    if (got == -FI_EAVAIL) {
        fi_eq_err_entry error{};
        std::byte data[512];
        error.err_data = data;
        error.err_data_size = sizeof(data);
        if (fi_eq_readerr(queue, &error, 0) < 0) {
            return 0;
        }
        if (auto found = handlers_.find(error.fid); found != handlers_.end()) {
            found->second->on_core_error(error);
        } else {
            RSTREAM_INFO(FI_LOG_EQ, "core error for an unknown fid: %s\n", fi_strerror(error.err));
        }
        return 1;
    }
    if (got == -FI_EAGAIN) {
        return 0;
    }
    if (got < static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) {
        RSTREAM_WARN(FI_LOG_EQ, "the core's event queue answers %zd\n", got);
        return got < 0 ? static_cast<int>(got) : -FI_EIO;
    }
    const std::span<const std::byte> data(event.bytes + sizeof(fi_eq_cm_entry),
                                          static_cast<size_t>(got) - sizeof(fi_eq_cm_entry));
    if (auto found = handlers_.find(event.entry.fid); found != handlers_.end()) {
        found->second->on_core_event(kind, event.entry, data);
    } else if (event.entry.info != nullptr && kind == FI_CONNREQ) {
        fi_freeinfo(event.entry.info);
    }
    return 1;
}

void EventDispatcher::set_needs_progress(EventHandler* handler, bool needs) {
    const std::lock_guard lock(progress_mutex_);
    if (needs) {
        need_progress_.insert(handler);
    } else {
        need_progress_.erase(handler);
    }
}

} // namespace rstream
