// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a program does at signals, kept while libraries are loaded: some that libfabric needs on Debian (libpsm2,
// libpsm_infinipath) put handlers of their own in place of the program's, SIGTERM's among them.
#pragma once

namespace preload {

// Signals wait as long as it lives; at its end each has the action that it had. System calls as such: what sanitizers
// make of sigaction is not asked.
class Dispositions {
  public:
    Dispositions();
    Dispositions(const Dispositions&) = delete;
    Dispositions& operator=(const Dispositions&) = delete;
    ~Dispositions();

  private:
    static constexpr int signals = 64;
    static constexpr int mask_bytes = signals / 8;
    // The kernel's struct sigaction, whatever is in it.
    struct Action {
        alignas(8) unsigned char bytes[64];
    };

    Action before_[signals + 1]{};
    bool known_[signals + 1]{};
    unsigned long long mask_ = 0;
};

} // namespace preload
