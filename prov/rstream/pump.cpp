// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/pump.hpp"

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
constexpr std::chrono::microseconds look_interval{1000};
constexpr std::chrono::microseconds look_cost{10};

// A core event and the most private data that any core delivers with one.
union CoreEvent {
    fi_eq_cm_entry entry;
    std::byte bytes[sizeof(fi_eq_cm_entry) + 1024];
};

} // namespace

int Pump::open(fid_fabric* core_fabric) {
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

int Pump::add_to_wait_set(int fd, EqTarget* target) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = target;
    return epoll_ctl(wait_set_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int Pump::add_queue(int fd, EqTarget* target) {
    queues_.insert(target);
    const int ret = add_to_wait_set(fd, target);
    if (ret != 0) {
        queues_.erase(target);
    }
    return ret;
}

void Pump::remove_queue(int fd, EqTarget* target) {
    if (queues_.erase(target) != 0) {
        epoll_ctl(wait_set_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
}

void Pump::add(AnyFid* core_fid, EqTarget* target) {
    const std::lock_guard lock(mutex_);
    targets_[core_fid] = target;
}

void Pump::remove(AnyFid* core_fid, EqTarget* target) {
    const std::lock_guard lock(mutex_);
    AnyFid* core = &core_->fid;
    pollfd event{core_fd_, POLLIN, 0};
    int rounds = 0;
    do {
        (void)drain(core_.get());
        // Without fi_trywait, the fd stays readable after any event.
    } while (++rounds < most_rounds && (fi_trywait(core_fabric_, &core, 1) != 0 || poll(&event, 1, 0) > 0));
    forget(core_fid, target);
}

void Pump::forget(AnyFid* core_fid, EqTarget* target) {
    const std::lock_guard lock(mutex_);
    targets_.erase(core_fid);
    clear_deadline(target);
    set_needy(target, false);
    unwatch_data(target); // it may have been connected by the last event
}

void Pump::run_deadlines() {
    if (deadlines_.empty()) {
        return;
    }
    const auto now = std::chrono::steady_clock::now();
    while (EqTarget* target = deadlines_.take_due(now)) {
        target->on_deadline();
    }
}

void Pump::run_queues() {
    if (queues_.empty()) {
        return;
    }
    epoll_event ready[64];
    const int count = epoll_wait(wait_set_.get(), ready, 64, 0);
    for (int i = 0; i < count; ++i) {
        if (auto* target = static_cast<EqTarget*>(ready[i].data.ptr)) {
            target->progress();
        }
    }
}

Pump::Ran Pump::run() {
    const std::lock_guard lock(mutex_);
    (void)drain(core_.get());
    run_deadlines();
    run_queues();
    Ran ran;
    epoll_event ready[64];
    const int count = watches_.load() != 0 ? epoll_wait(watch_fd_.get(), ready, 64, 0) : 0;
    for (int i = 0; i < count; ++i) {
        auto* target = static_cast<EqTarget*>(ready[i].data.ptr);
        {
            const std::lock_guard leaf(needy_mutex_);
            unarmed_.insert(target);
            if (const auto data = data_.find(target); data != data_.end() && data->second.watched) {
                drop_watch(data->second.fd);
                data->second.watched = false;
                ran.dropped = true;
            }
        }
        target->progress(); // none is removed meanwhile: `remove` waits for `mutex_`
    }
    ran.moved = count > 0;
    std::vector<EqTarget*> rest;
    {
        const std::lock_guard leaf(needy_mutex_);
        ran.dropped = std::exchange(fresh_, false) || ran.dropped;
        rest.assign(needy_.begin(), needy_.end());
        if (look_due()) {
            std::copy_if(unarmed_.begin(), unarmed_.end(), std::back_inserter(rest),
                         [this](EqTarget* target) { return data_.contains(target) && !needy_.contains(target); });
        }
    }
    for (EqTarget* target : rest) {
        target->progress();
    }
    return ran;
}

// Whether to poll the unarmed handlers, whose activity no fd signals: not at each read, as a poll costs a system call,
// and less often the more there are.
bool Pump::look_due() {
    if (unarmed_.empty()) {
        return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) {
        return false;
    }
    next_look_ = now + look_interval + look_cost * unarmed_.size();
    return true;
}

int Pump::arm(bool watched) {
    const std::lock_guard lock(mutex_);
    AnyFid* queue = &core_->fid;
    if (const int ret = fi_trywait(core_fabric_, &queue, 1); ret != 0) {
        return ret;
    }
    for (EqTarget* target : queues_) {
        if (const int ret = target->arm(); ret != 0) {
            return ret;
        }
    }
    if (!watched) {
        return 0;
    }
    std::unordered_set<EqTarget*> unarmed;
    {
        const std::lock_guard leaf(needy_mutex_);
        unarmed.swap(unarmed_);
        for (EqTarget* target : unarmed) {
            if (!watch_again(target)) {
                unarmed_.insert(target); // it is polled with the others, and tried again
            }
        }
    }
    int result = 0;
    for (EqTarget* target : unarmed) { // none is removed meanwhile: `remove` waits for `mutex_`
        if (target->arm() != 0) {
            const std::lock_guard leaf(needy_mutex_);
            unarmed_.insert(target);
            result = -FI_EAGAIN;
        }
    }
    return result;
}

void Pump::watch(int fd, EqTarget* target) {
    const std::lock_guard leaf(needy_mutex_);
    unarmed_.insert(target);
    add_watch(fd, target);
}

void Pump::unwatch(int fd, EqTarget* target) {
    const std::lock_guard leaf(needy_mutex_);
    drop_watch(fd);
    unarmed_.erase(target);
}

void Pump::watch_data(int fd, EqTarget* target) {
    const std::lock_guard leaf(needy_mutex_);
    unarmed_.insert(target);
    data_[target] = {fd, false};
    fresh_ = true;
}

void Pump::unwatch_data(EqTarget* target) {
    const std::lock_guard leaf(needy_mutex_);
    unarmed_.erase(target);
    if (const auto data = data_.find(target); data != data_.end()) {
        if (data->second.watched) {
            drop_watch(data->second.fd);
        }
        data_.erase(data);
    }
}

bool Pump::watch_again(EqTarget* target) {
    const auto data = data_.find(target);
    if (data == data_.end()) {
        return true;
    }
    data->second.watched = data->second.watched || add_watch(data->second.fd, target);
    return data->second.watched;
}

bool Pump::add_watch(int fd, EqTarget* target) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = target;
    if (epoll_ctl(watch_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        RSTREAM_WARN(FI_LOG_EQ, "a connection cannot be watched: %s\n", fi_strerror(errno));
        return false;
    }
    watches_.fetch_add(1);
    return true;
}

// The fd need not be a member, since it may be dropped twice.
void Pump::drop_watch(int fd) {
    if (epoll_ctl(watch_fd_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0) {
        watches_.fetch_sub(1);
    }
}

int Pump::drain(fid_eq* queue) {
    const std::lock_guard lock(mutex_);
    int ret = 0;
    while ((ret = take(queue)) > 0) {
    }
    return ret;
}

int Pump::take(fid_eq* queue) {
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
        if (auto found = targets_.find(error.fid); found != targets_.end()) {
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
    if (auto found = targets_.find(event.entry.fid); found != targets_.end()) {
        found->second->on_core_event(kind, event.entry, data);
    } else if (event.entry.info != nullptr && kind == FI_CONNREQ) {
        fi_freeinfo(event.entry.info);
    }
    return 1;
}

void Pump::set_needy(EqTarget* target, bool needy) {
    const std::lock_guard lock(needy_mutex_);
    if (needy) {
        needy_.insert(target);
    } else {
        needy_.erase(target);
    }
}

} // namespace rstream
