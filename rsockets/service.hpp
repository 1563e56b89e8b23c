// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library's one thread, made when the first socket listens or connects. It hands out the events of connections, so
// that they come about while the program is elsewhere, and moves what a busy program has sent: it sleeps in poll on the
// queues of all transports, which wake up for their connections' data. While data flows and whoever receives it needs
// no help, it looks only once in a while.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/descriptor.hpp"
#include "rsockets/bell.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/object.hpp"

namespace rsockets {

class Connection;
class Library;
class Socket;

class Service {
  public:
    explicit Service(Library& library);
    ~Service();
    Service(const Service&) = delete;
    Service& operator=(const Service&) = delete;

    [[nodiscard]] bool started();
    // 0 or an errno. Once is enough.
    int start();
    void stop();
    // Something has changed that the thread should know of now: a transport was added, a connection is being made.
    void wake();

    // The thread looks at nothing for a good while, since all that was sent goes on without it. Whoever sends what does
    // not then rouses it.
    [[nodiscard]] bool dozing() const { return dozing_.load(std::memory_order_relaxed); }
    void rouse();

    // A socket that has sent something. When it is quiet, the thread sees to it that what is left moves on.
    void look_after(Socket& socket);

    // A connection that was closed with bytes that the peer has no room for yet. It is kept until they are sent.
    void linger(std::unique_ptr<Connection> connection);
    // When the thread has stopped: looks at all of these, and is true if some are left; waits a moment for those.
    bool lingers() { return tend() && !kept_.empty(); }
    void wait_for_lingering();

  private:
    void run();
    void take_turn(bool& data);
    bool tend(); // the sockets that were touched; true if some are to be looked at again
    void sleep(bool resting, int map_rest, bool tending, bool& data);
    bool begin_to_doze();
    void end_doze();

    Library& library_;
    Mutex mutex_; // starting and stopping
    bool running_ RSOCKET_GUARDED_BY(mutex_) = false;
    std::atomic<bool> stopping_{false};
    base::Descriptor wake_fd_;
    std::thread thread_ RSOCKET_GUARDED_BY(mutex_);

    Mutex touched_mutex_;                                    // a leaf: nothing else is locked under it
    Ref<Socket> touched_ RSOCKET_GUARDED_BY(touched_mutex_); // the first, which leads to the next
    size_t touched_count_ RSOCKET_GUARDED_BY(touched_mutex_) = 0;
    struct Lingering {
        std::unique_ptr<Connection> connection;
        Deadline deadline;
        size_t unsent; // when it was last seen to take something
    };
    std::vector<Lingering> lingering_ RSOCKET_GUARDED_BY(touched_mutex_); // added
    std::vector<Lingering> kept_;                                         // looked at
    bool asleep_ RSOCKET_GUARDED_BY(touched_mutex_) = false;              // without a time limit
    std::vector<Ref<Socket>> tended_;
    bool busy_ = false;    // some have sent since they were last tended
    bool waiting_ = false; // some have not, and something is left

    std::atomic<bool> dozing_{false};
    int short_rests_ = 0; // in a row
    int patience_ = 1;    // how many there must be before a doze: more and more while dozes do not last
};

} // namespace rsockets
