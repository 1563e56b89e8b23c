// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/test/wakeup_parts/sleeper.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace wakeup_test {

namespace {

constexpr const char* eventfd_name = "anon_inode:[eventfd]";

// The system call that a thread is in, and its first argument. -1: it runs.
std::pair<long, long> call_of(pid_t tid) {
    std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/syscall");
    std::string number;
    std::string argument;
    file >> number >> argument;
    if (number.empty() || number == "running") {
        return {-1, -1};
    }
    return {strtol(number.c_str(), nullptr, 10), static_cast<long>(strtoul(argument.c_str(), nullptr, 16))};
}

} // namespace

int patience_ms() { return fabtests::patience(10000); }

bool eventually(const std::function<bool()>& holds) {
    const auto start = fabtests::Clock::now();
    while (!holds()) {
        if (fabtests::milliseconds_since(start) > patience_ms()) {
            return holds();
        }
        usleep(50);
    }
    return true;
}

char state_of(pid_t process_or_thread) {
    std::ifstream file("/proc/" + std::to_string(process_or_thread) + "/stat");
    std::string all;
    std::getline(file, all);
    const size_t end = all.rfind(')');
    return end != std::string::npos && end + 2 < all.size() ? all[end + 2] : '?';
}

bool are_all_threads_stopped(pid_t process) {
    int stopped = 0;
    int all = 0;
    DIR* tasks = opendir(("/proc/" + std::to_string(process) + "/task").c_str());
    while (const dirent* entry = tasks != nullptr ? readdir(tasks) : nullptr) {
        if (const pid_t tid = atoi(entry->d_name); tid > 0) {
            ++all;
            stopped += state_of(tid) == 'T' ? 1 : 0;
        }
    }
    if (tasks != nullptr) {
        closedir(tasks);
    }
    return all != 0 && stopped == all;
}

bool is_thread_asleep(pid_t tid) {
    constexpr std::array<long, 14> waits{SYS_read,       SYS_write,       SYS_recvfrom,     SYS_recvmsg, SYS_sendto,
                                         SYS_sendmsg,    SYS_poll,        SYS_ppoll,        SYS_select,  SYS_pselect6,
                                         SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_readv};
    return std::find(waits.begin(), waits.end(), call_of(tid).first) != waits.end() && state_of(tid) == 'S';
}

bool are_other_threads_asleep() {
    const auto sleeps = [](pid_t tid) {
        const long call = call_of(tid).first;
        return is_thread_asleep(tid) || call == SYS_nanosleep || call == SYS_clock_nanosleep;
    };
    bool all = true;
    DIR* tasks = opendir("/proc/self/task");
    EXPECT(tasks != nullptr);
    while (const dirent* entry = readdir(tasks)) {
        const pid_t tid = atoi(entry->d_name);
        all = all && (tid <= 0 || tid == gettid() || sleeps(tid));
    }
    closedir(tasks);
    return all;
}

std::string name_of(int fd) {
    std::array<char, 64> target{};
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t n = readlink(path.c_str(), target.data(), target.size() - 1);
    return n > 0 ? std::string(target.data(), static_cast<size_t>(n)) : "";
}

int count_eventfds() {
    int count = 0;
    DIR* all = opendir("/proc/self/fd");
    while (const dirent* entry = readdir(all)) {
        count += entry->d_name[0] != '.' && name_of(atoi(entry->d_name)) == eventfd_name ? 1 : 0;
    }
    closedir(all);
    return count;
}

Sleeper::Sleeper(std::function<ssize_t()> call) : call_(std::move(call)) {
    EXPECT_EQ(pthread_create(&thread_, nullptr, run, this), 0);
    EXPECT(eventually([&] { return tid_.load() != 0; }));
}

// A thread that hangs has this object and the test's: nothing can be freed, and the program cannot go on.
Sleeper::~Sleeper() {
    if (joined_) {
        return;
    }
    if (!eventually([&] { return done_.load(); })) {
        const auto [number, argument] = call_of(tid_);
        fprintf(stderr, "# a thread hangs in system call %ld on descriptor %ld, %s\n", number, argument,
                name_of(static_cast<int>(argument)).c_str());
        pthread_cancel(thread_);
    }
    pthread_join(thread_, nullptr);
}

void* Sleeper::run(void* self) {
    auto& mine = *static_cast<Sleeper*>(self);
    mine.tid_ = static_cast<pid_t>(syscall(SYS_gettid));
    errno = 0;
    mine.result_ = mine.call_();
    mine.error_ = errno;
    mine.done_ = true;
    return nullptr;
}

bool Sleeper::is_asleep() const { return is_thread_asleep(tid_); }

bool Sleeper::is_on_eventfd() const {
    const auto [number, argument] = call_of(tid_);
    return number == SYS_read && name_of(static_cast<int>(argument)) == eventfd_name;
}

void Sleeper::await_asleep() const {
    EXPECT(eventually([&] { return is_asleep() || is_over(); }));
    EXPECT(!is_over());
}

void Sleeper::join(const char* how) {
    if (!eventually([&] { return done_.load(); })) {
        const auto [number, argument] = call_of(tid_);
        throw fabtests::Failure(std::string("a thread was not woken by ") + how + ": it is in system call " +
                                std::to_string(number) + " on " + name_of(static_cast<int>(argument)));
    }
    EXPECT_EQ(pthread_join(thread_, nullptr), 0);
    joined_ = true;
}

ssize_t Sleeper::result() {
    if (!joined_) {
        join("what was to wake it");
    }
    return result_;
}

void Sleeper::signal(int number) const { EXPECT_EQ(pthread_kill(thread_, number), 0); }

void Sleeper::cancel() {
    EXPECT_EQ(pthread_cancel(thread_), 0);
    void* given = nullptr;
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience_ms() / 1000;
    EXPECT_EQ(pthread_timedjoin_np(thread_, &given, &until), 0);
    joined_ = true;
    EXPECT(given == PTHREAD_CANCELED);
}

} // namespace wakeup_test
