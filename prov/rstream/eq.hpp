// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Event queues. A user's queue stands over a core's: the pump takes the core's events, hands each to the object whose
// core fid it names, and what that object has to say goes into the user's queue. fi_eq(3).
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "prov/rstream/descriptor.hpp"
#include "prov/rstream/fid.hpp"

namespace rstream {

class Fabric;

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

    virtual ~EqTarget() = default;
};

// The core's queue and who is on it. Shared by the user's queue and by connections that outlive their endpoint.
class Pump {
  public:
    int open(fid_fabric* core_fabric);

    void add(AnyFid* core_fid, EqTarget* target);
    // Takes what the core has for it first, so that no event can meet another object at the same address.
    // `quiet`: until that many milliseconds have brought nothing, and then `more`, if given, says that nothing is left.
    void remove(AnyFid* core_fid, EqTarget* target, int quiet = 0, const std::function<bool()>& more = {});

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
    [[nodiscard]] int wait_fd() const { return wait_fd_; }

  private:
    bool look_due();
    bool watch_again(EqTarget* target); // false if it cannot be watched
    bool add_watch(int fd, EqTarget* target);

    std::recursive_mutex mutex_; // a target may take itself off from within its own call
    fid_fabric* core_fabric_ = nullptr;
    Owned<fid_eq> core_;
    int wait_fd_ = -1;
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
    std::atomic<int> sleepers_{0};
    std::chrono::steady_clock::time_point next_look_;
    Descriptor watch_fd_;
};

class EventQueue : public fid_eq {
  public:
    static int open(Fabric& fabric, const fi_eq_attr& attr, void* context, EventQueue** out);

    // What an object of ours has to say. `data` follows the entry, as private data does.
    void push(uint32_t event, AnyFid* subject, fi_info* info, std::span<const std::byte> data);
    void push_error(const fi_eq_err_entry& entry, std::span<const std::byte> err_data);
    // Drops what a closed object had to say.
    void forget(const AnyFid* subject);

    [[nodiscard]] const std::shared_ptr<Pump>& pump() const { return pump_; }
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
        bool cm = false; // a fi_eq_cm_entry, whose private data is given "up to space provided": fi_eq(3)
        const AnyFid* subject = nullptr;
        Info info; // of a connection request that nobody has taken yet
        std::vector<std::byte> bytes;
        std::vector<std::byte> err_data;
    };

    explicit EventQueue(Fabric& fabric);
    ~EventQueue();
    void add(Event&& event);
    void pop_front();
    // `awake`: of those that may sleep, how many are known not to.
    bool move_events(int awake);
    void show();
    void kick();
    void arm_again();

    Fabric& fabric_;
    std::shared_ptr<Pump> pump_;
    fi_wait_obj wait_object_ = FI_WAIT_NONE;
    int epoll_fd_ = -1;  // gathers the core's descriptor and ours
    int signal_fd_ = -1; // readable while `events_` is not empty, or `kicked_`
    bool signaled_ = false;
    bool kicked_ = false; // whoever sleeps is to arm again
    std::atomic<bool> descriptor_used_{false};
    std::atomic<size_t> users_{0};
    std::mutex mutex_; // a leaf: nothing else is locked under it
    std::deque<Event> events_;
    std::vector<std::byte> last_err_data_; // stays valid until the next error is read
};

} // namespace rstream
