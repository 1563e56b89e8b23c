// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Those who are attacked: an echo server in one thread, and a client of it that checks every byte and how long it took.
#pragma once

#include <cstdint>

namespace hostile {

int victim(const char* file); // into which its port is written
int honest(uint16_t port, uint64_t seconds);

int connected(uint16_t port); // ends the process if it cannot
uint64_t now_ms();

} // namespace hostile
