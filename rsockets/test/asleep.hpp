// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a test knows that a call of another thread has begun to wait: the kernel says that the thread sleeps.
#pragma once

#include <fstream>
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
