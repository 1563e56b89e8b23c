// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/stream.hpp"

#include <algorithm>
#include <cstring>

#include <sys/random.h>
#include <sys/socket.h>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/domain.hpp"
#include "prov/rstream/kernel_sockets.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

using Clock = std::chrono::steady_clock;

uint64_t random_session() {
    uint64_t session = 0;
    if (getrandom(&session, sizeof(session), 0) != sizeof(session)) {
        session = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
    }
    return session;
}

} // namespace

Stream::Stream(Domain& domain, const fi_info& core_info, EventQueue& queue, AnyFid* subject, const Settings& settings)
    : domain_(domain), events_(queue, subject),
      core_(domain.fabric().core(), CoreTraits(core_info, domain.fabric().params().immediates),
            domain.fabric().properties_of(core_info)),
      link_({settings.send_buf_size, settings.recv_buf_size, settings.rx_size,
             settings.recv_limit > settings.recv_buf_size ? settings.recv_limit : 0}),
      request_(random_session()), iomap_(settings.maps), keepalive_(core_, settings.keepalive),
      idle_timer_(std::chrono::milliseconds(settings.shrink_timeout), {settings.send_buf_size, settings.recv_buf_size}),
      transmit_({core_, link_, messages_, lifecycle_, readiness_, keepalive_}, settings.send_limit, *this),
      receive_({core_, link_, lifecycle_, readiness_}),
      completions_({core_, link_, messages_, keepalive_, transmit_}, *this) {}

Stream::~Stream() {
    const bool pinned = messages_.memory().mr != nullptr; // so that all pages of all buffers exist
    drop_endpoint();
    if (pinned) {
        IdleBuffers& idle = domain_.idle_buffers();
        transmit_.give_memory(idle);
        receive_.give_memory(idle);
        idle.give(std::move(messages_.memory().buffer));
    }
}

int Stream::open(Domain& domain, const fi_info& core_info, EventQueue& queue, AnyFid* subject, Settings& settings,
                 std::unique_ptr<Stream>& out) {
    const CoreTraits traits(core_info, domain.fabric().params().immediates);
    settings.tx_size = std::min(settings.tx_size, std::max(core_info.tx_attr->size, wire::min_queue));
    if (traits.consumes_recv || !traits.immediates) {
        const size_t capacity =
            core_info.rx_attr->size - std::min<size_t>(core_info.rx_attr->size, wire::control_credits);
        settings.rx_size = std::min(settings.rx_size, std::max(capacity, wire::min_queue));
    }
    std::unique_ptr<Stream> connection(new Stream(domain, core_info, queue, subject, settings));
    if (const int ret = connection->open_queue(core_info, settings); ret != 0) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "could not make an endpoint's memory and queue: %s\n", fi_strerror(-ret));
        return ret;
    }
    out = std::move(connection);
    return 0;
}

int Stream::open_queue(const fi_info& core_info, const Settings& settings) {
    const size_t receives =
        wire::control_credits + (core_.traits().consumes_recv || !core_.traits().immediates ? settings.rx_size : 0);
    IdleBuffers& idle = domain_.idle_buffers();
    if (transmit_.open(settings.send_buf_size, settings.tx_size, idle) != 0 ||
        receive_.open(settings.recv_buf_size, idle) != 0 ||
        messages_.open(receives, settings.tx_size, core_.traits().contexts, idle) != 0) {
        return -FI_ENOMEM;
    }
    return core_.open_queue(domain_.cores(), core_info,
                            Completions::queue_size(core_.traits(), receives, settings.rx_size, settings.tx_size));
}

