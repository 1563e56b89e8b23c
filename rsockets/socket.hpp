// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A stream socket with the behaviour of TCP's on Linux, over an endpoint of the provider's. Methods return what their
// call returns, and errors as -errno.
//
// socket.cpp            life: states, names, ending, closing
// socket_listen.cpp     listening, requests, accepting
// socket_connect.cpp    connecting
// socket_transfer.cpp   bytes
// socket_map.cpp        memory beside the stream
// socket_poll.cpp       what poll sees, and how a thread waits
// socket_options.cpp    options, flags and ioctls
//
// Its parts have files of their own: BoundAddress, ConnectAttempt, Connections, Listener, OptionValues, Ending,
// Counters and Room.
//
// Locks: a transport's events or a look at a socket, then one socket's `mutex_`, then its bell. A call that sends or
// receives takes none: it looks at the state once, and the connection behind a state stays until the socket goes.
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
#include "rsockets/bell.hpp"
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
#include "rsockets/room.hpp"
#include "rsockets/stats.hpp"

namespace rsockets {

class Listener;

class Socket final : public Object, private EventTarget {
  public:
    static constexpr Kind own_kind = Kind::socket;
    enum class State : uint8_t { closed, listening, connecting, connected };

    Socket(Library& library, int family, bool nonblocking);
    ~Socket() override;

    // socket.cpp
    int bind(const sockaddr* address, socklen_t length);
    int shutdown(int how);
    void set_number(int fd); // for rsstat: the program's name of it
    int name(sockaddr* address, socklen_t* length);
    int peer(sockaddr* address, socklen_t* length);
    int came_from(sockaddr* address, socklen_t* length); // for accept: whatever has become of it
    void close_at_exit();
    bool delivered_at_exit(); // behind that: nothing is left for the peer to acknowledge
    void wait_at_exit();      // for that, a moment

    // socket_listen.cpp. `fd` is a number of this socket.
    int listen(int fd, int backlog);
    // A connected socket that has no number yet.
    int accept(bool nonblocking, Ref<Socket>& out);
    // What accept() gave, and nobody can take now.
    void put_back(const Ref<Socket>& accepted);
    // Lets the kernel's descriptor of an accepted socket show its data.
    bool show_in(int fd);

    // socket_connect.cpp
    int connect(int fd, const sockaddr* address, socklen_t length);

    // socket_transfer.cpp
    ssize_t send(const iovec* iov, size_t count, int flags);
    ssize_t recv(const iovec* iov, size_t count, int flags);
    void keep_for_next(ssize_t error);

    // socket_map.cpp
    int64_t map(void* buffer, size_t length, int prot, int64_t offset);
    int unmap(void* buffer, size_t length);
    ssize_t write_map(const void* buffer, size_t length, int64_t offset, int flags);

    // socket_poll.cpp
    // The events of poll(2) at this moment. Makes progress. What is in `interest` and not ready will be announced.
    short events(short interest);
    // What has happened up to now, for waiting on edges: bytes and connections that came, times that room ran out,
    // ends.
    struct Progress {
        uint64_t arrived = 0;
        uint64_t starved = 0;
        uint32_t ended = 0; // which ends of the connection have come, of either side
    };
    Progress progress();
    // Whether a thread that found nothing may sleep on `wait_fd`. If not, it is to look again.
    bool may_sleep();
    [[nodiscard]] int wait_fd() const; // -1 where only the bell rings
    Bell& bell() { return bell_; }
    // Who is in no call on this socket, and so would not keep its connection, holds this while it calls any of the
    // above.
    [[nodiscard]] std::shared_lock<std::shared_mutex> look() { return std::shared_lock(looks_); }

    // socket_options.cpp
    int set_option(int level, int name, const void* value, socklen_t length);
    int get_option(int level, int name, void* value, socklen_t* length);
    int control(unsigned long request, int* value);
    [[nodiscard]] bool nonblocking() const { return nonblocking_.load(std::memory_order_relaxed); }
    void set_nonblocking(bool on) { nonblocking_.store(on, std::memory_order_relaxed); }

    // For the service thread: what was sent since it last asked. If nothing, what is left was moved on, and waits for
    // the peer, or there is nothing left.
    enum class Sending : uint8_t { busy, waits, over };
    Sending look_at_sending();
    struct ServiceEntry {
        std::atomic<bool> listed{false}; // in the service's list of sockets that have sent, or being tended
        Ref<Socket> next;                // in that list, with its mutex
        uint64_t sends_seen = 0;         // by the service thread
    };
    [[nodiscard]] ServiceEntry& service_entry() { return service_entry_; }
    // The same now, for a thread that holds the connection.
    [[nodiscard]] bool needs_calls();

