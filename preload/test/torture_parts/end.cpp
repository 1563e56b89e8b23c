// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Awaits the upgrade, takes turns, and ends the connection.
#include "preload/test/torture_parts/end.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/test/torture_parts/clock.hpp"
#include "preload/test/torture_parts/drive.hpp"
#include "preload/test/torture_parts/execute.hpp"
#include "preload/test/torture_parts/fork.hpp"
#include "preload/test/torture_parts/killed_side.hpp"
#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/stream.hpp"

namespace torture {

namespace {

// Actions that hand a connection over, by SCM_RIGHTS or exec.
constexpr uint32_t handing_over = 1U << pass_action | 1U << keep_action | 1U << exec_action;

void await_upgrade(Round& round, End& e, int fd, Random& random) {
    const uint64_t limit_ms = round.options.warm_up_ms;
    // An attempt that is made before both workers are there is lost: one connection goes ahead.
    const bool paced = round.options.pace_ms != 0;
    while (paced && index_of(e) >= 2 && round.warm == 0) {
        usleep(20000);
    }
    const uint64_t began = now_ms();
    while (path_of != nullptr && path_of(fd) < 2 && now_ms() - began < limit_ms && e.out < e.total_out) {
        drive(e, fd, 1 + random.below(64), by_poll, random);
        usleep(paced ? 50000 : 500); // attempts are repeated after so many calls
    }
    ++round.warm;
}

// Endless traffic ends at a position ahead, so that its reader knows of it with the last byte at latest.
void end_writing(End& e, Random& random) {
    const uint64_t last = e.out + random.size(max_size);
    shared->ends[index_of(e) ^ 1].total_in = last;
    e.total_out = last;
}

void end_connection(const Options& options, End& e, int fd, bool half_closed, Random& random) {
    // 0: each ends its own direction and reads the other's end. 1, 2: one side closes at once. 3: one ends its
    // direction.
    const bool closes_at_once = (e.plan == 1 && e.side == 0) || (e.plan == 2 && e.side == 1);
    // With its peer gone, nobody can send again what is unread in the ring: a connection that is handed over then is
    // reset, which is a limit of the library.
    const End& other = other_end(e);
    while (closes_at_once && (options.allowed & handing_over) != 0 && other.in < other.total_in) {
        usleep(500);
    }
    if (!closes_at_once) {
        if (!half_closed && (e.plan == 0 || (e.plan == 3 && e.side == 0))) {
            if (shutdown(fd, SHUT_WR) != 0) {
                fail("shutdown: %s", strerror(errno));
            }
        }
        e.doing = "waiting for the end";
        if (random.below(2) == 0) {
            set_nonblocking(fd, true);
            wait_for(e, fd, -1, by_poll, true, false);
        } else {
            set_nonblocking(fd, false);
        }
        long n = 0;
        do {
            n = read_some(e, fd, random);
        } while (n == -EINTR);
        if (n == -EAGAIN && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) {
            set_nonblocking(fd, false);
            n = read_some(e, fd, random);
        }
        if (n != 0) {
            char name[96];
            name_of(e, name);
            fail("%s: at the end of plan %u, reading gives %s", name, e.plan, strerror(static_cast<int>(-n)));
        }
    }
    close(fd);
}

// Until all is written and read.
void take_turns(Round& round, End& e, int& fd, bool& half_closed, Random& random) {
    e.warming = true;
    await_upgrade(round, e, fd, random);
    round.await_all_warm();
    ++e.steps;
    e.warming = false;
    while (e.out < e.total_out || e.in < e.total_in) {
        if (shared->ending && e.total_out == endless) {
            end_writing(e, random);
        }
        if (!half_closed && e.out == e.total_out && e.plan == 0 && random.below(2) == 0) {
            shutdown(fd, SHUT_WR); // long before the other direction's end
            half_closed = true;
        }
        uint32_t action = random.below(2) == 0 ? static_cast<uint32_t>(drive_action)
                                               : static_cast<uint32_t>(random.below(kill_action));
        if (!round.options.allows(action)) {
            action = drive_action;
        }
        const auto style = static_cast<uint32_t>(random.below(styles));
        const uint64_t quota = random.size(max_size);
        e.action = action;
        e.style = style;
        switch (action) {
        case fork_action:
            fork_and_split(e, fd, quota, random);
            break;
        case share_action:
            fork_and_share(e, fd, quota, random);
            break;
        case child_action:
            fork_and_wait(e, fd, quota, style, random);
            break;
        case pass_action:
        case keep_action:
            round.helpers.pass(e, fd, quota, style, action == pass_action, random);
            break;
        case exec_action:
            execute(e, fd, quota, style, random);
            break;
        default:
            drive(e, fd, quota, style, random);
        }
        shared->done[action].fetch_add(1);
        e.process = getpid();
        if (round.options.pace_ms != 0) {
            usleep(static_cast<useconds_t>(random.below(uint64_t{1000} * round.options.pace_ms)));
        }
    }
}

} // namespace

void run_end(Round& round, End& e, int fd) {
    Random random(round.options.seed ^ (uint64_t{e.id} << 20) ^ (uint64_t{e.side} << 50));
    bool half_closed = false;
    try {
        take_turns(round, e, fd, half_closed, random);
        e.action = drive_action;
        end_connection(round.options, e, fd, half_closed, random);
    } catch (const PeerGone& gone) {
        finish_survivor(e, fd, gone.error, random);
    }
    e.active = false;
}

} // namespace torture
