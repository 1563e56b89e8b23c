// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/connection.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/resource.h>

#include "rsockets/log.hpp"
#include "rsockets/pause.hpp"

namespace rsockets {

namespace {

struct Option {
    int name;
    size_t Sizes::*member;
    bool grows_if_0 = false; // a size that was set does not: "BUFFERS THAT GROW" in fi_rstream(7)
};
constexpr Option options[] = {
    {FI_OPT_SEND_BUF_SIZE, &Sizes::send_buffer, true},
    {FI_OPT_RECV_BUF_SIZE, &Sizes::recv_buffer, true},
    {FI_OPT_TX_SIZE, &Sizes::send_queue},
    {FI_OPT_RX_SIZE, &Sizes::recv_queue},
    {FI_OPT_RSTREAM_MAPS, &Sizes::maps},
};

// Bytes written to iomaps after which the writer progresses incoming writes: cheap compared to moving so many bytes.
constexpr size_t bytes_per_poll = size_t{256} << 10;

constexpr auto longest_linger = std::chrono::seconds(3600); // the limit of the provider

fi_msg message_of(const iovec* iov, size_t count) {
    fi_msg message{};
    message.msg_iov = iov;
    message.iov_count = count;
    return message;
}

// Logs the cause of a failure.
int logged(int ret) {
    rlimit limit{};
    if (ret == -FI_ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        log(Level::warn, "no memory for a connection: RDMA pins its buffers, and the limit of that is %llu (ulimit -l)",
            static_cast<unsigned long long>(limit.rlim_cur));
    } else if (ret != 0) {
        log(Level::info, "a connection cannot be made: %s", fi_strerror(-ret));
    }
    return ret;
}

// One that each endpoint of the provider has, with a value of this type: reading it cannot fail.
template <class T> void read_option(fid_ep& ep, int name, T& value) {
    size_t length = sizeof(value);
    fi_getopt(&ep.fid, FI_OPT_ENDPOINT, name, &value, &length);
}

// Whether no data moves any more on a connection that was polled with this result.
bool is_over(ssize_t result, const fi_rstream_status& status) {
    return (result < 0 && result != -FI_EAGAIN) || (status.flags & (FI_RSTREAM_LOST | FI_RSTREAM_PEER_RESET)) != 0;
}

} // namespace

int Connection::open(Transport& transport, fi_info& info, EventHandler* handler, const Sizes& sizes,
                     std::unique_ptr<Connection>& out) {
    return logged(make(transport, info, handler, sizes, out));
}

int Connection::make(Transport& transport, fi_info& info, EventHandler* handler, const Sizes& sizes,
                     std::unique_ptr<Connection>& out) {
    fid_domain* domain = nullptr;
    int ret = transport.domain(info, domain);
    if (ret != 0) {
        return ret;
    }
    std::unique_ptr<Connection> connection(new Connection(transport));
    connection->device_ = transport.core() + "/" + info.domain_attr->name;
    fid_ep* ep = nullptr;
    if ((ret = fi_endpoint(domain, &info, &ep, nullptr)) != 0) {
        return ret;
    }
    connection->ep_.reset(ep);
    out = std::move(connection);
    Connection& made = *out;
    if ((ret = transport.attach(ep, handler)) != 0) {
        return ret;
    }
    for (const Option& option : options) {
        const size_t value = sizes.*option.member;
        if (value == 0 && option.grows_if_0) {
            continue;
        }
        if ((ret = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, option.name, &value, sizeof(value))) != 0) {
            return ret;
        }
    }
    void* ops = nullptr;
    if ((ret = fi_open_ops(&ep->fid, FI_RSTREAM_MAP_OPS, 0, &ops, nullptr)) != 0) {
        return ret;
    }
    made.map_ops_ = static_cast<fi_ops_rstream_map*>(ops);
    if ((ret = fi_enable(ep)) != 0 || (ret = fi_control(&ep->fid, FI_GETWAIT, &made.wait_fd_)) != 0) {
        return ret;
    }
    read_option(*ep, FI_OPT_RSTREAM_USER_TIMEOUT, made.user_timeout_);
    const uint64_t core = made.status().flags;
    made.by_calls_ = (core & FI_RSTREAM_MANUAL) != 0;
    made.kernel_ports_ = (core & FI_RSTREAM_KERNEL_PORTS) != 0;
    return 0;
}

