// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections between two processes, used in every way that TCP allows, at random, under the preload library: every
// byte is compared with a pattern of its position, so that one that is lost, doubled or out of order is found.
// torture.sh runs it; the long form is
//
//     RSPRELOAD_UPGRADE=test:1:100 LD_PRELOAD=$PWD/.libs/librspreload-ofi.so preload/test/torture --bytes 1000000000
//
//     --bytes N        in all (50000000)           --seed S          of all that is random (the time)
//     --connections C  at once (8)                 --rounds R        new connections each time (4)
//     --seconds T      no new round after that     --patience S      without progress is a hang (15)
//     --actions LIST   of those below, and `kill` (all)    --keep    keep the processes of a hang, for a debugger
//     --listen A       the server's IPv4 address (127.0.0.1)
//     --disturbed      one round without an end, that is, until a disturbance is over (disturbance.hpp)
//     --kill-side      one round without an end, that is, until one of the two processes is killed (killed_side.hpp)
//     --pace MS        an end rests between its turns, up to that long (0)
//     --warm-up MS     the longest time to wait for an upgrade before much is sent (300)
//
// Each end of a connection is a thread (end.hpp). It takes turns, one action each, until its bytes are through:
//
//     drive   moves bytes in one of five ways of waiting      fork    the child writes, the parent reads
//     child   the child does all, the parent goes on later    share   parent and child write and read by turns
//     pass    another process does it (SCM_RIGHTS) and passes the descriptor back
//     keep    the same, but the sender keeps its descriptor and goes on
//     exec    a child executes this program on descriptor 0, and the parent goes on later
//
// `kill` is a further connection, whose writer is killed (killed.hpp). This process starts the two that the
// connections are between (side.hpp), and watches their progress (watch.hpp) in memory that all processes share
// (state.hpp).
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>

#include <sys/wait.h>
#include <unistd.h>

#include "preload/test/torture_parts/clock.hpp"
#include "preload/test/torture_parts/disturbance.hpp"
#include "preload/test/torture_parts/execute.hpp"
#include "preload/test/torture_parts/options.hpp"
#include "preload/test/torture_parts/round.hpp"
#include "preload/test/torture_parts/side.hpp"
#include "preload/test/torture_parts/state.hpp"
#include "preload/test/torture_parts/stream.hpp"
#include "preload/test/torture_parts/watch.hpp"

using namespace torture;

namespace {

// Calls by the answer of rspreload_path, from -1 on, of all rounds.
uint64_t seen[5] = {};
// How long an end made no progress.
uint64_t longest_pause_ms = 0;

bool run_round(const Options& options, uint32_t round, const Side (&sides)[2]) {
    bool good = true;
    prepare_round(options, round);
    for (const Side& side : sides) {
        good = good && write(side.to, "r", 1) == 1;
    }
    good = good && watch_round(options, sides, longest_pause_ms);
    for (uint32_t i = 0; i < 2 * options.per_round(); ++i) {
        for (int path = 0; path < 5; ++path) {
            seen[path] += shared->ends[i].seen[path];
        }
    }
    return good;
}

// True: both processes end without an error, but for one that was killed and is gone already.
bool await_sides(const Side (&sides)[2]) {
    bool good = true;
    for (int i = 0; i < 2; ++i) {
        int status = 0;
        if (i != shared->killed_side) {
            waitpid(sides[i].pid, &status, 0);
        }
        good = good && status == 0;
    }
    return good;
}

void kill_sides(const Side (&sides)[2]) {
    for (const Side& side : sides) {
        kill(-side.pid, SIGKILL);
    }
}

void print_summary(uint64_t elapsed_ms) {
    printf("# %llu bytes verified in %.1f s;", static_cast<unsigned long long>(shared->verified),
           static_cast<double>(elapsed_ms) / 1000);
    for (uint32_t i = 0; i < actions; ++i) {
        printf(" %s %llu", action_names[i], static_cast<unsigned long long>(shared->done[i]));
    }
    printf("\n# upgraded then: %u of %u killed writers (%u of their peers read a reset), %u executed programs",
           shared->killed_moved.load(), shared->killed.load(), shared->killed_reset.load(),
           shared->executed_moved.load());
    printf("\n# longest pause: %llu ms", static_cast<unsigned long long>(longest_pause_ms));
    printf("\n# calls by path: unknown %llu, kernel %llu, careful %llu, one way %llu, both ways %llu\n",
           static_cast<unsigned long long>(seen[0]), static_cast<unsigned long long>(seen[1]),
           static_cast<unsigned long long>(seen[2]), static_cast<unsigned long long>(seen[3]),
           static_cast<unsigned long long>(seen[4]));
}

} // namespace

int main(int argc, char** argv) {
    if (is_executed(argc, argv)) {
        return resume(argv);
    }
    if (!create_state()) {
        return 2;
    }
    const std::optional<Options> parsed = parse_options(argc, argv);
    if (!parsed) {
        return 2;
    }
    const Options& options = *parsed;
    setvbuf(stdout, nullptr, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    printf("# seed %llu, %u connections, %u rounds%s\n", static_cast<unsigned long long>(options.seed),
           options.connections, options.rounds, path_of != nullptr ? "" : ", without the library");
    Disturbance::prepare();
    shared->kill_side = options.kill_side;
    const uint64_t began = now_ms();
    prepare_round(options, 0);
    const Side sides[2] = {start_side(options, 0), start_side(options, 1)};
    bool good = true;
    for (uint32_t round = 0;
         good && round < options.rounds && now_ms() - began < static_cast<uint64_t>(options.seconds) * 1000; ++round) {
        good = run_round(options, round, sides);
    }
    for (const Side& side : sides) {
        close(side.to);
    }
    if (good) {
        good = await_sides(sides);
    } else if (options.keep_hang) {
        print_summary(now_ms() - began);
        (void)await_sides(sides); // they end with this process
        return 1;
    } else {
        kill_sides(sides);
    }
    print_summary(now_ms() - began);
    return good ? 0 : 1;
}
