// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Wake-up ids and their descriptors by themselves: those of this process, and those that another one has given. The
// test plays the other process: a made-up id, and an eventfd that it keeps a second number of.
#include <array>
#include <atomic>
#include <barrier>
#include <set>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/wait/wakeup.hpp"
#include "preload/wait/wakeup_page.hpp"

namespace {

namespace wakeup = preload::wakeup;
using wakeup::Id;

constexpr uid_t user = 4711; // the other process's
constexpr size_t limit_of_own = 32;
constexpr size_t limit_of_known = 128;

// The number of writes since the last time.
uint64_t taken(int fd) {
    pollfd one{fd, POLLIN, 0};
    uint64_t count = 0;
    if (poll(&one, 1, 0) != 1) {
        return 0;
    }
    EXPECT_EQ(read(fd, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
    return count;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

// Of a process that is not this one.
Id foreign_id(uint64_t process, uint64_t index) { return uint64_t{1} << 63 | process << 16 | index; }

// Another process's eventfd, and the number that was given to this one.
class Foreign {
  public:
    explicit Foreign(Id id) : id_(id), fd_(eventfd(0, EFD_CLOEXEC)) { EXPECT(fd_ >= 0); }
    Foreign(const Foreign&) = delete;
    Foreign& operator=(const Foreign&) = delete;
    Foreign(Foreign&& other) noexcept : id_(other.id_), fd_(std::exchange(other.fd_, -1)) {}
    Foreign& operator=(Foreign&&) = delete;
    ~Foreign() {
        if (fd_ >= 0) {
            close(fd_);
        }
    }
    [[nodiscard]] bool learn(int page = -1) const {
        return wakeup::learn(id_, user, preload::descriptors::keep(fcntl(fd_, F_DUPFD_CLOEXEC, 3)), page);
    }
    [[nodiscard]] bool wake() const { return wakeup::wake(id_, user); }
    [[nodiscard]] uint64_t taken() const { return ::taken(fd_); }

  private:
    Id id_;
    int fd_;
};

size_t count_open() {
    size_t count = 0;
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (rlim_t fd = 0; fd < limit.rlim_max && fd < 4096; ++fd) {
        count += is_open(static_cast<int>(fd)) ? 1 : 0;
    }
    return count;
}

void test_an_acquired_id_has_a_descriptor_that_is_woken() {
    const wakeup::Own own(true);
    EXPECT(own.id() > 1);
    EXPECT(wakeup::is_own(own.id()));
    const int fd = wakeup::descriptor(own.id());
    EXPECT(is_open(fd));
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(taken(fd), 0U);
    EXPECT(wakeup::wake(own.id(), user));
    EXPECT_EQ(taken(fd), 1U);
    wakeup::wake_own(own.id());
    EXPECT_EQ(taken(fd), 1U);
}

void test_who_was_notified_is_not_notified_again_until_it_looks() {
    const wakeup::Own own(true);
    const int fd = wakeup::descriptor(own.id());
    EXPECT(!wakeup::is_notified(own.id()));
    EXPECT(wakeup::wake(own.id(), user));
    EXPECT(wakeup::is_notified(own.id()));
    EXPECT_EQ(taken(fd), 1U);
    EXPECT(wakeup::wake(own.id(), user));
    EXPECT_EQ(taken(fd), 0U);
    wakeup::clear(own.id());
    EXPECT(!wakeup::is_notified(own.id()));
    EXPECT(wakeup::wake(own.id(), user));
    EXPECT_EQ(taken(fd), 1U);
    // For other news than what is in memory, always.
    wakeup::wake_own(own.id());
    EXPECT_EQ(taken(fd), 1U);
}

void test_an_id_begins_without_what_its_last_owner_was_notified_of() {
    Id first = 0;
    {
        const wakeup::Own own(true);
        first = own.id();
        EXPECT(wakeup::wake(own.id(), user));
        EXPECT_EQ(taken(wakeup::descriptor(own.id())), 1U);
    }
    const wakeup::Own own(true);
    EXPECT_EQ(own.id(), first);
    EXPECT(!wakeup::is_notified(own.id()));
    EXPECT(wakeup::wake(own.id(), user));
    EXPECT_EQ(taken(wakeup::descriptor(own.id())), 1U);
}

void test_an_own_that_is_not_wanted_has_no_id() {
    const wakeup::Own own(false);
    EXPECT_EQ(own.id(), 0U);
}

void test_acquired_ids_are_different_and_as_many_as_there_are_descriptors() {
    std::set<Id> ids;
    std::set<int> fds;
    for (size_t i = 0; i < limit_of_own; ++i) {
        const Id id = wakeup::acquire();
        EXPECT(id > 1);
        ids.insert(id);
        fds.insert(wakeup::descriptor(id));
    }
    EXPECT_EQ(ids.size(), limit_of_own);
    EXPECT_EQ(fds.size(), limit_of_own);
    EXPECT_EQ(wakeup::acquire(), 0U);
    // One that is released is the next one's, with its descriptor.
    const Id last = *ids.rbegin();
    const int fd = wakeup::descriptor(last);
    wakeup::release(last);
    EXPECT_EQ(wakeup::acquire(), last);
    EXPECT_EQ(wakeup::descriptor(last), fd);
    EXPECT_EQ(wakeup::acquire(), 0U);
    for (const Id id : ids) {
        wakeup::release(id);
    }
}

void test_threads_never_have_the_same_id() {
    std::array<std::atomic<int>, 64> users{};
    std::atomic<bool> shared{false};
    fabtests::Threads threads;
    for (int i = 0; i < 8; ++i) {
        threads.start([&] {
            for (int n = 0; n < 20000; ++n) {
                const wakeup::Own own(true);
                if (own.id() != 0) {
                    auto& mine = users[own.id() % users.size()];
                    shared = shared || mine.fetch_add(1) != 0;
                    mine.fetch_sub(1);
                }
            }
        });
    }
    threads.join();
    EXPECT(!shared);
}

// What peers were told of one thread's connections names no other thread, whoever sleeps first.
void test_a_thread_takes_the_same_id_again() {
    constexpr int rounds = 6;
    std::array<std::set<Id>, 2> ids;
    std::barrier together(2);
    fabtests::Threads threads;
    for (size_t who = 0; who < ids.size(); ++who) {
        threads.start([&, who] {
            for (size_t round = 0; round < rounds; ++round) {
                Id id = round % 2 == who ? wakeup::acquire() : 0; // first, while none is taken
                together.arrive_and_wait();
                id = id != 0 ? id : wakeup::acquire();
                ids.at(who).insert(id);
                together.arrive_and_wait();
                wakeup::release(id);
                together.arrive_and_wait();
            }
        });
    }
    threads.join();
    EXPECT_EQ(ids[0].size(), 1U);
    EXPECT_EQ(ids[1].size(), 1U);
    EXPECT(ids[0] != ids[1]);
}

void test_an_id_that_is_not_known_wakes_nobody() {
    EXPECT(!wakeup::wake(foreign_id(1, 0), user));
    EXPECT(!wakeup::wake(1, user));
    EXPECT(!wakeup::wake(UINT64_MAX, user));
    EXPECT(!wakeup::is_own(foreign_id(1, 0)));
    const wakeup::Own own(true);
    EXPECT(!wakeup::wake(own.id() | 63, user)); // of this process, and none of its descriptors
    EXPECT(!wakeup::wake(own.id() ^ 1 << 20, user));
    EXPECT_EQ(taken(wakeup::descriptor(own.id())), 0U);
}

void test_an_id_that_was_learned_is_woken() {
    const Foreign one(foreign_id(2, 3));
    EXPECT(!one.wake());
    EXPECT(one.learn());
    EXPECT(one.wake());
    EXPECT_EQ(one.taken(), 1U);
    EXPECT(one.wake());
    EXPECT(one.wake());
    EXPECT_EQ(one.taken(), 2U);
}

void test_an_id_that_is_learned_twice_keeps_one_descriptor() {
    const Foreign one(foreign_id(3, 3));
    EXPECT(one.learn());
    const size_t before = count_open();
    EXPECT(one.learn());
    EXPECT_EQ(count_open(), before);
    EXPECT(one.wake());
    EXPECT_EQ(one.taken(), 1U);
}

// Those that have to make place are not known any more, their descriptors are closed, and each that is known wakes its
// own.
void test_more_ids_than_places_replace_each_other() {
    constexpr size_t many = 4 * limit_of_known;
    std::vector<Foreign> all;
    all.reserve(many);
    const size_t before = count_open();
    for (size_t i = 0; i < many; ++i) {
        all.emplace_back(foreign_id(1000 + i / 32, i % 32));
        EXPECT(all.back().learn());
        EXPECT(all.back().wake());
        EXPECT_EQ(all.back().taken(), 1U);
    }
    EXPECT(count_open() <= before + many + limit_of_known);
    size_t known = 0;
    for (const Foreign& one : all) {
        const bool woken = one.wake();
        known += woken ? 1 : 0;
        for (const Foreign& other : all) {
            EXPECT_EQ(other.taken(), woken && &other == &one ? 1U : 0U);
        }
    }
    EXPECT(known <= limit_of_known);
    EXPECT(known >= limit_of_known / 2);
    for (const Foreign& one : all) { // as a process does that finds an id unknown
        EXPECT(one.wake() || one.learn());
        EXPECT(one.wake());
    }
}

// Processes come and go: a server does not keep what it had of all of them.
void test_an_id_that_is_not_used_is_forgotten() {
    constexpr uint64_t longer_than_pause_ns = 11000000000U;
    const size_t before = count_open();
    const Foreign busy(foreign_id(5001, 1));
    const Foreign gone(foreign_id(5002, 2));
    EXPECT(busy.learn() && gone.learn());
    uint64_t now = preload::sys::now_ns();
    EXPECT(wakeup::sweep(now) != UINT64_MAX);
    EXPECT(busy.wake() && gone.wake());
    wakeup::sweep(now += longer_than_pause_ns);
    EXPECT(busy.wake());
    EXPECT(wakeup::sweep(now += longer_than_pause_ns) != UINT64_MAX);
    EXPECT(busy.wake());
    EXPECT(!gone.wake());
    EXPECT_EQ(busy.taken(), 3U);
    wakeup::sweep(now += longer_than_pause_ns);
    EXPECT_EQ(wakeup::sweep(now += longer_than_pause_ns), UINT64_MAX);
    EXPECT(!busy.wake());
    EXPECT(count_open() <= before + 2); // their own
    EXPECT(busy.learn() && busy.wake());
}

// The service learns while threads wake: nobody writes a descriptor that was closed, and perhaps is another file by
// now. Where an id is unknown nothing is written; where it is known, exactly its own.
void test_threads_wake_while_ids_are_replaced() {
    constexpr size_t many = 200;
    constexpr size_t wakers = 3;
    std::vector<Foreign> all;
    all.reserve(many);
    for (size_t i = 0; i < many; ++i) {
        all.emplace_back(foreign_id(9000 + i, i % 32));
    }
    std::atomic<bool> over{false};
    std::array<std::array<uint64_t, many>, wakers> woken{};
    fabtests::Threads threads;
    for (size_t i = 0; i < wakers; ++i) {
        threads.start([&, i] {
            for (size_t n = i; !over; n = (n + 7) % many) {
                woken[i][n] += all[n].wake() ? 1 : 0;
            }
        });
    }
    size_t refused = 0;
    for (int i = 0; i < 20000; ++i) {
        refused += all[static_cast<size_t>(i) * 13 % many].learn() ? 0 : 1;
    }
    over = true;
    threads.join();
    for (size_t n = 0; n < many; ++n) {
        uint64_t expected = 0;
        for (const auto& one : woken) {
            expected += one[n];
        }
        EXPECT_EQ(all[n].taken(), expected);
    }
    EXPECT(refused < 20000); // all places may be in use at once
}

// There is one page for each process, with a slot for each id.
void test_a_peer_with_a_page_is_notified_once_until_it_looks() {
    const int file = preload::WakeupPage::open_file();
    preload::WakeupPage* page = preload::WakeupPage::make(file);
    EXPECT(page != nullptr);
    const Foreign one(foreign_id(10, 1));
    const Foreign other(foreign_id(10, 2));
    EXPECT(one.learn(file));
    EXPECT(other.learn(file));
    close(file);
    for (int i = 0; i < 3; ++i) {
        EXPECT(one.wake());
        EXPECT_EQ(one.taken(), 1U);
        EXPECT(preload::WakeupPage::notified_at(page->slots[1]) != 0);
        EXPECT(one.wake());
        EXPECT_EQ(one.taken(), 0U);
        EXPECT(preload::WakeupPage::notified_at(page->slots[2]) == 0);
        preload::WakeupPage::clear(page->slots[1]);
    }
    EXPECT(other.wake());
    EXPECT_EQ(other.taken(), 1U);
    EXPECT_EQ(one.taken(), 0U);
    preload::WakeupPage::unmap(page);
}

// One that was stopped between its notice in the page and the descriptor keeps nobody from being woken.
void test_a_notice_whose_descriptor_was_not_written_counts_for_nothing() {
    const int file = preload::WakeupPage::open_file();
    preload::WakeupPage* page = preload::WakeupPage::make(file);
    EXPECT(page != nullptr);
    const Foreign one(foreign_id(12, 3));
    EXPECT(one.learn(file));
    close(file);
    preload::WakeupPage::Slot& place = page->slots[3];
    const uint64_t notice = preload::WakeupPage::notify(place);
    EXPECT(notice != 0);
    EXPECT(one.wake());
    EXPECT_EQ(one.taken(), 1U);
    EXPECT(one.wake());
    EXPECT_EQ(one.taken(), 0U);
    // And what it says when it goes on is about the notice that it gave, not about the next one.
    preload::WakeupPage::clear(place);
    EXPECT(preload::WakeupPage::notify(place) != 0);
    preload::WakeupPage::written(place, notice);
    EXPECT(one.wake());
    EXPECT_EQ(one.taken(), 1U);
    preload::WakeupPage::unmap(page);
}

// It could be cut off under those who use it. The peer is woken all the same.
void test_memory_that_is_no_page_is_not_mapped() {
    const int resizable = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(resizable, 4096), 0);
    const int small = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(small, 2048), 0);
    EXPECT_EQ(fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    const int other = eventfd(0, EFD_CLOEXEC);
    uint64_t index = 0;
    for (const int file : {resizable, small, other}) {
        EXPECT(preload::WakeupPage::map(file) == nullptr);
        const Foreign one(foreign_id(11, ++index));
        EXPECT(one.learn(file));
        EXPECT(one.wake());
        EXPECT(one.wake());
        EXPECT_EQ(one.taken(), 2U);
        close(file);
    }
}

void test_a_child_has_no_ids_of_its_parents() {
    const wakeup::Own own(true);
    const Foreign one(foreign_id(4, 4));
    EXPECT(one.learn());
    const Id id = own.id();
    wakeup::after_fork_in_child();
    EXPECT(!wakeup::is_own(id));
    EXPECT(!wakeup::wake(id, user));
    EXPECT(!one.wake());
    const wakeup::Own again(true);
    EXPECT(again.id() > 1 && again.id() != id);
}

void test_without_spare_numbers_there_is_no_id() {
    wakeup::after_fork_in_child(); // as in a process that has none yet
    rlimit before{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit low{64, 64};
    EXPECT_EQ(prlimit(0, RLIMIT_NOFILE, &low, nullptr), 0);
    const size_t open = count_open();
    EXPECT_EQ(wakeup::acquire(), 0U);
    const Foreign one(foreign_id(5, 5));
    EXPECT(!one.learn());
    EXPECT(!one.wake());
    EXPECT_EQ(count_open(), open + 1); // the test's
}

} // namespace

int main() {
    // Numbers beyond the soft limit are what the library takes its own from.
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(1024, limit.rlim_max / 2);
    setrlimit(RLIMIT_NOFILE, &limit);
    const CMUnitTest tests[] = {
        FABTEST(test_an_acquired_id_has_a_descriptor_that_is_woken),
        FABTEST(test_who_was_notified_is_not_notified_again_until_it_looks),
        FABTEST(test_an_id_begins_without_what_its_last_owner_was_notified_of),
        FABTEST(test_an_own_that_is_not_wanted_has_no_id),
        FABTEST(test_acquired_ids_are_different_and_as_many_as_there_are_descriptors),
        FABTEST(test_threads_never_have_the_same_id),
        FABTEST(test_a_thread_takes_the_same_id_again),
        FABTEST(test_an_id_that_is_not_known_wakes_nobody),
        FABTEST(test_an_id_that_was_learned_is_woken),
        FABTEST(test_an_id_that_is_learned_twice_keeps_one_descriptor),
        FABTEST(test_more_ids_than_places_replace_each_other),
        FABTEST(test_an_id_that_is_not_used_is_forgotten),
        FABTEST(test_threads_wake_while_ids_are_replaced),
        FABTEST(test_a_peer_with_a_page_is_notified_once_until_it_looks),
        FABTEST(test_a_notice_whose_descriptor_was_not_written_counts_for_nothing),
        FABTEST(test_memory_that_is_no_page_is_not_mapped),
        FABTEST(test_a_child_has_no_ids_of_its_parents),
        FABTEST(test_without_spare_numbers_there_is_no_id), // the last: the hard limit stays
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
