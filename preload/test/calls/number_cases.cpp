// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Numbers of descriptors are the program's, and their flags, and what stat says of them.
#include "preload/test/calls/calls.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

using namespace calls;

namespace {
std::atomic<int> pids_asked{0};
} // namespace

// The preloaded library's way to its process's number.
extern "C" __attribute__((visibility("default"))) pid_t getpid() noexcept {
    ++pids_asked;
    return static_cast<pid_t>(syscall(SYS_getpid));
}

// Of the program's own calls, each may ask once whether it is in a child of vfork; what the libraries make and close
// for a connection, some twenty descriptors, asks nothing.
CALLS_CASE(a_connection_asks_for_few_process_ids) {
    close_all(pair()); // what is needed once
    const int before = pids_asked;
    close_all(pair());
    SAY(pids_asked - before <= 20);
}

CALLS_CASE(lowest_numbers) {
    const Pair first = pair();
    say("%d %d %d", first.listener, first.client, first.server);
    const Pair second = pair();
    say("%d %d %d", second.listener, second.client, second.server);
    close(first.client);
    SAY(dup(0));
    SAY(open("/dev/null", O_RDONLY));
    int ends[2];
    MUST(pipe(ends) == 0);
    say("%d %d", ends[0], ends[1]);
}

CALLS_CASE(dup_and_dup2) {
    const Pair one = pair();
    SAY(dup2(one.client, 100));
    SAY(dup3(one.server, 101, O_CLOEXEC));
    SAY(fcntl(101, F_GETFD));
    SAY(fcntl(100, F_GETFD));
    SAY(dup3(one.server, one.server, 0));
    SAY(dup2(one.server, one.server) == one.server);
    SAY(fcntl(one.client, F_DUPFD, 50));
    SAY(fcntl(one.client, F_DUPFD_CLOEXEC, 50));
    SAY(fcntl(51, F_GETFD));
    close_all(one);
    say_echo(100, 101);
    say_echo(50, 101);
    close(100);
    close(50);
    SAY(write(51, "x", 1));
    close(51);
    char byte = 0;
    SAY(recv(101, &byte, 1, 0));
    SAY(recv(101, &byte, 1, 0));
}

namespace {

// There is no memory meanwhile, so that the library cannot note what this number refers to.
int dup2_without_memory(int fd, int onto) {
    rlimit numbers{};
    MUST(getrlimit(RLIMIT_NOFILE, &numbers) == 0);
    numbers.rlim_cur = std::max(numbers.rlim_cur, static_cast<rlim_t>(onto) + 1);
    MUST(setrlimit(RLIMIT_NOFILE, &numbers) == 0);
    rlimit before{};
    MUST(getrlimit(RLIMIT_AS, &before) == 0);
    const rlimit none{1, before.rlim_max};
    MUST(setrlimit(RLIMIT_AS, &none) == 0);
    const int made = dup2(fd, onto);
    MUST(setrlimit(RLIMIT_AS, &before) == 0);
    return made;
}

constexpr int high = 3000; // the library notes numbers in areas of 1024

} // namespace

CALLS_CASE(dup2_without_memory_for_the_number) {
    const Pair one = pair();
    SAY(dup2_without_memory(one.client, high));
    say_echo(high, one.server);
    say_echo(one.client, one.server);
    close(one.client);
    say_echo(high, one.server);
    close(high);
    char byte = 0;
    SAY(recv(one.server, &byte, 1, 0));
}

CALLS_CASE(dup2_of_a_set_without_memory_for_the_number) {
    const Pair one = pair();
    const int set = epoll_create1(0);
    epoll_event event{EPOLLIN, {}};
    event.data.u32 = 7;
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, one.server, &event));
    SAY(dup2_without_memory(set, high));
    for (int i = 0; i < 3; ++i) {
        std::thread writer([&] {
            usleep(50000); // until the other one sleeps
            SAY(write(one.client, "x", 1));
        });
        epoll_event found{};
        const int count = epoll_wait(high, &found, 1, 5000);
        writer.join();
        say("%d %u", count, found.data.u32);
        char byte = 0;
        SAY(recv(one.server, &byte, 1, MSG_DONTWAIT));
        if (i == 1) {
            close(set);
        }
    }
}

CALLS_CASE(dup2_over_a_connection_closes_it) {
    const Pair one = pair();
    const int null = open("/dev/null", O_RDWR);
    SAY(dup2(null, one.client) == one.client);
    char byte = 0;
    SAY(recv(one.server, &byte, 1, 0));
    SAY(write(one.client, "x", 1));
    struct stat about {};
    SAY(fstat(one.client, &about));
    SAY(S_ISCHR(about.st_mode));
}

CALLS_CASE(numbers_that_were_duplicated_before_connecting) {
    const int on = listener();
    sockaddr_in to = address_of(on);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    SAY(dup2(fd, 60));
    SAY(dup(fd));
    MUST(connect(fd, generic(to), sizeof(to)) == 0);
    const int server = accept(on, nullptr, nullptr);
    say_echo(60, server);
    SAY(fcntl(60, F_GETFD));
    SAY(fcntl(fd, F_GETFD));
    close(fd);
    say_echo(60, server);
}

