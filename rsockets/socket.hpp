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
// Locks: a transport's events or a look at a socket, then one socket's `mutex_`, then its bell. A call that sends or
// receives takes none: it looks at the state once, and the connection behind a state stays until the socket goes.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "rsockets/address.hpp"
#include "rsockets/bell.hpp"
#include "rsockets/cached_options.hpp"
#include "rsockets/call.hpp"
#include "rsockets/connection.hpp"
#include "rsockets/kernel_options.hpp"
#include "rsockets/library.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/object.hpp"
#include "rsockets/option_table.hpp"
#include "rsockets/room.hpp"
#include "rsockets/stats.hpp"

namespace rsockets {

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
    // The same, or a descriptor of the kernel's where one listens beside this socket.
    int accept_any(bool nonblocking, Ref<Socket>& out, base::Descriptor& kernel);
    // What accept() gave, and nobody can take now.
    void put_back(const Ref<Socket>& accepted);
    // From now on, what the kernel's listening socket `kernel` takes is accepted here too. It is non-blocking, outlives
    // this socket, and stays the caller's. `fd` is a number of this socket.
    int listen_beside(int fd, int kernel);
    // Lets the kernel's descriptor of an accepted socket show its data.
    bool show_in(int fd);

    // socket_connect.cpp
    int connect(int fd, const sockaddr* address, socklen_t length);

    // The caller has another way to the peer: while `on`, a connect that fails in the background is not shown to anyone
    // who waits for this socket; they end with -ESTALE, for the caller to take that way.
    void set_alternative(bool on);
    [[nodiscard]] bool wants_alternative() const;
    // How a connect stands: -EINPROGRESS, 0, -ECANCELED if the program gave it up, or another -errno.
    int outcome() const;
    [[nodiscard]] uint64_t bytes_sent() const { return counters_.bytes_sent(); }
    [[nodiscard]] uint64_t bytes_received() const { return counters_.bytes_received(); }
    // The core below, or an empty name.
    std::string core() const;
    [[nodiscard]] bool has_kernel_ports() const; // its core; false while there is none

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
    // Its list of sockets that have sent, with its mutex.
    void set_next_touched(Ref<Socket> next) { next_touched_ = std::move(next); }
    Ref<Socket> take_next_touched() { return std::move(next_touched_); }
    // The same now, for a thread that holds the connection.
    [[nodiscard]] bool needs_calls();

  protected:
    void hang_up() override;

  private:
    using Nanoseconds = std::chrono::nanoseconds;

    struct Listener {
        Transport* transport = nullptr;
        base::Owned<fid_pep> pep;
        size_t limit = 0;                 // connections that may be made before they are accepted
        std::deque<base::Info> requests;  // that are beyond it
        std::vector<Ref<Socket>> opening; // accepted by us, not yet connected
        std::deque<Ref<Socket>> ready;
        base::Descriptor signal; // readable while `ready` has any
        bool signaled = false;   // it is
    };

    // socket.cpp
    [[nodiscard]] State state() const { return state_.load(std::memory_order_acquire); }
    void move_to(State next) RSOCKET_REQUIRES(mutex_);
    void adopt(std::unique_ptr<Connection> connection) RSOCKET_REQUIRES(mutex_);
    [[nodiscard]] Connection* connection() const { return connection_.load(std::memory_order_acquire); }
    Address bound_name() const RSOCKET_REQUIRES(mutex_);
    Address present_name() const RSOCKET_REQUIRES(mutex_); // not set: it has none but that
    Address peer_name(const Connection& present) const RSOCKET_REQUIRES(mutex_);
    void show() RSOCKET_REQUIRES(mutex_);
    bool left_behind(Connection& present);
    void drop_connection();
    void close_connection();
    int disconnect();
    base::Info hints() const;
    Sizes sizes() const RSOCKET_REQUIRES(mutex_);

    // events of the provider
    void on_request(base::Info request) override;
    void on_connected() override;
    void on_failed(int error) override;
    void on_shutdown() override;

    // socket_listen.cpp
    int open_passive(const Address& address, Listener& listener);
    [[nodiscard]] bool kernel_listens() const RSOCKET_REQUIRES(mutex_);
    void stop_listening();
    void shut_listener();
    int reserve(const sockaddr* address, socklen_t length, bool again) RSOCKET_REQUIRES(mutex_);
    void open_request(base::Info request);
    // Not checked: nobody else knows the socket yet. With the listener's mutex held.
    void begin_as_child_of(Socket& listener, const fi_info& request) RSOCKET_UNCHECKED;
    void serve_waiting();
    void child_connected(Socket& child);
    void child_failed(Socket& child);
    void update_signal() RSOCKET_REQUIRES(mutex_);

