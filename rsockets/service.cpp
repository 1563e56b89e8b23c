// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/service.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iterator>
#include <new>
#include <system_error>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "base/eventfd.hpp"
#include "rsockets/connection.hpp"
#include "rsockets/library.hpp"
#include "rsockets/log.hpp"
#include "rsockets/pause.hpp"
#include "rsockets/socket.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

namespace {

// Milliseconds between two polls while data flows: the fewer polls, the less the receiving thread is disturbed.
constexpr int rest = 10;
// The same where the program exchanges messages, and all sent data moves on without the thread, as short messages do.
// An answer to the peer is late by that, once, when the program has stopped polling.
constexpr int long_rest = 100;
constexpr int max_doze_threshold = 32;
// The same while connections are being set up, whose events arrive on the same queue.
constexpr int short_rest = 1;
// Milliseconds without a send after which a socket counts as idle.
constexpr int quiet = 10;

// How long the peer of a closed connection may take no data before the connection is given up.
constexpr auto longest_linger = std::chrono::seconds(60);

} // namespace

Service::Service(Library& library) : library_(library) {}
Service::~Service() = default;

bool Service::started() {
    const Guard lock(mutex_);
    return running_;
}

int Service::start() {
    const Guard lock(mutex_);
    if (running_) {
        return 0;
    }
    if (!wake_fd_.open()) {
        wake_fd_ = base::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!wake_fd_.open()) {
            return errno;
        }
    }
    // Signals are handled by the program's threads only.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    try {
        thread_ = std::thread([this] { run(); });
        pthread_setname_np(thread_.native_handle(), "rsocket");
        running_ = true;
    } catch (const std::system_error& failure) {
        error = failure.code().value();
    } catch (const std::bad_alloc&) {
        error = ENOMEM;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

void Service::stop() {
    const Guard lock(mutex_);
    if (running_) {
        stopping_.store(true);
        wake();
        thread_.join();
        running_ = false;
        stopping_.store(false);
    }
}

void Service::wake() { base::notify(wake_fd_.get()); }

void Service::end_rest() {
    if (resting_.load()) {
        wake();
    }
}

void Service::rouse() {
    if (dozing_.exchange(false)) {
        wake();
    }
}

void Service::serve(Socket& socket) {
    bool asleep = false;
    {
        const Guard lock(touched_mutex_);
        socket.service_entry().next = std::move(touched_); // a signal handler may send: no allocation
        touched_ = Ref<Socket>(&socket);
        ++touched_count_;
        asleep = std::exchange(asleep_, false);
    }
    if (asleep) {
        wake();
    }
}

bool Service::linger(std::unique_ptr<Connection>& connection) {
    bool asleep = false;
    {
        const Guard lock(touched_mutex_);
        try { // the caller is a destructor
            lingering_.reserve(lingering_.size() + 1);
        } catch (const std::bad_alloc&) {
            return false;
        }
        connection->set_linger(std::chrono::seconds(0)); // closing it must not block the thread
        lingering_.push_back({std::move(connection), Deadline::in(longest_linger), SIZE_MAX});
        asleep = std::exchange(asleep_, false);
    }
    if (asleep) {
        wake();
    }
    rouse();
    return true;
}

void Service::wait_for_lingering() { kept_.front().connection->wait_a_moment(); }

void Service::run() {
    bool data = false;
    while (!stopping_.load()) {
        try {
            take_turn(data);
        } catch (const std::bad_alloc&) { // the program may free some
            log(Level::warn, "no memory: the library's thread rests");
            pause_until_readable(wake_fd_.get(), rest);
        }
    }
}

// Dispatches pending events, then sleeps. `data`: data flows.
void Service::take_turn(bool& data) {
    size_t events = 0;
    bool may_sleep = true;
    const auto transports = library_.transports();
    for (Transport* transport : transports) {
        events += transport->dispatch_events();
    }
    bool awaited = false; // the program does not progress all writes to iomaps itself
    int map_rest = 0;     // milliseconds until the next check of that; 0: no iomaps
    for (Transport* transport : transports) {
        if (transport->has_maps()) {
            awaited = !transport->all_attended(std::chrono::steady_clock::now()) || awaited;
            const auto turn = static_cast<int>(transport->turn_length().count());
            map_rest = map_rest == 0 ? turn : std::min(map_rest, turn);
        }
    }
    const bool tending = tend();
    // While backing off, skip the idle check of connections: data flows, and the check contends with active threads. A
    // program that keeps sending is activity enough.
    const bool expecting = setup_steps_.expects_event(sets_up_unattended(), events);
    const bool attended = attended_.load();
    const bool resting = (data || busy_ || attended) && (events == 0 || attended) && !awaited && !expecting;
    for (Transport* transport : transports) {
        may_sleep = transport->may_sleep(!resting) && may_sleep;
    }
    if (may_sleep) {
        sleep(resting, map_rest, tending, data);
    } else {
        data = !waiting_; // data flows, unless it is left to this thread
    }
}

bool Service::sets_up_unattended() const { return library_.setups() > (attended_.load() ? 1 : 0); }

bool Service::tend() {
    {
        const Guard lock(touched_mutex_);
        tended_.reserve(tended_.size() + touched_count_);
        while (touched_) {
            Ref<Socket> next = std::move(touched_->service_entry().next);
            tended_.push_back(std::exchange(touched_, std::move(next)));
        }
        touched_count_ = 0;
        kept_.reserve(kept_.size() + lingering_.size()); // first: it may throw
        std::move(lingering_.begin(), lingering_.end(), std::back_inserter(kept_));
        lingering_.clear();
    }
    std::erase_if(kept_, [](Lingering& one) {
        if (one.connection->all_sent()) {
            return true;
        }
        if (const size_t unsent = one.connection->status().unsent; unsent < one.unsent) {
            one.unsent = unsent;
            one.deadline = Deadline::in(longest_linger);
        }
        return one.deadline.passed();
    });
    busy_ = false;
    waiting_ = false;
    std::erase_if(tended_, [this](const Ref<Socket>& socket) {
        const Socket::Sending now = socket->check_sending();
        busy_ = busy_ || now == Socket::Sending::busy;
        waiting_ = waiting_ || now == Socket::Sending::waits;
        return now == Socket::Sending::over;
    });
    return busy_ || !kept_.empty();
}

// No doze while the program only computes: this thread alone then progresses requests of its peers. A sender that does
// not see `dozing_` has sent before the check below, or its data is late by one doze.
bool Service::begin_to_doze() {
    if (!busy_) {
        short_rests_ = 0;
        return false;
    }
    if (++short_rests_ <= doze_threshold_) {
        return false;
    }
    dozing_.store(true);
    const bool nothing_waits = std::none_of(tended_.begin(), tended_.end(), [](const Ref<Socket>& socket) {
        const auto present_stays = socket->keep_connection();
        return socket->needs_calls();
    });
    if (nothing_waits && kept_.empty()) {
        return true;
    }
    dozing_.store(false);
    short_rests_ = 0;
    return false;
}

void Service::end_doze() {
    if (dozing_.exchange(false)) {
        doze_threshold_ = std::max(1, doze_threshold_ / 2);
    } else {
        doze_threshold_ = std::min(max_doze_threshold, doze_threshold_ * 2);
        short_rests_ = 0;
    }
}

void Service::sleep(bool resting, int map_rest, bool tending, bool& data) {
    std::vector<pollfd> fds{{wake_fd_.get(), POLLIN, 0}};
    const auto transports = library_.transports();
    for (Transport* transport : transports) {
        fds.push_back({transport->listen_fd(), POLLIN, 0});
        if (!resting) {
            fds.push_back({transport->connection_fd(), POLLIN, 0});
        }
    }
    int timeout = -1;
    bool dozes = false;
    resting_.store(resting); // before the look at the setups, which is the other way round in connect
    if (resting && sets_up_unattended()) {
        timeout = short_rest;
    } else if (resting && map_rest != 0) {
        timeout = map_rest;
    } else if (resting) {
        dozes = begin_to_doze();
        timeout = dozes ? long_rest : rest;
    } else if (tending) {
        timeout = quiet;
    } else {
        const Guard lock(touched_mutex_);
        if (touched_ || !lingering_.empty()) {
            data = false;
            return;
        }
        asleep_ = true;
    }
    const int ready = ::poll(fds.data(), fds.size(), timeout);
    resting_.store(false);
    if (dozes) {
        end_doze();
    }
    {
        const Guard lock(touched_mutex_);
        asleep_ = false;
    }
    data = false;
    size_t at = 1;
    for (Transport* transport : transports) {
        if (ready < 0 || fds[at].revents != 0) {
            transport->listener_ready();
        }
        ++at;
        if (!resting) {
            data = data || (ready > 0 && fds[at].revents != 0);
            ++at;
        }
    }
    if (fds[0].revents != 0) {
        base::consume_notifications(wake_fd_.get());
    }
}

} // namespace rsockets
