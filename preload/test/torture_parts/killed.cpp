// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Kills the writer at a random moment, and compares what its peer reads with what it wrote.
#include "preload/test/torture_parts/killed.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "preload/test/torture_parts/clock.hpp"
#include "preload/test/torture_parts/drive.hpp"
#include "preload/test/torture_parts/fork.hpp"
#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/stream.hpp"

namespace torture {

void run_killed_writer(const Round& round, End& e, int fd) {
    Random random(round.options.seed ^ e.id);
    e.action = kill_action;
    round.await_all_warm();
    const pid_t child = fork_child(e);
    if (child == 0) {
        // As a server's child does, while the parent's threads use and close them. One that was killed with a frame of
        // another connection unread would reset that: rspreload-ofi(7), BUGS.
        close_range(STDERR_FILENO + 1, static_cast<unsigned>(fd) - 1, 0);
        close_range(static_cast<unsigned>(fd) + 1, UINT_MAX, 0);
        for (;;) {
            const long n = write_some(e, fd, random, round.options.pace_ms != 0 ? 4096 : max_size);
            check(e, n, "writing");
            usleep(20 * round.options.pace_ms);
        }
    }
    close(fd);
    // Most are upgraded first, if they are at all.
    const uint64_t began = now_ms();
    const uint64_t patience_ms = path_of != nullptr && random.below(4) != 0 ? round.options.warm_up_ms : 0;
    while (e.path < 2 && now_ms() - began < patience_ms) {
        usleep(200);
    }
    const uint64_t until = e.out + random.size(1 << 20);
    while (e.out < until) {
        usleep(200);
    }
    usleep(static_cast<useconds_t>(random.below(3000)));
    kill(child, SIGKILL);
    const bool moved = e.path >= 2;
    waitpid(child, nullptr, 0);
    ++shared->killed;
    shared->killed_moved += moved ? 1 : 0;
    e.active = false;
}

void run_survivor(const Round& round, End& e, int fd) {
    Random random(round.options.seed ^ e.id ^ 77);
    const End& writer = other_end(e);
    e.action = kill_action;
    e.process = getpid();
    const bool blocking = random.below(2) == 0;
    set_nonblocking(fd, !blocking);
    e.style = blocking ? by_threads : by_poll;
    bool reset = false;
    for (;;) {
        const long n = read_some(e, fd, random);
        if (n == 0 || n == -ECONNRESET) {
            reset = n != 0;
            break;
        }
        check(e, n, "reading from a writer that is killed");
        if (n == -EAGAIN) {
            wait_for(e, fd, -1, by_poll, true, false);
        }
    }
    while (writer.active) {
        usleep(100);
    }
    // A process that is killed with a frame unread resets the connection, and what its kernel has not yet sent is lost:
    // rspreload-ofi(7), BUGS. It must not look like the end of the stream, then.
    if (e.in < writer.out && !reset) {
        fail("connection %u (path %d): of %llu bytes that a killed process had written, %llu were read", e.id,
             e.path.load(), static_cast<unsigned long long>(writer.out), static_cast<unsigned long long>(e.in));
    }
    shared->killed_reset += writer.path >= 2 && reset ? 1 : 0;
    close(fd);
    shared->done[kill_action].fetch_add(1);
    e.active = false;
}

} // namespace torture
