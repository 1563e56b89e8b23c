// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the library knows of an epoll set of the program's: its TCP connections, and sets in it. The set stays the
// kernel's, with all its members. While a connection is careful, the kernel watches it edge-triggered for bytes, which
// are frames or the stream's, and the library decides what the program is told.
//
// A member is active while its ring is to be looked at in memory. Before a thread sleeps, each active member tells its
// peer to send a frame, and is idle from then on: it costs nothing until the kernel names it again.
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
    EpollSet* inner = nullptr; // instead of a connection: a set
    EpollSet* set = nullptr;
    epoll_event wanted{};       // as the program gave it
    uint32_t kernel_events = 0; // converted: what the kernel watches it for
    bool converted = false;
    bool removed = false; // by the program, and not yet from the kernel's set
    bool active = false;
    // Of other threads, too, by std::atomic_ref: the peer was told to send a frame, and none may be taken unseen; one
    // was.
    bool armed = false;
    bool missed = false;
    uint32_t told_at = 0;      // its place among those that the peer was told the set's wake-up id of, and one
    bool disabled = false;     // EPOLLONESHOT, and it was told
    bool kernel_in = false;    // the kernel named it for bytes since it was told
    bool kernel_named = false; // for anything, since it was looked at
    uint64_t seen_arrived = 0; // edge-triggered: what was told last
    uint32_t seen_blocked = 0;
    short seen_ended = 0;
    Watch* next = nullptr;         // in its bucket
    Watch* next_of_data = nullptr; // in its bucket by the program's data
    Watch* next_active = nullptr;
    Watch* next_of_connection = nullptr;
};

class EpollSet {
  public:
    // epoll_ctl(2) for a connection or a set.
    int control(int epfd, int operation, int fd, epoll_event* event);
    // epoll_pwait2(2). timeout_ns < 0: for ever.
    int wait(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask);
    // For poll on the set itself. True: something is there to be told. to_sleep: active members become idle.
    bool ready(bool to_sleep);
    // Takes what is about converted members out of the kernel's events, and adds what those have to tell.
    int sift(epoll_event* events, int count);
    bool forget(int fd); // the number was closed; false: it is no member
    void tell_kernel();  // of members that were removed
    // It, or its descriptor, goes to another process: its threads are woken by frames from now on.
    void leave_wakeup();
    void after_fork_in_parent(); // it may have one again, until the child is seen to wait in it, too
    // Before a fork: from now on it is seen if several processes wait in it. See epoll_shared.cpp.
    void share();
    // Also once the thread counts as asleep: either it sees here that another one has forked, or that one saw it.
    void note_waiter() {
        if (shared_.load() != nullptr) [[unlikely]] {
            note_waiter_slow();
        }
    }
    [[nodiscard]] bool is_several() const;
    void note_several(); // by the service: another process has begun to wait in it
    void leave_to_kernel();
    void convert_number(int fd);
    // A member that was no connection yet is one. False: it cannot be told now.
    bool note_connected(int fd);
    void convert(Watch& watch, int epfd, bool wakes);
    void activate(Watch& watch);
    void renew_number(int fd); // what it has is news
    // Threads that sleep in the kernel's set, or in one that it is a member of, or in poll on it.
    [[nodiscard]] std::atomic<uint32_t>& sleepers() { return sleepers_; }
    [[nodiscard]] bool is_asleep() const { return sleepers_.load() != 0; }
    void note_missed() { missed_.store(true); }
    [[nodiscard]] bool has_wakeup() const { return wakeup_.load() != 0; }
    void wake() const; // also without the lock
    [[nodiscard]] bool has_careful() const { return converted_.load(std::memory_order_relaxed) != 0; }

    // The calling thread counts as a sleeper of a set and of those in it, also if it is cancelled.
    class Asleep {
      public:
        explicit Asleep(EpollSet& set); // with its lock, if it has careful members
        Asleep(const Asleep&) = delete;
        Asleep& operator=(const Asleep&) = delete;
        ~Asleep() { end(); }
        void end(); // also without its destructor
        // A frame that a member waits for has been taken since that was told to send one.
        [[nodiscard]] bool any_missed() const;

      private:
        std::array<EpollSet*, 8> sets_{};
        size_t count_ = 0;
    };

    // Of events that are not looked at otherwise: the library's own are taken out. Returns how many are left.
    static int without_own(epoll_event* events, int count);
    static bool has_own(const epoll_event* events, int count);

    static EpollSet* make();
    void add_number() { numbers_.fetch_add(1); }
    void drop_number(); // the last one frees it
    void after_fork();
    [[nodiscard]] LocalLock& lock() { return lock_; }
    int number = -1; // one of its numbers

