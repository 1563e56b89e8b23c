// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A fabric of the provider, with its domains and two event queues: one for listeners, signalled by requests only, and
// one for connections, also signalled by their data. Events are dispatched to the handler registered for their fid.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/owned_fid.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/wait_queue.hpp"

namespace rsockets {

// Event handler. Called with the transport's events locked; may add and remove handlers, and close their fids.
class EventHandler {
  public:
    virtual void on_request(base::Info request) = 0; // on a passive endpoint
    // subject: the endpoint; it may have been given up since.
    virtual void on_connected(const ::fid* subject) = 0;
    virtual void on_failed(const ::fid* subject, int error) = 0; // connection setup failed; errno
    virtual void on_shutdown() = 0; // the peer has ended its sending, or the connection is lost

    virtual ~EventHandler() = default;
};

class Transport {
  public:
    // 0 or -FI_E*.
    static int open(const fi_info& info, std::unique_ptr<Transport>& out);

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] std::string core() const { return name_.substr(0, name_.find('@')); } // fi_rstream(7): core@fabric
    [[nodiscard]] fid_fabric* fabric() const { return fabric_.get(); }
    // The domain that an info names, opened on first use.
    int domain(fi_info& info, fid_domain*& out);

    // Binds the endpoint to its event queue, and registers the handler of its events.
    int attach(fid_ep* ep, EventHandler* handler);
    int attach(fid_pep* pep, EventHandler* handler);
    // After the return, no handler is called for this fid.
    void detach(const ::fid* subject);

    // Dispatches pending events; returns their number. Those of listeners only if their descriptor was ready since
    // `may_sleep` has returned true.
    size_t dispatch_events();
    size_t dispatch_connection_events();
    // Whether the service thread may sleep on both descriptors, or, without `on_connections`, on that of listeners.
    bool may_sleep(bool on_connections);
    // Whether any thread may sleep on the descriptor of connections.
    bool may_sleep_on_connections();
    // For the service thread: the listeners' descriptor is ready.
    void listener_ready() { listen_armed_ = false; }
    [[nodiscard]] int listen_fd() const { return listen_fd_; }
    [[nodiscard]] int connection_fd() const { return connection_fd_; }

    // Iomaps, where the core has manual progress: a program may poll nothing but the mapped memory, so that another
    // thread must progress the writes of peers.
    void mapped(int by) { mapped_.fetch_add(by, std::memory_order_relaxed); }
    [[nodiscard]] bool has_maps() const { return mapped_.load(std::memory_order_relaxed) != 0; }
    // The program itself progresses a connection with that many iomaps: it has made `polls_wanted` calls in this turn.
    void attended(int maps) { attending_.fetch_add(maps, std::memory_order_relaxed); }
    [[nodiscard]] int polls_wanted() const { return polls_wanted_.load(std::memory_order_relaxed); }
    [[nodiscard]] uint32_t turn() const { return turn_.load(std::memory_order_relaxed); }
    // For one thread: true if, in the last turn, the program did so for all connections with iomaps. This call ends a
    // turn that has lasted `turn_length`, which is that of the current turn.
    bool all_attended(std::chrono::steady_clock::time_point now);
    [[nodiscard]] std::chrono::milliseconds turn_length() const { return turn_length_; }

    // Closes the domains, which waits for the pending data of closed connections, as the provider is configured.
    void finish(const Deadline& deadline);

  private:
    Transport() = default;
    int open_queue(base::Owned<fid_eq>& eq, int& fd);
    size_t dispatch_events(fid_eq& eq) RSOCKET_REQUIRES(events_mutex_);

    std::string name_;
    base::Owned<fid_fabric> fabric_;
    base::Owned<fid_eq> listen_eq_;
    base::Owned<fid_eq> connection_eq_;
    int listen_fd_ = -1;
    int connection_fd_ = -1;
    std::atomic<int> mapped_{0};
    std::atomic<int> attending_{0};
    std::atomic<uint32_t> turn_{0};
    std::atomic<int> polls_wanted_{1};
    std::chrono::steady_clock::time_point turn_began_;
    std::chrono::milliseconds turn_length_{1};
    bool attended_ = false;
    bool listen_armed_ = false; // of the service thread: the listeners' descriptor will tell of the next event

    Mutex domains_mutex_;
    std::unordered_map<std::string, base::Owned<fid_domain>> domains_ RSOCKET_GUARDED_BY(domains_mutex_);

    RecursiveMutex events_mutex_;
    std::unordered_map<const ::fid*, EventHandler*> targets_ RSOCKET_GUARDED_BY(events_mutex_);
};

} // namespace rsockets
