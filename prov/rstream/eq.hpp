// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Event queues. A user's event queue sits above a core's, whose events the event dispatcher (event_dispatcher.hpp)
// reads. The objects that the core's events belong to report their own events in the user's queue. fi_eq(3).
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "prov/rstream/event_dispatcher.hpp"
#include "prov/rstream/fid.hpp"

namespace rstream {

class Fabric;

class EventQueue : public fid_eq {
  public:
    static int open(Fabric& fabric, const fi_eq_attr& attr, void* context, EventQueue** out);

    // Reports an event of one of our objects. `data` follows the entry, as private data does.
    void push(uint32_t event, AnyFid* subject, fi_info* info, std::span<const std::byte> data);
    void push_error(const fi_eq_err_entry& entry, std::span<const std::byte> err_data);
    // Drops the unread events of a closed object.
    void forget(const AnyFid* subject);

    [[nodiscard]] const std::shared_ptr<EventDispatcher>& dispatcher() const { return dispatcher_; }
    int try_wait();

    void retain() { users_.fetch_add(1, std::memory_order_relaxed); }
    void release() { users_.fetch_sub(1, std::memory_order_release); }

    ssize_t read(uint32_t* event, void* buf, size_t len, uint64_t flags);
    ssize_t read(uint32_t* event, void* buf, size_t len, uint64_t flags, int awake, bool& moved);
    ssize_t sread(uint32_t* event, void* buf, size_t len, int timeout, uint64_t flags);
    ssize_t read_error(fi_eq_err_entry* buf, uint64_t flags);
    ssize_t write(uint32_t event, const void* buf, size_t len, uint64_t flags);
    int control(int command, void* arg);
    int close();

  private:
    struct Event {
        uint32_t event = 0;
        bool error = false;
        bool cm = false; // a fi_eq_cm_entry, whose private data is returned "up to space provided": fi_eq(3)
        const AnyFid* subject = nullptr;
        Info info; // of a connection request that was not read yet
        std::vector<std::byte> bytes;
        std::vector<std::byte> err_data;
    };

    // Covers one read: an event that arrives during it is signaled to waiters at its end, if it is still queued then.
    // Nearly always it is not, and setting and clearing the signal would cost two system calls.
    class Reading {
      public:
        explicit Reading(EventQueue& queue);
        Reading(const Reading&) = delete;
        Reading& operator=(const Reading&) = delete;
        ~Reading();
        [[nodiscard]] bool anything() const { return anything_; } // an event, not an error, was first before the read

      private:
        EventQueue& queue_;
        bool anything_;
    };

    explicit EventQueue(Fabric& fabric);
    ~EventQueue();
    void add(Event&& event);
    void pop_front();
    // `awake`: how many of the registered sleepers are known to be awake.
    EventDispatcher::Ran move_events(int awake);
    bool has_event();
    void show();
    void kick();
    bool take_kick();

    Fabric& fabric_;
    std::shared_ptr<EventDispatcher> dispatcher_;
    fi_wait_obj wait_object_ = FI_WAIT_NONE;
    int epoll_fd_ = -1;  // set of `signal_fd_` and the dispatcher's fds
    int signal_fd_ = -1; // readable while `events_` is not empty, or `kicked_`
    bool signaled_ = false;
    int readers_ = 0;
    bool kicked_ = false; // waiters must wake and arm again
    std::atomic<bool> descriptor_used_{false};
    std::atomic<bool> read_in_vain_{false}; // the last read found no event, and no try_wait followed
    std::atomic<size_t> users_{0};
    std::mutex mutex_; // a leaf: nothing else is locked under it
    std::deque<Event> events_;
    std::vector<std::byte> last_err_data_; // stays valid until the next error is read
};

} // namespace rstream
