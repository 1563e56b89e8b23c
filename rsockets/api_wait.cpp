// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waiting for several descriptors.
#include "rsockets/api.hpp"

#include <algorithm>

#include <rdma/rsocket.h>
#include <sys/resource.h>

#include "rsockets/epoll_set.hpp"
#include "rsockets/poll.hpp"

using namespace rsockets;

namespace {

Deadline after(int milliseconds) {
    return milliseconds < 0 ? Deadline::never() : Deadline::in(std::chrono::milliseconds(milliseconds));
}

bool valid(const timespec* time) {
    return time == nullptr || (time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < 1000000000);
}

int poll_until(pollfd* fds, nfds_t count, const Deadline& deadline, const sigset_t* mask) {
    constexpr nfds_t usual = 1024; // saves a system call per poll: lower limits are rare
    rlimit limit{};
    if (count > usual && getrlimit(RLIMIT_NOFILE, &limit) == 0 && count > limit.rlim_cur) {
        return -EINVAL;
    }
    if (fds == nullptr && count != 0) {
        return -EFAULT;
    }
    return rsockets::poll(fds, count, deadline, mask);
}

template <class Body> auto with_set(int fd, Body&& body, Call::Kind kind = Call::Kind::plain) {
    return answer(
        [&]() -> int {
            const Use use = fd_table::find(fd);
            auto* set = use.as<EpollSet>();
            if (set != nullptr) {
                return body(*set);
            }
            return fcntl(fd, F_GETFD) < 0 ? -EBADF : -EINVAL;
        },
        kind);
}

} // namespace

RSOCKET_API int ofi_rpoll(struct pollfd* fds, nfds_t nfds, int timeout) {
    return answer([&] { return poll_until(fds, nfds, after(timeout), nullptr); }, waits);
}

RSOCKET_API int ofi_rppoll(struct pollfd* fds, nfds_t nfds, const struct timespec* timeout, const sigset_t* sigmask) {
    return answer(
        [&] {
            if (!valid(timeout)) {
                return -EINVAL;
            }
            return poll_until(fds, nfds, timeout != nullptr ? Deadline::in(*timeout) : Deadline::never(), sigmask);
        },
        waits);
}

RSOCKET_API int ofi_rselect(int nfds, fd_set* readfds, fd_set* writefds, fd_set* exceptfds, struct timeval* timeout) {
    return answer(
        [&] {
            if (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0)) {
                return -EINVAL;
            }
            timespec time{};
            if (timeout != nullptr) {                 // more than a second of microseconds is valid
                constexpr time_t enough = 2000000000; // no limit in effect, and sums with it do not overflow
                time = {std::min(timeout->tv_sec, enough) + timeout->tv_usec / 1000000,
                        timeout->tv_usec % 1000000 * 1000};
            }
            const Deadline deadline = timeout != nullptr ? Deadline::in(time) : Deadline::never();
            const int ret = rsockets::select(nfds, readfds, writefds, exceptfds, deadline, nullptr);
            if (timeout != nullptr && deadline.limited()) { // Linux stores the time that is left
                const timespec left = deadline.left();
                timeout->tv_sec = left.tv_sec;
                timeout->tv_usec = left.tv_nsec / 1000;
            }
            return ret;
        },
        waits);
}

RSOCKET_API int ofi_rpselect(int nfds, fd_set* readfds, fd_set* writefds, fd_set* exceptfds,
                             const struct timespec* timeout, const sigset_t* sigmask) {
    return answer(
        [&] {
            if (!valid(timeout)) {
                return -EINVAL;
            }
            const Deadline deadline = timeout != nullptr ? Deadline::in(*timeout) : Deadline::never();
            return rsockets::select(nfds, readfds, writefds, exceptfds, deadline, sigmask);
        },
        waits);
}

RSOCKET_API int ofi_repoll_create(int flags) {
    return answer([&] {
        int fd = -1;
        const Ref<EpollSet> set = EpollSet::make(flags, fd);
        if (!set) {
            return -errno;
        }
        if (!fd_table::put(fd, Ref<Object>(set.get()))) {
            ::close(fd);
            return -ENOMEM;
        }
        return fd;
    });
}

RSOCKET_API int ofi_repoll_ctl(int epfd, int op, int fd, struct epoll_event* event) {
    return with_set(epfd, [&](EpollSet& set) { return set.control(epfd, op, fd, event); });
}

RSOCKET_API int ofi_repoll_wait(int epfd, struct epoll_event* events, int maxevents, int timeout) {
    return with_set(
        epfd, [&](EpollSet& set) { return set.wait(events, maxevents, after(timeout), nullptr); }, waits);
}

RSOCKET_EXPORT_AS_RDMACM(rpoll);
RSOCKET_EXPORT(rppoll);
RSOCKET_EXPORT_AS_RDMACM(rselect);
RSOCKET_EXPORT(rpselect);
RSOCKET_EXPORT(repoll_create);
RSOCKET_EXPORT(repoll_ctl);
RSOCKET_EXPORT(repoll_wait);
