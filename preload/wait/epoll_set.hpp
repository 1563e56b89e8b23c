// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library's view of one of the program's epoll sets: its members that are TCP connections or nested sets. The
// kernel's set stays complete. While a connection is careful, the kernel watches it edge-triggered for bytes, which are
// frames or the stream's, and the library decides which events the program gets.
//
// A member is active while its ring must be polled in memory. Before a thread sleeps, it arms a wake-up at the peer of
// each active member, which is idle from then on: it costs nothing until the kernel or its peer reports it again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include <csignal>
#include <sys/epoll.h>

#include "preload/connection/connection.hpp"
#include "preload/connection/local_lock.hpp"

namespace preload {

class EpollSet;
struct SharedSet;

struct Watch {
    int fd = -1;
    Connection* connection = nullptr;
    EpollSet* inner = nullptr; // a nested set, instead of a connection
    EpollSet* set = nullptr;
    epoll_event wanted{};       // as the program gave it
    uint32_t kernel_events = 0; // if converted: what the kernel watches it for
    bool converted = false;
    bool removed = false; // by the program, but not yet from the kernel's set
    bool active = false;
    // Shared with other threads, by std::atomic_ref. armed: the peer was requested to send a frame, which must not be
    // consumed unnoticed; missed: one was.
    bool armed = false;
    bool missed = false;
    uint32_t reported_at = 0;  // its index in reported_, plus one; 0: its peer does not have the set's wake-up id
    bool disabled = false;     // EPOLLONESHOT, and an event was reported
    bool kernel_in = false;    // the kernel has reported bytes since the last report to the program
    bool kernel_named = false; // the kernel has reported any event since the last check
    uint64_t seen_arrived = 0; // edge-triggered: the state that was reported last
    uint32_t seen_blocked = 0;
    short seen_ended = 0;
    Watch* next = nullptr;         // in its bucket
    Watch* next_of_data = nullptr; // in its bucket of by_data_
    Watch* next_active = nullptr;
    Watch* next_of_connection = nullptr;
};

class EpollSet {
  public:
    // epoll_ctl(2) for a connection or a set.
    int control(int epfd, int operation, int fd, epoll_event* event);
    // epoll_pwait2(2). timeout_ns < 0: no timeout.
    int wait(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask);
    // For poll on the set itself. True: it has events. to_sleep: active members become idle. soon becomes true if it
    // has none, and a member must be checked again, see Readiness::soon.
    bool ready(bool to_sleep, bool& soon);
    // Removes the kernel's events of converted members, and adds the events that those members have.
    int sift(epoll_event* events, int count);
    // The fd of this connection was closed. False: the lock cannot be taken, and it may still be a member.
    bool forget(int fd, const Connection& c);
    void update_kernel(); // removes members from the kernel's set that the program has removed
    // The set, or its descriptor, goes to another process: frames wake its threads from now on.
    void leave_wakeup();
    void after_fork_in_parent(); // it may have a wake-up again, until the child is seen to wait in it, too
    // Before a fork: from now on, the library detects that several processes wait in it. See epoll_shared.cpp.
    void share();
    // Called again once the thread counts as asleep: either it sees here that another thread has forked, or that fork
    // saw it.
    void note_waiter() {
        if (shared_.load() != nullptr) [[unlikely]] {
            note_waiter_slow();
        }
    }
    // The program waits for its members, in epoll_wait, in poll on the set, or in a set around it.
    void note_waited() {
        if (!waited_.load(std::memory_order_relaxed)) [[unlikely]] {
            note_waited_slow();
        }
    }
    [[nodiscard]] bool was_waited() const { return waited_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool is_several() const;
    void note_several(); // by the service: another process has begun to wait in it
    void leave_to_kernel();
    void convert_number(int fd);
    // A member that was not a connection has become one. False: the lock cannot be taken.
    bool note_connected(int fd);
    // The reverse. False: it is not a member.
    bool note_disconnected(int fd);
    void arm_for_sleepers(const Watch& watch);
    // is_due: see there.
    void convert(Watch& watch, int epfd, bool wakes, bool is_due = false);
    void activate(Watch& watch);
    void renew_number(int fd); // its present state counts as new
    // Threads that sleep in the kernel's set, in one that contains it, or in poll on it.
    [[nodiscard]] std::atomic<uint32_t>& sleepers() { return sleepers_; }
    [[nodiscard]] bool is_asleep() const { return sleepers_.load() != 0; }
    void note_missed() { missed_.store(true); }
    [[nodiscard]] bool has_wakeup() const { return wakeup_.load() != 0; }
    void wake() const; // the lock is not needed
    [[nodiscard]] bool is_closed() const { return numbers_.load(std::memory_order_relaxed) == 0; }
    [[nodiscard]] bool has_careful() const { return converted_.load() != 0; }

    // Counts the calling thread as a sleeper of a set and of the sets nested in it.
    class Asleep {
      public:
        explicit Asleep(EpollSet& set); // its lock is held if it has careful members
        Asleep(const Asleep&) = delete;
        Asleep& operator=(const Asleep&) = delete;
        ~Asleep() { end(); }
        void end(); // for a cancelled thread, whose destructors do not run
        // A frame that a member waits for was consumed after the member was armed.
        [[nodiscard]] bool any_missed() const;
        // The calling thread is asleep in a set, and has been interrupted by a signal handler.
        [[nodiscard]] static bool is_interrupted();

      private:
        std::array<EpollSet*, 8> sets_{};
        size_t count_ = 0;
    };

    // Removes the library's own events from events that are not processed otherwise. Returns how many are left.
    static int without_own(epoll_event* events, int count);
    static bool has_own(const epoll_event* events, int count);

    void note_others() { others_.store(true); } // a member that the library does not track
    static EpollSet* make(int epfd);            // nullptr: no memory
    void add_number() { numbers_.fetch_add(1); }
    void forget_numbers() { numbers_ = 0; } // in a child, which counts them anew
    void drop_number();                     // the last one frees it
    // Frees sets that were closed in a signal handler which had interrupted a section of such a lock.
    static void finish_closed();
    void after_fork();
    [[nodiscard]] LocalLock& lock() { return lock_; }
    std::atomic<int> number{-1}; // one of its fds

  private:
    static constexpr size_t buckets = 256;

    // False: another thread has closed the fd, and the set may be another one's by now. It stays so with the lock only.
    [[nodiscard]] bool has_number(int epfd) const;
    bool note_number(int epfd); // the same; it is used for calls of the kernel from now on
    Watch* find(int fd);
    Watch* add(int fd);
    void remove(Watch* watch);
    bool remove_nested(const EpollSet& inner, bool waits);
    static EpollSet* take_unused();
    void renew(int epfd);
    bool leave(bool waits);
    void deactivate(Watch& watch);
    void finish_later();
    size_t add_nested(std::span<EpollSet*> sets);
    bool change_in_memory(Watch& watch, int operation, const epoll_event* event);
    void flush_removed();
    [[nodiscard]] bool has_removed_of(const epoll_event& event) const;
    int collect(epoll_event* events, int max, bool to_sleep);
    void activate_missed();
    uint64_t sleeper();
    uint64_t sleeper_for(const Connection& c); // the id to arm at its peer
    void note_reported(Watch& watch);
    void activate_woken();
    bool take_notice();
    void forget_reported(Watch& watch);
    // Consumes pending wake-ups, so that the set itself is ready only for the program's members.
    void drain_wakeup();
    int take_own_events(epoll_event* events, int count);
    int put_back_own(epoll_event* events, int count) const;
    void give_up_wakeup(); // with the lock
    void note_waiter_slow();
    void note_waited_slow();
    bool change_in_kernel(Watch& watch, uint32_t events); // false: the kernel has no such member
    void wake_another(); // its wake-up may cover several members, and this thread's array may not hold all of them
    // What the caller does if there are no events: check again; sleep in the set; sleep in another set or in poll,
    // which needs frames.
    enum class Next : uint8_t { check, sleep, sleep_elsewhere };
    bool check(Watch& watch, Next next, uint32_t& events);
    bool check_nested(Watch& watch, bool to_sleep, uint32_t& events);
    [[nodiscard]] bool has_others() const { return others_.load() || members_.load() > converted_.load(); }
    uint64_t progress();
    void arm_active(); // the peers of members with events tell of more by a frame
    [[nodiscard]] bool is_only_of_data(const Watch& watch) const;
    int take_kernel_events(epoll_event* events, int count);
    int ask_kernel(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask);
    int wait_within(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask);
    int without_unwanted(epoll_event* events, int count) const;
    int collect_within(epoll_event* events, int max, bool to_sleep);

    // Idle members whose peers have the set's wake-up id. They are checked when its descriptor is written.
    static constexpr uint32_t max_reported = 128;

    LocalLock lock_;
    [[nodiscard]] static size_t bucket_of(const epoll_event& event) {
        return (event.data.u64 ^ event.data.u64 >> 6 ^ event.data.u64 >> 14) % buckets;
    }
    static void report_anew(Watch& watch);
    void set_wanted(Watch& watch, const epoll_event& event);
    void unlink_data(Watch& watch);

    std::array<Watch*, buckets> table_{};
    std::array<Watch*, buckets> by_data_{};
    Watch* active_ = nullptr;
    Watch* spare_ = nullptr;          // not in use, for the next member
    std::atomic<uint64_t> wakeup_{0}; // 0: none, or not yet
    bool wakeup_is_past_ = false;     // none from now on
    enum class Pipe : uint8_t { none, member, impossible };
    Pipe pipe_ = Pipe::none; // wakeup_'s, see wakeup::pipe_reader()
    bool is_inherited_ = false;
    std::atomic<SharedSet*> shared_{nullptr}; // since the first fork
    uint32_t next_reported_ = 0;
    uint32_t reported_count_ = 0;
    std::array<Watch*, max_reported> reported_{};
    std::atomic<uint32_t> converted_{0};
    std::atomic<uint32_t> members_{0}; // sockets and sets
    std::atomic<bool> others_{false};  // something else is, or was, a member
    uint32_t nested_ = 0;              // nested sets among them
    uint32_t removed_ = 0;             // Watch::removed
    std::atomic<uint32_t> sleepers_{0};
    std::atomic<bool> waited_{false};
    std::atomic<int> numbers_{0};
    bool by_level_ = false;           // one that the last collect() has returned remains for other threads as well
    bool soon_ = false;               // a member must be checked again, see stream::gives_back()
    std::atomic<bool> missed_{false}; // Watch::missed of a member
    bool max_reached_ = false;        // the program's array was full
    std::atomic<uint64_t> asked_kernel_ns_{0};
    EpollSet* next_unused_ = nullptr;
};

// An fd of it is about to be closed, or its process is about to fork.
void watches_closing(Connection& c);
// Its last fd is about to be closed while another process, unknown to the program, has the connection: the kernel would
// keep its memberships.
void watches_leave_kernel(Connection& c);
// The connection has become careful: its memberships are converted.
void watches_careful(Connection& c);
// It was read from: the next bytes must wake threads that sleep in sets with it.
void watches_read_slow(Connection& c);
inline void watches_read(Connection& c) {
    if (c.watched.load(std::memory_order_relaxed)) {
        watches_read_slow(c);
    }
}
// A write found no space: threads that sleep in sets with it must hear of space, since this thread may not wait.
void watches_blocked_slow(Connection& c);
inline void watches_blocked(Connection& c) {
    if (c.watched.load(std::memory_order_relaxed)) {
        watches_blocked_slow(c);
    }
}
// A read returned EAGAIN although there are bytes, which are being given back: the next state counts as new.
void watches_refused(Connection& c);
// Frames were consumed: members that wait for one must be checked again.
void watches_frames_taken(const Connection& c);
bool watches_asleep(const Connection& c);
// One of the sets with sleepers has no wake-up descriptor of its own.
bool watches_sleep_by_frame(const Connection& c);
// The way to wait for it has changed: threads that sleep in a set with it check it again.
void watches_wake(const Connection& c);
// Its last fd was closed. False: it is still a member of a set, whose functions this signal handler has interrupted.
bool forget_watches(Connection& c);
void watches_after_fork();
void shared_sets_after_fork();
// It is a member of a set in which several processes wait.
bool watched_by_several(const Connection& c);
LocalLock& membership_lock(); // guards Connection::watches

} // namespace preload
