// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections by token, so that a process with ten thousand does not search them all for each message about one. Both
// ends of a connection have the same token, and may be in one process. Connections are never freed; a lookup checks
// that the connection still has the token. On the service's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "preload/connection/connection.hpp"
#include "preload/connection/kept_state.hpp"

namespace preload::rendezvous {

class TokenIndex {
  public:
    static constexpr size_t set_size = 7;

    void note(uint64_t token, Connection& c) {
        Set& set = set_of(token);
        const auto stale = [&](Connection* one) {
            return one == nullptr || one == &c || &set_of(token_of(*one)) != &set;
        };
        const auto place = std::find_if(set.members.begin(), set.members.end(), stale);
        if (place != set.members.end()) {
            *place = &c;
        } else {
            set.overflown = true;
        }
    }

    // Calls body(connection) for each that has the token. False: the index does not have all of them.
    template <class Body> bool for_each(uint64_t token, Body&& body) const {
        const Set& set = set_of(token);
        if (set.overflown) {
            return false;
        }
        for (Connection* one : set.members) {
            if (one != nullptr && token_of(*one) == token) {
                body(*one);
            }
        }
        return true;
    }

  private:
    struct Set {
        std::array<Connection*, set_size> members;
        bool overflown;
    };
    static constexpr size_t sets = 4096;

    // 0: it is closed.
    static uint64_t token_of(const Connection& c) {
        const KeptState kept(c, c.fd.load());
        return kept ? kept.get()->token : 0;
    }
    // Tokens are random.
    Set& set_of(uint64_t token) { return sets_[token % sets]; }
    [[nodiscard]] const Set& set_of(uint64_t token) const { return sets_[token % sets]; }

    std::array<Set, sets> sets_; // zero-initialized, as mapped memory is: pages that are not needed are not touched
};

} // namespace preload::rendezvous
