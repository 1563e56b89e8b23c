// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sleepers while their process forks, in children that go on with a connection, in programs that are executed, and
// where the library may have no descriptors.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "preload/path/segment.hpp"
#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/cases.hpp"
#include "preload/test/wakeup_parts/peer.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"
#include "preload/test/wakeup_parts/waits.hpp"

namespace wakeup_test {

namespace {

using preload_test::Pair;
using preload_test::path_of;

// A child that does this and ends; what it fails with is said by it. It is killed if it hangs.
class Child {
  public:
    explicit Child(const std::function<void()>& body) : pid_(fork()) {
        EXPECT(pid_ >= 0);
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(static_cast<unsigned>(2 * patience_ms() / 1000));
            try {
                body();
            } catch (const std::exception& error) {
                fprintf(stderr, "# in the child: %s\n", error.what());
                _exit(1);
            }
            _exit(0);
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
    }
    // Throws if it failed or had to be killed.
    void expect_success() {
        int status = 0;
        EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
        pid_ = -1;
        if (WIFSIGNALED(status)) {
            throw fabtests::Failure("the child hung, and was ended by signal " + std::to_string(WTERMSIG(status)));
        }
        EXPECT_EQ(WEXITSTATUS(status), 0);
    }

  private:
    pid_t pid_;
};

void send_byte(int fd) { EXPECT_EQ(send(fd, "s", 1, MSG_NOSIGNAL), 1); }

// The parent's thread sleeps; a child comes and stays, or goes.
void expect_woken_after_fork(Way way, bool stays) {
    const Peer peer;
    constexpr int times = 30;
    const auto waiter = std::make_unique<Waiter>(way, peer.fd());
    for (int i = 0; i < times; ++i) { // until it is asleep on an eventfd
        peer.tell(Do::echo, 1);
        send_byte(peer.fd());
        EXPECT_EQ(waiter->next(), int{'s'});
        EXPECT_EQ(peer.answer(), 1);
    }
    Sleeper sleeper([&] { return waiter->next() >= 0 ? 1 : 0; });
    sleeper.await_asleep();
    Child child([&] {
        while (stays) {
            pause();
        }
    });
    if (!stays) {
        child.expect_success();
    }
    EXPECT_EQ(peer.ask(Do::send, 1), 1);
    EXPECT_EQ(sleeper.result(), 1);
    for (int i = 0; i < times; ++i) {
        Sleeper again([&] { return waiter->next() >= 0 ? 1 : 0; });
        again.await_asleep();
        EXPECT_EQ(peer.ask(Do::send, 1), 1);
        EXPECT_EQ(again.result(), 1);
    }
}

void test_a_sleeper_is_woken_while_a_child_has_its_connection() {
    for (const Way way : all_ways) {
        expect_woken_after_fork(way, true);
    }
}

void test_a_sleeper_is_woken_after_a_child_has_ended() {
    for (const Way way : all_ways) {
        expect_woken_after_fork(way, false);
    }
}

// A server that accepts and forks: the child has the connection for itself, and the parent lives on.
void expect_child_served(Way way, bool inherits_set) {
    Peer peer;
    constexpr int times = 200;
    std::unique_ptr<Waiter> inherited;
    if (inherits_set) {
        inherited = std::make_unique<Waiter>(way, peer.fd());
        EXPECT(!inherited->wait(5));
    }
    const int fd = peer.fd();
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe2(ready.data(), O_CLOEXEC), 0);
    Child child([&] {
        char byte = 0;
        EXPECT_EQ(read(ready[0], &byte, 1), 1); // the parent has closed its number
        const Waiter own(way, fd, inherits_set ? inherited->set() : -1);
        for (int i = 0; i < times; ++i) {
            send_byte(fd);
            EXPECT_EQ(own.next(), int{'s'});
        }
    });
    peer.close_own();
    EXPECT_EQ(write(ready[1], "r", 1), 1);
    peer.tell(Do::echo, times);
    child.expect_success();
    EXPECT_EQ(peer.answer(), times);
    close(ready[0]);
    close(ready[1]);
}

void test_a_child_is_woken_in_recv() { expect_child_served(Way::receive, false); }
void test_a_child_is_woken_in_poll() { expect_child_served(Way::poll, false); }
void test_a_child_is_woken_in_select() { expect_child_served(Way::select, false); }
void test_a_child_is_woken_in_a_set_of_its_own() {
    expect_child_served(Way::level, false);
    expect_child_served(Way::edge, false);
}
void test_a_child_is_woken_in_an_inherited_set() {
    expect_child_served(Way::level, true);
    expect_child_served(Way::edge, true);
}

void expect_traffic_while_forking(Way way) {
    const Peer peer;
    const Waiter waiter(way, peer.fd());
    constexpr int forks = 100;
    constexpr int endless = 1000000;
    std::atomic<bool> over{false};
    std::atomic<int> rounds{0};
    peer.tell(Do::echo, endless);
    Sleeper traffic([&]() -> ssize_t {
        while (!over) {
            if (send(peer.fd(), "t", 1, MSG_NOSIGNAL) != 1 || waiter.next() != 't') {
                return -1;
            }
            ++rounds;
        }
        return 0;
    });
    for (int i = 0; i < forks; ++i) {
        const int before = rounds;
        Child child([] {});
        EXPECT(eventually([&] { return rounds > before + 2 || traffic.is_over(); }));
        child.expect_success();
    }
    over = true;
    EXPECT_EQ(traffic.result(), 0);
}

void test_traffic_by_recv_while_the_process_forks() { expect_traffic_while_forking(Way::receive); }
void test_traffic_by_poll_while_the_process_forks() { expect_traffic_while_forking(Way::poll); }
void test_traffic_by_a_set_while_the_process_forks() {
    expect_traffic_while_forking(Way::level);
    expect_traffic_while_forking(Way::edge);
}

// The names of the sockets at which the process's services are told of connections.
std::vector<std::string> inboxes_of(pid_t process) {
    std::vector<std::string> names;
    std::ifstream all("/proc/net/unix");
    for (std::string line; std::getline(all, line);) {
        const size_t at = line.find("@rspreload/");
        std::array<std::string, 7> fields; // Num RefCount Protocol Flags Type St Inode Path, see proc(5)
        std::istringstream words(line);
        for (std::string& field : fields) {
            words >> field;
        }
        const auto& [number, references, protocol, flags, type, state, inode] = fields;
        if (at == std::string::npos || std::stoi(type, nullptr, 16) != SOCK_DGRAM) {
            continue;
        }
        for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
            std::error_code gone;
            if (std::filesystem::read_symlink(entry, gone) == "socket:[" + inode + "]") {
                names.push_back(line.substr(at + 1));
            }
        }
    }
    return names;
}

