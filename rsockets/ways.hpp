// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What libfabric has said of the way to an address, kept for a second. On verbs each such request resolves the address
// over the wire, as making the endpoint does again, and all providers are asked: for a program that connects and closes
// in a row that is a good part of the time. A way that fails is forgotten.
#pragma once

#include <chrono>
#include <vector>

#include "base/owned_fid.hpp"
#include "rsockets/address.hpp"
#include "rsockets/mutex.hpp"

namespace rsockets {

class Ways {
  public:
    using Clock = std::chrono::steady_clock;

    // The answer for these addresses, with the port of `to`; null if there is none that is young enough.
    base::Info find(const Address& to, const Address& from, Clock::time_point now);
    // `found`: the first of the answers to a request that was made at `now`.
    void keep(const Address& to, const Address& from, const fi_info& found, Clock::time_point now);
    void forget();

  private:
    struct Way {
        Address to; // without ports
        Address from;
        base::Info info;
        Clock::time_point asked;
    };

    Mutex mutex_; // a leaf
    std::vector<Way> ways_ RSOCKET_GUARDED_BY(mutex_);
};

} // namespace rsockets
