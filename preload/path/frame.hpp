// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// In a direction whose bytes are in the ring, TCP carries frames of one byte, and nothing else. They wake every thread
// that sleeps on the socket, in any process and by any call, since they are data to the kernel.
#pragma once

#include <cstdint>

namespace preload::path {

enum class Frame : uint8_t {
    wake = 0xb1,   // check the ring
    resume = 0xb2, // the ring ends at its head; bytes of the program follow
};

} // namespace preload::path
