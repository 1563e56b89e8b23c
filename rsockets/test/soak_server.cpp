// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/test/soak_server.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/epoll.h>

namespace soak {

using namespace fabtests;
using namespace rsocket_test;

Server::Server() {
    EXPECT_EQ(rfcntl(from_, F_SETFL, O_NONBLOCK), 0);
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT_EQ(repoll_ctl(set_, EPOLL_CTL_ADD, from_, &event), 0);
}

size_t Server::open() {
    const std::lock_guard lock(mutex_);
    return flows_.size();
}

void Server::will_be_killed(uint32_t process) {
    const std::lock_guard lock(mutex_);
    killed_.insert(process);
}

void Server::await(uint32_t process) {
    std::unique_lock lock(mutex_);
    heard_changed_.wait_for(lock, std::chrono::milliseconds(patience(20000)), [&] { return heard_.contains(process); });
}

void Server::serve() {
    while (!stopping_.load()) {
        std::array<epoll_event, 16> events;
        const int n = repoll_wait(set_, events.data(), events.size(), 50);
        EXPECT(n >= 0);
        for (int i = 0; i < n; ++i) {
            const int fd = events[static_cast<size_t>(i)].data.fd;
            fd == 0 ? accept_all() : serve(fd);
        }
    }
}

void Server::accept_all() {
    for (;;) {
        const int fd = raccept4(from_, nullptr, nullptr, SOCK_NONBLOCK);
        if (fd < 0) {
            expect_again(fd, "raccept4");
            return;
        }
        auto flow = std::make_shared<Flow>(fd);
        {
            const std::lock_guard lock(mutex_);
            flows_[fd] = std::move(flow);
        }
        watch(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
}

void Server::watch(int operation, int fd, uint32_t wanted) {
    epoll_event event{};
    event.events = wanted | EPOLLONESHOT;
    event.data.fd = fd;
    EXPECT_EQ(repoll_ctl(set_, operation, fd, &event), 0);
}

// No other thread is told of it meanwhile.
void Server::serve(int fd) {
    std::shared_ptr<Flow> flow;
    {
        const std::lock_guard lock(mutex_);
        flow = flows_.at(fd);
    }
    const bool over = step(*flow);
    if (over) {
        const std::lock_guard lock(mutex_);
        tally.bytes.fetch_add(flow->receiving.received());
        flows_.erase(fd); // and with `flow` it is closed, after that
        return;
    }
    const bool sends = flow->told == sizeof(Plan) && !flow->sending.done();
    watch(EPOLL_CTL_MOD, fd, (flow->ended ? 0U : static_cast<uint32_t>(EPOLLIN)) | (sends ? EPOLLOUT : 0U));
}

// True once it has come to its end.
bool Server::step(Flow& flow) {
    while (flow.told < sizeof(Plan)) {
        const ssize_t n = rrecv(flow.fd, reinterpret_cast<char*>(&flow.plan) + flow.told, sizeof(Plan) - flow.told, 0);
        if (n == 0 || lost(n)) { // its process was killed before it could say more
            const std::lock_guard lock(mutex_);
            EXPECT(!killed_.empty());
            ++tally.killed;
            return true;
        }
        expect_again(n, "rrecv of the plan");
        if (n < 0) {
            return false;
        }
        if ((flow.told += static_cast<size_t>(n)) == sizeof(Plan)) {
            EXPECT_EQ(flow.plan.mark, Plan().mark);
            {
                const std::lock_guard lock(mutex_);
                heard_.insert(flow.plan.process);
            }
            heard_changed_.notify_all();
            flow.receiving.begin(flow.plan.seed);
            flow.sending.begin(other_seed(flow.plan.seed), flow.plan.down);
        }
    }
    for (int i = 0; i < 4 && !flow.ended; ++i) {
        const ssize_t n = flow.receiving.step(flow.fd, flow.random);
        if (lost(n)) {
            return ended_early(flow);
        }
        expect_again(n, "rrecv");
        if (n == 0) {
            flow.ended = true;
            if (flow.receiving.received() != flow.plan.up) {
                return ended_early(flow);
            }
        }
        if (n <= 0) {
            break;
        }
    }
    for (int i = 0; i < 4 && !flow.sending.done(); ++i) {
        const ssize_t n = flow.sending.step(flow.fd, flow.random);
        if (lost(n)) {
            return ended_early(flow);
        }
        expect_again(n, "rsend");
        if (n < 0) {
            break;
        }
    }
    if (flow.ended && flow.sending.done()) {
        ++tally.finished;
        return true;
    }
    return false;
}

// Only what resets by plan, or was killed, may.
bool Server::ended_early(const Flow& flow) {
    const int error = errno;
    const std::lock_guard lock(mutex_);
    if (flow.plan.ending == Ending::reset) {
        ++tally.reset;
    } else if (killed_.contains(flow.plan.process)) {
        ++tally.killed;
    } else {
        throw Failure("a connection ended after " + std::to_string(flow.receiving.received()) + " bytes of " +
                      std::to_string(flow.plan.up) + ": " + strerror(error));
    }
    return true;
}

} // namespace soak
