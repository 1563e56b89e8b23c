// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Each kind of sleeper, woken many times; several sleepers on one connection; more sleepers than there are descriptors.
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/cases.hpp"
#include "preload/test/wakeup_parts/peer.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"
#include "preload/test/wakeup_parts/waits.hpp"

namespace wakeup_test {

namespace {

using preload_test::Pair;

// What has come by TCP: frames only, once the connection is upgraded.
uint64_t received_by_kernel(int fd) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_bytes_received;
}

void send_byte(int fd, int value) {
    const char byte = static_cast<char>(value);
    EXPECT_EQ(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
}

constexpr int rounds = 2000;
constexpr int warm_up = 50; // until the peer has the descriptors

// How many frames so many wake-ups took.
uint64_t wake(const Peer& peer, const Waiter& waiter, int times) {
    const uint64_t before = received_by_kernel(peer.fd());
    peer.tell(Do::echo, times);
    for (int i = 0; i < times; ++i) {
        send_byte(peer.fd(), i & 0x7f);
        EXPECT_EQ(waiter.next(), i & 0x7f);
    }
    EXPECT_EQ(peer.answer(), times);
    return received_by_kernel(peer.fd()) - before;
}

void expect_woken(Way way) {
    const Peer peer;
    const Waiter waiter(way, peer.fd());
    (void)wake(peer, waiter, warm_up);
    // A call on an eventfd alone waits for a guard, which the service sets when it comes to it.
    int windows = way == Way::receive ? 20 : 1;
    uint64_t frames = 0;
    do {
        frames = wake(peer, waiter, rounds);
        printf("# %d wake-ups took %llu frames\n", rounds, static_cast<unsigned long long>(frames));
    } while (frames >= rounds / 20 && --windows != 0);
    EXPECT(frames < rounds / 20);
    EXPECT(count_eventfds() > 0);
}

void test_a_thread_in_recv_is_woken_without_tcp() { expect_woken(Way::receive); }
void test_a_thread_in_poll_is_woken_without_tcp() { expect_woken(Way::poll); }
void test_a_thread_in_select_is_woken_without_tcp() { expect_woken(Way::select); }
void test_a_level_triggered_set_is_woken_without_tcp() { expect_woken(Way::level); }
void test_an_edge_triggered_set_is_woken_without_tcp() { expect_woken(Way::edge); }
void test_a_one_shot_member_is_woken_without_tcp() { expect_woken(Way::one_shot); }

// Two threads with two connections each, of which one has something for them at a time: what the other one's peer was
// told of the thread still holds when it sleeps again, or was taken back.
void test_threads_in_poll_on_several_connections_are_woken_without_tcp() {
    constexpr int times = 1000;
    constexpr size_t threads = 2;
    const Peer peer(2 * threads);
    std::atomic<int> taken{0};
    std::array<std::unique_ptr<Sleeper>, threads> sleepers;
    const auto frames = [&] {
        uint64_t sum = 0;
        for (size_t i = 0; i < peer.count(); ++i) {
            sum += received_by_kernel(peer.fd(i));
        }
        return sum;
    };
    for (size_t t = 0; t < threads; ++t) {
        sleepers.at(t) = std::make_unique<Sleeper>([&, t] {
            std::array<pollfd, 2> fds{{{peer.fd(2 * t), POLLIN, 0}, {peer.fd(2 * t + 1), POLLIN, 0}}};
            for (int left = warm_up + times; left > 0;) {
                if (poll(fds.data(), fds.size(), -1) <= 0) {
                    return -1;
                }
                for (const pollfd& one : fds) {
                    char byte = 0;
                    if (one.revents != 0 && recv(one.fd, &byte, 1, MSG_DONTWAIT) == 1) {
                        --left;
                        ++taken;
                    }
                }
            }
            return 0;
        });
    }
    uint64_t before = 0;
    for (int i = 0; i < warm_up + times; ++i) {
        before = i == warm_up ? frames() : before;
        for (int t = 0; t < static_cast<int>(threads); ++t) {
            peer.tell(Do::send, 1, 2 * t + i / 3 % 2);
        }
        for (size_t t = 0; t < threads; ++t) {
            EXPECT_EQ(peer.answer(), 1);
        }
        EXPECT(eventually([&] { return taken == (i + 1) * static_cast<int>(threads); }));
    }
    for (const auto& sleeper : sleepers) {
        EXPECT_EQ(sleeper->result(), 0);
    }
    const uint64_t count = frames() - before;
    printf("# %d wake-ups took %llu frames\n", 2 * times, static_cast<unsigned long long>(count));
    EXPECT(count < 2 * times / 20);
}

// The byte is sent when the thread is known to sleep, in contrast to an echo, which comes at any moment.
void test_a_thread_that_is_surely_asleep_is_woken() {
    for (const Way way : all_ways) {
        const Peer peer;
        constexpr int times = 100;
        std::atomic<int> taken{0};
        Sleeper sleeper([&] {
            const Waiter waiter(way, peer.fd());
            while (taken < times) {
                if (waiter.next() != int{sent_byte(taken)}) {
                    return -1;
                }
                ++taken;
            }
            return 0;
        });
        for (int i = 0; i < times; ++i) {
            EXPECT(eventually([&] { return taken == i && sleeper.is_asleep(); }));
            EXPECT_EQ(peer.ask(Do::send, 1), 1);
        }
        EXPECT_EQ(sleeper.result(), 0);
    }
}

// Two threads that take bytes of one connection in these ways, each sent when both sleep.
void expect_both_served(Way first, Way second) {
    const Pair pair;
    constexpr int times = 1000;
    std::atomic<int> taken{0};
    const auto body = [&](Way way) {
        const Waiter waiter(way, pair.b);
        for (;;) {
            const int got = waiter.next();
            if (got != 1) {
                return got == 0 ? 0 : -1; // 0 tells it to end
            }
            ++taken;
        }
    };
    Sleeper one([&] { return body(first); });
    Sleeper two([&] { return body(second); });
    for (int i = 0; i < times; ++i) {
        EXPECT(eventually([&] { return taken == i; }));
        if (i % 8 == 0) { // else the byte comes as they fall asleep
            EXPECT(eventually([&] { return one.is_asleep() && two.is_asleep(); }));
        }
        send_byte(pair.a, 1);
    }
    EXPECT(eventually([&] { return taken == times; }));
    send_byte(pair.a, 0);
    EXPECT(eventually([&] { return one.is_over() || two.is_over(); }));
    send_byte(pair.a, 0);
    EXPECT_EQ(one.result(), 0);
    EXPECT_EQ(two.result(), 0);
}

void test_two_threads_in_recv_on_one_connection() { expect_both_served(Way::receive, Way::receive); }
void test_one_thread_in_recv_and_one_in_poll() { expect_both_served(Way::receive, Way::poll); }
void test_one_thread_in_recv_and_one_in_a_set() { expect_both_served(Way::receive, Way::level); }
void test_one_thread_in_select_and_one_in_a_set() { expect_both_served(Way::select, Way::edge); }

// The library has 32 descriptors of its own; who comes later is woken by frames.
void test_more_threads_than_descriptors_are_woken() {
    constexpr size_t threads = 40;
    constexpr int times = 50;
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<std::unique_ptr<Sleeper>> sleepers;
    std::array<std::atomic<int>, threads> taken{};
    for (size_t i = 0; i < threads; ++i) {
        pairs.push_back(std::make_unique<Pair>());
    }
    for (size_t i = 0; i < threads; ++i) {
        sleepers.push_back(std::make_unique<Sleeper>([&, i] {
            const Waiter waiter(all_ways[i % all_ways.size()], pairs[i]->b);
            for (int n = 0; n < times; ++n) {
                if (waiter.next() != n) {
                    return -1;
                }
                ++taken[i];
            }
            return 0;
        }));
    }
    for (int n = 0; n < times; ++n) {
        EXPECT(eventually([&] {
            for (size_t i = 0; i < threads; ++i) {
                if (taken[i] != n || !sleepers[i]->is_asleep()) {
                    return false;
                }
            }
            return true;
        }));
        for (const auto& pair : pairs) {
            send_byte(pair->a, n);
        }
    }
    for (const auto& sleeper : sleepers) {
        EXPECT_EQ(sleeper->result(), 0);
    }
}

// The same between two processes: the peer's threads all sleep in poll.
void test_more_threads_of_a_peer_than_descriptors_are_woken() {
    constexpr int connections = 40;
    const Peer peer(connections);
    constexpr int times = 50;
    for (int n = 0; n < times; ++n) {
        EXPECT_EQ(peer.ask(Do::sleep_all), 0);
        for (size_t i = 0; i < peer.count(); ++i) {
            send_byte(peer.fd(i), n);
        }
        EXPECT_EQ(peer.ask(Do::await_all), 0);
    }
}

// A process that is stopped reads none of its messages, of which the kernel keeps ten. Those that sleep in it are to be
// woken when it goes on.
void test_threads_of_a_stopped_peer_are_woken_when_it_goes_on() {
    constexpr int connections = 24;
    const Peer peer(connections);
    EXPECT_EQ(peer.ask(Do::sleep_all), 0);
    peer.stop();
    for (size_t i = 0; i < peer.count(); ++i) {
        send_byte(peer.fd(i), 1);
    }
    peer.kill(SIGCONT);
    EXPECT_EQ(peer.ask(Do::await_all), 0);
}

size_t fill(int fd) {
    std::vector<char> bytes(65536);
    size_t sent = 0;
    for (size_t size = bytes.size(); size != 0;) {
        const ssize_t n = send(fd, bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += n > 0 ? static_cast<size_t>(n) : 0;
        size = n > 0 ? size : size == bytes.size() ? 1 : 0;
    }
    return sent;
}

// Waits until the connection can be written, and nothing else is told.
bool wait_for_space(Way way, int fd, int set) {
    if (way == Way::poll) {
        pollfd one{fd, POLLOUT | POLLIN, 0};
        return ::poll(&one, 1, -1) == 1 && one.revents == POLLOUT;
    }
    if (way == Way::select) {
        fd_set out;
        FD_ZERO(&out);
        FD_SET(fd, &out);
        return ::select(fd + 1, nullptr, &out, nullptr, nullptr) == 1 && FD_ISSET(fd, &out);
    }
    epoll_event event{};
    return epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLOUT && event.data.u64 == 31;
}

void test_sleepers_are_woken_by_space() {
    for (const Way way : {Way::poll, Way::select, Way::level, Way::edge, Way::one_shot}) {
        const Peer peer;
        const int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLOUT | EPOLLIN |
                       (way == Way::edge       ? uint32_t{EPOLLET}
                        : way == Way::one_shot ? uint32_t{EPOLLONESHOT}
                                               : 0U);
        event.data.u64 = 31;
        for (int i = 0; i < 100; ++i) {
            const size_t sent = fill(peer.fd());
            if (way >= Way::level) { // anew, so that it has not been told of anything
                (void)epoll_ctl(set, EPOLL_CTL_DEL, peer.fd(), nullptr);
                EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, peer.fd(), &event), 0);
            }
            Sleeper sleeper([&] { return wait_for_space(way, peer.fd(), set) ? 1 : 0; });
            sleeper.await_asleep();
            EXPECT_EQ(peer.ask(Do::receive, static_cast<long>(sent)), sent);
            EXPECT_EQ(sleeper.result(), 1);
        }
        close(set);
    }
}

// A canceled thread gives its descriptor back: no frames are needed by those that come later.
void test_canceled_threads_give_their_descriptors_back() {
    int bad = 0;
    for (const Way way : all_ways) {
        const Peer peer;
        const Waiter waiter(way, peer.fd());
        for (int i = 0; i < 80; ++i) {
            Sleeper sleeper([&] { return waiter.next(); });
            sleeper.await_asleep();
            sleeper.cancel();
        }
        // A call on an eventfd alone waits for a guard, which the service sets when it comes to it.
        constexpr int now = 1000;
        constexpr int most = 20;
        bool by_descriptor = false;
        for (int window = 0; window < most && !by_descriptor; ++window) {
            const uint64_t before = received_by_kernel(peer.fd());
            peer.tell(Do::echo, now);
            for (int i = 0; i < now; ++i) {
                send_byte(peer.fd(), 'c');
                EXPECT_EQ(waiter.next(), int{'c'});
            }
            EXPECT_EQ(peer.answer(), now);
            by_descriptor = received_by_kernel(peer.fd()) - before < now / 10;
        }
        bad += by_descriptor ? 0 : 1;
    }
    EXPECT_EQ(bad, 0);
}

} // namespace

