// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The other end of a socket pair that a library has created for itself and exposes one end of.
#pragma once

#include <cstdint>

namespace rstream {

// A file: its inode and its device in the kernel's encoding.
struct Inode {
    uint64_t number = 0;
    uint64_t device = 0;
    bool operator==(const Inode&) const = default;
};

// The inode of an open fd; false if there is none.
bool find_inode(int fd, Inode& out);

// The fd in this process of the other end of `fd`, whose inode is `inode`; -1 if `fd` is no AF_UNIX socket, or the end
// is closed or elsewhere. Usually one fd is checked; all fds of the process at worst.
int other_end(int fd, const Inode& inode);

} // namespace rstream
