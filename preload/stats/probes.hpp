// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The library's USDT probes.
#pragma once

#include "base/probes.hpp"

#define RSPRELOAD_PROBE(name, a, b) BASE_PROBE(rspreload, name, a, b)
