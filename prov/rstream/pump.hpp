// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The pump below an event queue: takes the core's events, hands each to the object whose core fid it names, and gives
// progress to those that something has come for, or whose time has come.
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

// Whatever has a core fid on an event queue. Called with the pump locked; must not close fids on that queue.
class EqTarget {
  public:
    virtual void on_core_event(uint32_t event, const fi_eq_cm_entry& entry, std::span<const std::byte> data) = 0;
    virtual void on_core_error(const fi_eq_err_entry& entry) = 0;
    // Whatever can be moved without the program's help.
    virtual void progress() = 0;
    // Makes sure that the descriptors it is watched by become readable with the next that comes. 0, or -FI_EAGAIN if
    // something has come already.
    virtual int arm() { return 0; }
    // The time of `Pump::set_deadline` has come.
    virtual void on_deadline() {}

    virtual ~EqTarget() = default;
};

// The core's queue and who is on it. Shared by the user's queue and by connections that outlive their endpoint.
class Pump {
  public:
    int open(fid_fabric* core_fabric);

    void add(AnyFid* core_fid, EqTarget* target);
    // Takes what the core has for it first, so that no event can meet another object at the same address.
    void remove(AnyFid* core_fid, EqTarget* target);
    // The same for one whose events come on a queue of its own.
    void forget(AnyFid* core_fid, EqTarget* target);

    // Moves events until the core has none, then everything that waits for progress.
    struct Ran {
        bool moved = false;   // a watched target
        bool dropped = false; // some are not watched: whoever sleeps is to be woken, and arms again
    };
    Ran run();
    // Before someone sleeps on the queue's descriptor, and on the watched ones if `watched`: 0, or -FI_EAGAIN if
    // something has come already.
    int arm(bool watched);

    // Who sleeps, or may: told before `arm`. Those that sleep on the descriptor never say when they are awake.
    void expect_sleeper() { sleepers_.fetch_add(1); }
    void sleeper_awake() { sleepers_.fetch_sub(1); }
    [[nodiscard]] int sleepers() const { return sleepers_.load(); }

    // Hands on what came on a core queue: ours, or one that a target has for itself. 0, or what the queue itself fails
    // with: a negative error that no event tells of.
    int drain(fid_eq* queue);
    // The same with one event at most: 1 if there was one.
    int take(fid_eq* queue);

    // A core queue that a target has for itself, and which all who sleep on ours are to sleep on too: when its
    // descriptor is readable, `run` gives the target progress. With the pump locked. 0 or -errno.
    int add_queue(int fd, EqTarget* target);
    // Another descriptor of the same target, until it is closed.
    int add_to_wait_set(int fd, EqTarget* target);
    void remove_queue(int fd, EqTarget* target);

    // When the target's `on_deadline` is called once; whoever sleeps wakes up for it. With the pump locked.
    void set_deadline(EqTarget* target, std::chrono::steady_clock::time_point when) { deadlines_.set(target, when); }
    void clear_deadline(EqTarget* target) { deadlines_.clear(target); }

    // Keeps events out for as long as it is held.
    [[nodiscard]] std::unique_lock<std::recursive_mutex> lock() { return std::unique_lock(mutex_); }

    // Marks a target that has something left to do without the program's help, or no longer has.
    void set_needy(EqTarget* target, bool needy);

    // The end of a connection may show on its completion queue alone. Whoever only reads the event queue must hear of
    // it too: so that queue's descriptor becomes readable with any that is watched, and `run` gives their targets
    // progress.
    void watch(int fd, EqTarget* target);
    void unwatch(int fd, EqTarget* target);
    // The same for a descriptor on which data comes. It is watched only while someone sleeps, since every packet pays
    // for each descriptor that has to be told of it; whoever only reads the queue hears of an end a little later.
    void watch_data(int fd, EqTarget* target);
    void unwatch_data(EqTarget* target);
    [[nodiscard]] int watch_fd() const { return watch_fd_.get(); }

    [[nodiscard]] fid_eq* core() const { return core_.get(); }
    // Readable when the core's queue is, a target's, or a deadline has come.
    [[nodiscard]] int wait_fd() const { return wait_set_.get(); }

  private:
    void run_deadlines();
    void run_queues();

    bool look_due();
    bool watch_again(EqTarget* target); // false if it cannot be watched
    bool add_watch(int fd, EqTarget* target);
    void drop_watch(int fd);

    std::recursive_mutex mutex_; // a target may take itself off from within its own call
    fid_fabric* core_fabric_ = nullptr;
    Owned<fid_eq> core_;
    int core_fd_ = -1;
    base::Descriptor wait_set_;
    std::unordered_set<EqTarget*> queues_; // those that have one of their own
    Deadlines<EqTarget> deadlines_;
    std::unordered_map<AnyFid*, EqTarget*> targets_;
    std::mutex needy_mutex_; // a leaf: nothing else is locked under it
    std::unordered_set<EqTarget*> needy_;
    std::unordered_set<EqTarget*> unarmed_; // watched, and not armed since they were last readable
    struct DataWatch {
        int fd = -1;
        bool watched = false;
    };
    std::unordered_map<EqTarget*, DataWatch> data_; // with `needy_mutex_` held, as the sets
    bool fresh_ = false;                            // some of them have come since the last `run`
    std::atomic<size_t> watches_{0};                // descriptors in `watch_fd_`: none cost no system call
    std::atomic<int> sleepers_{0};
    std::chrono::steady_clock::time_point next_look_;
    base::Descriptor watch_fd_;
};

} // namespace rstream