int Stream::open_endpoint() {
    int ret = core_.open(dispatcher().core(), this);
    if (ret != 0 || (core_.events() != nullptr && (ret = wait_set_.add(core_.events_fd())) != 0)) {
        return ret;
    }
    dispatcher().add(&core_.get()->fid, this);
    if (core_.events() != nullptr) {
        dispatcher().watch(core_.events_fd(), this);
    }
    if ((ret = receive_.register_memory()) != 0) {
        return ret;
    }
    if (core_.traits().local_mr && ((ret = transmit_.register_memory()) != 0 ||
                                    (ret = register_buffer(core_, messages_.memory(), FI_SEND | FI_RECV)) != 0)) {
        return ret;
    }
    if ((ret = core_.enable()) != 0) {
        return ret;
    }
    return completions_.post_receives();
}

void Stream::drop_endpoint() {
    if (core_.get() != nullptr) {
        auto lock = dispatcher().lock();
        leave_watch();
        keepalive_.detach();
        if (core_.events() != nullptr) {
            // No other thread reads the connection's own queue. Unlocked, so that slow calls of the core do not delay
            // others that connect meanwhile.
            dispatcher().forget(&core_.get()->fid, this);
            lock.unlock();
        } else {
            dispatcher().remove(&core_.get()->fid, this); // no event may be dispatched while the fid is closed
        }
        wait_set_.remove(core_.events_fd());
        core_.close();
        messages_.memory().mr.reset();
        receive_.deregister();
        transmit_.deregister();
    }
    iomap_.drop_all();
}

// From here on no activity needs to wake a waiter.
void Stream::leave_watch() {
    dispatcher().unwatch_data(this);
    for (const int fd : {core_.events_fd(), keepalive_.timer_fd()}) {
        if (fd >= 0) {
            dispatcher().unwatch(fd, this);
        }
    }
}

wire::Hello Stream::hello() const {
    wire::Hello h;
    h.features = core_.traits().immediates ? 0 : wire::Hello::feature_headers;
    h.features |= link_.ring_limit() != 0 ? wire::Hello::feature_growth : 0;
    h.features |= wire::Hello::feature_data_acks | wire::Hello::feature_shrink;
    const wire::RemoteRing ring = receive_.offer();
    h.ring_address = ring.address;
    h.ring_key = ring.key;
    h.ring_size = static_cast<uint32_t>(ring.size);
    h.data_credits = static_cast<uint16_t>(link_.data_credits());
    h.control_credits = wire::control_credits;
    h.maps = static_cast<uint16_t>(iomap_.offered());
    return h;
}

// Opens the sending side with the peer's hello.
void Stream::agree(const wire::Hello& peer) {
    const bool headers = !core_.traits().immediates || (peer.features & wire::Hello::feature_headers) != 0;
    iomap_.agree(peer.maps);
    link_.open(peer, headers, wire::Immediate::max_length, iomap_.wire());
    transmit_.start();
}

// Connects, or accepts if `peer` is given.
int Stream::request(const void* address, const wire::Hello* peer, std::span<const std::byte> data) {
    size_t capacity = 0;
    if (const int ret = domain_.cm_data_size(capacity); ret != 0) {
        return ret;
    }
    if (wire::Hello::size + data.size() > capacity || data.size() > 255) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "%zu bytes of private data: the core leaves space for %zu\n", data.size(),
                     capacity - std::min(capacity, wire::Hello::size));
        return -FI_EINVAL;
    }
    if (!lifecycle_.move(State::preparing)) {
        return -FI_EOPBADSTATE;
    }
    request_.set_data(data);
    int ret = address != nullptr ? aim_at(core_.info(), address) : 0;
    const int guess =
        core_.properties().kernel_sockets && address != nullptr ? next_descriptor(core_.completions_fd()) : -1;
    ret = ret != 0 ? ret : open_endpoint();
    if (ret != 0) {
        RSTREAM_WARN(FI_LOG_EP_CTRL, "could not make the core endpoint: %s\n", fi_strerror(-ret));
    } else {
        request_.set_hello(hello());
        const auto lock = dispatcher().lock(); // the state must be right when the answer arrives
        lifecycle_.move(State::connecting);
        if (peer != nullptr) {
            agree(*peer);
            ret = fi_accept(core_.get(), request_.bytes().data(), request_.bytes().size());
        } else {
            request_.begin();
            ret = fi_connect(core_.get(), address, request_.bytes().data(), request_.bytes().size());
            close_core_on_exec(guess);
            if (const std::chrono::milliseconds limit(domain_.fabric().params().connect_timeout);
                ret == 0 && limit.count() != 0) {
                request_.set_deadline(Clock::now() + limit);
                dispatcher().set_deadline(this, request_.deadline());
            }
        }
    }
    if (ret != 0) {
        // The endpoint that was made of a request has used it up; a connect can be retried.
        drop_endpoint();
        completions_.drop(); // of flushed receives, which would end the next attempt
        lifecycle_.move(peer != nullptr ? State::refused : State::open);
    }
    return ret;
}