Connection::~Connection() {
    if (ep_) {
        forget_target();
        note_maps(-maps_.load());
    }
}

void Connection::note_maps(int by) {
    maps_.fetch_add(by);
    if (by_calls_) {
        transport_.mapped(by);
    }
}

void Connection::forget_target() { transport_.detach(&ep_->fid); }

int Connection::connect(const Address& to) { return logged(fi_connect(ep_.get(), to.get(), nullptr, 0)); }

int Connection::accept() { return logged(fi_accept(ep_.get(), nullptr, 0)); }

ssize_t Connection::send(const iovec* iov, size_t count, bool more) {
    if (count == 1 && !more) {
        return fi_send(ep_.get(), iov->iov_base, iov->iov_len, nullptr, FI_ADDR_UNSPEC, nullptr);
    }
    const fi_msg message = message_of(iov, count);
    return fi_sendmsg(ep_.get(), &message, more ? FI_MORE : 0);
}

// Counts a poll, which also progresses the peer's writes to iomaps.
void Connection::note_poll() {
    const int maps = maps_.load(std::memory_order_relaxed);
    if (maps == 0 || !by_calls_) {
        return;
    }
    const uint32_t turn = transport_.turn();
    if (turn_.exchange(turn, std::memory_order_relaxed) != turn) {
        polls_.store(0, std::memory_order_relaxed);
    }
    if (polls_.fetch_add(1, std::memory_order_relaxed) + 1 == transport_.polls_wanted()) {
        transport_.attended(maps);
    }
}

// A thread that writes much also progresses its iomaps: the service thread would contend with it.
void Connection::poll_after(size_t written) {
    if (!by_calls_ || maps_.load(std::memory_order_relaxed) == 0) {
        return;
    }
    if (written_.fetch_add(written, std::memory_order_relaxed) + written >= bytes_per_poll) {
        written_.store(0, std::memory_order_relaxed);
        progress_send();
        note_poll();
    }
}

ssize_t Connection::recv(const iovec* iov, size_t count) {
    note_poll();
    if (count == 1) {
        return fi_recv(ep_.get(), iov->iov_base, iov->iov_len, nullptr, FI_ADDR_UNSPEC, nullptr);
    }
    const fi_msg message = message_of(iov, count);
    return fi_recvmsg(ep_.get(), &message, 0);
}

ssize_t Connection::peek(const iovec* iov, size_t count) {
    note_poll();
    const fi_msg message = message_of(iov, count);
    return fi_recvmsg(ep_.get(), &message, FI_PEEK);
}

ssize_t Connection::poll_space() {
    const fi_msg message = message_of(nullptr, 0);
    return fi_sendmsg(ep_.get(), &message, FI_PEEK);
}

fi_rstream_status Connection::status() const {
    fi_rstream_status status{};
    read_option(*ep_, FI_OPT_RSTREAM_STATUS, status);
    return status;
}

int64_t Connection::map(void* buffer, size_t length, bool writable, int64_t offset) {
    if (offset < -1) {
        return -EINVAL;
    }
    uint64_t at = offset == -1 ? FI_RSTREAM_MAP_ANY : static_cast<uint64_t>(offset);
    const int ret = map_ops_->map(ep_.get(), buffer, length, writable ? FI_REMOTE_WRITE : 0, &at);
    if (ret != 0) {
        return ret == -FI_ENOSPC ? -ENOMEM : ret; // rdma-core's error for a full table
    }
    note_maps(1);
    return static_cast<int64_t>(at);
}

