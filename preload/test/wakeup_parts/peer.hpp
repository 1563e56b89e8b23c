// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The other end of connections, in a process of its own with a service of its own. It does what it is told by a pair of
// unix sockets, one command after the other.
#pragma once

#include <vector>

#include <sys/types.h>

namespace wakeup_test {

enum class Do : int {
    connect,   // value: the port
    path,      // returns that of the connection
    send,      // value bytes, blocking
    receive,   // value bytes, blocking
    echo,      // value bytes, each one as it comes
    drain,     // whatever there is, without blocking
    shut,      // shutdown(SHUT_WR)
    close,     // the connection
    narrow,    // the kernel takes few bytes from now on
    end,       // closes the connection, and ends its service at once: value is an End; there is no answer
    wait,      // until the parent is stopped by a signal
    die,       // by SIGKILL; there is no answer
    block,     // sends, at most value bytes, until it would block; returns how many
    sleep_all, // one thread for each connection, asleep in poll until a byte has come; returns when all sleep
    await_all, // until all these threads have their byte; -1: not in time
};

enum End : long { by_exit, by_system_call, by_another_program, by_filter };

// Byte number `position` of those that Do::send and Do::block send, over all of a peer's connections.
constexpr char sent_byte(long position) {
    constexpr long period = 251; // which divides no size of a buffer
    return static_cast<char>(position % period);
}

class Peer {
  public:
    explicit Peer(int connections = 1); // each upgraded
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;
    ~Peer();

    [[nodiscard]] int fd(size_t i = 0) const { return fds_[i]; } // this process's end
    [[nodiscard]] size_t count() const { return fds_.size(); }
    [[nodiscard]] pid_t pid() const { return pid_; }
    void close_own(size_t i = 0); // this process's end
    void tell(Do what, long value = 0, int connection = 0) const;
    [[nodiscard]] long answer() const; // to the oldest command without; throws if none comes
    long ask(Do what, long value = 0, int connection = 0) const {
        tell(what, value, connection);
        return answer();
    }
    void kill(int signal) const;
    void stop() const;                  // by SIGSTOP, until all its threads have stopped
    void ping_pong(size_t i = 0) const; // one byte each way
    void upgrade(size_t i) const;

  private:
    struct Command;
    [[noreturn]] static void serve(int control);

    pid_t pid_ = -1;
    int control_ = -1;
    std::vector<int> fds_;
};

} // namespace wakeup_test
