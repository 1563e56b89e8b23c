// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Something that a script does to the connections from outside, announced by signals to the first process: SIGUSR1 just
// before, SIGUSR2 when it is done. The traffic goes on until then and for a while after it.
#pragma once

#include <cstdint>
#include <vector>

#include "preload/test/torture_parts/options.hpp"

namespace torture {

class Disturbance {
  public:
    // From then on, the signals are taken. Before any process is started.
    static void prepare();

    explicit Disturbance(const Options& options);

    // `since`: when each end made its last progress. Ends the traffic when it has gone on for long enough.
    void look(const std::vector<uint64_t>& since);
    // A line for each connection: whether it was hit, and returned to kernel TCP; its longest pause from then on, and
    // the longest before, for comparison.
    void report() const;

  private:
    struct Of {
        bool hit = false;      // upgraded, and with progress within the last two seconds, when the signal came
        bool returned = false; // seen on kernel TCP after that
        uint64_t in = 0;       // read until then
        uint64_t in_done = 0;
        uint64_t pause_ms = 0;
        uint64_t pause_before_ms = 0;
    };

    void begin(const std::vector<uint64_t>& since);
    bool all_went_on() const;

    uint32_t ends_;
    uint64_t begun_ms_ = 0;
    uint64_t done_ms_ = 0;
    std::vector<Of> of_;
};

} // namespace torture
