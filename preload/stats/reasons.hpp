// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Texts of the reasons why a connection uses the kernel: for records, and for rsstat.
#pragma once

#include "preload/connection/state.hpp"

namespace preload {

const char* text_of(Reason reason);

} // namespace preload
