// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Chooses side and moment, kills, and compares what the survivors read with what was written.
#include "preload/test/torture_parts/killed_side.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <sys/wait.h>
#include <unistd.h>

#include "preload/test/torture_parts/clock.hpp"
#include "preload/test/torture_parts/drive.hpp"
#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/stream.hpp"

namespace torture {

namespace {

constexpr uint64_t lively_ms = 2000;     // an end without progress for longer is not in traffic
constexpr uint64_t longest_delay = 1500; // ms, from the time when all connections are under way

} // namespace

KilledSide::KilledSide(const Options& options) : connections_(options.connections), hit_(options.connections) {
    Random random(options.seed ^ 0x6b696c6c);
    side_ = static_cast<uint32_t>(random.below(2));
    delay_ms_ = random.below(longest_delay);
}

int KilledSide::look(const std::vector<uint64_t>& since, const Side (&sides)[2]) {
    const uint64_t now = now_ms();
    if (begun_ms_ == 0) {
        begun_ms_ = now;
    }
    if (killed_ms_ != 0 || now - begun_ms_ < delay_ms_) {
        return -1;
    }
    for (uint32_t i = 0; i < connections_; ++i) {
        bool hit = true;
        for (uint32_t end = 2 * i; end < 2 * i + 2; ++end) {
            const End& e = shared->ends[end];
            hit = hit && e.active && !e.warming && e.path >= 2 && now - since[end] <= lively_ms;
        }
        hit_[i] = hit;
    }
    kill(sides[side_].pid, SIGKILL);
    killed_ms_ = now_ms();
    waitpid(sides[side_].pid, nullptr, 0);
    for (uint32_t i = 0; i < connections_; ++i) {
        shared->ends[2 * i + side_].active = false;
    }
    shared->killed_side = static_cast<int>(side_);
    return static_cast<int>(side_);
}

void KilledSide::report() const {
    for (uint32_t i = 0; i < connections_; ++i) {
        const End& e = shared->ends[2 * i + 1 - side_];
        printf("# %s: connection %u, whose %s was killed; its peer read %llu of %llu bytes and %s after %lld ms\n",
               hit_[i] ? "hit" : "not hit", e.id, side_ == 0 ? "client" : "server",
               static_cast<unsigned long long>(e.in), static_cast<unsigned long long>(other_end(e).out),
               e.reset ? "a reset" : "the end",
               static_cast<long long>(e.ended_ms) - static_cast<long long>(killed_ms_));
    }
}

void finish_survivor(End& e, int fd, int error, Random& random) {
    bool reset = error == ECONNRESET;
    set_nonblocking(fd, false);
    set_receive_limit(fd, 0);
    for (;;) {
        const long n = read_some(e, fd, random);
        if (n == 0) {
            break;
        }
        if (n < 0 && n != -EINTR) {
            if (n != -ECONNRESET && n != -EPIPE) {
                fail("connection %u: behind a killed process, reading gives %s", e.id, strerror(static_cast<int>(-n)));
            }
            reset = reset || n == -ECONNRESET;
            break;
        }
    }
    e.ended_ms = now_ms();
    while (shared->killed_side < 0) {
        usleep(1000); // its last write may not be counted yet; an end without a kill is a hang
    }
    const uint64_t written = other_end(e).out;
    if (!reset && e.in < written) {
        fail("connection %u (path %d): of %llu bytes that a killed process had written, %llu were read, then the end",
             e.id, e.path.load(), static_cast<unsigned long long>(written), static_cast<unsigned long long>(e.in));
    }
    e.reset = reset;
    close(fd);
}

} // namespace torture
