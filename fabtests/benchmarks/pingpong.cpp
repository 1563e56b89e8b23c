// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_stream_pingpong: latency, as half of a round trip. --wait poll sleeps on the descriptor instead of spinning.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#include "fabtests/common/pattern.hpp"
#include "fabtests/common/transport.hpp"
#include "util/common/json.hpp"

using namespace fabtests;

int main(int argc, char** argv) {
    Options defaults;
    defaults.size = 64;
    defaults.iterations = 10000;
    defaults.warmup = 100;
    const Options o = parse_options(argc, argv, "fi_stream_pingpong: latency, half of a round trip", defaults);
    return run(o, [&] {
        const auto t = open_transport(o, o.size);
        std::vector<char> out(o.size);
        std::vector<char> in(o.size);
        std::vector<double> times;
        times.reserve(o.iterations);
        const bool check = o.verify && o.kind() != Kind::core;
        for (size_t i = 0; i < o.warmup + o.iterations; ++i) {
            if (check) {
                fill(out.data(), o.size, i);
            }
            const auto start = std::chrono::steady_clock::now();
            if (o.is_client()) {
                t->send(out.data(), o.size);
                t->recv(in.data(), o.size);
            } else {
                t->recv(in.data(), o.size);
                t->send(out.data(), o.size);
            }
            if (i >= o.warmup) {
                times.push_back(
                    std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 2);
            }
            if (check && !matches(in.data(), o.size, i)) {
                throw std::runtime_error("wrong bytes in round " + std::to_string(i));
            }
        }
        t->flush();
        if (o.is_client()) {
            std::sort(times.begin(), times.end());
            const auto at = [&](double q) {
                return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))];
            };
            if (o.json) {
                const double mean =
                    std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
                const util::Json json = {{"test", "pingpong"},
                                         {"provider", o.provider},
                                         {"size", o.size},
                                         {"iterations", o.iterations},
                                         {"wait", o.poll ? "poll" : "spin"},
                                         {"p50_us", at(0.5)},
                                         {"p99_us", at(0.99)},
                                         {"p999_us", at(0.999)},
                                         {"mean_us", mean}};
                printf("%s\n", util::json_text(json).c_str());
            } else {
                printf("%-8s %10s %10s %10s %10s %10s\n", "provider", "bytes", "rounds", "p50 us", "p99 us",
                       "p99.9 us");
                printf("%-8s %10zu %10zu %10.3f %10.3f %10.3f\n", o.provider.c_str(), o.size, o.iterations, at(0.5),
                       at(0.99), at(0.999));
            }
        }
        t->close();
        return 0;
    });
}