CALLS_CASE(flags_stay) {
    const int on = listener(SOCK_NONBLOCK | SOCK_CLOEXEC);
    SAY(fcntl(on, F_GETFL) == (O_RDWR | O_NONBLOCK));
    SAY(fcntl(on, F_GETFD));
    SAY(accept(on, nullptr, nullptr));
    sockaddr_in to = address_of(on);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    SAY(fcntl(fd, F_SETFD, FD_CLOEXEC));
    MUST(connect(fd, generic(to), sizeof(to)) == 0);
    SAY(fcntl(fd, F_GETFD));
    SAY(fcntl(fd, F_GETFL) == O_RDWR);
    int on_value = 1;
    SAY(ioctl(fd, FIONBIO, &on_value));
    SAY(fcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
    char byte = 0;
    SAY(read(fd, &byte, 1));
    SAY(fcntl64(fd, F_SETFL, 0));
    SAY(ioctl(fd, FIOCLEX));
    SAY(fcntl(fd, F_GETFD));
    pollfd ready{on, POLLIN, 0};
    MUST(poll(&ready, 1, 10000) == 1);
    const int server = accept4(on, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    SAY(fcntl(server, F_GETFL) == (O_RDWR | O_NONBLOCK));
    SAY(fcntl(server, F_GETFD));
    int waiting = -1;
    SAY(ioctl(server, FIONREAD, &waiting));
    say("%d", waiting);
    SAY(ioctl(server, TIOCGWINSZ, &waiting));
}

CALLS_CASE(a_socket_to_stat) {
    const Pair one = pair();
    struct stat client {};
    struct stat server {};
    SAY(fstat(one.client, &client));
    SAY(fstat(one.server, &server));
    SAY(S_ISSOCK(client.st_mode) && S_ISSOCK(server.st_mode));
    SAY(client.st_ino != server.st_ino);
    struct stat again {};
    SAY(fstatat(one.client, "", &again, AT_EMPTY_PATH));
    SAY(again.st_ino == client.st_ino && S_ISSOCK(again.st_mode));
    struct statx extended {};
    SAY(statx(one.client, "", AT_EMPTY_PATH, STATX_TYPE, &extended));
    SAY(S_ISSOCK(extended.stx_mode));
    SAY(isatty(one.client));
    SAY(lseek(one.client, 0, SEEK_CUR));
    char byte = 0;
    SAY(pread(one.client, &byte, 1, 0));
    SAY(ftruncate(one.client, 0));
}

CALLS_CASE(a_program_that_closes_all_numbers) {
    const Pair one = pair();
    for (int fd = 3; fd < getdtablesize() && fd < 20000; ++fd) {
        close(fd);
    }
    const Pair two = pair();
    say("%d %d %d", two.listener, two.client, two.server);
    say_echo(two.client, two.server);
    SAY(one.client == two.client);
}

CALLS_CASE(close_range_of_all) {
    const Pair one = pair();
    const int kept = dup2(one.client, 3) == 3 ? 3 : -1;
    const int server = dup2(one.server, 4);
    SAY(close_range(5, 8, 0));
    say_echo(kept, server);
    SAY(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC));
    SAY(fcntl(kept, F_GETFD));
    say_echo(kept, server);
    SAY(close_range(3, ~0U, 0));
    SAY(fcntl(kept, F_GETFD));
    const Pair two = pair();
    say("%d %d %d", two.listener, two.client, two.server);
    say_echo(two.client, two.server);
    closefrom(3);
    SAY(write(two.client, "x", 1));
    const Pair three = pair();
    say_echo(three.client, three.server);
}

CALLS_CASE(the_limit_of_numbers) {
    rlimit before{};
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    before.rlim_cur = before.rlim_cur < 256 ? before.rlim_cur : 256;
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    const Pair one = pair();
    rlimit now{};
    SAY(getrlimit(RLIMIT_NOFILE, &now));
    SAY(now.rlim_cur == before.rlim_cur && now.rlim_max == before.rlim_max);
    SAY(sysconf(_SC_OPEN_MAX));
    SAY(getdtablesize());
    SAY(dup2(one.client, 255));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(one.server, &in);
    say_echo(255, one.server);
    MUST(write(255, "x", 1) == 1);
    SAY(select(one.server + 1, &in, nullptr, nullptr, nullptr));
}

CALLS_CASE(descriptors_through_unix_sockets) {
    const Pair one = pair();
    int ends[2] = {-1, -1};
    int unix_pair[2] = {-1, -1};
    MUST(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair) == 0);
    char byte = 'x';
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &ends[1], sizeof(int));
    SAY(sendmsg(unix_pair[0], &message, 0));
    SAY(recvmsg(unix_pair[1], &message, 0));
    int got = -1;
    const cmsghdr* received = CMSG_FIRSTHDR(&message);
    if (received == nullptr) {
        say("nothing came with it");
        return;
    }
    memcpy(&got, CMSG_DATA(received), sizeof(int));
    SAY(write(got, "through", 7));
    char text[8] = {};
    SAY(read(ends[0], text, 7));
    say("%s", text);
    say_echo(one.client, one.server);
}
