// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connect attempt and its result, which is reported once: by connect(2) itself, or after a non-blocking one by poll
// and SO_ERROR. A thread may cancel an attempt and begin the next one while another waits for it, so each has a number.
//
// Threads: the socket's mutex guards all but `number` and `shown`.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/descriptor.hpp"
#include "base/eventfd.hpp"

namespace rsockets {

class ConnectAttempt {
  public:
    [[nodiscard]] uint64_t number() const { return number_.load(); } // of the last attempt; from 1 on
    [[nodiscard]] bool reported() const { return reported_; }

    // Begins the next attempt, and returns its number.
    uint64_t begin() {
        signal_.reset();
        reported_ = false;
        return number_.fetch_add(1) + 1;
    }
    // The result was reported, or needs no report.
    void report() {
        reported_ = true;
        signal_.reset();
    }

    // ---- for programs that poll the kernel's descriptor of the socket, an epoll set

    // Makes the set readable once `finish` is called, until `seen`. 0 or an errno.
    int show_in(int epoll_fd) {
        signal_ = base::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        epoll_event event{};
        event.events = EPOLLIN;
        if (!signal_.open() || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, signal_.get(), &event) != 0) {
            return errno;
        }
        shown_.store(true);
        return 0;
    }
    void finish() {
        if (signal_.open()) {
            base::notify(signal_.get());
        }
    }
    [[nodiscard]] bool shown() const { return shown_.load(); }
    void seen() {
        signal_.reset();
        shown_.store(false);
    }

  private:
    std::atomic<uint64_t> number_{0}; // changes with the socket's mutex held
    bool reported_ = true;
    base::Descriptor signal_;
    std::atomic<bool> shown_{false}; // `signal_` is in the set
};

} // namespace rsockets
