// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/transport.hpp"

#include <algorithm>
#include <cstddef>
#include <ctime>

#include <rdma/fi_ext_rstream.h>

#include "rsockets/log.hpp"
#include "rsockets/provider.hpp"

namespace rsockets {

namespace {

// Calls per millisecond that show that the program progresses its iomaps itself: it spins, or uses this connection.
constexpr int polls_per_ms = 4;
// Milliseconds of a turn, in which these calls are counted: doubled while the program makes enough of them. A turn that
// lasted more than `most_late` times as long, since no events arrived, shows nothing.
constexpr int longest_turn = 16;
constexpr int most_late = 5;

} // namespace

int Transport::open(const fi_info& info, std::unique_ptr<Transport>& out) {
    std::unique_ptr<Transport> transport(new Transport);
    transport->name_ = info.fabric_attr->name;
    int ret = provider::open_fabric(*info.fabric_attr, transport->fabric_);
    if (ret != 0 || (ret = transport->open_queue(transport->listen_eq_, transport->listen_fd_)) != 0 ||
        (ret = transport->open_queue(transport->connection_eq_, transport->connection_fd_)) != 0) {
        log(Level::error, "fabric %s: %s", transport->name_.c_str(), fi_strerror(-ret));
        return ret;
    }
    log(Level::info, "fabric %s", transport->name_.c_str());
    out = std::move(transport);
    return 0;
}

int Transport::open_queue(base::Owned<fid_eq>& out, int& fd) {
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_eq* eq = nullptr;
    if (const int ret = fi_eq_open(fabric_.get(), &attr, &eq, nullptr); ret != 0) {
        return ret;
    }
    out.reset(eq);
    return fi_control(&eq->fid, FI_GETWAIT, &fd);
}

int Transport::domain(fi_info& info, fid_domain*& out) {
    const Guard lock(domains_mutex_);
    base::Owned<fid_domain>& known = domains_[info.domain_attr->name];
    if (!known) {
        fid_domain* opened = nullptr;
        if (const int ret = fi_domain(fabric_.get(), &info, &opened, nullptr); ret != 0) {
            log(Level::error, "domain %s of %s: %s", info.domain_attr->name, name_.c_str(), fi_strerror(-ret));
            domains_.erase(info.domain_attr->name);
            return ret;
        }
        known.reset(opened);
    }
    out = known.get();
    return 0;
}

int Transport::attach(fid_ep* ep, EventHandler* handler) {
    const Guard lock(events_mutex_);
    targets_[&ep->fid] = handler;
    return fi_ep_bind(ep, &connection_eq_->fid, 0);
}

int Transport::attach(fid_pep* pep, EventHandler* handler) {
    const Guard lock(events_mutex_);
    targets_[&pep->fid] = handler;
    return fi_pep_bind(pep, &listen_eq_->fid, 0);
}

void Transport::detach(const ::fid* subject) {
    const Guard lock(events_mutex_);
    targets_.erase(subject);
}

size_t Transport::dispatch_events() {
    size_t requests = 0;
    if (!listen_armed_) {
        const Guard lock(events_mutex_);
        requests = dispatch_events(*listen_eq_);
    }
    return requests + dispatch_connection_events();
}

size_t Transport::dispatch_connection_events() {
    const Guard lock(events_mutex_);
    return dispatch_events(*connection_eq_);
}

size_t Transport::dispatch_events(fid_eq& eq) {
    // An entry with space for private data, which is not used.
    alignas(fi_eq_cm_entry) std::byte buffer[sizeof(fi_eq_cm_entry) + 256];
    auto& entry = reinterpret_cast<fi_eq_cm_entry&>(buffer);
    for (size_t count = 0;; ++count) {
        uint32_t event = 0;
        const ssize_t got = fi_eq_read(&eq, &event, buffer, sizeof(buffer), 0);
        if (got == -FI_EAVAIL) {
            fi_eq_err_entry error{};
            if (fi_eq_readerr(&eq, &error, 0) < 0) {
                return count;
            }
            if (const auto found = targets_.find(error.fid); found != targets_.end()) {
                found->second->on_failed(error.fid, error.err);
            }
            continue;
        }
        if (got < 0) {
            return count;
        }
        const auto found = targets_.find(entry.fid);
        base::Info request(event == FI_CONNREQ ? entry.info : nullptr);
        if (found == targets_.end()) {
            continue;
        }
        switch (event) {
        case FI_CONNREQ:
            found->second->on_request(std::move(request));
            break;
        case FI_CONNECTED:
            found->second->on_connected(entry.fid);
            break;
        case FI_SHUTDOWN:
            found->second->on_shutdown();
            break;
        default:
            break;
        }
    }
}

bool Transport::all_attended(std::chrono::steady_clock::time_point now) {
    const auto lasted = now - turn_began_;
    if (lasted >= turn_length_) {
        attended_ = attending_.exchange(0, std::memory_order_relaxed) >= mapped_.load(std::memory_order_relaxed) &&
                    lasted <= most_late * turn_length_; // else the calls were too rare
        turn_length_ = std::chrono::milliseconds(attended_ ? std::min<int>(2 * turn_length_.count(), longest_turn) : 1);
        polls_wanted_.store(polls_per_ms * static_cast<int>(turn_length_.count()), std::memory_order_relaxed);
        turn_.fetch_add(1, std::memory_order_relaxed);
        turn_began_ = now;
    }
    return attended_;
}

bool Transport::may_sleep(bool on_connections) {
    ::fid* queue = &listen_eq_->fid;
    listen_armed_ = listen_armed_ || fi_trywait(fabric_.get(), &queue, 1) == 0;
    return listen_armed_ && (!on_connections || may_sleep_on_connections());
}

bool Transport::may_sleep_on_connections() {
    ::fid* queue = &connection_eq_->fid;
    return fi_trywait(fabric_.get(), &queue, 1) == 0;
}

void Transport::finish(const Deadline& deadline) {
    const Guard lock(domains_mutex_);
    for (auto& [name, domain] : domains_) {
        timespec storage{};
        const timespec* left = deadline.left(storage);
        size_t wait = left != nullptr ? static_cast<size_t>(left->tv_sec * 1000 + left->tv_nsec / 1000000) : 0;
        fid_domain* const ended = domain.release();
        fi_control(&ended->fid, FI_OPT_RSTREAM_LINGER, &wait);
        // A domain that is still in use cannot be closed, and its connections were shut down by now.
        if (fi_close(&ended->fid) == -FI_EBUSY) {
            log(Level::debug, "domain %s is still in use", name.c_str());
        }
    }
}

} // namespace rsockets
