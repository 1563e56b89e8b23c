// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A stream socket that behaves as a TCP socket of Linux, over an endpoint of the provider. Methods return what their
// call returns, and errors as -errno.
//
// socket.cpp            lifetime: states, names, shutdown, close
// socket_listen.cpp     listening, requests, accepting
// socket_connect.cpp    connecting
// socket_transfer.cpp   sending and receiving
// socket_map.cpp        iomaps
// socket_poll.cpp       poll events, and how a thread waits
// socket_options.cpp    options, flags and ioctls
//
// Its parts have files of their own: BoundAddress, ConnectAttempt, Connections, Listener, OptionValues, Ending,
// Counters and SendSpace.
//
// Lock order: a transport's events or keep_connection() of a socket, then one socket's `mutex_`, then its wait queue. A
// call that sends or receives takes none: it reads the state once, and a connection exists until its socket is closed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "rsockets/address.hpp"
#include "rsockets/bound_address.hpp"
#include "rsockets/cached_options.hpp"
#include "rsockets/call.hpp"
#include "rsockets/connect_attempt.hpp"
#include "rsockets/connections.hpp"
#include "rsockets/ending.hpp"
#include "rsockets/library.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/object.hpp"
#include "rsockets/option_values.hpp"
#include "rsockets/send_space.hpp"
#include "rsockets/stats.hpp"
#include "rsockets/wait_queue.hpp"

namespace rsockets {

class Listener;
class SetupAttendant;

class Socket final : public Object, private EventHandler {
  public:
    static constexpr Kind own_kind = Kind::socket;
    enum class State : uint8_t { closed, listening, connecting, connected };

    Socket(Library& library, int family, bool nonblocking);
    ~Socket() override;

    // socket.cpp
    int bind(const sockaddr* address, socklen_t length);
    int shutdown(int how);
    void set_number(int fd); // its descriptor, for rsstat
    int name(sockaddr* address, socklen_t* length);
    int peer(sockaddr* address, socklen_t* length);
    int came_from(sockaddr* address, socklen_t* length); // for accept: also after the connection is lost
    void close_at_exit();
    bool delivered_at_exit(); // after close_at_exit: nothing is left for the peer to acknowledge
    void wait_at_exit();      // waits briefly for delivered_at_exit

    // socket_listen.cpp. `fd` is a descriptor of this socket.
    int listen(int fd, int backlog);
    // Gives a connected socket that has no descriptor yet.
    int accept(bool nonblocking, Ref<Socket>& out);
    // Puts a socket that accept() gave back into the queue, since it got no descriptor.
    void put_back(const Ref<Socket>& accepted);
    // Makes `fd`, the kernel's descriptor of an accepted socket, readable when data arrives.
    bool show_in(int fd);

    // socket_connect.cpp
    int connect(int fd, const sockaddr* address, socklen_t length);

    // socket_transfer.cpp
    ssize_t send(const iovec* iov, size_t count, int flags) { return send(iov, count, flags, disconnects()); }
    // The same for part of a call that began when there had been so many disconnects.
    ssize_t send(const iovec* iov, size_t count, int flags, uint64_t began);
    // Times that a connection, or an attempt, was given up or followed by the next one: a call that began before does
    // not go on behind that.
    [[nodiscard]] uint64_t disconnects() const { return disconnects_.load(); }
    ssize_t recv(const iovec* iov, size_t count, int flags);
    // For a call that began when there had been so many disconnects, and returns what it has moved instead of the
    // error.
    void keep_for_next(ssize_t error, uint64_t began);

    // socket_map.cpp
    int64_t map(void* buffer, size_t length, int prot, int64_t offset);
    int unmap(void* buffer, size_t length);
    ssize_t write_map(const void* buffer, size_t length, int64_t offset, int flags);

    // socket_poll.cpp
    // The events of poll(2) at this moment. Makes progress. Events in `interest` that are not ready will be notified.
    short events(short interest);
    // For edge-triggered waits: bytes and connections that arrived, times that send space ran out, ended directions.
    struct Progress {
        uint64_t arrived = 0;
        uint64_t starved = 0;
        uint32_t ended = 0; // EOF, reset, loss and shutdown, of either side
        uint32_t moves = 0; // changes of state: each outcome of a connect counts, also of the same socket's next one
    };
    Progress progress();
    // Whether a thread that found nothing may sleep on `wait_fd`, and in the wait queue as `waiter`. If not, it must
    // poll again.
    bool may_sleep(const Waiter& waiter);
    [[nodiscard]] int wait_fd() const; // -1: only the wait queue notifies
    WaitQueue& wait_queue() { return wait_queue_; }
    // Keeps the connection alive, for a thread that is in no call on this socket, while it calls any of the above.
    [[nodiscard]] std::shared_lock<std::shared_mutex> keep_connection() { return std::shared_lock(polling_); }

