// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/test/call_counter.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include <link.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

enum class Owner : uint8_t { program, ours, core };

struct Range {
    uintptr_t begin;
    uintptr_t end;
    Owner owner;
};

std::vector<Range> ranges; // changes while nothing is counted
std::atomic<bool> counting{false};

constexpr std::array names{
    "accept",        "accept4",     "bind",           "close",           "connect",  "epoll_create",
    "epoll_create1", "epoll_ctl",   "epoll_pwait",    "epoll_wait",      "eventfd",  "fcntl",
    "getpeername",   "getsockname", "getsockopt",     "listen",          "open",     "poll",
    "ppoll",         "pread",       "read",           "readlink",        "recv",     "recvmsg",
    "send",          "sendmsg",     "sendto",         "setsockopt",      "shutdown", "socket",
    "socketpair",    "statx",       "timerfd_create", "timerfd_settime", "write",    "writev",
};
std::array<std::array<std::atomic<int>, 3>, names.size()> counts;

constexpr size_t index_of(const char* name) {
    for (size_t i = 0; i < names.size(); ++i) {
        const char* a = names[i];
        const char* b = name;
        while (*a != '\0' && *a == *b) {
            ++a;
            ++b;
        }
        if (*a == *b) {
            return i;
        }
    }
    return names.size(); // outside of the array: does not compile
}

template <size_t index> void count(const void* caller) {
    static_assert(index < names.size());
    if (!counting.load(std::memory_order_acquire)) {
        return;
    }
    const auto at = reinterpret_cast<uintptr_t>(caller);
    for (const Range& range : ranges) {
        if (at >= range.begin && at < range.end) {
            ++counts[index][static_cast<size_t>(range.owner)];
            return;
        }
    }
}

int note_ranges(dl_phdr_info* info, size_t /*size*/, void* /*data*/) {
    const auto is_one_of = [info](std::initializer_list<const char*> libraries) {
        return std::any_of(libraries.begin(), libraries.end(),
                           [info](const char* name) { return strstr(info->dlpi_name, name) != nullptr; });
    };
    const Owner owner = is_one_of({"/librsocket-ofi", "/librstream-fi"})                  ? Owner::ours
                        : is_one_of({"/libfabric.so", "/librdmacm.so", "/libibverbs.so"}) ? Owner::core
                                                                                          : Owner::program;
    for (int i = 0; owner != Owner::program && i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) {
            const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
            ranges.push_back({begin, begin + part.p_memsz, owner});
        }
    }
    return 0;
}

} // namespace

#define COUNTED(name) count<index_of(name)>(__builtin_return_address(0))
#define WRAPPER extern "C" __attribute__((visibility("default")))

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name,cert-dcl58-cpp): libc's names are its own

