// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sockets for wake-ups between processes of different users. An eventfd is not given to another user, who could read it
// and so take wake-ups that are meant for a third. Who sends datagrams to a name can only add some; the receiver's
// filter (socket(7), SO_ATTACH_FILTER) drops all that are not the secret of eight bytes, which only peers know, and no
// descriptors come with it (SO_PASSRIGHTS, Linux 6.16; before that, there are no receivers, and frames wake).
#pragma once

#include <cstdint>

namespace preload::datagram {

// Of names on this host; unix(7), abstract addresses.
using Name = uint64_t;

// A socket that takes the secret alone; nobody waits in it. -1: the kernel does not allow it.
int receiver(Name name, uint64_t secret);
// One that is connected to the name. -1: there is no such receiver.
int sender(Name name);
// False: nobody will take it. A queue that is full is no failure, since its reader has not looked yet.
bool send(int sender, uint64_t secret);
void drain(int receiver);
// Takes the first. Enough for a reader that is woken by what arrives (EPOLLET), takes one for each wake-up, and looks
// then: there is always a place for the next.
void take_one(int receiver);

} // namespace preload::datagram
