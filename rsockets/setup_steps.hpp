// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether the service thread keeps watching connections while some are being set up. The steps of a core between two
// events wake it as data does, so some wake-ups without an event do not count as data that flows. After more of them it
// backs off: a connection to a peer that never answers must not make it contend with threads that receive.
#pragma once

#include <cstddef>

namespace rsockets {

class SetupSteps {
  public:
    // On verbs, a connect wakes the thread once between its events; another connection may do so at the same time.
    static constexpr int max_without_event = 4;

    // Once for each turn of the thread. `events`: those that the turn has dispatched.
    [[nodiscard]] bool expects_event(bool setting_up, size_t events) {
        without_event_ =
            !setting_up || events != 0 ? 0 : without_event_ + (without_event_ <= max_without_event ? 1 : 0);
        return setting_up && without_event_ <= max_without_event;
    }

  private:
    int without_event_ = 0; // turns in a row
};

} // namespace rsockets
