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

#include "rsockets/connection.hpp"
#include "rsockets/library.hpp"
#include "rsockets/log.hpp"
#include "rsockets/socket.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

namespace {

// While data flows, milliseconds between two looks: the fewer, the less the receiving thread is disturbed.
constexpr int rest = 10;
// The same where the program is in a conversation, and all that it has sent goes on without the thread, as short
// messages do. What is late by that, once, is an answer to the peer when the program has stopped to look.
constexpr int long_rest = 100;
constexpr int most_patience = 32;
// The same while connections are being made, whose events come on the same queue.
constexpr int short_rest = 1;
// How long a socket must not have sent anything to count as quiet.
constexpr int quiet = 10;

// How long a closed connection's peer may take nothing of what was sent to it, before it is given up.
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
    // Signals are the program's: its threads are to handle them.
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

void Service::wake() {
    const uint64_t one = 1;
    (void)!::write(wake_fd_.get(), &one, sizeof(one));
}

void Service::rouse() {
    if (dozing_.exchange(false)) {
        wake();
    }
}

void Service::look_after(Socket& socket) {
    bool asleep = false;
    {
        const Guard lock(touched_mutex_);
        socket.service_entry().next = std::move(touched_); // a signal handler may send: no memory is taken
        touched_ = Ref<Socket>(&socket);
        ++touched_count_;
        asleep = std::exchange(asleep_, false);
    }
    if (asleep) {
        wake();
    }
}

void Service::linger(std::unique_ptr<Connection> connection) {
    connection->set_linger(std::chrono::seconds(0)); // closing it must not hold up the thread
    bool asleep = false;
    {
        const Guard lock(touched_mutex_);
        lingering_.push_back({std::move(connection), Deadline::in(longest_linger), SIZE_MAX});
        asleep = std::exchange(asleep_, false);
    }
    if (asleep) {
        wake();
    }
    rouse();
}

void Service::wait_for_lingering() { kept_.front().connection->wait_a_moment(); }

void Service::run() {
    bool data = false;
    while (!stopping_.load()) {
        try {
            take_turn(data);
        } catch (const std::bad_alloc&) { // the program may let go of some
            log(Level::warn, "no memory: the library's thread rests");
            pollfd wake{wake_fd_.get(), POLLIN, 0};
            (void)::poll(&wake, 1, rest);
        }
    }
}

// Hands out what has come, and sleeps. `data`: something moves.
void Service::take_turn(bool& data) {
    size_t events = 0;
    bool may_sleep = true;
    const auto transports = library_.transports();
    for (Transport* transport : transports) {
        events += transport->pump();
    }
    bool awaited = false; // what is written to maps, while the program looks at nothing else
    int map_rest = 0;     // what it takes to notice that; 0: there are none
    for (Transport* transport : transports) {
        if (transport->has_maps()) {
            awaited = !transport->all_attended(std::chrono::steady_clock::now()) || awaited;
            const auto turn = static_cast<int>(transport->turn_length().count());
            map_rest = map_rest == 0 ? turn : std::min(map_rest, turn);
        }
    }
    const bool tending = tend();
    // Who rests does not ask whether connections are quiet: they are not, and asking holds up who is at them. A program
    // that goes on sending is answer enough.
    const bool resting = (data || busy_) && events == 0 && !awaited;
    for (Transport* transport : transports) {
        may_sleep = transport->may_sleep(!resting) && may_sleep;
    }
    if (may_sleep) {
        sleep(resting, map_rest, tending, data);
    } else {
        data = !waiting_; // something moves; if not what was left to us
    }
}

bool Service::tend() {
    {
        const Guard lock(touched_mutex_);
        tended_.reserve(tended_.size() + touched_count_);
        while (touched_) {
            Ref<Socket> next = std::move(touched_->service_entry().next);
            tended_.push_back(std::exchange(touched_, std::move(next)));
        }
        touched_count_ = 0;
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
        const Socket::Sending now = socket->look_at_sending();
        busy_ = busy_ || now == Socket::Sending::busy;
        waiting_ = waiting_ || now == Socket::Sending::waits;
        return now == Socket::Sending::over;
    });
    return busy_ || !kept_.empty();
}

// Not where the program only computes: what its peers ask for is then answered by us alone. Who sends and does not see
// that we doze has sent before we look, or is late by that much.
bool Service::begin_to_doze() {
    if (!busy_) {
        short_rests_ = 0;
        return false;
    }
    if (++short_rests_ <= patience_) {
        return false;
    }
    dozing_.store(true);
    const bool nothing_waits = std::none_of(tended_.begin(), tended_.end(), [](const Ref<Socket>& socket) {
        const auto present_stays = socket->look();
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
        patience_ = std::max(1, patience_ / 2);
    } else {
        patience_ = std::min(most_patience, patience_ * 2);
        short_rests_ = 0;
    }
}

void Service::sleep(bool resting, int map_rest, bool tending, bool& data) {
    std::vector<pollfd> fds{{wake_fd_.get(), POLLIN, 0}};
    for (Transport* transport : library_.transports()) {
        fds.push_back({transport->listen_fd(), POLLIN, 0});
        if (!resting) {
            fds.push_back({transport->connection_fd(), POLLIN, 0});
        }
    }
    int timeout = -1;
    bool dozes = false;
    if (resting && library_.setting_up()) {
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
    if (dozes) {
        end_doze();
    }
    {
        const Guard lock(touched_mutex_);
        asleep_ = false;
    }
    data = false;
    for (size_t i = 2; ready > 0 && !resting && i < fds.size(); i += 2) {
        data = data || fds[i].revents != 0;
    }
    if (fds[0].revents != 0) {
        uint64_t count = 0;
        (void)!::read(wake_fd_.get(), &count, sizeof(count));
    }
}

} // namespace rsockets
