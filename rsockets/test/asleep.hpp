// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a test knows that a call of another thread has begun to wait: the kernel says that the thread sleeps.
#pragma once

#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <string>

#include <unistd.h>

// Until a thread of this process has ended, or was asleep in many looks in a row: a call may sleep for a lock on its
// way.
inline void await_thread_asleep(long id) {
    const std::string path = "/proc/self/task/" + std::to_string(id) + "/stat";
    for (int asleep = 0; asleep < 20;) {
        std::ifstream file(path);
        if (!file) {
            return;
        }
        const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        const size_t at = text.rfind(')');
        asleep = at != std::string::npos && text.size() > at + 2 && text[at + 2] == 'S' ? asleep + 1 : 0;
        usleep(1000); // nothing tells of it
    }
}

// Starts a thread of a test (fabtests::Threads), and returns its id once it is asleep in `body`, or has ended.
template <class Threads> long start_asleep(Threads& threads, const std::function<void()>& body) {
    std::promise<long> started;
    threads.start([&started, body] {
        started.set_value(gettid());
        body();
    });
    const long id = started.get_future().get();
    await_thread_asleep(id);
    return id;
}
