// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The epoll sets that a number is in, while what it stands for changes.
#pragma once

#include <array>

#include <sys/epoll.h>

#include "rsockets/preload/carrier.hpp"

namespace preload::epoll_sets {

class Followers {
  public:
    // Out of all sets that the number is in.
    void take_out(const Carrier& carrier, int number);
    // Into the same sets again, with the same events. A set of the kernel's becomes one of the library's for something
    // that is the library's.
    void put_back(const Carrier& carrier, int number, bool of_library);

  private:
    struct Place {
        int set;
        epoll_event event;
    };
    static constexpr size_t most = 32; // sets that one number is in
    std::array<Place, most> places_{};
    size_t count_ = 0;
};

} // namespace preload::epoll_sets
