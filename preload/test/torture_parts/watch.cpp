// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waits for both sides, and checks that every active end makes progress.
#include "preload/test/torture_parts/watch.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/test/torture_parts/clock.hpp"
#include "preload/test/torture_parts/disturbance.hpp"
#include "preload/test/torture_parts/killed_side.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

namespace {

void print_end(const End& e) {
    fprintf(stderr,
            "# connection %u %s: pid %d, %s by %s%s%s, written %llu of %llu, read %llu of %llu, path %d, %llu steps\n",
            e.id, e.side == 0 ? "client" : "server", e.process.load(), action_names[e.action % actions],
            style_names[e.style % styles], e.doing.load() != nullptr ? ", asleep" : "", "",
            static_cast<unsigned long long>(e.out), static_cast<unsigned long long>(e.total_out),
            static_cast<unsigned long long>(e.in), static_cast<unsigned long long>(e.total_in), e.path.load(),
            static_cast<unsigned long long>(e.steps));
}

void print_active(const Options& options) {
    for (uint32_t i = 0; i < 2 * options.per_round(); ++i) {
        if (shared->ends[i].active) {
            print_end(shared->ends[i]);
        }
    }
}

// Every connection has been upgraded, or has waited long enough for that.
bool are_warm(const Options& options) {
    for (uint32_t i = 0; i < 2 * options.connections; ++i) {
        if (shared->ends[i].active && (shared->ends[i].warming || shared->ends[i].steps == 0)) {
            return false;
        }
    }
    return true;
}

} // namespace

bool watch_round(const Options& options, const Side (&sides)[2], uint64_t& longest_pause_ms) {
    constexpr int look_ms = 10;
    bool done[2] = {false, false};
    bool warm = false;
    Disturbance disturbance(options);
    KilledSide killed_side(options);
    std::vector<uint64_t> steps(2 * options.per_round());
    std::vector<bool> busy(2 * options.per_round()); // at its last progress: it waited for nothing but bytes
    std::vector<uint64_t> since(2 * options.per_round(), now_ms());
    while (!done[0] || !done[1]) {
        for (int i = 0; i < 2; ++i) {
            pollfd one{sides[i].from, POLLIN, 0};
            char byte = 0;
            if (!done[i] && poll(&one, 1, look_ms) > 0) {
                if (read(sides[i].from, &byte, 1) != 1) {
                    int status = 0;
                    waitpid(sides[i].pid, &status, WNOHANG);
                    printf("# the %s process ended with status 0x%x\n", i == 0 ? "client" : "server", status);
                    print_active(options);
                    return false;
                }
                done[i] = true;
            }
        }
        if (!warm && are_warm(options)) {
            warm = true;
            printf("# under way: process %d\n", getpid()); // for scripts that disturb it
        }
        if (shared->failed) {
            usleep(20000);
            printf("# %s\n", shared->failure);
            print_active(options);
            return false;
        }
        for (uint32_t i = 0; i < 2 * options.per_round(); ++i) {
            const End& e = shared->ends[i];
            if (steps[i] != e.steps || !e.active) {
                if (e.active && busy[i]) {
                    longest_pause_ms = std::max(longest_pause_ms, now_ms() - since[i]);
                }
                busy[i] = e.active && !e.warming;
                steps[i] = e.steps;
                since[i] = now_ms();
            } else if (now_ms() - since[i] >
                       static_cast<uint64_t>(options.patience_s) * 1000 + (e.warming ? options.warm_up_ms : 0)) {
                printf("# connection %u %s hangs\n", e.id, e.side == 0 ? "client" : "server");
                print_active(options);
                return false;
            }
        }
        if (options.disturbed && warm) {
            disturbance.look(since);
        }
        if (options.kill_side && warm) {
            if (const int side = killed_side.look(since, sides); side >= 0) {
                done[side] = true;
            }
        }
    }
    if (options.disturbed) {
        disturbance.report();
    }
    if (options.kill_side) {
        killed_side.report();
    }
    return true;
}

} // namespace torture
