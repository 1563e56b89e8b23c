// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections are upgraded, and return to the kernel, while threads wait in a set that contains both of their ends: no
// event is lost, and EPOLLONESHOT reports one event each time that it is requested. set_threads_test.sh runs it under
// the preload library.
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;

enum class What : uint8_t {
    upgrade, // nothing but upgrades, and returns as RSPRELOAD_UPGRADE says
    pin,     // an option that only the kernel has is set meanwhile
    child,   // a child waits in the set, too
    remove   // members leave the set and come back
};

struct Way {
    uint32_t events;
    What what = What::upgrade;
    bool hands_on = true; // events are handled by threads that do not wait in the set
    int waiters = 1;
    // The library reads of each member in /proc while it holds the set's lock.
    int idle_members = 300;
};

int rounds() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr int usual = 1; // which finds races by what happens, not by how they end
#else
    constexpr int usual = 3;
#endif
    const char* given = getenv("SET_THREADS_ROUNDS");
    return given != nullptr ? atoi(given) : usual;
}

constexpr size_t pair_count = 16;
constexpr int exchanges = 120;                                    // of each pair
constexpr int upgraded_after = 30 * static_cast<int>(pair_count); // reads
constexpr size_t size = 64;

struct End {
    int fd = -1;
    bool asks = false;
    size_t unanswered = 0; // bytes that have been read, less than `size`
    int exchanges = 0;
    std::atomic<int> handlers{0};
    std::mutex mutex; // edges may be reported to two threads
};

class Round {
  public:
    explicit Round(const Way& way) : way_(way), set_(epoll_create1(EPOLL_CLOEXEC)) {
        for (int i = 0; i < way.idle_members; ++i) {
            idle_.push_back(eventfd(0, EFD_CLOEXEC));
            control(EPOLL_CTL_ADD, idle_.back(), EPOLLIN, 0);
        }
        for (size_t i = 0; i < pair_count; ++i) {
            pairs_.push_back(std::make_unique<Connected>());
            for (const int fd : {pairs_[i]->a, pairs_[i]->b}) {
                EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
                End& end = ends_[2 * i + (fd == pairs_[i]->b ? 1 : 0)];
                end.fd = fd;
                end.asks = fd == pairs_[i]->a;
            }
        }
    }
    Round(const Round&) = delete;
    Round& operator=(const Round&) = delete;
    ~Round() {
        for (const int fd : idle_) {
            close(fd);
        }
        close(set_);
    }

