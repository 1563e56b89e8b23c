// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Table from descriptors to objects. Its chunks are allocated on demand and never move, so that a lookup takes only the
// lock of the slot.
#pragma once

#include <functional>

#include "rsockets/object.hpp"

namespace rsockets::fd_table {

// The object behind a descriptor; empty if the descriptor is not ours.
Use find(int fd);

// Assigns an open descriptor of the kernel to an object. If the descriptor was closed without rclose, or replaced, its
// old object loses it, and hangs up if that was its last. False if out of memory, or if the descriptor is beyond the
// capacity.
bool put(int fd, const Ref<Object>& object);

// Removes the descriptor. If it was the object's last, the object hangs up when the result is destroyed. Empty if the
// descriptor was not ours, or another thread removed it first.
Use take(int fd);

// Clears the table without a call on any object: in the child after a fork, where they are the parent's. Calls
// `inherited` with each descriptor.
void forget_all(const std::function<void(int)>& inherited);

// Calls `body` with each object, once for each of its descriptors.
void for_each(const std::function<void(int, Object&)>& body);

} // namespace rsockets::fd_table
