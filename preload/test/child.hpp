// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A child process that runs a part of a test.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace preload_test {

// It has ended by itself, with status 0.
inline void await_end(pid_t child) {
    int status = -1;
    EXPECT(child > 0);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

// body runs in a child, and returns 0, or the number of what is wrong.
template <class Body> void in_child(Body&& body) {
    const pid_t child = fork();
    if (child == 0) {
        _exit(body());
    }
    await_end(child);
}

} // namespace preload_test
