// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Bounds what is done again and again, and takes as long as there are processes and descriptors on the host, to a share
// of the processor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace preload::fabric {

// Of this thread, in ns: on a busy machine, the time that passes says nothing of what something costs.
inline uint64_t processor_time_ns() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000U + static_cast<uint64_t>(time.tv_nsec);
}

// When to do next, as `now` in ns, what is due after a pause and has begun at that processor_time_ns().
inline uint64_t after(uint64_t now, uint64_t pause, uint64_t begin) {
    constexpr uint64_t share = 50;
    return now + std::max(pause, share * (processor_time_ns() - begin));
}

} // namespace preload::fabric
