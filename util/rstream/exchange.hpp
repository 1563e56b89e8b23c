// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sends and receives bytes: the transfers of rstream.
#pragma once

#include "util/streaming/session.hpp"

namespace rstream {

std::unique_ptr<streaming::Exchange> make_exchange(const streaming::Options& options);

} // namespace rstream
