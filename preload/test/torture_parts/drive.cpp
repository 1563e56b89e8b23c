// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The loops of the ways of waiting.
#include "preload/test/torture_parts/drive.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

namespace torture {

void set_nonblocking(int fd, bool on) {
    const int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

void set_receive_limit(int fd, int milliseconds) {
    const timeval limit{milliseconds / 1000, (milliseconds % 1000) * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

Targets targets_of(const End& e, uint64_t quota) {
    return {std::min<uint64_t>(e.total_out, e.out + quota),
            e.out == e.total_out ? std::min<uint64_t>(e.total_in, e.in + quota) : 0};
}

bool reached(const End& e, const Targets& t) { return e.out >= t.out && e.in >= std::min<uint64_t>(t.in, e.total_in); }

void wait_for(End& e, int fd, int set, uint32_t style, bool for_in, bool for_out) {
    e.doing = style_names[style];
    if (style == by_select) {
        fd_set in;
        fd_set out;
        FD_ZERO(&in);
        FD_ZERO(&out);
        if (for_in) {
            FD_SET(fd, &in);
        }
        if (for_out) {
            FD_SET(fd, &out);
        }
        select(fd + 1, &in, &out, nullptr, nullptr);
    } else if (set >= 0) {
        epoll_event event{};
        if (style == by_epoll) {
            event.events = (for_in ? EPOLLIN : 0U) | (for_out ? EPOLLOUT : 0U);
            epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
        }
        epoll_wait(set, &event, 1, -1);
    } else {
        pollfd one{fd, static_cast<short>((for_in ? POLLIN : 0) | (for_out ? POLLOUT : 0)), 0};
        poll(&one, 1, -1);
    }
    e.doing = nullptr;
}

namespace {

struct Closer {
    int fd;
    ~Closer() {
        if (fd >= 0) {
            close(fd);
        }
    }
};

void drive_by_events(End& e, int fd, uint64_t quota, uint32_t style, Random& random) {
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, true);
    const int set = style == by_epoll || style == by_edges ? epoll_create1(EPOLL_CLOEXEC) : -1;
    const Closer closer{set};
    if (set >= 0) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | (style == by_edges ? EPOLLET : 0U);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    }
    while (!reached(e, t)) {
        bool idle = true;
        if (e.in < e.total_in) {
            long n = 0;
            do {
                n = read_some(e, fd, random);
                check(e, n, "reading");
                idle = idle && n < 0;
            } while (n > 0 && (style == by_edges || random.below(3) == 0) && e.in < e.total_in);
        }
        if (e.out < t.out) {
            long n = 0;
            do {
                n = write_some(e, fd, random, t.out - e.out);
                check(e, n, "writing");
                idle = idle && n < 0;
            } while (n > 0 && (style == by_edges || random.below(3) == 0) && e.out < t.out);
        }
        if (!reached(e, t) && (idle || style == by_edges || random.below(2) == 0)) {
            wait_for(e, fd, set, style, e.in < e.total_in, e.out < t.out);
        }
    }
}

void write_blocking(End& e, int fd, uint64_t target, Random& random) {
    while (e.out < target) {
        check(e, write_some(e, fd, random, target - e.out), "writing");
    }
}

void drive_by_threads(End& e, int fd, uint64_t quota, Random& random) {
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, false);
    std::atomic<bool> written{false};
    int gone = -1; // as the writer has seen it
    {
        std::jthread writer([&, seed = random.next()] {
            Random own(seed);
            try {
                write_blocking(e, fd, t.out, own);
            } catch (const PeerGone& seen) {
                gone = seen.error;
            }
            written = true;
        });
        read_blocking(e, fd, random, [&] { return written && (gone >= 0 || reached(e, t)); });
    }
    if (gone >= 0) {
        throw PeerGone{gone};
    }
}

} // namespace

void drive(End& e, int fd, uint64_t quota, uint32_t style, Random& random) {
    e.style = style;
    e.process = getpid();
    if (style == by_threads) {
        drive_by_threads(e, fd, quota, random);
    } else {
        drive_by_events(e, fd, quota, style, random);
    }
}

} // namespace torture
