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

// Calls body(number) for the lowest free numbers, again and again, on a thread of its own. body returns whether all is
// well.
class Meanwhile {
  public:
    template <class Body>
    Meanwhile(int first, Body body)
        : thread_([this, first, body] {
              constexpr int few = 6;
              while (!stop_) {
                  for (int number = first; number < first + few; ++number) {
                      const auto begin = std::chrono::steady_clock::now();
                      wrong_ += body(number) ? 0 : 1;
                      longest_ = std::max(longest_, std::chrono::steady_clock::now() - begin);
                  }
              }
          }) {}
    Meanwhile(const Meanwhile&) = delete;
    Meanwhile& operator=(const Meanwhile&) = delete;
    ~Meanwhile() { stop(); }

    struct Result {
        int wrong;
        bool starved; // the library waits for a call of the program's, but no longer than a quarter of a second
    };
    Result stop() {
        stop_ = true;
        if (thread_.joinable()) {
            thread_.join();
        }
        return {wrong_, longest_ > std::chrono::milliseconds(200)};
    }

  private:
    std::atomic<bool> stop_{false};
    int wrong_ = 0;
    std::chrono::steady_clock::duration longest_{};
    std::thread thread_;
};

// While connections are upgraded, body is well with each number. An attempt in which a processor kept a call of body
// waiting for too long shows nothing, and is repeated.
template <class Body> void expect_well_meanwhile(const Body& body) {
    constexpr int attempts = 10;
    for (int i = 0; i < attempts; ++i) {
        const Connections connections;
        Meanwhile caller(connections.first_free(), body);
        connections.exchange_until_upgraded();
        const Meanwhile::Result result = caller.stop();
        connections.exchange();
        if (result.wrong == 0) {
            return;
        }
        printf("# %d calls had another result%s\n", result.wrong, result.starved ? ", and one took long" : "");
        EXPECT(result.starved);
    }
    EXPECT(false); // again and again
}

void test_closing_numbers_that_are_free_closes_nothing() {
    expect_well_meanwhile([](int number) { return close(number) != 0; });
}

void test_a_range_of_free_numbers_closes_nothing() {
    expect_well_meanwhile([](int number) {
        (void)close_range(static_cast<unsigned>(number), ~0U, 0);
        return true; // what is closed shows in the connections
    });
}

void test_a_duplicate_on_a_free_number_stays_what_it_is() {
    const int made = memfd_create("lowest_fd_test", MFD_CLOEXEC);
    const int file = fcntl(made, F_DUPFD_CLOEXEC, 256); // out of the way
    EXPECT(made >= 0 && file >= 0);
    close(made);
    constexpr off_t size = 4711;
    EXPECT_EQ(ftruncate(file, size), 0);
    struct stat original {};
    EXPECT_EQ(fstat(file, &original), 0);
    expect_well_meanwhile([&](int number) {
        struct stat now {};
        const bool same = dup2(file, number) == number && fstat(number, &now) == 0 && now.st_ino == original.st_ino &&
                          now.st_size == size;
        return same && close(number) == 0;
    });
    close(file);
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
