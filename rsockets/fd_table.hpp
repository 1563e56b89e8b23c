// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// From descriptor numbers to objects. A table of chunks that are made as numbers need them and never move, so that a
// look-up takes no lock but that of the slot.
#pragma once

#include <functional>

#include "rsockets/object.hpp"

namespace rsockets::fd_table {

// The object behind a number; none if the number is not ours.
Use find(int fd);

// Gives a number, which is an open descriptor of the kernel's, to an object. A number that was closed behind our back
// loses its old object. False for want of memory, or if the number is beyond all sense.
bool put(int fd, const Ref<Object>& object);

// Takes the number back; the object hangs up when the answer goes, if this was its last. None if the number was not
// ours, or another thread was quicker.
Use take(int fd);

// Forgets all without a call on any object: in the child after a fork, where they are the parent's. `inherited` is
// given each number.
void forget_all(const std::function<void(int)>& inherited);

// Each object, once for each of its numbers.
void for_each(const std::function<void(int, Object&)>& body);

} // namespace rsockets::fd_table
