// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A program that sets up an io_uring: a ring adds members to an epoll set, which the library does not see, so that it
// would wait for bytes in memory without end. Its connections stay with the kernel, also those that were upgraded
// before. uring_test.sh runs it under the preload library.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "preload/test/listener.hpp"
#include "preload/test/pair.hpp"

namespace {

using preload_test::Pair;

// One operation at a time.
class Ring {
  public:
    Ring() : fd_(static_cast<int>(syscall(SYS_io_uring_setup, 4, &params_))) {
        if (fd_ < 0) {
            return;
        }
        const auto map = [&](size_t size, off_t what) {
            void* const made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, what);
            EXPECT(made != MAP_FAILED);
            return static_cast<char*>(made);
        };
        queue_ = map(params_.sq_off.array + params_.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
        entries_ = reinterpret_cast<io_uring_sqe*>(map(params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    }
    [[nodiscard]] bool open() const { return fd_ >= 0; }
    void add_to(int set, int member, uint32_t events) {
        epoll_event event{};
        event.events = events;
        event.data.fd = member;
        auto* tail = reinterpret_cast<unsigned*>(queue_ + params_.sq_off.tail);
        const unsigned at = *tail & (params_.sq_entries - 1);
        entries_[at] = {};
        entries_[at].opcode = IORING_OP_EPOLL_CTL;
        entries_[at].fd = set;
        entries_[at].off = static_cast<uint64_t>(member);
        entries_[at].addr = reinterpret_cast<uint64_t>(&event);
        entries_[at].len = EPOLL_CTL_ADD;
        reinterpret_cast<unsigned*>(queue_ + params_.sq_off.array)[at] = at;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        EXPECT_EQ(syscall(SYS_io_uring_enter, fd_, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0), 1);
    }

  private:
    io_uring_params params_{};
    int fd_;
    char* queue_ = nullptr;
    io_uring_sqe* entries_ = nullptr;
};

// Many more messages than an upgrade needs, each awaited in the set.
void exchange(int a, int b, int set) {
    constexpr int messages = 100;
    for (int i = 0; i < messages; ++i) {
        EXPECT_EQ(send(a, "x", 1, 0), 1);
        epoll_event event{};
        EXPECT_EQ(epoll_wait(set, &event, 1, static_cast<int>(fabtests::patience(10000))), 1);
        EXPECT_EQ(preload_test::receive(b, 1, 0), "x");
        EXPECT_EQ(send(b, "y", 1, 0), 1);
        EXPECT_EQ(preload_test::receive(a, 1, 0), "y");
    }
}

void test_connections_of_a_program_with_an_io_uring_stay_with_the_kernel() {
    const Pair before; // upgraded
    Ring ring;
    if (!ring.open()) {
        printf("skipped: this system has no io_uring for programs: %s\n", strerror(errno));
        return;
    }
    for (const bool fresh : {false, true}) {
        const auto [a, b] = fresh ? preload_test::connected_pair() : std::pair(before.a, before.b);
        const int set = epoll_create1(EPOLL_CLOEXEC);
        ring.add_to(set, b, EPOLLIN);
        exchange(a, b, set);
        EXPECT(preload_test::path_of(b) <= 0); // 0, or not known to the library
        close(set);
        if (fresh) {
            close(a);
            close(b);
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {FABTEST(test_connections_of_a_program_with_an_io_uring_stay_with_the_kernel)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
