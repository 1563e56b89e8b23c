// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The side of the soak test that connects, in processes of its own.
#pragma once

#include <string>
#include <vector>

namespace soak {

// Raises the limit of descriptors; skips the test if all connections need more.
void allow_descriptors();

// Keeps its share of the connections alive for a time: where one has ended, the next begins. However slow the machine
// is, there is one share at least. arguments: port, number of the process, milliseconds.
void role_connects(const std::vector<std::string>& arguments);

} // namespace soak
