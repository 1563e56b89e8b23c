// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Processes of their own, to which connections are passed as descriptors (SCM_RIGHTS). There is one for each
// connection: with a common one, a connection would wait for its peer, which waits for its turn.
#pragma once

#include <cstdint>
#include <vector>

#include "preload/test/torture_parts/random.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

class Helpers {
  public:
    // They end with the process that starts them.
    explicit Helpers(uint32_t count);

    // A helper drives the end. With `back`, the sender closes its descriptor and gets another one back.
    void pass(End& e, int& fd, uint64_t quota, uint32_t style, bool back, Random& random) const;

  private:
    std::vector<int> sockets_;
};

} // namespace torture
