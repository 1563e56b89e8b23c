// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What has ended of a socket's connection, and the error of it that the program was not told yet. Any thread may look
// and change at any time.
#pragma once

#include <atomic>

namespace rsockets {

struct Ending {
    std::atomic<int> error{0};             // SO_ERROR
    std::atomic<bool> receive_shut{false}; // by the program
    std::atomic<bool> send_shut{false};    // by the program
    std::atomic<bool> lost{false};         // the connection was reset, or never came about

    // Tells of the error, which is told once. 0: there is none.
    int take_error() { return error.exchange(0); }
    // True for the first loss: what comes after that tells nothing new.
    bool lose(int why) {
        if (lost.exchange(true)) {
            return false;
        }
        error.store(why);
        return true;
    }
    // For the next connection of the socket. An error stays to be told.
    void begin_anew() {
        receive_shut.store(false);
        send_shut.store(false);
        lost.store(false);
    }
};

} // namespace rsockets
