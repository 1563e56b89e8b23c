// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The checked mutexes of base/mutex.hpp, under the names of this folder.
#pragma once

#include "base/mutex.hpp"

#define RSOCKET_GUARDED_BY(mutex) BASE_GUARDED_BY(mutex)
#define RSOCKET_REQUIRES(...) BASE_REQUIRES(__VA_ARGS__)
#define RSOCKET_EXCLUDES(...) BASE_EXCLUDES(__VA_ARGS__)
#define RSOCKET_UNCHECKED BASE_UNCHECKED

namespace rsockets {

using base::CheckedMutex;
using base::Guard;
using base::Mutex;
using base::RecursiveMutex;

} // namespace rsockets
