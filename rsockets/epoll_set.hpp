// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// An epoll(7) set over a mix of our sockets and any other descriptors. Its descriptor is an epoll descriptor of the
// kernel, which watches the other descriptors with their own flags, and those of the provider behind our sockets. One
// of our sockets is polled only if its state may have changed: its descriptor is readable, its wait queue has notified,
// or it was ready at the last poll. So the cost of a wait grows with the ready sockets, not with all.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include <sys/epoll.h>

#include "base/descriptor.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/object.hpp"
#include "rsockets/socket.hpp"
#include "rsockets/wait_queue.hpp"

namespace rsockets {

class EpollSet final : public Object {
  public:
    static constexpr Kind own_kind = Kind::epoll_set;
    // `fd` receives the set's descriptor. Null, with errno, if the kernel refuses.
    static Ref<EpollSet> make(int flags, int& fd);
    ~EpollSet() override;
    // In a child: resets the mutex that all sets share, whose holder does not exist here.
    static void after_fork();

    // As epoll_ctl(2) and epoll_wait(2); errors as -errno.
    int control(int set_fd, int operation, int fd, const epoll_event* event);
    int wait(epoll_event* events, int most, const Deadline& deadline, const sigset_t* mask);

    // Whether `wait` would find events now, for threads that poll the set. It consumes none. all: each socket is polled
    // that may have something, so that `progress` knows of it.
    enum class Caller : uint8_t { thread, waiter }; // a waiter is between `waiter_begins` and `waiter_ends`
    bool ready(Caller caller, bool all = false);
    // For a thread that polls the set, and may sleep until it has something.
    void waiter_begins() { waiting_.fetch_add(1); }
    void waiter_ends() { waiting_.fetch_sub(1); }
    // A number that changes with what happens to its sockets, for edges of a set that this one is nested in.
    uint64_t progress();
    bool has_others(); // descriptors that are not ours are, or were, members
    // The kernel's descriptor behind all descriptors of the set.
    [[nodiscard]] int wait_fd() const { return kernel_.get(); }

  protected:
    void hang_up() override;

  private:
    // A socket or nested set under one descriptor.
    struct Interest final : public Waiter {
        Interest(EpollSet& set, int fd, const Ref<Object>& object);
        void notify() override; // the set and, in turn, the sets around it
        void queue();           // the set alone
        void let_go() override;
        WaitQueue& wait_queue(); // of the socket or set
        // By a descriptor that stays readable; that of a set is not, once it was polled.
        [[nodiscard]] bool watched_by_kernel() const { return nested_ == nullptr && watched_.load() >= 0; }

        EpollSet& set_;
        const int fd_;
        const Ref<Object> object_;
        Socket* const socket_;   // one of these is set
        EpollSet* const nested_; //
        uint64_t id_ = 0;        // carried by the kernel's events for it
        epoll_event wanted_{};
        bool notified_ = false;  // is in the set's `notified_`; guarded by `notified_mutex_`
        bool candidate_ = false; // must be polled
        bool heard_ = false;     // its wait queue has told of it since the last poll, and no descriptor does
        bool disabled_ = false;  // EPOLLONESHOT has fired
        uint32_t reported_ = 0;  // EPOLLET: the events and the progress at the last poll; 0: the next ones are new
        Socket::Progress seen_{};
        std::atomic<int> watched_{-1}; // its descriptor that `kernel_` watches; -1: none
        // A duplicate that `kernel_` watches instead, if another interest has the same socket; -1: none.
        std::atomic<int> duplicate_{-1};
    };
    using Key = std::pair<int, const Object*>;

    EpollSet() : Object(own_kind) {}
    int add(int fd, const Ref<Object>& object, const epoll_event& event) RSOCKET_REQUIRES(mutex_);
    // If it is a set. One that is being closed is not watched any more, and reports nothing more.
    void watch_nested(const Interest& interest, uint32_t wanted) RSOCKET_REQUIRES(mutex_);
    int modify(Interest& interest, const epoll_event& event) RSOCKET_REQUIRES(mutex_);
    void erase(const Key& key) RSOCKET_REQUIRES(mutex_);
    void drop_closed() RSOCKET_REQUIRES(mutex_);
    void make_candidate(Interest& interest) RSOCKET_REQUIRES(mutex_);
    void reserve() RSOCKET_REQUIRES(mutex_);
    void take_heard() RSOCKET_REQUIRES(mutex_);
    // Held while the socket is polled, since it may be closed at any moment.
    static std::shared_lock<std::shared_mutex> keep_connection(const Interest& interest);
    uint32_t events_of(Interest& interest) RSOCKET_REQUIRES(mutex_);
    static Socket::Progress progress_of(const Interest& interest);
    static bool edge(Interest& interest, uint32_t events, bool take);
    bool arm(Interest& interest) RSOCKET_REQUIRES(mutex_);
    void kernel_reports(uint64_t id) RSOCKET_REQUIRES(mutex_);
    bool stays_candidate(Interest& interest, bool others_wait, bool heard) RSOCKET_REQUIRES(mutex_);
    int poll_candidates(epoll_event* events, int most, bool others_wait, bool at_once, bool& may_sleep)
        RSOCKET_REQUIRES(mutex_);
    int control_ours(int operation, int fd, const Ref<Object>& object, const epoll_event* event);
    int control_kernel(int operation, int fd, const epoll_event* event);
    bool reaches(const EpollSet& other, int depth);

    base::Descriptor kernel_; // watches `wake_`, `others_`, and descriptors of the provider
    base::Descriptor others_; // watches descriptors that are not ours; made on demand
    base::Descriptor wake_;   // readable once `notified_` is not empty

    Mutex mutex_;
    std::map<Key, std::unique_ptr<Interest>> interests_ RSOCKET_GUARDED_BY(mutex_);
    std::unordered_map<uint64_t, Interest*> by_id_ RSOCKET_GUARDED_BY(mutex_);
    std::vector<Interest*> candidates_ RSOCKET_GUARDED_BY(mutex_); // nested sets always
    // candidates_ and notified_ of the current poll: members, so that polling allocates no memory.
    std::vector<Interest*> polled_ RSOCKET_GUARDED_BY(mutex_);
    std::vector<uint64_t> collected_ RSOCKET_GUARDED_BY(mutex_);
    uint64_t next_id_ RSOCKET_GUARDED_BY(mutex_) = 16;
    bool others_turn_ RSOCKET_GUARDED_BY(mutex_) = false; // to get the space, where it is for one event

    // Threads that have found nothing, and may sleep: they must be told again if another one uses up what tells of an
    // event.
    std::atomic<int> waiting_{0};
    // Interests in this set. Each set around this one is told of an event by a `wake_` of its own: they all poll this
    // set, and the first one that does uses up this set's. Locked after `mutex_`, and notified without it.
    WaitQueue outer_;

    Mutex notified_mutex_; // a leaf: nothing else is locked under it
    std::vector<uint64_t> notified_ RSOCKET_GUARDED_BY(notified_mutex_);
};

} // namespace rsockets
