// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// An epoll set of a case.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "rsockets/test/conformance/conformance.hpp"

namespace conformance {

class Set {
  public:
    explicit Set(Case& c) : c_(c), fd(c.track(c.s.epoll_create(EPOLL_CLOEXEC))) {
        if (fd < 0) {
            throw Failure("epoll_create");
        }
    }

    int control(int operation, int what, uint32_t events, uint64_t data = 0) const {
        epoll_event event{};
        event.events = events;
        event.data.u64 = data;
        return c_.s.epoll_ctl(fd, operation, what, &event);
    }

    // Waits for at most `timeout` milliseconds, and writes down what there is.
    int note(const char* what, int timeout = 0, int most = 8) const {
        std::vector<epoll_event> events(static_cast<size_t>(most));
        const int count = c_.s.epoll_wait(fd, events.data(), most, timeout);
        c_.note(std::string(what) + ": " + std::to_string(count));
        events.resize(static_cast<size_t>(std::max(count, 0)));
        std::sort(events.begin(), events.end(),
                  [](const epoll_event& a, const epoll_event& b) { return a.data.u64 < b.data.u64; });
        for (const epoll_event& one : events) {
            c_.note_events(("  " + std::to_string(one.data.u64)).c_str(), one.events);
        }
        return count;
    }

  private:
    Case& c_;

  public:
    const int fd;
};

// For an event that has to come.
inline constexpr int in_time = 20000;
// For one that must not.
inline constexpr int a_moment = 40;

} // namespace conformance