int Connection::unmap(void* buffer, size_t length, bool attended) {
    const int ret = map_ops_->unmap(ep_.get(), buffer, length, attended ? 0 : FI_RSTREAM_UNATTENDED);
    if (ret == 0) {
        note_maps(-1);
    }
    return ret;
}

ssize_t Connection::write_map(const void* buffer, size_t length, int64_t offset, bool more) {
    if (offset < 0) {
        return -EINVAL;
    }
    const ssize_t n = map_ops_->write(ep_.get(), buffer, length, static_cast<uint64_t>(offset), more ? FI_MORE : 0);
    if (n == -FI_EAGAIN) {
        note_poll(); // the provider has polled for space
    } else if (n > 0) {
        poll_after(static_cast<size_t>(n));
    }
    return n;
}

// An endpoint whose connection was lost has nothing to end.
void Connection::end_sending() { fi_shutdown(ep_.get(), FI_RSTREAM_SHUT_WR); }

void Connection::end_both() { fi_shutdown(ep_.get(), 0); }

bool Connection::all_sent() {
    const ssize_t more = poll_bytes();
    const auto now = status();
    return now.unsent == 0 || is_over(more, now);
}

bool Connection::delivered() {
    const ssize_t more = poll_bytes();
    const auto now = status();
    const bool awaited = (now.flags & FI_RSTREAM_UNACKED) != 0 &&
                         (now.flags & FI_RSTREAM_PEER_CLOSED) == 0; // a closed peer reads nothing
    return (now.unsent == 0 && !awaited) || is_over(more, now);
}

void Connection::wait_a_moment() {
    if (may_sleep()) {
        pause_until_readable(wait_fd_, 10);
    }
}

int Connection::wait_a_moment(const HeldSignals& signals) {
    constexpr timespec moment{0, 10000000};
    constexpr timespec turn{0, 100000};
    pollfd fd{wait_fd_, POLLIN, 0};
    // If it may not sleep on the descriptor, what there is may also be nothing to this close.
    return may_sleep() ? signals.sleep_uncancelled(&fd, 1, &moment) : signals.sleep_uncancelled(nullptr, 0, &turn);
}

void Connection::abort() { fi_shutdown(ep_.get(), FI_RSTREAM_ABORT); }

void Connection::set_linger(std::chrono::seconds time) {
    const size_t milliseconds = 1000 * static_cast<size_t>(std::min(time, longest_linger).count());
    fi_setopt(&ep_->fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_LINGER, &milliseconds, sizeof(milliseconds));
}

int Connection::set_keepalive(const Keepalive& keepalive) {
    const size_t timeout = keepalive.user_timeout != 0 ? keepalive.user_timeout : user_timeout_;
    const std::pair<int, size_t> values[] = {{FI_OPT_RSTREAM_USER_TIMEOUT, timeout},
                                             {FI_OPT_RSTREAM_KEEPALIVE_INTERVAL, keepalive.interval},
                                             {FI_OPT_RSTREAM_KEEPALIVE_COUNT, keepalive.count},
                                             {FI_OPT_RSTREAM_KEEPALIVE_IDLE, keepalive.idle}};
    for (const auto& [name, value] : values) {
        const int ret = fi_setopt(&ep_->fid, FI_OPT_ENDPOINT, name, &value, sizeof(value));
        if (ret != 0 || !keepalive.wanted) {
            return ret;
        }
    }
    return 0;
}

bool Connection::may_sleep() {
    ::fid* self = &ep_->fid;
    return fi_trywait(transport_.fabric(), &self, 1) == 0;
}

Address Connection::name() const {
    Address address;
    size_t length = sizeof(address.storage);
    if (fi_getname(&ep_->fid, &address.storage, &length) == 0) {
        address.length = static_cast<socklen_t>(length);
    }
    return address;
}

Sizes Connection::sizes() const {
    Sizes sizes;
    for (const Option& option : options) {
        read_option(*ep_, option.name, sizes.*option.member);
    }
    return sizes;
}

} // namespace rsockets
