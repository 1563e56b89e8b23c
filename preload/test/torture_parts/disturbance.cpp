// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Takes the signals, and compares the ends' progress before and after them.
#include "preload/test/torture_parts/disturbance.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "preload/test/torture_parts/clock.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

namespace {

constexpr uint64_t lively_ms = 2000;   // an end without progress for longer is not in traffic
constexpr uint64_t after_ms = 1000;    // how long, and
constexpr uint64_t after_bytes = 4096; // how far each end goes on

volatile sig_atomic_t begun = 0;
volatile sig_atomic_t done = 0;

} // namespace

void Disturbance::prepare() {
    signal(SIGUSR1, [](int) { begun = 1; });
    signal(SIGUSR2, [](int) { done = 1; });
}

Disturbance::Disturbance(const Options& options) : ends_(2 * options.connections), of_(ends_) {}

void Disturbance::begin(const std::vector<uint64_t>& since) {
    begun_ms_ = now_ms();
    for (uint32_t i = 0; i < ends_; ++i) {
        const End& e = shared->ends[i];
        of_[i].hit = e.active && !e.warming && e.path >= 2 && begun_ms_ - since[i] <= lively_ms;
        of_[i].in = e.in;
    }
}

bool Disturbance::all_went_on() const {
    for (uint32_t i = 0; i < ends_; ++i) {
        if (shared->ends[i].in < of_[i].in_done + after_bytes) {
            return false;
        }
    }
    return true;
}

void Disturbance::look(const std::vector<uint64_t>& since) {
    const uint64_t now = now_ms();
    for (uint32_t i = 0; i < ends_; ++i) {
        if (const End& e = shared->ends[i]; e.active && !e.warming && !shared->ending) {
            uint64_t& longest = begun_ms_ == 0 ? of_[i].pause_before_ms : of_[i].pause_ms;
            longest = std::max(longest, now - since[i]);
            of_[i].returned = of_[i].returned || (begun_ms_ != 0 && e.path < 2);
        }
    }
    if (begun_ms_ == 0) {
        if (begun != 0) {
            begin(since);
        }
    } else if (done_ms_ == 0) {
        if (done != 0) {
            done_ms_ = now;
            for (uint32_t i = 0; i < ends_; ++i) {
                of_[i].in_done = shared->ends[i].in;
            }
        }
    } else if (now - done_ms_ >= after_ms && all_went_on()) {
        shared->ending = true;
    }
}

void Disturbance::report() const {
    for (uint32_t i = 0; i < ends_; i += 2) {
        const Of& a = of_[i];
        const Of& b = of_[i + 1];
        printf("# %s: connection %u, longest pause %llu ms, before that %llu ms; read until then %llu and %llu bytes, "
               "after it was done %llu and %llu\n",
               !a.hit || !b.hit           ? "not hit"
               : a.returned || b.returned ? "hit, and returned"
                                          : "hit, and stayed",
               shared->ends[i].id, static_cast<unsigned long long>(std::max(a.pause_ms, b.pause_ms)),
               static_cast<unsigned long long>(std::max(a.pause_before_ms, b.pause_before_ms)),
               static_cast<unsigned long long>(a.in), static_cast<unsigned long long>(b.in),
               static_cast<unsigned long long>(shared->ends[i].in - a.in_done),
               static_cast<unsigned long long>(shared->ends[i + 1].in - b.in_done));
    }
}

} // namespace torture