// Sends what nobody understands, until there is space for no more. Returns how many.
// The numbers of the services at both ends of this process's connections, which their memory has.
std::vector<uint64_t> services() {
    std::vector<uint64_t> found;
    std::ifstream all("/proc/self/maps");
    for (std::string line; std::getline(all, line);) {
        const auto at = std::stoull(line, nullptr, 16);
        if (line.find(" 00000000 ") == std::string::npos || line.find("/memfd:rspreload ") == std::string::npos) {
            continue;
        }
        const auto& segment = *reinterpret_cast<const preload::path::Segment*>(at);
        EXPECT_EQ(segment.magic, preload::path::segment_magic);
        for (const auto& service : segment.service) {
            found.push_back(service.load());
        }
    }
    return found;
}

// 0: it takes no message with this number, which it drops.
int fill_inbox(const std::string& name, uint64_t service) {
    constexpr int many = 100000;
    const int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    name.copy(to.sun_path + 1, sizeof(to.sun_path) - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    int sent = 0;
    while (sent < many && sendto(from, &service, sizeof(service), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to),
                                 length) == sizeof(service)) {
        ++sent;
    }
    const bool full = sent < many && errno == EAGAIN;
    close(from);
    return full ? sent : 0;
}

// A thread sleeps until the peer's service has left the ring: it is asked to when its inbox has no space.
void test_a_service_with_a_full_inbox_does_what_it_is_asked() {
    const Peer peer;
    EXPECT_EQ(path_of(peer.fd()), 3);
    std::array<char, 2> bytes{};
    Sleeper sleeper([&] { return recv(peer.fd(), bytes.data(), bytes.size(), MSG_WAITALL); });
    sleeper.await_asleep();
    peer.stop();
    int filled = 0;
    for (const std::string& name : inboxes_of(peer.pid())) {
        for (const uint64_t service : services()) {
            filled += fill_inbox(name, service);
        }
    }
    EXPECT(filled > 0);
    EXPECT_EQ(fcntl(peer.fd(), F_SETFL, fcntl(peer.fd(), F_GETFL) | O_ASYNC), 0); // which only the kernel has
    EXPECT_EQ(path_of(peer.fd()), 2);                                             // it still writes to the ring
    peer.kill(SIGCONT);
    EXPECT(eventually([&] { return path_of(peer.fd()) <= 1; }));
    EXPECT_EQ(peer.ask(Do::send, 2), 2);
    EXPECT_EQ(sleeper.result(), 2);
}