  protected:
    void hang_up() override;

  private:
    using Nanoseconds = std::chrono::nanoseconds;

    // socket.cpp
    [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
    void move_to(State next) RSOCKET_REQUIRES(mutex_);
    [[nodiscard]] Connection* connection() const { return connections_.present(); }
    Address present_name() const RSOCKET_REQUIRES(mutex_); // not set: it has none but that
    Address peer_name(const Connection& present) const RSOCKET_REQUIRES(mutex_);
    void show() RSOCKET_REQUIRES(mutex_);
    bool left_behind(Connection& present);
    void drop_connection();
    void close_connection();
    int disconnect();

    // events of the provider
    void on_request(base::Info request) override;
    void on_connected() override;
    void on_failed(int error) override;
    void on_shutdown() override;

    // socket_listen.cpp
    void stop_listening();
    void shut_listener();
    void open_request(base::Info request);
    // Not checked: nobody else knows the socket yet. With the listener's mutex held.
    void begin_as_child_of(Socket& listener, const fi_info& request) RSOCKET_UNCHECKED;
    void serve_waiting();
    void child_connected(Socket& child);
    void child_failed(Socket& child);

    // socket_connect.cpp
    int start_connect(int fd, const Address& to, uint64_t attempt);
    [[nodiscard]] bool under_way(uint64_t attempt) const;
    void abandon(uint64_t attempt);
    int connect_result(uint64_t attempt);

    // socket_transfer.cpp
    // No more than the connection's buffer can hold is waited for.
    [[nodiscard]] size_t most_awaited() const { return connections_.receive_buffer() / 2; }
    [[nodiscard]] size_t low_water() const { return std::min(cached_.low_water.load(), most_awaited()); } // SO_RCVLOWAT
    ssize_t recv_now(const iovec* iov, size_t count, int flags, size_t wanted);
    static ssize_t discard(Connection& from, size_t length);
    // The connection that can be sent on, or why there is none.
    ssize_t sendable(Connection*& out);
    // What the provider's answer to `length` bytes means to the program.
    ssize_t sending_result(ssize_t sent, size_t length);
    ssize_t send_now(const iovec* iov, size_t count, bool more);
    void note_sent(size_t bytes);
    void note_loss(int error);

    // socket_poll.cpp
    // Repeats `attempt` until it gives something other than -EAGAIN: at most `limit` (0: no limit), if `wait`; then
    // -EAGAIN. -EINTR after a signal, as the kernel.
    template <class Attempt> ssize_t repeat(bool wait, Nanoseconds limit, const Attempt& attempt) {
        const ssize_t ret = attempt();
        // By reference: its captures stay where they are, and no memory is taken.
        return ret == -EAGAIN && wait ? keep_trying(limit, std::ref(attempt)) : ret;
    }
    ssize_t keep_trying(Nanoseconds limit, const std::function<ssize_t()>& attempt);
    short events_connected(Connection& connection, short interest);
    void note_sleep();

    // socket_options.cpp
    int apply_keepalive(Connection& connection) const RSOCKET_REQUIRES(mutex_);
    int take_effect(const Option& option) RSOCKET_REQUIRES(mutex_);
    [[nodiscard]] size_t size_of(const Option& option) const RSOCKET_REQUIRES(mutex_);
    int get_state(const Option& option, void* value, socklen_t* length) RSOCKET_REQUIRES(mutex_);
    int get_tcp_info(void* value, socklen_t* length) RSOCKET_REQUIRES(mutex_);

    // A call that sends: what the connection has taken by its end is noted, also when the thread is cancelled.
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

    std::shared_mutex looks_; // shared by looks from outside of calls; the connection goes when there are none
    mutable Mutex mutex_;
    std::atomic<State> state_{State::closed};
    Bell bell_;
    BoundAddress bound_ RSOCKET_GUARDED_BY(mutex_);
    Connections connections_;
    ConnectAttempt attempt_; // guarded as it says
    std::shared_ptr<Listener> listener_ RSOCKET_GUARDED_BY(mutex_);
    Ref<Socket> parent_ RSOCKET_GUARDED_BY(mutex_); // the listener, while this is being accepted
    bool setting_up_ RSOCKET_GUARDED_BY(mutex_) = false;
    Address came_from_ RSOCKET_GUARDED_BY(mutex_); // of an accepted connection: its peer, as the request had it

    Ending ending_;
    Counters counters_; // bytes and calls, which rsstat shows
    std::atomic<uint64_t> connections_made_{0};
    Room room_;
    ServiceEntry service_entry_;

    OptionValues options_ RSOCKET_GUARDED_BY(mutex_);
    CachedOptions cached_;
};

} // namespace rsockets
