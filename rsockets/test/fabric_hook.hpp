// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the library calls in place of libfabric's functions. A test can make the opening of domains and endpoints fail,
// hold up a call where it asks for the status of a connection or begins to listen, and wait until the library has
// handled connection requests.
#pragma once

#include <atomic>

namespace rsocket_test {

struct FabricHook {
    std::atomic<bool> no_domains{false};
    std::atomic<bool> no_endpoints{false};
    std::atomic<void (*)()> before_status{nullptr}; // called where a call of the library asks for a status
    std::atomic<void (*)()> before_listen{nullptr}; // or calls fi_listen
    std::atomic<int> requests{0};                   // handled by the library: queued, or answered
};
extern FabricHook fabric_hook;

inline void await_requests(int count) {
    for (int seen = 0; (seen = fabric_hook.requests.load()) < count;) {
        fabric_hook.requests.wait(seen);
    }
}

} // namespace rsocket_test