  private:
    static constexpr size_t buckets = 256;

    Watch* find(int fd);
    Watch* add(int fd);
    void remove(Watch* watch);
    size_t add_nested(std::span<EpollSet*> sets);
    bool change_in_memory(Watch& watch, int operation, const epoll_event* event);
    void flush_removed();
    int collect(epoll_event* events, int max, bool to_sleep);
    void activate_missed();
    uint64_t sleeper();
    uint64_t sleeper_for(const Connection& c); // what it tells its peer
    void note_told(Watch& watch);
    void activate_woken();
    bool take_notice();
    void forget_told(Watch& watch);
    // As if nobody had written it, so that the set itself is ready only for what is in it.
    void drain_wakeup();
    int take_own_events(epoll_event* events, int count);
    int put_back_own(epoll_event* events, int count) const;
    void give_up_wakeup(); // with the lock
    void note_waiter_slow();
    void change_in_kernel(Watch& watch, uint32_t events);
    void wake_another(); // its wake-up may have been meant for several members, and this thread has no place for all
    // What follows if nothing is there: another look; a sleep in it; a sleep in another set, or in poll, for which
    // frames are needed.
    enum class Next : uint8_t { look, sleep, sleep_elsewhere };
    bool look_at(Watch& watch, Next next, uint32_t& events);
    int take_kernel_events(epoll_event* events, int count);
    int ask_kernel(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask);

    // Idle members whose peers were told its wake-up id. When that is written, these are looked at.
    static constexpr uint32_t max_told = 128;

    LocalLock lock_;
    [[nodiscard]] static size_t bucket_of(const epoll_event& event) {
        return (event.data.u64 ^ event.data.u64 >> 6 ^ event.data.u64 >> 14) % buckets;
    }
    static void tell_anew(Watch& watch);
    void set_wanted(Watch& watch, const epoll_event& event);
    void unlink_data(Watch& watch);

    std::array<Watch*, buckets> table_{};
    std::array<Watch*, buckets> by_data_{};
    Watch* active_ = nullptr;
    std::atomic<uint64_t> wakeup_{0}; // 0: none, or not yet
    bool wakeup_is_past_ = false;     // none from now on
    enum class Pipe : uint8_t { none, member, impossible };
    Pipe pipe_ = Pipe::none; // wakeup_'s, see wakeup::pipe_reader()
    bool is_inherited_ = false;
    std::atomic<SharedSet*> shared_{nullptr}; // once it was there at a fork
    uint32_t next_told_ = 0;
    uint32_t told_count_ = 0;
    std::array<Watch*, max_told> told_{};
    std::atomic<uint32_t> converted_{0};
    std::atomic<uint32_t> members_{0};
    uint32_t nested_ = 0;  // sets among them
    uint32_t removed_ = 0; // Watch::removed
    std::atomic<uint32_t> sleepers_{0};
    std::atomic<int> numbers_{0};
    bool soon_ = false;               // a member has to be looked at again, see stream::gives_back()
    std::atomic<bool> missed_{false}; // of a member
    bool max_reached_ = false;        // the program's array was full
    std::atomic<uint64_t> asked_kernel_ns_{0};
    EpollSet* next_unused_ = nullptr;
};

// A number of it is about to be closed, or its process to be forked.
void watches_closing(Connection& c);
// Its last number is about to be closed, while another process has the connection, of which the program does not know:
// the kernel would keep its memberships.
void watches_leave_kernel(Connection& c);
// The connection has become careful: its memberships are converted.
void watches_careful(Connection& c);
// It was read from: threads that sleep in sets with it are to be woken by what comes next.
void watches_read_slow(Connection& c);
inline void watches_read(Connection& c) {
    if (c.watched.load(std::memory_order_relaxed)) {
        watches_read_slow(c);
    }
}
// A read gave EAGAIN although there are bytes, which are given back: what comes of them is news.
void watches_refused(Connection& c);
// Frames were taken: members that wait for one are to be looked at again.
void watches_frames_taken(const Connection& c);
bool watches_asleep(const Connection& c);
// One of them has no wake-up descriptor of its own.
bool watches_sleep_by_frame(const Connection& c);
// How it can be waited for has changed: whoever sleeps in a set with it looks at it again.
void watches_wake(const Connection& c);
void forget_watches(Connection& c); // its last number was closed
void watches_after_fork();
void shared_sets_after_fork();
// It is in a set in which several processes wait.
bool watched_by_several(const Connection& c);
LocalLock& membership_lock(); // of the lists of connections

} // namespace preload