WRAPPER int accept(int fd, sockaddr* address, socklen_t* length) {
    COUNTED("accept");
    return static_cast<int>(syscall(SYS_accept, fd, address, length));
}
WRAPPER int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
    COUNTED("accept4");
    return static_cast<int>(syscall(SYS_accept4, fd, address, length, flags));
}
WRAPPER int bind(int fd, const sockaddr* address, socklen_t length) noexcept {
    COUNTED("bind");
    return static_cast<int>(syscall(SYS_bind, fd, address, length));
}
WRAPPER int close(int fd) {
    COUNTED("close");
    return static_cast<int>(syscall(SYS_close, fd));
}
WRAPPER int connect(int fd, const sockaddr* address, socklen_t length) {
    COUNTED("connect");
    return static_cast<int>(syscall(SYS_connect, fd, address, length));
}
WRAPPER int epoll_create(int size) noexcept {
    COUNTED("epoll_create");
    return static_cast<int>(size > 0 ? syscall(SYS_epoll_create1, 0) : -1);
}
WRAPPER int epoll_create1(int flags) noexcept {
    COUNTED("epoll_create1");
    return static_cast<int>(syscall(SYS_epoll_create1, flags));
}
WRAPPER int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
    COUNTED("epoll_ctl");
    return static_cast<int>(syscall(SYS_epoll_ctl, set, operation, fd, event));
}
WRAPPER int epoll_wait(int set, epoll_event* events, int most, int timeout) {
    COUNTED("epoll_wait");
    return static_cast<int>(syscall(SYS_epoll_pwait, set, events, most, timeout, nullptr, 8));
}
WRAPPER int epoll_pwait(int set, epoll_event* events, int most, int timeout, const sigset_t* mask) {
    COUNTED("epoll_pwait");
    return static_cast<int>(syscall(SYS_epoll_pwait, set, events, most, timeout, mask, 8));
}
WRAPPER int eventfd(unsigned value, int flags) noexcept {
    COUNTED("eventfd");
    return static_cast<int>(syscall(SYS_eventfd2, value, flags));
}
WRAPPER int fcntl(int fd, int command, ...) {
    COUNTED("fcntl");
    va_list arguments;
    va_start(arguments, command);
    const long argument = va_arg(arguments, long);
    va_end(arguments);
    return static_cast<int>(syscall(SYS_fcntl, fd, command, argument));
}
WRAPPER int getpeername(int fd, sockaddr* name, socklen_t* length) noexcept {
    COUNTED("getpeername");
    return static_cast<int>(syscall(SYS_getpeername, fd, name, length));
}
WRAPPER int getsockname(int fd, sockaddr* name, socklen_t* length) noexcept {
    COUNTED("getsockname");
    return static_cast<int>(syscall(SYS_getsockname, fd, name, length));
}
WRAPPER int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
    COUNTED("getsockopt");
    return static_cast<int>(syscall(SYS_getsockopt, fd, level, name, value, length));
}
WRAPPER int listen(int fd, int backlog) noexcept {
    COUNTED("listen");
    return static_cast<int>(syscall(SYS_listen, fd, backlog));
}
WRAPPER int open(const char* path, int flags, ...) {
    COUNTED("open");
    va_list arguments;
    va_start(arguments, flags);
    const long mode = va_arg(arguments, long);
    va_end(arguments);
    return static_cast<int>(syscall(SYS_openat, -100, path, flags, mode));
}
WRAPPER int poll(pollfd* fds, nfds_t number, int timeout) {
    COUNTED("poll");
    timespec time{timeout / 1000, timeout % 1000 * 1000000L};
    return static_cast<int>(syscall(SYS_ppoll, fds, number, timeout < 0 ? nullptr : &time, nullptr, 8));
}
WRAPPER int ppoll(pollfd* fds, nfds_t number, const timespec* timeout, const sigset_t* mask) {
    COUNTED("ppoll");
    timespec time{};
    if (timeout != nullptr) {
        time = *timeout; // the kernel changes it
    }
    return static_cast<int>(syscall(SYS_ppoll, fds, number, timeout != nullptr ? &time : nullptr, mask, 8));
}
WRAPPER ssize_t pread(int fd, void* to, size_t length, off_t at) {
    COUNTED("pread");
    return syscall(SYS_pread64, fd, to, length, at);
}
WRAPPER ssize_t read(int fd, void* to, size_t length) {
    COUNTED("read");
    return syscall(SYS_read, fd, to, length);
}
WRAPPER ssize_t readlink(const char* path, char* to, size_t length) noexcept {
    COUNTED("readlink");
    return syscall(SYS_readlinkat, -100, path, to, length);
}
WRAPPER ssize_t recv(int fd, void* to, size_t length, int flags) {
    COUNTED("recv");
    return syscall(SYS_recvfrom, fd, to, length, flags, nullptr, nullptr);
}
WRAPPER ssize_t recvmsg(int fd, msghdr* message, int flags) {
    COUNTED("recvmsg");
    return syscall(SYS_recvmsg, fd, message, flags);
}
WRAPPER ssize_t send(int fd, const void* from, size_t length, int flags) {
    COUNTED("send");
    return syscall(SYS_sendto, fd, from, length, flags, nullptr, 0);
}
WRAPPER ssize_t sendmsg(int fd, const msghdr* message, int flags) {
    COUNTED("sendmsg");
    return syscall(SYS_sendmsg, fd, message, flags);
}
WRAPPER ssize_t sendto(int fd, const void* from, size_t length, int flags, const sockaddr* to, socklen_t to_length) {
    COUNTED("sendto");
    return syscall(SYS_sendto, fd, from, length, flags, to, to_length);
}
WRAPPER int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
    COUNTED("setsockopt");
    return static_cast<int>(syscall(SYS_setsockopt, fd, level, name, value, length));
}
WRAPPER int shutdown(int fd, int how) noexcept {
    COUNTED("shutdown");
    return static_cast<int>(syscall(SYS_shutdown, fd, how));
}
WRAPPER int socket(int domain, int type, int protocol) noexcept {
    COUNTED("socket");
    return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}
WRAPPER int socketpair(int domain, int type, int protocol, int fds[2]) noexcept {
    COUNTED("socketpair");
    return static_cast<int>(syscall(SYS_socketpair, domain, type, protocol, fds));
}
WRAPPER int statx(int folder, const char* path, int flags, unsigned mask, struct statx* out) noexcept {
    COUNTED("statx");
    return static_cast<int>(syscall(SYS_statx, folder, path, flags, mask, out));
}
WRAPPER int timerfd_create(int clock, int flags) noexcept {
    COUNTED("timerfd_create");
    return static_cast<int>(syscall(SYS_timerfd_create, clock, flags));
}
WRAPPER int timerfd_settime(int fd, int flags, const itimerspec* value, itimerspec* before) noexcept {
    COUNTED("timerfd_settime");
    return static_cast<int>(syscall(SYS_timerfd_settime, fd, flags, value, before));
}
WRAPPER ssize_t write(int fd, const void* from, size_t length) {
    COUNTED("write");
    return syscall(SYS_write, fd, from, length);
}
WRAPPER ssize_t writev(int fd, const iovec* iov, int number) {
    COUNTED("writev");
    return syscall(SYS_writev, fd, iov, number);
}

// NOLINTEND(readability-inconsistent-declaration-parameter-name,cert-dcl58-cpp)

namespace rsocket_test {

void start_counting_calls() {
    dl_iterate_phdr(note_ranges, nullptr);
    counting.store(true, std::memory_order_release);
}

CallCount counted_calls() {
    CallCount sum;
    for (const auto& by_owner : counts) {
        sum.ours += by_owner[static_cast<size_t>(Owner::ours)];
        sum.core += by_owner[static_cast<size_t>(Owner::core)];
    }
    return sum;
}

std::string counted_calls_by_name() {
    std::string text;
    for (size_t i = 0; i < names.size(); ++i) {
        const int ours = counts[i][static_cast<size_t>(Owner::ours)];
        const int core = counts[i][static_cast<size_t>(Owner::core)];
        if (ours + core != 0) {
            text += std::string(text.empty() ? "" : ", ") + names[i] + " " + std::to_string(ours) + "+" +
                    std::to_string(core);
        }
    }
    return text;
}

void forget_counted_calls() {
    for (auto& by_owner : counts) {
        for (auto& number : by_owner) {
            number = 0;
        }
    }
}

} // namespace rsocket_test
