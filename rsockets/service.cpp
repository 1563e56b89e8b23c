// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/service.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <iterator>
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
// The same while connections are being made, whose events come on the same queue, and where there are maps, which the
// program may stop to attend to.
constexpr int short_rest = 1;
// How long a socket must not have sent anything to count as quiet.
constexpr int quiet = 10;

// What a closed connection's peer is given to take what was sent to it; TCP does so in FIN_WAIT_2.
constexpr auto longest_linger = std::chrono::seconds(60);

} // namespace

Service::Service(Library& library) : library_(library) {}
Service::~Service() = default;

bool Service::started() {
    const std::lock_guard lock(mutex_);
    return running_;
}

int Service::start() {
    const std::lock_guard lock(mutex_);
    if (running_) {
        return 0;
    }
    if (!wake_fd_.open()) {
        wake_fd_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
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
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

void Service::stop() {
    const std::lock_guard lock(mutex_);
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

void Service::look_after(Socket& socket) {
    bool asleep = false;
    {
        const std::lock_guard lock(touched_mutex_);
        touched_.emplace_back(&socket);
        asleep = std::exchange(asleep_, false);
    }
    if (asleep) {
        wake();
    }
}

void Service::linger(std::unique_ptr<Connection> connection) {
    bool asleep = false;
    {
        const std::lock_guard lock(touched_mutex_);
        lingering_.push_back({std::move(connection), Deadline::in(longest_linger)});
        asleep = std::exchange(asleep_, false);
    }
    if (asleep) {
        wake();
    }
}

void Service::finish_lingering(const Deadline& deadline) {
    while (tend() && !kept_.empty() && !deadline.passed()) {
        kept_.front().connection->wait_a_moment();
    }
}

void Service::run() {
    bool resting = false;
    bool data = false;
    while (!stopping_.load()) {
        size_t events = 0;
        bool may_sleep = true;
        const auto transports = library_.transports();
        for (Transport* transport : transports) {
            events += transport->pump();
        }
        bool maps = false;
        bool awaited = false; // what is written to them, while the program looks at nothing else
        for (Transport* transport : transports) {
            may_sleep = transport->may_sleep() && may_sleep;
            if (transport->has_maps()) {
                maps = true;
                awaited = !transport->all_attended(std::chrono::steady_clock::now()) || awaited;
            }
        }
        const bool tending = tend();
        if (!may_sleep) {
            continue;
        }
        resting = data && events == 0 && !awaited;
        sleep(resting, maps, tending, data);
    }
}

bool Service::tend() {
    {
        const std::lock_guard lock(touched_mutex_);
        tended_.insert(tended_.end(), touched_.begin(), touched_.end());
        touched_.clear();
        std::move(lingering_.begin(), lingering_.end(), std::back_inserter(kept_));
        lingering_.clear();
    }
    std::erase_if(kept_, [](const Lingering& one) { return one.connection->all_sent() || one.deadline.passed(); });
    std::erase_if(tended_, [](const Ref<Socket>& socket) { return !socket->busy_sending(); });
    return !tended_.empty() || !kept_.empty();
}

void Service::sleep(bool resting, bool maps, bool tending, bool& data) {
    std::vector<pollfd> fds{{wake_fd_.get(), POLLIN, 0}};
    for (Transport* transport : library_.transports()) {
        fds.push_back({transport->listen_fd(), POLLIN, 0});
        if (!resting) {
            fds.push_back({transport->connection_fd(), POLLIN, 0});
        }
    }
    int timeout = -1;
    if (resting) {
        timeout = library_.setting_up() || maps ? short_rest : rest;
    } else if (tending) {
        timeout = quiet;
    } else {
        const std::lock_guard lock(touched_mutex_);
        if (!touched_.empty() || !lingering_.empty()) {
            data = false;
            return;
        }
        asleep_ = true;
    }
    const int ready = ::poll(fds.data(), fds.size(), timeout);
    {
        const std::lock_guard lock(touched_mutex_);
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
