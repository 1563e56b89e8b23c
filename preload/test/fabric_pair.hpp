// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections that go by the fabric, though both ends are on this host, for tests that run under the preload library.
#pragma once

#include <memory>
#include <stdexcept>

#include "preload/test/pair.hpp"

namespace preload_test {

// Both ends are this process's: each has the service, and the worker, of the process. A number that connect(2) chooses
// may be that of other tests' connections in TIME_WAIT, too: then the tcp core, which has the kernel's ports, cannot
// listen there for a minute.
struct FabricPair : Connected {
    FabricPair()
        : Connected([](int, int fd) {
              sockaddr_in own{};
              own.sin_family = AF_INET;
              own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
              EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
          }) {}
    [[nodiscard]] bool is_on_fabric() const { return path_of(a) == 3 && path_of(b) == 3; }
};

// A busy machine may start a worker too late for the first attempt.
inline std::unique_ptr<FabricPair> on_fabric() {
    constexpr int most = 5000; // exchanges
    for (int connections = 0; connections < 5; ++connections) {
        auto pair = std::make_unique<FabricPair>();
        for (int i = 0; i < most && !pair->is_on_fabric(); ++i) {
            pair->exchange();
            usleep(1000);
        }
        if (pair->is_on_fabric()) {
            return pair;
        }
    }
    throw std::runtime_error("no connection is on the fabric");
}

} // namespace preload_test
