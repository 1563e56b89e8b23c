// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The order in which a stream's locks are taken, in a form that clang checks (base/mutex.hpp). Each lock is private to
// its part, so that one part cannot name another's: it names the level between them instead.
//
//   Receive's
//   ---- below_receive
//   the event dispatcher's
//   Transmit's or Completions'; never one within the other
//
// The locks of the other parts are leaves. None is held during a call that can block, as registering memory can. A
// sending and a receiving thread share none of them for longer than reading completions takes.
#pragma once

#include "base/mutex.hpp"

namespace rstream {

class BASE_CHECKED(capability("lock level")) LockLevel {};

inline constexpr LockLevel below_receive{};

} // namespace rstream