void test_a_sleeper_is_woken_after_an_exec_that_failed() {
    const Peer peer;
    for (int i = 0; i < 20; ++i) {
        Sleeper sleeper([&] {
            char byte = 0;
            return recv(peer.fd(), &byte, 1, 0);
        });
        sleeper.await_asleep();
        execl("/nonexistent/program", "program", nullptr);
        EXPECT_EQ(errno, ENOENT);
        EXPECT_EQ(peer.ask(Do::send, 1), 1);
        EXPECT_EQ(sleeper.result(), 1);
    }
    EXPECT_EQ(path_of(peer.fd()), 3);
}

// In its environment, no library is preloaded.
struct Plain {
    std::vector<std::string> kept;
    std::vector<char*> list;
    Plain() {
        for (char** one = environ; *one != nullptr; ++one) {
            if (std::string(*one).rfind("LD_PRELOAD=", 0) != 0) {
                kept.emplace_back(*one);
            }
        }
        for (std::string& one : kept) {
            list.push_back(one.data());
        }
        list.push_back(nullptr);
    }
};

constexpr uint64_t data_of_member = 4711;

// A set that is not close-on-exec, whose eventfd is written just then: peers know it, and nobody has looked.
struct Written {
    int set = epoll_create1(0);
    Pair pair;
    Written() {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = data_of_member;
        EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
        for (int i = 0; i < 10; ++i) {
            EXPECT_EQ(epoll_wait(set, &event, 1, 5), 0);
            send_byte(pair.a);
            if (i != 9) {
                EXPECT_EQ(epoll_wait(set, &event, 1, -1), 1);
                char byte = 0;
                EXPECT_EQ(recv(pair.b, &byte, 1, 0), 1);
            }
        }
    }
    Written(const Written&) = delete;
    Written& operator=(const Written&) = delete;
    ~Written() { close(set); }
};

void test_an_executed_program_finds_nothing_strange_in_a_set() {
    Child child([] {
        const Written written;
        Plain plain;
        const std::string number = std::to_string(written.set);
        std::array<char*, 4> arguments{const_cast<char*>("wakeup_test"), const_cast<char*>("look-at-set"),
                                       const_cast<char*>(number.c_str()), nullptr};
        execve("/proc/self/exe", arguments.data(), plain.list.data());
        EXPECT(false);
    });
    child.expect_success();
}

// By posix_spawn and the like, with the parent's set as it is.
void test_a_spawned_program_finds_nothing_strange_in_a_set() {
    const Written written;
    Plain plain;
    const std::string number = std::to_string(written.set);
    std::array<char*, 4> arguments{const_cast<char*>("wakeup_test"), const_cast<char*>("look-at-set"),
                                   const_cast<char*>(number.c_str()), nullptr};
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments.data(), plain.list.data()), 0);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

// How many numbers the program can have besides.
int count_free_numbers() {
    std::vector<int> fds;
    for (int fd = 0; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
        fds.push_back(fd);
    }
    for (const int fd : fds) {
        close(fd);
    }
    return static_cast<int>(fds.size());
}

// While the library's thread makes and closes none.
int count_free_numbers_at_rest() {
    int count = 0;
    EXPECT(eventually([&] {
        if (!are_other_threads_asleep()) {
            return false;
        }
        count = count_free_numbers();
        return are_other_threads_asleep() && count_free_numbers() == count;
    }));
    return count;
}

// Soft and hard: the library may have no eventfd, and frames wake.
void test_sleepers_are_woken_at_the_limit_of_descriptors() {
    Child child([] {
        const rlimit limit{64, 64};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        const Pair first; // the service is there from now on
        const int before = count_free_numbers_at_rest();
        for (const Way way : all_ways) {
            const Pair pair;
            const Waiter waiter(way, pair.b);
            for (int i = 0; i < 100; ++i) {
                Sleeper sleeper([&] { return waiter.next(); });
                sleeper.await_asleep();
                send_byte(pair.a);
                EXPECT_EQ(sleeper.result(), int{'s'});
            }
        }
        EXPECT_EQ(count_eventfds(), 0);
        EXPECT_EQ(count_free_numbers_at_rest(), before);
    });
    child.expect_success();
}

// This process can keep none of the descriptors that the peer gives it.
void test_a_process_without_numbers_wakes_its_peer() {
    Child child([] {
        const Peer peer;
        const rlimit limit{64, 64};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        constexpr int times = 500;
        for (const Way way : all_ways) {
            const Waiter waiter(way, peer.fd());
            peer.tell(Do::echo, times);
            for (int i = 0; i < times; ++i) {
                send_byte(peer.fd());
                EXPECT_EQ(waiter.next(), int{'s'});
            }
            EXPECT_EQ(peer.answer(), times);
        }
    });
    child.expect_success();
}

// What the library keeps to be faster takes no number from a program that has few.
void test_a_process_without_numbers_keeps_no_channel() {
    Child child([] {
        const rlimit limit{64, 64};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        const Pair first; // the service is there from now on
        const int before = count_free_numbers_at_rest();
        const Peer peer;
        constexpr int own = 2; // the connection, and the socket by which the peer is told what to do
        EXPECT_EQ(before - count_free_numbers_at_rest(), own);
    });
    child.expect_success();
}