    // socket_options.cpp
    int set_option(int level, int name, const void* value, socklen_t length);
    int get_option(int level, int name, void* value, socklen_t* length);
    int control(unsigned long request, int* value);
    [[nodiscard]] bool nonblocking() const { return nonblocking_.load(std::memory_order_relaxed); }
    void set_nonblocking(bool on) { nonblocking_.store(on, std::memory_order_relaxed); }

    // For the service thread. busy: data was sent since the last query. Otherwise pending data is moved on. waits: some
    // of it depends on further calls; over: none does.
    enum class Sending : uint8_t { busy, waits, over };
    Sending check_sending();
    struct ServiceEntry {
        std::atomic<bool> listed{false}; // in the service thread's lists of sockets that have sent
        Ref<Socket> next;                // in the list of new entries, guarded by its mutex
        uint64_t sends_seen = 0;         // at its last query
    };
    [[nodiscard]] ServiceEntry& service_entry() { return service_entry_; }
    // Whether pending data depends on further calls now, for a thread that keeps the connection alive.
    [[nodiscard]] bool needs_calls();

  protected:
    void hang_up() override;

  private:
    using Nanoseconds = std::chrono::nanoseconds;

    // socket.cpp
    [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
    void move_to(State next) RSOCKET_REQUIRES(mutex_);
    [[nodiscard]] Connection* connection() const { return connections_.present(); }
    // Null: the socket is not connected. Needs no lock: one of a failed attempt may be destroyed beside this call, but
    // not one of a socket that has been connected.
    [[nodiscard]] Connection* established() const { return state() == State::connected ? connection() : nullptr; }
    Address present_name() const RSOCKET_REQUIRES(mutex_); // not set: only `bound_` has one
    void show() RSOCKET_REQUIRES(mutex_);
    bool left_behind(Connection& present);
    enum class Shut : uint8_t { nothing, sending, both };
    Shut mark_shut(State in, const Connection* present, bool receive, bool send);
    void abort_given_up(Connection* given_up);
    void fail(const ::fid* subject, int error);
    void close_connection();
    int disconnect(int fd);

    // event handlers
    void on_request(base::Info request) override;
    void on_connected(const ::fid* subject) override;
    void on_failed(const ::fid* subject, int error) override;
    void on_shutdown() override;

    // socket_listen.cpp
    void stop_listening(const Listener* only = nullptr); // only: unless another thread has begun anew since
    void shut_listener();
    void open_request(base::Info request);
    int open_child(const Ref<Socket>& child, fi_info& request, std::unique_ptr<Connection>& connection);
    // Not checked: no other thread can reach the socket yet. The listener's mutex is held.
    void begin_as_child_of(Socket& listener, const fi_info& request) RSOCKET_UNCHECKED;
    void serve_waiting();
    void child_connected(Socket& child);
    void child_failed(Socket& child);

    // socket_connect.cpp
    int start_connect(int fd, const Address& to, uint64_t attempt, SetupAttendant* attendant);
    [[nodiscard]] bool under_way(uint64_t attempt) const;
    void abandon(int fd, uint64_t attempt);
    static void stop_watching(int fd, const Connection* given_up);
    int connect_result(uint64_t attempt);

    // socket_transfer.cpp
    // Cap of the bytes that a call waits for: the receive buffer must be able to hold them.
    [[nodiscard]] size_t most_awaited() const { return connections_.receive_buffer() / 2; }
    [[nodiscard]] size_t low_water() const { return std::min(cached_.low_water.load(), most_awaited()); } // SO_RCVLOWAT
    ssize_t recv_now(const iovec* iov, size_t count, int flags, size_t wanted, uint64_t began);
    static ssize_t discard(Connection& from, size_t length);
    // Gives the connection to send on, or returns why there is none.
    ssize_t sendable(Connection*& out, uint64_t began);
    // Translates the provider's result for `length` bytes into the result of the call.
    ssize_t sending_result(Connection& present, ssize_t sent, size_t length);
    ssize_t send_now(const iovec* iov, size_t count, bool more, uint64_t began);
    void note_sent(size_t bytes);
    bool note_loss(const Connection& of, int error);
    ssize_t fail_with_loss(const Connection& of, int error);

    // socket_poll.cpp
    // Repeats `attempt` until it returns something other than -EAGAIN: if `wait`, for at most `limit` (0: no limit);
    // then -EAGAIN. -EINTR after a signal, as in the kernel.
    // By reference: the captures are not copied, and no memory is allocated.
    template <class Attempt> ssize_t repeat(bool wait, Nanoseconds limit, const Attempt& attempt) {
        const ssize_t ret = attempt();
        return ret == -EAGAIN && wait ? keep_trying(limit, std::ref(attempt), {}) : ret;
    }
    // has_part: whether something has been moved, or can be: then a signal ends it whatever its handler says
    // (signal(7)).
    template <class Attempt, class Part>
    ssize_t repeat(bool wait, Nanoseconds limit, const Attempt& attempt, const Part& has_part) {
        const ssize_t ret = attempt();
        return ret == -EAGAIN && wait ? keep_trying(limit, std::ref(attempt), std::ref(has_part)) : ret;
    }
    ssize_t keep_trying(Nanoseconds limit, const std::function<ssize_t()>& attempt,
                        const std::function<bool()>& has_part, SetupAttendant* attendant = nullptr);
    short events_connected(Connection& connection, short interest);
    void note_loss_in(Connection& connection, const fi_rstream_status& status, ssize_t there);
    void find_loss(Connection& connection); // a reset or an error may have arrived that no call has seen
    void pass_on(const Connection& connection, const Waiter* from);
    void note_sleep();

    // socket_options.cpp
    // 0, or -FI_E*, which is logged: without probes, the connection works.
    int apply_keepalive(Connection& connection) const RSOCKET_REQUIRES(mutex_);
    int take_effect(const Option& option) RSOCKET_REQUIRES(mutex_);
    [[nodiscard]] size_t size_of(const Option& option) const RSOCKET_REQUIRES(mutex_);
    int get_state(const Option& option, void* value, socklen_t* length) RSOCKET_REQUIRES(mutex_);
    int get_tcp_info(void* value, socklen_t* length) RSOCKET_REQUIRES(mutex_);

    // Scope of a sending call: its end records the bytes that the connection accepted, also if the thread is cancelled.
    class Sent {
      public:
        Sent(Socket& socket, const size_t& bytes) : socket_(socket), bytes_(bytes) {}
        Sent(const Sent&) = delete;
        Sent& operator=(const Sent&) = delete;
        ~Sent();

      private:
        Socket& socket_;
        const size_t& bytes_;
    };

    Library& library_;
    const int family_;
    std::atomic<bool> nonblocking_;

    std::shared_mutex polling_; // shared by keep_connection(), exclusive to remove the connection
    mutable Mutex mutex_;
    std::atomic<State> state_{State::closed};
    std::atomic<uint32_t> moves_{0};       // changes of state
    std::atomic<uint64_t> disconnects_{0}; // changes with `mutex_` held, before the state and the connection do
    WaitQueue wait_queue_;
    std::atomic<uint64_t> passed_on_{0}; // see pass_on
    BoundAddress bound_ RSOCKET_GUARDED_BY(mutex_);
    Connections connections_;
    ConnectAttempt attempt_; // guarded as its header states
    std::shared_ptr<Listener> listener_ RSOCKET_GUARDED_BY(mutex_);
    Ref<Socket> parent_ RSOCKET_GUARDED_BY(mutex_); // the listener, while the connection is being set up
    bool setting_up_ RSOCKET_GUARDED_BY(mutex_) = false;
    // Where the connection goes: from the request, or what connect(2) was given. A core has none for a lost connection.
    Address peer_ RSOCKET_GUARDED_BY(mutex_);
    bool accepted_ RSOCKET_GUARDED_BY(mutex_) = false;

    Ending ending_;
    Counters counters_; // bytes and calls, shown by rsstat
    std::atomic<uint64_t> connections_made_{0};
    SendSpace send_space_;
    ServiceEntry service_entry_;

    OptionValues options_ RSOCKET_GUARDED_BY(mutex_);
    CachedOptions cached_;
};

} // namespace rsockets
