// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/core/idle_queues.hpp"

#include <new>
#include <utility>

#include <poll.h>

namespace rstream {

namespace {

constexpr int most_events = 64;

// False: it is not empty, or cannot be read.
bool empty(fid_eq* queue) {
    std::byte event[sizeof(fi_eq_cm_entry) + 1024];
    for (int i = 0; i < most_events; ++i) {
        uint32_t kind = 0;
        const ssize_t got = fi_eq_read(queue, &kind, event, sizeof(event), 0);
        if (got == -FI_EAGAIN) {
            return true;
        }
        if (got == -FI_EAVAIL) {
            fi_eq_err_entry error{};
            if (fi_eq_readerr(queue, &error, 0) < 0) {
                return false;
            }
        } else if (got < 0) {
            return false;
        }
    }
    return false;
}

// A waiter on the fd sleeps. fi_trywait takes back what events have left in a core's own signal.
bool sleeps(fid_fabric* fabric, const IdleQueues::Queue& idle) {
    AnyFid* self = &idle.queue->fid;
    pollfd one{idle.fd, POLLIN, 0};
    return fi_trywait(fabric, &self, 1) == 0 && poll(&one, 1, 0) == 0;
}

} // namespace

IdleQueues::Queue IdleQueues::take() {
    const std::lock_guard lock(mutex_);
    if (queues_.empty()) {
        return {};
    }
    Queue queue = std::move(queues_.back());
    queues_.pop_back();
    return queue;
}

void IdleQueues::give(fid_fabric* fabric, Queue&& queue) {
    Queue idle = std::move(queue);
    if (!idle.queue || idle.fd < 0 || !empty(idle.queue.get()) || !sleeps(fabric, idle)) {
        return;
    }
    const std::lock_guard lock(mutex_);
    if (queues_.size() < limit) {
        try {
            queues_.push_back(std::move(idle));
        } catch (const std::bad_alloc&) { // it is closed
        }
    }
}

} // namespace rstream
