// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors that another user's process has passed. A thread that closes the last reference to a file waits for as
// long as the file's maker chose: a TCP socket lingers (SO_LINGER), and a file system in user space answers each close
// when it likes. So does a thread that closes a unix socket in which such a file is queued, or that receives a message
// with more descriptors than it has space for. Neither the service nor a call of the program may wait for that. A child
// does instead, which shares this process's memory and not its table of descriptors: it has the files first, so that no
// close here is the last one, and lets go of them when it exits. A process that exits does not linger.
#pragma once

namespace preload::descriptors {

// All on the service's thread, or when that has ended.

// Closes a kept socket to another user's process, or to one that is unknown, whatever is queued there. Never waits.
void discard(int socket);

// The descriptors of the next message on a socket, as a child has found them; it holds them while the object lives.
class Inspection {
  public:
    explicit Inspection(int socket);
    Inspection(const Inspection&) = delete;
    Inspection& operator=(const Inspection&) = delete;
    ~Inspection();
    // Whether they are as few as a message of the library's carries, and each is a small memory file that cannot grow,
    // or a pipe: such can be received and closed.
    [[nodiscard]] bool harmless() const;

  private:
    struct Child* const child_;
};

// A forked child has none of its parent's children.
void forget_children();

} // namespace preload::descriptors
