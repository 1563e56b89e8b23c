// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/listen_queue.hpp"

#include <cerrno>
#include <utility>

#include <poll.h>

#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

constexpr std::chrono::milliseconds pause_time{100};
constexpr int max_reads = 16; // in one call: other threads wait for the dispatcher
constexpr int max_vain = 3;   // the first may see a signal that another thread's call left
// Each read closes some hundred ended connections, so this is far more than is needed.
constexpr int max_last_reads = 10000;

} // namespace

int ListenQueue::open(fid_fabric* core_fabric, std::shared_ptr<EventDispatcher> dispatcher, EventHandler* handler,
                      std::chrono::milliseconds handshake_limit, size_t max_handshakes,
                      std::unique_ptr<ListenQueue>& out) {
    std::unique_ptr<ListenQueue> queue(new ListenQueue(std::move(dispatcher), handler));
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_eq* eq = nullptr;
    int ret = fi_eq_open(core_fabric, &attr, &eq, nullptr);
    if (ret != 0) {
        return ret;
    }
    queue->core_.reset(eq);
    queue->core_fabric_ = core_fabric;
    if ((ret = fi_control(&eq->fid, FI_GETWAIT, &queue->fd_)) != 0) {
        return ret;
    }
    queue->handshakes_ = std::make_unique<Handshakes>(queue->fd_, handshake_limit, max_handshakes);
    const auto lock = queue->dispatcher_->lock();
    if ((ret = queue->dispatcher_->add_queue(queue->fd_, handler)) != 0) {
        return ret;
    }
    out = std::move(queue);
    return 0;
}

ListenQueue::~ListenQueue() {
    const auto lock = dispatcher_->lock();
    if (fd_ >= 0) {
        dispatcher_->remove_queue(fd_, handler_);
    }
    dispatcher_->clear_deadline(handler_);
}

// The first check opens the list of members, so that the number of fds of a listener does not change later.
void ListenQueue::begin() {
    close_queue_on_exec(fd_);
    const auto lock = dispatcher_->lock();
    checked_ = handshakes_->check(std::chrono::steady_clock::now()) != Handshakes::Found::unknown;
}

bool ListenQueue::readable() const {
    pollfd one{fd_, POLLIN, 0};
    return poll(&one, 1, 0) > 0;
}

// A call in which the core accepts and reads requests, with the checks by which the next call cannot block.
template <class Call> ListenQueue::Did ListenQueue::call_core(Call&& call) {
    const auto now = std::chrono::steady_clock::now();
    if (!checked_ && handshakes_->check(now) == Handshakes::Found::unknown) {
        return Did::unknown;
    }
    handshakes_->end_late(now);
    // Where a peer has ended the connection, the core uses the errno of an earlier call as the reason, and keeps the
    // socket if that is EAGAIN.
    errno = 0;
    const bool event = call();
    const auto found = handshakes_->check(now);
    if (held_fd_ < 0 && handshakes_->held_fd() >= 0 &&
        dispatcher_->add_to_wait_set(handshakes_->held_fd(), handler_) == 0) {
        held_fd_ = handshakes_->held_fd();
    }
    checked_ = found != Handshakes::Found::unknown;
    if (event) {
        return Did::event;
    }
    if (!checked_) {
        return Did::unknown;
    }
    return found == Handshakes::Found::changed ? Did::something : Did::nothing;
}

ListenQueue::Did ListenQueue::read() {
    return call_core([this] {
        const bool taken = dispatcher_->take(core_.get()) > 0;
        signaled_ = signaled_ || taken;
        return taken;
    });
}

// Only after a read that found nothing: the core would not signal what is left.
ListenQueue::Did ListenQueue::reset_signal() {
    return call_core([this] {
        signaled_ = false;
        AnyFid* queue = &core_->fid;
        return fi_trywait(core_fabric_, &queue, 1) != 0;
    });
}

void ListenQueue::progress() {
    if (paused_) {
        return;
    }
    for (int reads = 0; reads < max_reads; ++reads) {
        Did did = read();
        if (did == Did::nothing && signaled_) {
            did = reset_signal();
        }
        if (did == Did::unknown) {
            pause();
            return;
        }
        vain_ = did == Did::nothing ? vain_ + 1 : 0;
        logged_ = logged_ && did == Did::nothing;
        if (did != Did::event && !signaled_ && !readable()) {
            vain_ = 0;
            break;
        }
        // The core is signaled and cannot process what is pending.
        if (handshakes_->listening() && vain_ >= max_vain) {
            pause();
            return;
        }
    }
    note_deadline();
}

void ListenQueue::note_deadline() {
    if (const auto deadline = handshakes_->deadline()) {
        dispatcher_->set_deadline(handler_, *deadline);
    } else {
        dispatcher_->clear_deadline(handler_);
    }
}

void ListenQueue::pause() {
    if (!std::exchange(logged_, true)) {
        RSTREAM_WARN(FI_LOG_EP_CTRL,
                     "connections cannot be accepted, for want of descriptors or memory: trying again "
                     "every %d ms\n",
                     static_cast<int>(pause_time.count()));
    }
    paused_ = true;
    vain_ = 0;
    dispatcher_->remove_queue(fd_, handler_);
    if (held_fd_ >= 0) { // which would stay readable
        dispatcher_->remove_from_wait_set(held_fd_);
        held_fd_ = -1; // watched again with the next handshake
    }
    dispatcher_->set_deadline(handler_, std::chrono::steady_clock::now() + pause_time);
}

void ListenQueue::on_deadline() {
    if (paused_ && dispatcher_->add_queue(fd_, handler_) != 0) {
        dispatcher_->set_deadline(handler_, std::chrono::steady_clock::now() + pause_time);
        return;
    }
    paused_ = false;
    progress();
}

int ListenQueue::arm() {
    if (paused_) {
        return 0;
    }
    // An fd that is an epoll set signals all that is pending, or still an event that was read.
    if (handshakes_->listening()) {
        signaled_ = signaled_ && readable();
        return signaled_ ? -FI_EAGAIN : 0;
    }
    const Did did = reset_signal();
    if (did == Did::unknown) {
        pause();
        return 0;
    }
    note_deadline();
    return did == Did::event ? -FI_EAGAIN : 0;
}

void ListenQueue::finish() {
    // Requests that have arrived get a regular rejection.
    for (int reads = 0; reads < max_reads && is_change(read()); ++reads) {
    }
    handshakes_->stop_listening();
    for (int reads = 0; reads < max_last_reads; ++reads) {
        handshakes_->end_all();
        if (is_change(read())) {
            continue;
        }
        if (!checked_ || handshakes_->count() == 0) {
            break;
        }
    }
    if (!checked_ || handshakes_->count() != 0) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "a listener is closed, and some who had just connected to it stay connected\n");
    }
}

} // namespace rstream
