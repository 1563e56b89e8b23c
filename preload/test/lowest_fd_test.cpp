// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A program that closes, replaces and passes on numbers which it does not have, while the library makes descriptors of
// its own: each has the lowest free number for a moment. lowest_fd_test.sh runs it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::path_of;

constexpr int many = 64;

// Connections that are worth an upgrade with their next bytes.
class Connections {
  public:
    Connections() {
        for (int i = 0; i < many; ++i) {
            all_.push_back(std::make_unique<Connected>());
        }
        hole_ = open("/dev/null", O_RDONLY | O_CLOEXEC); // where the listeners were
        EXPECT(hole_ >= 0 && hole_ < all_.back()->a);
        first_free_ = std::max(all_.back()->a, all_.back()->b) + 1;
    }
    Connections(const Connections&) = delete;
    Connections& operator=(const Connections&) = delete;
    ~Connections() { close(hole_); }
    [[nodiscard]] int first_free() const { return first_free_; }
    void exchange() const {
        for (const auto& one : all_) {
            preload_test::send_all(one->a, "x");
            EXPECT_EQ(preload_test::receive(one->b, 1), "x");
            preload_test::send_all(one->b, "y");
            EXPECT_EQ(preload_test::receive(one->a, 1), "y");
        }
    }
    // How many are in memory at both ends.
    [[nodiscard]] int upgraded() const {
        int count = 0;
        for (const auto& one : all_) {
            count += path_of(one->a) == 3 && path_of(one->b) == 3 ? 1 : 0;
        }
        return count;
    }
    void exchange_until_upgraded() const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(fabtests::patience(20000));
        while (upgraded() < many && std::chrono::steady_clock::now() < end) {
            exchange();
        }
#ifdef __SANITIZE_THREAD__
        EXPECT(upgraded() != 0); // it makes agreements so slow that some are given up; descriptors were made for each
#else
        if (upgraded() != many) { // says why
            EXPECT_EQ(system(("$FABTESTS_BIN/rsstat -p " + std::to_string(getpid()) + " | sed 's/^/# /'").c_str()), 0);
        }
        EXPECT_EQ(upgraded(), many);
#endif
    }

  private:
    std::vector<std::unique_ptr<Connected>> all_;
    int hole_ = -1;
    int first_free_ = -1;
};

// Calls body(number) for the lowest free numbers, again and again, on a thread of its own.
template <class Body> class Meanwhile {
  public:
    Meanwhile(int first, Body body)
        : thread_([this, first, body] {
              constexpr int few = 6;
              while (!stop_) {
                  for (int number = first; number < first + few; ++number) {
                      body(number);
                  }
              }
          }) {}
    Meanwhile(const Meanwhile&) = delete;
    Meanwhile& operator=(const Meanwhile&) = delete;
    ~Meanwhile() {
        stop_ = true;
        thread_.join();
    }

  private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

void test_closing_numbers_that_are_free_closes_nothing() {
    const Connections connections;
    std::atomic<int> closed{0};
    {
        const Meanwhile closer(connections.first_free(), [&](int number) { closed += close(number) == 0 ? 1 : 0; });
        connections.exchange_until_upgraded();
    }
    EXPECT_EQ(closed.load(), 0);
    connections.exchange();
}

void test_a_range_of_free_numbers_closes_nothing() {
    const Connections connections;
    {
        const Meanwhile closer(connections.first_free(),
                               [](int number) { (void)close_range(static_cast<unsigned>(number), ~0U, 0); });
        connections.exchange_until_upgraded();
    }
    connections.exchange();
}

void test_a_duplicate_on_a_free_number_stays_what_it_is() {
    const Connections connections;
    const int made = memfd_create("lowest_fd_test", MFD_CLOEXEC);
    const int file = fcntl(made, F_DUPFD_CLOEXEC, 256); // out of the way
    EXPECT(made >= 0 && file >= 0);
    close(made);
    constexpr off_t size = 4711;
    EXPECT_EQ(ftruncate(file, size), 0);
    struct stat original {};
    EXPECT_EQ(fstat(file, &original), 0);
    std::atomic<int> wrong{0};
    {
        const Meanwhile duplicator(connections.first_free(), [&](int number) {
            struct stat now {};
            const bool same = dup2(file, number) == number && fstat(number, &now) == 0 &&
                              now.st_ino == original.st_ino && now.st_size == size;
            wrong += same && close(number) == 0 ? 0 : 1;
        });
        connections.exchange_until_upgraded();
    }
    EXPECT_EQ(wrong.load(), 0);
    close(file);
    connections.exchange();
}

#ifndef __SANITIZE_THREAD__ // which ends a process with threads that forks
int open_numbers(int below) {
    int count = 0;
    for (int number = 0; number < below; ++number) {
        count += fcntl(number, F_GETFD) >= 0 ? 1 : 0;
    }
    return count;
}

void test_a_child_has_no_descriptor_of_the_library() {
    const Connections connections;
    constexpr int max_fds = 512;
    const int own = open_numbers(max_fds);
    constexpr int forks = 200;
    int more = 0;
    std::atomic<bool> stop{false};
    std::thread user([&] {
        while (!stop) {
            connections.exchange();
        }
    });
    for (int i = 0; i < forks; ++i) {
        const pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            _exit(open_numbers(max_fds) == own ? 0 : 1);
        }
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        more += status != 0 ? 1 : 0;
    }
    stop = true;
    user.join();
    EXPECT_EQ(more, 0);
}
#endif

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_closing_numbers_that_are_free_closes_nothing),
        FABTEST(test_a_range_of_free_numbers_closes_nothing),
        FABTEST(test_a_duplicate_on_a_free_number_stays_what_it_is),
#ifndef __SANITIZE_THREAD__
        FABTEST(test_a_child_has_no_descriptor_of_the_library),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
