// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Writes to iomaps of the peer (riomap, riowrite): the transfers of riostream.
//
// The last byte of the memory marks the end of a direction. The directions of a test are numbered from 0, the client's
// first; the last transfer of each ends with its number, the others with the number before, modulo 256.
#pragma once

#include "util/streaming/session.hpp"

namespace riostream {

std::unique_ptr<streaming::Exchange> make_exchange(const streaming::Options& options);

} // namespace riostream
