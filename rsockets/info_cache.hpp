// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Cache of fi_getinfo results per address, kept for one second. On verbs, each request resolves the address over the
// wire, as creating the endpoint does again, and queries all providers: a good part of the time of a program that
// connects and closes in a row. A failed connect clears the cache.
#pragma once

#include <chrono>
#include <vector>

#include "base/owned_fid.hpp"
#include "rsockets/address.hpp"
#include "rsockets/mutex.hpp"

namespace rsockets {

class InfoCache {
  public:
    using Clock = std::chrono::steady_clock;

    // The cached result for these addresses, with the port of `to`; null if there is none, or it is too old.
    base::Info find(const Address& to, const Address& from, Clock::time_point now);
    // `found`: the first result of a request that was made at `now`.
    void keep(const Address& to, const Address& from, const fi_info& found, Clock::time_point now);
    void forget();

  private:
    struct Entry {
        Address to; // without ports
        Address from;
        base::Info info;
        Clock::time_point asked;
    };

    Mutex mutex_; // a leaf: nothing else is locked under it
    std::vector<Entry> entries_ RSOCKET_GUARDED_BY(mutex_);
};

} // namespace rsockets
