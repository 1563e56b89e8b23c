// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Machine-readable formats of a snapshot: JSON, and the text format of Prometheus.
#pragma once

#include <string>

#include "util/rsstat/snapshot.hpp"

namespace rsstat {

// One object, on one line. With before, it includes rates since then.
std::string json_text(const Snapshot& now, const Snapshot* before);
std::string prometheus_text(const Snapshot& now);

} // namespace rsstat
