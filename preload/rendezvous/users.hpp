// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Whether a user id of the kernel's identifies a user.
#pragma once

#include <sys/types.h>

namespace preload::rendezvous {

// In a user namespace, the kernel shows each user that has no id there as the overflow id: proc(5),
// /proc/sys/kernel/overflowuid; user_namespaces(7). That two of them have it does not make them the same user.
//
// Threads: any. Reads two files, if `user` could be the overflow id.
bool may_be_anyone(uid_t user);

} // namespace preload::rendezvous
