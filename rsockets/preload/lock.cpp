// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/lock.hpp"

namespace preload {

constinit pthread_mutex_t Changing::mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void Changing::forget() { mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; }

} // namespace preload