std::vector<CMUnitTest> recv_cases() {
    return {FABTEST(test_a_thread_in_recv_is_woken_without_tcp),
            FABTEST(test_canceled_threads_give_their_descriptors_back)};
}

std::vector<CMUnitTest> steady_cases() {
    return {
        FABTEST(test_a_thread_in_poll_is_woken_without_tcp),
        FABTEST(test_a_thread_in_select_is_woken_without_tcp),
        FABTEST(test_threads_in_poll_on_several_connections_are_woken_without_tcp),
        FABTEST(test_a_level_triggered_set_is_woken_without_tcp),
        FABTEST(test_an_edge_triggered_set_is_woken_without_tcp),
        FABTEST(test_a_one_shot_member_is_woken_without_tcp),
        FABTEST(test_a_thread_that_is_surely_asleep_is_woken),
        FABTEST(test_two_threads_in_recv_on_one_connection),
        FABTEST(test_one_thread_in_recv_and_one_in_poll),
        FABTEST(test_one_thread_in_recv_and_one_in_a_set),
        FABTEST(test_one_thread_in_select_and_one_in_a_set),
        FABTEST(test_more_threads_than_descriptors_are_woken),
        FABTEST(test_more_threads_of_a_peer_than_descriptors_are_woken),
        FABTEST(test_sleepers_are_woken_by_space),
        FABTEST(test_threads_of_a_stopped_peer_are_woken_when_it_goes_on),
    };
}

} // namespace wakeup_test
