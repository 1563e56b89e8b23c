// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library's only thread, started when the first socket listens or connects. It dispatches the events of
// connections, so that they are established while the program does other work, and moves on data that a busy program
// has sent: it sleeps in poll on the event queues of all transports, which are also signalled by the data of their
// connections. While data flows and the receiving thread needs no help, it polls only at intervals.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/descriptor.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/object.hpp"
#include "rsockets/setup_steps.hpp"
#include "rsockets/wait_queue.hpp"

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
    // 0 or an errno. Further calls have no effect.
    int start();
    void stop();
    // Wakes the thread after a change: a transport was added.
    void wake();
    // A connection is being set up (Library::setups): wakes the thread if it does not watch connections now.
    void end_rest();
    // A thread dispatches the events of a connection that it sets up (SetupAttendant): one at a time, or each event
    // would wake all of them. False: another one does.
    [[nodiscard]] bool attendant_begins() { return !attended_.exchange(true); }
    void attendant_ends() { attended_.store(false); }

    // The thread polls nothing for a long interval: all sent data moves on without it. A sender whose data does not
    // must call rouse().
    [[nodiscard]] bool dozing() const { return dozing_.load(std::memory_order_relaxed); }
    void rouse();

    // Registers a socket that has sent data. Once it is idle, the thread moves on what is left.
    void serve(Socket& socket);

    // Takes a closed connection with bytes that the peer has no space for yet, and keeps it until they are sent.
    // Out of memory, it is left to the caller: false.
    bool linger(std::unique_ptr<Connection>& connection);
    // After the thread has stopped: polls all of these, and returns whether some are left; waits briefly for those.
    bool lingers() { return tend() && !kept_.empty(); }
    void wait_for_lingering();

  private:
    void run();
    void take_turn(bool& data);
    [[nodiscard]] bool sets_up_unattended() const;
    bool tend(); // polls registered sockets; true if some must be polled again
    void sleep(bool resting, int map_rest, bool tending, bool& data);
    bool begin_to_doze();
    void end_doze();

    Library& library_;
    Mutex mutex_; // serializes start and stop
    bool running_ RSOCKET_GUARDED_BY(mutex_) = false;
    std::atomic<bool> stopping_{false};
    base::Descriptor wake_fd_;
    std::thread thread_ RSOCKET_GUARDED_BY(mutex_);

    Mutex touched_mutex_;                                    // a leaf: nothing else is locked under it
    Ref<Socket> touched_ RSOCKET_GUARDED_BY(touched_mutex_); // head of a linked list
    size_t touched_count_ RSOCKET_GUARDED_BY(touched_mutex_) = 0;
    struct Lingering {
        std::unique_ptr<Connection> connection;
        Deadline deadline;
        size_t unsent; // at its last progress
    };
    std::vector<Lingering> lingering_ RSOCKET_GUARDED_BY(touched_mutex_); // newly added
    std::vector<Lingering> kept_;                                         // polled by the thread
    bool asleep_ RSOCKET_GUARDED_BY(touched_mutex_) = false;              // the thread sleeps without a timeout
    std::vector<Ref<Socket>> tended_;
    bool busy_ = false;    // some have sent since the last poll of them
    bool waiting_ = false; // some have not, and have data left

    std::atomic<bool> resting_{false}; // connections are not watched
    std::atomic<bool> attended_{false};
    std::atomic<bool> dozing_{false};
    int short_rests_ = 0; // in a row
    SetupSteps setup_steps_;
    int doze_threshold_ = 1; // threshold of them for a doze: doubles when a doze is interrupted, else halves
};

} // namespace rsockets
