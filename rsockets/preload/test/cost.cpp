// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a call costs that the preloaded library has nothing to do with: nanoseconds for a byte through a pipe, by one
// write and one read, the best of several turns. For cost.sh.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include <unistd.h>

int main() {
    constexpr int turns = 20;
    constexpr int rounds = 50000;
    int ends[2];
    if (pipe(ends) != 0) {
        perror("pipe");
        return 1;
    }
    double best = std::numeric_limits<double>::max();
    for (int turn = 0; turn < turns; ++turn) {
        const auto begin = std::chrono::steady_clock::now();
        for (int round = 0; round < rounds; ++round) {
            char byte = 0;
            if (write(ends[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 1) {
                perror("pipe");
                return 1;
            }
        }
        const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
        best = std::min(best, time.count() / rounds);
    }
    printf("%.1f\n", best);
    return 0;
}
