// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The event dispatcher below an event queue: reads the core's events, passes each to the event handler of its core fid,
// and makes progress for the handlers that have activity or a passed deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "base/descriptor.hpp"
#include "prov/rstream/deadlines.hpp"
#include "prov/rstream/fid.hpp"

namespace rstream {

// An event handler: an object with a core fid on an event queue. Called with the event dispatcher locked; must not
// close fids on that queue.
class EventHandler {
  public:
    virtual void on_core_event(uint32_t event, const fi_eq_cm_entry& entry, std::span<const std::byte> data) = 0;
    virtual void on_core_error(const fi_eq_err_entry& entry) = 0;
    // Does the work that needs no call of the program.
    virtual void progress() = 0;
    // Ensures that the handler's watched fds become readable with the next activity. 0, or -FI_EAGAIN if there is some.
    virtual int arm() { return 0; }
    // The deadline of `EventDispatcher::set_deadline` has passed.
    virtual void on_deadline() {}

    virtual ~EventHandler() = default;
};

// The core's event queue and its handlers. Shared by the user's queue and by connections that outlive their endpoint.
class EventDispatcher {
  public:
    int open(fid_fabric* core_fabric);

    void add(AnyFid* core_fid, EventHandler* handler);
    // Reads the core's pending events first, so that no event can reach another object at the same address.
    void remove(AnyFid* core_fid, EventHandler* handler);
    // As `remove`, without reading events: for a handler whose events arrive on a queue of its own.
    void forget(AnyFid* core_fid, EventHandler* handler);

    // Dispatches events until the core has none, then makes progress for all handlers that need it.
    struct Ran {
        bool moved = false;   // data has arrived, or an operation on data is complete
        bool dropped = false; // some handlers are not watched: waiters must wake and arm again
    };
    Ran run();
    // Before a thread sleeps on the queue's fd, and on the watched fds if `watched`: 0, or -FI_EAGAIN on activity.
    int arm(bool watched);

    // Counts threads that sleep or may sleep; called before `arm`. Those that sleep on the fd never report being awake.
    void expect_sleeper() { sleepers_.fetch_add(1); }
    void sleeper_awake() { sleepers_.fetch_sub(1); }
    [[nodiscard]] int sleepers() const { return sleepers_.load(); }

    // Dispatches the events of a core queue: the dispatcher's, or one of a handler's own. 0, or the negative error of
    // the queue itself, which no event reports.
    int drain(fid_eq* queue);
    // The same for one event at most: 1 if there was one.
    int take(fid_eq* queue);

    // Adds a core queue of a handler's own, on which all waiters of the dispatcher's queue sleep too: when its fd is
    // readable, `run` calls the handler's `progress`. With the event dispatcher locked. 0 or -errno.
    int add_queue(int fd, EventHandler* handler);
    // Adds another fd of the same handler, until it is closed or removed.
    int add_to_wait_set(int fd, EventHandler* handler);
    void remove_from_wait_set(int fd);
    void remove_queue(int fd, EventHandler* handler);

    // When the handler's `on_deadline` is called, once; waiters wake for it. With the event dispatcher locked.
    void set_deadline(EventHandler* handler, std::chrono::steady_clock::time_point when) {
        deadlines_.set(handler, when);
    }
    void clear_deadline(EventHandler* handler) { deadlines_.clear(handler); }

    // No event is dispatched while this lock is held.
    [[nodiscard]] std::unique_lock<std::recursive_mutex> lock() { return std::unique_lock(mutex_); }

    // Marks a handler that needs progress without a call of the program, or clears the mark.
    void set_needs_progress(EventHandler* handler, bool needs);

    // The end of a connection may show on its completion queue alone. A program that only reads the event queue must
    // learn of it too: so the event queue's fd becomes readable with any watched fd, and `run` makes progress for the
    // handlers of those fds.
    void watch(int fd, EventHandler* handler);
    void unwatch(int fd, EventHandler* handler);
    // The same for an fd on which data arrives. It is watched only while a thread sleeps, since each packet costs time
    // for every epoll set that contains the fd; a program that only reads the queue learns of a disconnect later.
    void watch_data(int fd, EventHandler* handler);
    void unwatch_data(EventHandler* handler);
    [[nodiscard]] int watch_fd() const { return watch_fd_.get(); }

    [[nodiscard]] fid_eq* core() const { return core_.get(); }
    // Readable when the core's queue or a handler's queue is, or when a deadline has passed.
    [[nodiscard]] int wait_fd() const { return wait_set_.get(); }

  private:
    void run_deadlines();
    void run_queues();

    bool check_due();
    bool watch_again(EventHandler* handler); // false if it cannot be watched
    bool add_watch(int fd, EventHandler* handler, bool data);
    void drop_watch(int fd);

    std::recursive_mutex mutex_; // a handler may remove itself within a callback
    fid_fabric* core_fabric_ = nullptr;
    Owned<fid_eq> core_;
    int core_fd_ = -1;
    base::Descriptor wait_set_;
    std::unordered_set<EventHandler*> queues_; // handlers with a queue of their own
    Deadlines<EventHandler> deadlines_;
    std::unordered_map<AnyFid*, EventHandler*> handlers_;
    std::mutex progress_mutex_; // a leaf: nothing else is locked under it
    std::unordered_set<EventHandler*> need_progress_;
    std::unordered_set<EventHandler*> unarmed_; // watched, and not armed since last readable
    struct DataWatch {
        int fd = -1;
        bool watched = false;
    };
    std::unordered_map<EventHandler*, DataWatch> data_; // under `progress_mutex_`, as the sets
    bool fresh_ = false;                                // some were added since the last `run`
    std::atomic<size_t> watches_{0};                    // fds in `watch_fd_`; 0: no system call is needed
    std::atomic<int> sleepers_{0};
    std::chrono::steady_clock::time_point next_check_;
    base::Descriptor watch_fd_;
};

} // namespace rstream
