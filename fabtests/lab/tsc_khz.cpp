// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Prints the frequency of this machine's time-stamp counter in kHz, which the lab's guest has too. A guest measures it
// by itself as it boots, and where that is disturbed by other load, its clock goes many times too fast for all its
// life.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>

#include <x86intrin.h>

namespace {

struct Moment {
    uint64_t ticks;
    uint64_t ns;
};

// Of some readings, the one that was interrupted least.
Moment now() {
    Moment best{};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 20; ++i) {
        timespec time{};
        const uint64_t before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC, &time);
        const uint64_t after = __rdtsc();
        if (after - before < least) {
            least = after - before;
            best = {before + least / 2,
                    static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec)};
        }
    }
    return best;
}

} // namespace

int main() {
    std::array<uint64_t, 5> khz{};
    for (uint64_t& one : khz) {
        const Moment begin = now();
        const timespec pause{0, 10000000};
        nanosleep(&pause, nullptr);
        const Moment end = now();
        one = (end.ticks - begin.ticks) * 1000000 / std::max<uint64_t>(end.ns - begin.ns, 1);
    }
    std::sort(khz.begin(), khz.end());
    printf("%llu\n", static_cast<unsigned long long>(khz[khz.size() / 2]));
    return 0;
}
