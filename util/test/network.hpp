// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What tests need to know of this host's network: IPv6, and ports.
#pragma once

#include <string>

namespace util_test {

bool has_ipv6();

// A port of 127.0.0.1 that is bound, so that nobody else is given it, and refuses. Who has SO_REUSEADDR may listen on
// it.
class HeldPort {
  public:
    HeldPort();
    ~HeldPort();
    HeldPort(const HeldPort&) = delete;
    HeldPort& operator=(const HeldPort&) = delete;

    // Waits until someone listens there.
    void await_listener() const;

    std::string port;

  private:
    int fd_;
};

} // namespace util_test