    // socket_connect.cpp
    int start_connect(int fd, const Address& to, uint64_t attempt);
    [[nodiscard]] bool under_way(uint64_t attempt) const;
    void abandon(uint64_t attempt);
    int connect_result(uint64_t attempt);

    // socket_transfer.cpp
    // No more than the connection's buffer can hold is waited for.
    [[nodiscard]] size_t most_awaited() const { return ring_.load(std::memory_order_relaxed) / 2; }
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
    int take_error() { return error_.exchange(0); }

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
    // With `mutex_` held. Nothing if the program said nothing: what the provider was set to holds then.
    std::optional<Keepalive> keepalive() const RSOCKET_REQUIRES(mutex_);
    size_t tcp_option(int name) const RSOCKET_REQUIRES(mutex_);
    int apply_keepalive(Connection& connection) const RSOCKET_REQUIRES(mutex_);
    int set_size(const Option& option, const void* value, socklen_t length) RSOCKET_REQUIRES(mutex_);
    int set_route(const void* value, socklen_t length) RSOCKET_REQUIRES(mutex_);
    int take_effect(const Option& option) RSOCKET_REQUIRES(mutex_);
    [[nodiscard]] size_t size_of(const Option& option) const RSOCKET_REQUIRES(mutex_);
    int get_state(const Option& option, void* value, socklen_t* length) RSOCKET_REQUIRES(mutex_);
    int get_tcp_info(void* value, socklen_t* length) RSOCKET_REQUIRES(mutex_);

    // A call that handles connections which were not connected yet: they stay as long as there is another one.
    class Handling {
      public:
        explicit Handling(Socket& socket) : socket_(socket) { socket_.handling_.fetch_add(1); }
        Handling(const Handling&) = delete;
        Handling& operator=(const Handling&) = delete;
        ~Handling() { socket_.handling_.fetch_sub(1); }

      private:
        Socket& socket_;
    };

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
    bool bound_ RSOCKET_GUARDED_BY(mutex_) = false; // by the program
    Address bound_to_ RSOCKET_GUARDED_BY(mutex_);   // what it asked for
    base::Descriptor
        reserved_ RSOCKET_GUARDED_BY(mutex_); // a socket of the kernel's that holds the address that was bound
    std::atomic<Connection*> connection_{nullptr};
    std::vector<std::unique_ptr<Connection>>
        connections_ RSOCKET_GUARDED_BY(mutex_); // the present one last; others may still be in use
    std::atomic<int> handling_{0};               // see Handling
    std::atomic<uint64_t> attempt_{0};           // to connect; changes with `mutex_` held
    std::unique_ptr<Listener> listener_ RSOCKET_GUARDED_BY(mutex_);
    Ref<Socket> parent_ RSOCKET_GUARDED_BY(mutex_); // the listener, while this is being accepted
    bool setting_up_ RSOCKET_GUARDED_BY(mutex_) = false;
    bool was_connected_ RSOCKET_GUARDED_BY(mutex_) = false;
    int number_ RSOCKET_GUARDED_BY(mutex_) = -1; // as rsstat shows it
    bool shown_ RSOCKET_GUARDED_BY(mutex_) = false;
    base::Descriptor
        outcome_ RSOCKET_GUARDED_BY(mutex_); // readable once a connect has come to its end, until someone looks
    std::atomic<bool> outcome_shown_{false}; // there is that descriptor
    bool outcome_told_ RSOCKET_GUARDED_BY(mutex_) = true; // the program was told how its connect went
    Address came_from_ RSOCKET_GUARDED_BY(mutex_);        // of an accepted connection: its peer, as the request had it

    std::atomic<int> error_{0};             // SO_ERROR
    std::atomic<bool> receive_shut_{false}; // by the program
    std::atomic<bool> send_shut_{false};    // by the program
    std::atomic<bool> lost_{false};         // the connection was reset, or never came about
    Counters counters_;                     // bytes and calls, which rsstat shows
    std::atomic<uint64_t> connections_made_{0};
    std::atomic<uint64_t> starved_{0};
    Room room_;
    std::atomic<bool> touched_{false}; // it is in that list, or being tended
    Ref<Socket> next_touched_;
    uint64_t sends_seen_ = 0; // by the service thread
    std::atomic<bool> alternative_{false};
    std::atomic<int> beside_{-1}; // the kernel's listening socket

    KernelOptions options_ RSOCKET_GUARDED_BY(mutex_);
    Config config_ RSOCKET_GUARDED_BY(mutex_);                // sizes for the next connection
    std::vector<std::byte> route_ RSOCKET_GUARDED_BY(mutex_); // RDMA_ROUTE: kept
    bool v6_only_ RSOCKET_GUARDED_BY(mutex_) = false;
    CachedOptions cached_;
    std::atomic<size_t> ring_{std::numeric_limits<size_t>::max()}; // the receive buffer of the present connection
};

} // namespace rsockets
