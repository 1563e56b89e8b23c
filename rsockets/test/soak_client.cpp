// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/test/soak_client.hpp"

#include <array>
#include <chrono>
#include <map>
#include <memory>

#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "rsockets/test/soak_stream.hpp"

namespace soak {

using namespace fabtests;
using namespace rsocket_test;

namespace {

class Client {
  public:
    Client(uint16_t port, uint32_t process, uint64_t seed) : random_(static_cast<uint32_t>(seed)) {
        plan_.process = process;
        plan_.seed = seed;
        plan_.up = between(random_, 0, most_bytes);
        plan_.down = between(random_, 0, most_bytes);
        plan_.ending = between(random_, 0, 7) == 0 ? Ending::reset : Ending::half_close;
        stop_after_ = plan_.ending == Ending::reset ? between(random_, 0, plan_.up) : plan_.up;
        sending_.begin(seed, stop_after_);
        receiving_.begin(other_seed(seed));
        for (const int name : {SO_SNDBUF, SO_RCVBUF}) {
            const int size = static_cast<int>(between(random_, 4096, 200000));
            EXPECT_EQ(rsetsockopt(fd_, SOL_SOCKET, name, &size, sizeof(size)), 0);
        }
        const sockaddr_in to = loopback(port);
        const int ret = rconnect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
        EXPECT(ret == 0 || errno == EINPROGRESS);
    }
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] Clock::time_point rests_until() const { return rest_; }

    // True once it has ended, as it was planned.
    bool step() {
        if (!reported_) {
            return tell();
        }
        for (int i = 0; i < 4 && !sending_.done(); ++i) {
            const ssize_t n = sending_.step(fd_, random_);
            expect_again(n, "rsend");
            if (n < 0) {
                break;
            }
        }
        if (sending_.done() && plan_.ending == Ending::reset) {
            const linger now{1, 0};
            EXPECT_EQ(rsetsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
            return true;
        }
        if (sending_.done() && !half_closed_) {
            EXPECT_EQ(rshutdown(fd_, SHUT_WR), 0);
            half_closed_ = true;
        }
        for (int i = 0; i < 4; ++i) {
            const ssize_t n = receiving_.step(fd_, random_);
            expect_again(n, "rrecv");
            if (n == 0) {
                EXPECT_EQ(receiving_.received(), plan_.down);
                EXPECT(half_closed_);
                return true;
            }
            if (n < 0) {
                break;
            }
        }
        if (between(random_, 0, 3) == 0) {
            rest_ = Clock::now() + std::chrono::milliseconds(between(random_, 0, 20));
        }
        return false;
    }
    [[nodiscard]] uint32_t wanted() const {
        return EPOLLIN | (reported_ && (sending_.done() || half_closed_) ? 0U : static_cast<uint32_t>(EPOLLOUT));
    }

  private:
    bool tell() {
        int error = 0;
        socklen_t length = sizeof(error);
        EXPECT_EQ(rgetsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length), 0);
        EXPECT_EQ(error, 0);
        const ssize_t n = rsend(fd_, &plan_, sizeof(plan_), MSG_DONTWAIT | MSG_NOSIGNAL);
        expect_again(n, "rsend of the plan");
        EXPECT(n < 0 || n == sizeof(plan_)); // the smallest buffer has space for it
        reported_ = n > 0;
        return false;
    }

    Random random_;
    Plan plan_;
    Number fd_{rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)};
    Sending sending_;
    Receiving receiving_;
    uint64_t stop_after_ = 0;
    bool reported_ = false;
    bool half_closed_ = false;
    Clock::time_point rest_;
};

} // namespace

void allow_descriptors() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 16 * connections) {
        throw Skip(std::to_string(16 * connections) + " descriptors are needed, the limit is " +
                   std::to_string(limit.rlim_max));
    }
}

void role_connects(const std::vector<std::string>& arguments) {
    const auto port = static_cast<uint16_t>(std::stoi(arguments.at(0)));
    const auto process = static_cast<uint32_t>(std::stoul(arguments.at(1)));
    const int time = std::stoi(arguments.at(2));
    alarm(static_cast<unsigned>(time / 1000 + patience(120000) / 1000));
    allow_descriptors();
    const Number set(repoll_create(0));
    const auto start = Clock::now();
    std::map<uint64_t, std::unique_ptr<Client>> clients;
    constexpr size_t share = connections / processes;
    const uint64_t first = uint64_t{process} * 1000003;
    uint64_t next = first;
    const auto watch = [&](int operation, uint64_t key, Client& client) {
        epoll_event event{};
        event.events = client.wanted() | EPOLLONESHOT;
        event.data.u64 = key;
        EXPECT_EQ(repoll_ctl(set, operation, client.fd(), &event), 0);
    };
    std::map<uint64_t, Clock::time_point> resting;
    do {
        while (clients.size() < share && (next - first < share || milliseconds_since(start) < time)) {
            const uint64_t key = next++;
            auto made = std::make_unique<Client>(port, process, key);
            watch(EPOLL_CTL_ADD, key, *made);
            clients[key] = std::move(made);
        }
        std::array<epoll_event, 32> events;
        const int n = repoll_wait(set, events.data(), events.size(), resting.empty() ? 1000 : 5);
        EXPECT(n >= 0);
        for (int i = 0; i < n; ++i) {
            const uint64_t key = events[static_cast<size_t>(i)].data.u64;
            Client& client = *clients.at(key);
            if (client.step()) {
                clients.erase(key);
            } else if (client.rests_until() > Clock::now()) {
                resting[key] = client.rests_until();
            } else {
                watch(EPOLL_CTL_MOD, key, client);
            }
        }
        for (auto at = resting.begin(); at != resting.end();) {
            if (at->second <= Clock::now()) {
                watch(EPOLL_CTL_MOD, at->first, *clients.at(at->first));
                at = resting.erase(at);
            } else {
                ++at;
            }
        }
    } while (!clients.empty());
    say("done");
}

} // namespace soak