// Sets close-on-exec on the fds that the core has opened to connect, which an executed program must not inherit.
// `guess` is the fd of its socket unless another thread was faster; then the socket is found after the connect.
void Stream::close_core_on_exec(int guess) {
    sockaddr_storage local{};
    size_t length = sizeof(local);
    if (core_.properties().kernel_sockets) {
        close_queue_on_exec(core_.completions_fd());
    }
    if (guess >= 0 && fi_getname(&core_.get()->fid, &local, &length) == 0 &&
        is_kernel_socket(guess, reinterpret_cast<const sockaddr&>(local))) {
        close_on_exec(guess);
    }
}

// With the event dispatcher locked. A new endpoint gets another local port.
void Stream::connect_again() {
    if (lifecycle_.state() != State::connecting) {
        return;
    }
    RSTREAM_INFO(FI_LOG_EP_CTRL, "the local port is in use: connecting from another one\n");
    drop_endpoint();
    completions_.drop();
    int ret = open_endpoint();
    if (ret == 0) {
        if (request_.has_deadline()) {
            dispatcher().set_deadline(this, request_.deadline());
        }
        request_.set_hello(hello()); // the registrations are new
        ret = fi_connect(core_.get(), core_.info().dest_addr, request_.bytes().data(), request_.bytes().size());
    }
    if (ret != 0) {
        request_.end();
        fi_eq_err_entry error{};
        error.err = -ret;
        on_core_error(error);
    }
}

int Stream::connect(const void* address, std::span<const std::byte> data) { return request(address, nullptr, data); }

int Stream::accept(const wire::Hello& peer, std::span<const std::byte> data) { return request(nullptr, &peer, data); }

// The peer has not answered in time. If it still accepts, it is disconnected, as after `give_up`.
void Stream::on_deadline() {
    if (lifecycle_.state() == State::connecting) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "the peer does not answer in time\n");
        fi_eq_err_entry error{};
        error.err = FI_ETIMEDOUT;
        on_core_error(error);
        lifecycle_.move(State::abandoned);
    }
    leave_watch();
    fi_shutdown(core_.get(), 0);
}

void Stream::on_core_event(uint32_t event, const fi_eq_cm_entry& /*entry*/, std::span<const std::byte> data) {
    if (event == FI_SHUTDOWN) {
        // The peer may have gone before its core has reported FI_CONNECTED (tcp since libfabric 2.0, verbs without the
        // last message of the handshake): the program, which waits for either, gets an error.
        if (lifecycle_.state() == State::connecting) {
            fi_eq_err_entry gone{};
            gone.err = FI_ECONNRESET;
            on_core_error(gone);
            return;
        }
        if (lifecycle_.connected()) {
            completions_.drain_all();
        }
        fail(FI_ECONNRESET, "the core's connection has ended");
        return;
    }
    if (event == FI_CONNECTED && lifecycle_.state() == State::abandoned) {
        dispatcher().clear_deadline(this);
        leave_watch();
        fi_shutdown(core_.get(), 0); // the peer sees a reset
        return;
    }
    if (event != FI_CONNECTED || lifecycle_.state() != State::connecting) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "event %u is of no use here\n", event);
        return;
    }
    if (!transmit_.started()) { // connect: the peer has answered with its hello
        wire::Hello peer;
        if (const auto error = wire::Hello::parse(data, peer); error != wire::Hello::Error::none) {
            RSTREAM_WARN(FI_LOG_EP_CTRL, "the answer to a connection request is of no use: %s\n", to_string(error));
            fi_eq_err_entry refused{};
            refused.err = FI_ECONNREFUSED;
            on_core_error(refused);
            fi_shutdown(core_.get(), 0);
            return;
        }
        agree(peer);
        data = data.subspan(wire::Hello::size, peer.user_length);
    } else {
        data = {};
    }
    dispatcher().clear_deadline(this);
    lifecycle_.move(State::connected);
    dispatcher().watch_data(core_.completions_fd(), this);
    // Without kernel sockets the queue's fd leads to no socket.
    keepalive_.start(core_.properties().kernel_sockets ? close_queue_on_exec(core_.completions_fd()) : -1,
                     watch_timer());
    events_.connected(data);
}