// The connection, and a set with it, are passed while threads sleep on them: from then on the kernel has it.
void test_sleepers_are_woken_after_their_connection_was_passed() {
    for (const bool passes_set : {false, true}) {
        for (const Way way : all_ways) {
            const Peer peer;
            const Waiter waiter(way, peer.fd());
            for (int i = 0; i < 30; ++i) {
                peer.tell(Do::echo, 1);
                send_byte(peer.fd());
                EXPECT_EQ(waiter.next(), int{'s'});
                EXPECT_EQ(peer.answer(), 1);
            }
            Sleeper sleeper([&] { return waiter.next() >= 0 ? 1 : 0; });
            sleeper.await_asleep();
            std::array<int, 2> ends{};
            EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends.data()), 0);
            const int passed = passes_set && waiter.set() >= 0 ? waiter.set() : peer.fd();
            preload_test::pass(ends[0], passed);
            EXPECT_EQ(peer.ask(Do::send, 1), 1);
            EXPECT_EQ(sleeper.result(), 1);
            for (int i = 0; i < 30; ++i) {
                Sleeper again([&] { return waiter.next() >= 0 ? 1 : 0; });
                again.await_asleep();
                EXPECT_EQ(peer.ask(Do::send, 1), 1);
                EXPECT_EQ(again.result(), 1);
            }
            close(ends[0]);
            close(ends[1]);
        }
    }
}

#if !defined(__SANITIZE_ADDRESS__) // which needs some
// A program that has all its numbers in use, and sleeps then for the first time.
void test_sleepers_are_woken_when_all_numbers_are_in_use() {
    Child child([] {
        const rlimit limit{64, 64};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        const Pair pair;
        const int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN;
        EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, pair.b, &event), 0);
        while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
        }
        for (int i = 0; i < 100; ++i) {
            std::thread other([&] { // by /proc, which takes a number, nobody can look whether this one sleeps
                (void)sched_yield();
                (void)send(pair.a, "s", 1, 0);
            });
            EXPECT_EQ(epoll_wait(set, &event, 1, patience_ms()), 1);
            char byte = 0;
            EXPECT_EQ(recv(pair.b, &byte, 1, 0), 1);
            other.join();
        }
    });
    child.expect_success();
}
#endif

} // namespace

int look_at_inherited_set(int set) {
    for (int i = 0; i < 50; ++i) {
        std::array<epoll_event, 8> events{};
        const int n = epoll_wait(set, events.data(), events.size(), 0);
        if (n < 0) {
            perror("# epoll_wait");
            return 2;
        }
        for (int k = 0; k < n; ++k) {
            const epoll_event& one = events[static_cast<size_t>(k)];
            if (one.data.u64 != data_of_member) {
                fprintf(stderr, "# the set tells of %#x for %#llx\n", one.events,
                        static_cast<unsigned long long>(one.data.u64));
                return 1;
            }
        }
        usleep(1000);
    }
    return 0;
}

std::vector<CMUnitTest> processes_cases() {
    return {
        FABTEST(test_a_sleeper_is_woken_while_a_child_has_its_connection),
            FABTEST(test_a_sleeper_is_woken_after_a_child_has_ended), FABTEST(test_a_child_is_woken_in_recv),
            FABTEST(test_a_child_is_woken_in_poll), FABTEST(test_a_child_is_woken_in_select),
            FABTEST(test_a_child_is_woken_in_a_set_of_its_own), FABTEST(test_a_child_is_woken_in_an_inherited_set),
            FABTEST(test_traffic_by_recv_while_the_process_forks),
            FABTEST(test_traffic_by_poll_while_the_process_forks),
            FABTEST(test_traffic_by_a_set_while_the_process_forks),
            FABTEST(test_a_service_with_a_full_inbox_does_what_it_is_asked),
            FABTEST(test_a_sleeper_is_woken_after_an_exec_that_failed),
            FABTEST(test_an_executed_program_finds_nothing_strange_in_a_set),
            FABTEST(test_a_spawned_program_finds_nothing_strange_in_a_set),
            FABTEST(test_sleepers_are_woken_at_the_limit_of_descriptors),
            FABTEST(test_a_process_without_numbers_wakes_its_peer),
            FABTEST(test_a_process_without_numbers_keeps_no_channel),
            FABTEST(test_sleepers_are_woken_after_their_connection_was_passed),
#if !defined(__SANITIZE_ADDRESS__)
            FABTEST(test_sleepers_are_woken_when_all_numbers_are_in_use),
#endif
    };
}

} // namespace wakeup_test
