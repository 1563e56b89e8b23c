// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Ended directions of a socket's connection, and its unreported error. Any thread may read and change it at any time.
#pragma once

#include <atomic>

namespace rsockets {

struct Ending {
    std::atomic<int> error{0};             // SO_ERROR
    std::atomic<bool> receive_shut{false}; // by the program
    std::atomic<bool> send_shut{false};    // by the program
    std::atomic<bool> lost{false};         // the connection was reset, or never established

    // Returns the error and clears it, so that it is reported once. 0: none.
    int take_error() { return error.exchange(0); }
    // True for the first loss: a later error adds nothing.
    bool lose(int why) {
        if (lost.exchange(true)) {
            return false;
        }
        error.store(why);
        return true;
    }
    // Reset for the next connection of the socket. An error stays to be reported.
    void begin_anew() {
        receive_shut.store(false);
        send_shut.store(false);
        lost.store(false);
    }
};

} // namespace rsockets