void Stream::on_core_error(const fi_eq_err_entry& entry) {
    int error = entry.err > 0 ? entry.err : FI_EOTHER;
    if (lifecycle_.connected()) {
        completions_.drain_all();
        fail(error == FI_ETIMEDOUT ? FI_ETIMEDOUT : FI_ECONNRESET, fi_strerror(error));
        return;
    }
    // Over iWARP, the port that the core chooses for a connection may be in use in the kernel's TCP.
    if (error == FI_EADDRINUSE && lifecycle_.state() == State::connecting && request_.port_in_use()) {
        return; // retried later: the queue is being read
    }
    switch (error) { // local and route errors; else the peer has rejected, or has gone without an answer
    case FI_ETIMEDOUT:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
    case FI_ENETDOWN:
    case FI_EHOSTDOWN:
    case FI_EADDRNOTAVAIL:
    case FI_EADDRINUSE:
    case FI_EACCES:
    case FI_ENOMEM:
        break;
    default:
        error = FI_ECONNREFUSED; // cores have no common code for that
        break;
    }
    std::span<const std::byte> data(static_cast<const std::byte*>(entry.err_data),
                                    entry.err_data != nullptr ? entry.err_data_size : 0);
    if (const auto reject = wire::Reject::parse(data)) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "connection refused: %s\n", to_string(reject->reason));
        data = data.subspan(wire::Reject::size, reject->user_length);
    }
    if (!lifecycle_.fail(error)) {
        return;
    }
    dispatcher().clear_deadline(this);
    leave_watch();
    wake_waiters();
    lifecycle_.drop_end_event();
    // Without a code of the core's, fi_eq_strerror would say that nothing is wrong.
    events_.refused(error, entry.prov_errno != 0 ? entry.prov_errno : error, data);
}

void Stream::on_needs_progress(bool needs) { dispatcher().set_needs_progress(this, needs); }

void Stream::on_post_error(int error) { fail(FI_ECONNRESET, fi_strerror(error)); }

void Stream::on_lost(int error, const char* why) { fail(error, why); }

void Stream::on_violation(const char* rule) {
    RSTREAM_WARN(FI_LOG_EP_DATA, "the peer breaks the protocol (%s): the connection is reset\n", rule);
    fail(FI_ECONNRESET, rule);
    fi_shutdown(core_.get(), 0);
}

void Stream::on_peer_end() {
    if (lifecycle_.claim_end_event()) {
        events_.ended();
    }
}

void Stream::fail(int error, const char* why) {
    if (error == FI_ECONNRESET && lifecycle_.error() == 0 && keepalive_.timed_out()) {
        error = FI_ETIMEDOUT;
    }
    if (!lifecycle_.fail(error)) {
        return;
    }
    if (!link_.peer_finished()) {
        RSTREAM_INFO(FI_LOG_EP_CTRL, "connection lost: %s\n", why);
    }
    leave_watch();
    keepalive_.stop();
    on_peer_end();
    wake_waiters();
}

} // namespace rstream