    void run() {
        const int stop = eventfd(0, EFD_CLOEXEC);
        control(EPOLL_CTL_ADD, stop, EPOLLIN, stop_number);
        std::array<int, 2> reports{};
        EXPECT_EQ(pipe2(reports.data(), O_CLOEXEC), 0);
        begin_ = eventfd(0, EFD_CLOEXEC);
        const pid_t child = way_.what == What::child ? fork() : 0;
        if (way_.what == What::child && child == 0) {
            report(reports[1]);
        }
        close(reports[1]);
        std::vector<std::thread> threads;
        threads.emplace_back([&] { take_reports(reports[0]); });
        for (int i = 0; i < way_.waiters; ++i) {
            threads.emplace_back([&] { wait(); });
        }
        for (int i = 0; way_.hands_on && i < 2; ++i) {
            threads.emplace_back([&] { handle_queue(); });
        }
        for (size_t i = 0; i < ends_.size(); ++i) {
            control(EPOLL_CTL_ADD, ends_[i].fd, way_.events, i + 1);
        }
        for (End& end : ends_) {
            if (end.asks) {
                put(end);
            }
        }
        const bool all = await_all();
        over_ = true;
        const uint64_t one = 1;
        EXPECT_EQ(write(stop, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
        if (way_.what == What::child) {
            EXPECT_EQ(waitpid(child, nullptr, 0), child); // killed, it could take the others' wake-up with it
        }
        {
            const std::lock_guard lock(queue_mutex_);
            queue_filled_.notify_all();
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        close(reports[0]);
        close(stop);
        close(begin_);
        if (!all) {
            for (const End& end : ends_) {
                if (end.asks && end.exchanges < exchanges) {
                    printf("# a pair has stopped after %d of %d exchanges\n", end.exchanges, exchanges);
                }
            }
        }
        EXPECT(all);
        // Of a member that was removed, a thread may still have an event from the kernel.
        EXPECT(overlaps_.load() == 0 || way_.what == What::remove);
        EXPECT_EQ(errors_.load(), 0);
    }

  private:
    static constexpr uint64_t stop_number = 1000;

    void control(int operation, int fd, uint32_t events, uint64_t number) const {
        epoll_event event{};
        event.events = events;
        event.data.u64 = number;
        EXPECT_EQ(epoll_ctl(set_, operation, fd, &event), 0);
    }

    [[nodiscard]] bool is_done() const { return done_.load() == static_cast<int>(pair_count); }

    // As long as something happens.
    bool await_all() const {
        const uint64_t one = 1;
        bool begun = false;
        int silent = 0;
        int before = -1;
        while (!is_done() && silent < fabtests::patience(3000)) {
            usleep(1000);
            const int now = progress_.load();
            if (!begun && now >= upgraded_after) {
                begun = write(begin_, &one, sizeof(one)) == static_cast<ssize_t>(sizeof(one));
            }
            silent = now == before ? silent + 1 : 0;
            before = now;
        }
        return is_done();
    }

    void put(End& end) {
        const std::array<char, size> bytes{};
        errors_ += write(end.fd, bytes.data(), size) != static_cast<ssize_t>(size) ? 1 : 0;
    }

    void wait() {
        std::array<epoll_event, 64> events{};
        while (!over_) {
            const int n = epoll_wait(set_, events.data(), events.size(), -1);
            for (int i = 0; i < n; ++i) {
                take(events[static_cast<size_t>(i)].data.u64);
            }
        }
    }

    void take(uint64_t number) {
        if (number == 0 || number > ends_.size()) {
            return;
        }
        End& end = ends_[number - 1];
        if ((way_.events & EPOLLONESHOT) != 0 && end.handlers.fetch_add(1) != 0) {
            ++overlaps_; // reported again, without being requested
            return;
        }
        if (!way_.hands_on) {
            handle(end);
            return;
        }
        const std::lock_guard lock(queue_mutex_);
        queue_.push_back(&end);
        queue_filled_.notify_one();
    }

    void handle_queue() {
        std::unique_lock lock(queue_mutex_);
        while (!over_) {
            if (queue_.empty()) {
                queue_filled_.wait(lock);
                continue;
            }
            End* end = queue_.front();
            queue_.pop_front();
            lock.unlock();
            handle(*end);
            lock.lock();
        }
    }

    void handle(End& end) {
        const std::lock_guard lock(end.mutex);
        read_all(end);
        if ((way_.events & EPOLLONESHOT) == 0) {
            return;
        }
        const auto number = static_cast<uint64_t>(&end - ends_.data()) + 1;
        end.handlers = 0;
        epoll_event event{};
        event.events = way_.events;
        event.data.u64 = number;
        if (way_.what == What::remove && end.exchanges % 3 == 0) {
            errors_ += epoll_ctl(set_, EPOLL_CTL_DEL, end.fd, nullptr) != 0 ? 1 : 0;
            errors_ += epoll_ctl(set_, EPOLL_CTL_ADD, end.fd, &event) != 0 ? 1 : 0;
        } else {
            errors_ += epoll_ctl(set_, EPOLL_CTL_MOD, end.fd, &event) != 0 ? 1 : 0;
        }
    }

    void read_all(End& end) {
        std::array<char, 4 * size> bytes{};
        ssize_t n = 0;
        while ((n = read(end.fd, bytes.data(), bytes.size())) > 0) {
            ++progress_;
            end.unanswered += static_cast<size_t>(n);
            for (; end.unanswered >= size; end.unanswered -= size) {
                answer(end);
            }
        }
        errors_ += n == 0 || (n < 0 && errno != EAGAIN) ? 1 : 0;
    }

    void answer(End& end) {
        ++end.exchanges;
        if (way_.what == What::pin && end.exchanges == exchanges / 2) {
            const int yes = 1;
            errors_ += setsockopt(end.fd, SOL_SOCKET, SO_OOBINLINE, &yes, sizeof(yes)) != 0 ? 1 : 0;
        }
        if (end.asks && end.exchanges == exchanges) {
            ++done_;
            return;
        }
        put(end);
    }

    // In a child that has the set and the connections, too. It moves no bytes.
    [[noreturn]] void report(int to) const {
        uint64_t number = 0;
        if (read(begin_, &number, sizeof(number)) != sizeof(number)) { // the set has upgraded members now
            _exit(1);
        }
        for (;;) {
            std::array<epoll_event, 64> events{};
            const int n = epoll_wait(set_, events.data(), events.size(), -1);
            for (int i = 0; i < n; ++i) {
                number = events[static_cast<size_t>(i)].data.u64;
                if (number == stop_number || write(to, &number, sizeof(number)) != sizeof(number)) {
                    _exit(0);
                }
            }
        }
    }

    void take_reports(int from) {
        uint64_t number = 0;
        while (read(from, &number, sizeof(number)) == sizeof(number)) {
            take(number);
        }
    }

    const Way way_;
    const int set_;
    int begin_ = -1;
    std::vector<int> idle_;
    std::vector<std::unique_ptr<Connected>> pairs_;
    std::array<End, 2 * pair_count> ends_{};
    std::mutex queue_mutex_;
    std::condition_variable queue_filled_;
    std::deque<End*> queue_;
    std::atomic<bool> over_{false};
    std::atomic<int> done_{0};
    std::atomic<int> progress_{0};
    std::atomic<int> overlaps_{0};
    std::atomic<int> errors_{0};
};

void run(const Way& way) {
    for (int left = rounds(); left > 0; --left) {
        Round(way).run();
    }
}

constexpr uint32_t one_shot = EPOLLIN | EPOLLONESHOT;

void test_one_shot_events_are_not_lost() { run({one_shot}); }
void test_one_shot_events_are_not_lost_by_two_waiters() {
    run({one_shot, What::upgrade, true, 2});
    run({one_shot, What::upgrade, false, 2});
}
void test_one_shot_edges_are_not_lost() { run({one_shot | EPOLLET}); }
void test_one_shot_events_with_space_are_not_lost() { run({one_shot | EPOLLRDHUP, What::upgrade, false, 2, 0}); }
void test_edges_are_not_lost() {
    run({EPOLLIN | EPOLLET});
    run({EPOLLIN | EPOLLET, What::upgrade, false, 2});
}
void test_levels_are_not_lost() { run({EPOLLIN, What::upgrade, false, 2}); }
void test_one_shot_events_are_not_lost_by_a_return() { run({one_shot, What::pin, true, 2, 0}); }
void test_edges_are_not_lost_by_a_return() { run({EPOLLIN | EPOLLET, What::pin, true, 2, 0}); }
void test_one_shot_members_are_removed_and_added() { run({one_shot, What::remove, true, 2}); }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void test_one_shot_events_are_not_lost_with_a_child() { run({one_shot, What::child, true, 2, 0}); }
void test_edges_are_not_lost_with_a_child() { run({EPOLLIN | EPOLLET, What::child, true, 2, 0}); }
#endif

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_one_shot_events_are_not_lost),
        FABTEST(test_one_shot_events_are_not_lost_by_two_waiters),
        FABTEST(test_one_shot_edges_are_not_lost),
        FABTEST(test_one_shot_events_with_space_are_not_lost),
        FABTEST(test_edges_are_not_lost),
        FABTEST(test_levels_are_not_lost),
        FABTEST(test_one_shot_events_are_not_lost_by_a_return),
        FABTEST(test_edges_are_not_lost_by_a_return),
        FABTEST(test_one_shot_members_are_removed_and_added),
// Sanitizers do not survive that a process with threads forks.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        FABTEST(test_one_shot_events_are_not_lost_with_a_child),
        FABTEST(test_edges_are_not_lost_with_a_child),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
