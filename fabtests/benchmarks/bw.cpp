// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_stream_bw: one-way bandwidth. The client sends transfers of one size; the server answers when it has received the
// last. CPU time is the sum of both processes.
#include <chrono>
#include <cstdio>
#include <cstring>

#include <sys/resource.h>

#include "fabtests/common/pattern.hpp"
#include "fabtests/common/transport.hpp"
#include "util/common/json.hpp"

using namespace fabtests;

namespace {

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

struct Answer {
    double cpu;
    char padding[56]; // as long as the smallest transfers measured elsewhere
};

int serve(const Options& o, Transport& t) {
    std::vector<char> buffer(o.size);
    Answer answer{};
    for (size_t i = 0; i < o.warmup; ++i) {
        t.recv(buffer.data(), o.size);
    }
    t.send(&answer, sizeof(answer));
    const double before = cpu_seconds();
    for (size_t i = 0; i < o.iterations; ++i) {
        t.recv(buffer.data(), o.size);
        if (o.verify && o.kind() != Kind::core && !matches(buffer.data(), o.size, (o.warmup + i) * o.size)) {
            throw std::runtime_error("wrong bytes in transfer " + std::to_string(i));
        }
    }
    answer.cpu = cpu_seconds() - before;
    t.send(&answer, sizeof(answer));
    t.flush();
    t.close();
    return 0;
}

int measure(const Options& o, Transport& t) {
    std::vector<char> buffer(o.size);
    Answer answer{};
    const auto send = [&](size_t i) {
        if (o.verify) {
            fill(buffer.data(), o.size, i * o.size);
        }
        t.send(buffer.data(), o.size);
    };
    for (size_t i = 0; i < o.warmup; ++i) {
        send(i);
    }
    t.flush();
    t.recv(&answer, sizeof(answer));
    const double cpu_before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < o.iterations; ++i) {
        send(o.warmup + i);
    }
    t.flush();
    t.recv(&answer, sizeof(answer));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double bytes = static_cast<double>(o.size) * static_cast<double>(o.iterations);
    // A bare core's write does not notify its target: the server's share is then omitted.
    const double cpu = cpu_seconds() - cpu_before + (o.kind() == Kind::core ? 0 : answer.cpu);
    const double mbps = bytes / seconds / 1e6;
    if (o.json) {
        const util::Json json = {{"test", "bw"},
                                 {"provider", o.provider},
                                 {"size", o.size},
                                 {"iterations", o.iterations},
                                 {"buffers", o.buffers},
                                 {"seconds", seconds},
                                 {"mb_per_s", mbps},
                                 {"us_per_transfer", seconds / static_cast<double>(o.iterations) * 1e6},
                                 {"cpu_s_per_gb", cpu / (bytes / 1e9)}};
        printf("%s\n", util::json_text(json).c_str());
    } else {
        printf("%-8s %10s %10s %12s %12s %12s\n", "provider", "bytes", "transfers", "MB/s", "us/transfer", "CPU s/GB");
        printf("%-8s %10zu %10zu %12.2f %12.3f %12.3f\n", o.provider.c_str(), o.size, o.iterations, mbps,
               seconds / static_cast<double>(o.iterations) * 1e6, cpu / (bytes / 1e9));
    }
    t.close();
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    const Options o = parse_options(argc, argv, "fi_stream_bw: one-way bandwidth", {});
    return run(o, [&] {
        const auto t = open_transport(o, std::max(o.size, sizeof(Answer)));
        return o.is_client() ? measure(o, *t) : serve(o, *t);
    });
}
