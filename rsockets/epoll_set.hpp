// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A set of epoll(7) over a mix of our sockets and any other descriptor. Its number is a kernel's epoll descriptor, in
// which the kernel watches the others' descriptors with their own flags, and the provider's behind our sockets. Our
// sockets are looked at only if something may have happened to them: their descriptor says so, their bell rang, or they
// were ready when last looked at. So the cost of waiting goes with the ready ones, not with all.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include <sys/epoll.h>

#include "rsockets/bell.hpp"
#include "rsockets/descriptor.hpp"
#include "rsockets/object.hpp"
#include "rsockets/socket.hpp"

namespace rsockets {

class EpollSet final : public Object {
  public:
    static constexpr Kind own_kind = Kind::epoll_set;
    // `fd` is the set's number. Null, with errno, if the kernel refuses.
    static Ref<EpollSet> make(int flags, int& fd);
    // Of the kernel's epoll descriptor `others`, which keeps what it watches and is the set's from now on.
    static Ref<EpollSet> make_around(Descriptor others, int& fd);
    ~EpollSet() override;

    // As epoll_ctl(2) and epoll_wait(2); errors as -errno.
    int control(int set_fd, int operation, int fd, const epoll_event* event);
    int wait(epoll_event* events, int most, const Deadline& deadline, const sigset_t* mask);

    // What was asked for a number. 0 or -ENOENT.
    int interest_in(int fd, epoll_event& out);

    // Whether `wait` would find something now, for those who poll the set. It takes nothing.
    bool ready();
    // The kernel's descriptor behind all numbers of the set.
    [[nodiscard]] int wait_fd() const { return kernel_.get(); }

  protected:
    void hang_up() override;

  private:
    // One socket or nested set under one number.
    struct Interest final : public Ear {
        Interest(EpollSet& set, int fd, const Ref<Object>& object);
        void hear() override;
        void let_go() override;

        EpollSet& set_;
        const int fd_;
        const Ref<Object> object_;
        Socket* const socket_;   // one of these is set
        EpollSet* const nested_; //
        uint64_t id_ = 0;        // what the kernel's events for it carry
        epoll_event wanted_{};
        bool heard_ = false;     // is in the set's `heard_`; with its mutex
        bool candidate_ = false; // is to be looked at
        bool disabled_ = false;  // EPOLLONESHOT has had its shot
        uint32_t told_ = 0;      // edges: the events, and what had happened, at the last look
        Socket::Progress seen_{};
        std::atomic<int> watched_{-1}; // the descriptor of its that the kernel watches for us
    };
    using Key = std::pair<int, const Object*>;

    EpollSet() : Object(own_kind) {}
    int add(int fd, const Ref<Object>& object, const epoll_event& event);
    int modify(Interest& interest, const epoll_event& event);
    void erase(const Key& key);
    void drop_closed();
    void make_candidate(Interest& interest);
    void take_heard();
    // For the time of a look at its socket, which may be closed at any moment.
    static std::shared_lock<std::shared_mutex> look_at(const Interest& interest);
    uint32_t events_of(Interest& interest);
    static bool edge(Interest& interest, uint32_t events, bool take);
    bool arm(Interest& interest);
    int look(epoll_event* events, int most, bool& may_sleep, bool& stale);
    int control_kernel(int operation, int fd, const epoll_event* event);
    bool reaches(const EpollSet& other, int depth);

    Descriptor kernel_; // watches `wake_`, `others_`, and descriptors of the provider
    Descriptor others_; // watches what is not ours; made when there is any
    Descriptor wake_;   // readable once `heard_` is not empty

    std::mutex mutex_;
    std::map<Key, std::unique_ptr<Interest>> interests_;
    std::unordered_map<uint64_t, Interest*> by_id_;
    std::vector<Interest*> candidates_;
    std::vector<Interest*> looking_; // candidates_ and heard_ of the present look: kept, so that no look takes memory
    std::vector<uint64_t> hearing_;
    uint64_t next_id_ = 16;
    bool others_turn_ = false; // of the room for one event

    std::mutex heard_mutex_; // a leaf: nothing else is locked under it
    std::vector<uint64_t> heard_;
};

} // namespace rsockets
