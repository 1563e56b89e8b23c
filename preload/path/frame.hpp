// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a TCP connection carries in a direction whose bytes are in the ring: frames of one byte, and nothing else. They
// wake whoever sleeps on the socket, in any process and by any call, since they are data to the kernel.
#pragma once

#include <cstdint>

namespace preload::path {

enum class Frame : uint8_t {
    wake = 0xb1,   // look at the ring
    resume = 0xb2, // the ring has ended at its head; what follows is the program's bytes again
};

} // namespace preload::path
