// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Forks, and divides the work between parent and child.
#include "preload/test/torture_parts/fork.hpp"

#include <cerrno>
#include <cstring>

#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/test/torture_parts/drive.hpp"
#include "preload/test/torture_parts/stream.hpp"

namespace torture {

namespace {

// A process reads or writes while it holds the lock of that direction.
void share_loop(End& e, int fd, const Targets& t, Random& random) {
    while (!reached(e, t)) {
        bool idle = true;
        pthread_mutex_lock(&e.read_turn);
        if (e.in < e.total_in) {
            const long n = read_some(e, fd, random);
            check(e, n, "reading");
            idle = n < 0;
        }
        pthread_mutex_unlock(&e.read_turn);
        pthread_mutex_lock(&e.write_turn);
        if (e.out < t.out) {
            const long n = write_some(e, fd, random, t.out - e.out);
            check(e, n, "writing");
            idle = idle && n < 0;
        }
        pthread_mutex_unlock(&e.write_turn);
        if (idle) {
            // The other process may be the one that takes what there is.
            pollfd one{fd, static_cast<short>((e.in < e.total_in ? POLLIN : 0) | (e.out < t.out ? POLLOUT : 0)), 0};
            poll(&one, 1, 20);
        }
    }
}

} // namespace

pid_t fork_child(End& e) {
    const pid_t child = fork();
    if (child < 0) {
        fail("fork: %s", strerror(errno));
    }
    if (child == 0) {
        e.process = getpid();
    }
    return child;
}

void await(End& e, pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) {
        char name[96];
        name_of(e, name);
        fail("%s: its child ended with status 0x%x", name, status);
    }
}

void fork_and_wait(End& e, int fd, uint64_t quota, uint32_t style, Random& random) {
    const pid_t child = fork_child(e);
    if (child == 0) {
        drive(e, fd, quota, style, random);
        _exit(0);
    }
    await(e, child);
}

void fork_and_split(End& e, int fd, uint64_t quota, Random& random) {
    const bool blocking = random.below(2) == 0;
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, !blocking);
    e.style = blocking ? by_threads : by_poll;
    const uint64_t seed = random.next();
    const pid_t child = fork_child(e);
    if (child == 0) {
        Random own(seed);
        while (e.out < t.out) {
            const long n = write_some(e, fd, own, t.out - e.out);
            check(e, n, "writing");
            if (n < 0 && !blocking) {
                wait_for(e, fd, -1, by_poll, false, true);
            }
        }
        _exit(0);
    }
    if (blocking) {
        read_blocking(e, fd, random, [&] { return reached(e, t); });
    } else {
        while (!reached(e, t) && e.in < e.total_in) {
            const long n = read_some(e, fd, random);
            check(e, n, "reading");
            if (n < 0) {
                pollfd one{fd, POLLIN, 0};
                poll(&one, 1, 20);
            }
        }
    }
    await(e, child);
}

void fork_and_share(End& e, int fd, uint64_t quota, Random& random) {
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, true);
    e.style = by_poll;
    const uint64_t seed = random.next();
    const pid_t child = fork_child(e);
    if (child == 0) {
        Random own(seed);
        share_loop(e, fd, t, own);
        _exit(0);
    }
    share_loop(e, fd, t, random);
    await(e, child);
}

} // namespace torture
