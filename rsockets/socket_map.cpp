// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/socket.hpp"

#include <cerrno>

#include <sys/mman.h>

namespace rsockets {

int64_t Socket::map(void* buffer, size_t length, int prot, int64_t offset) {
    if ((prot & ~PROT_WRITE) != 0) { // PROT_NONE is 0
        return -EINVAL;
    }
    Connection* present = established();
    if (present == nullptr) {
        return -ENOTCONN;
    }
    const int64_t mapped = present->map(buffer, length, prot == PROT_WRITE, offset);
    if (mapped >= 0) {
        note_sent(0); // the notification of the peer may have to wait for credit
    }
    return mapped;
}

int Socket::unmap(void* buffer, size_t length) {
    Connection* present = established();
    if (present == nullptr) { // the connection may be gone, with memory that is still mapped
        present = connections_.last_established();
    }
    if (present == nullptr) {
        return -ENOTCONN;
    }
    // If the caller does not wait any more, also because its thread is cancelled: else the peer's answer would keep the
    // endpoint signalled.
    struct Withdrawal {
        Connection& of;
        void* buffer;
        size_t length;
        bool due = true;
        ~Withdrawal() {
            if (due) {
                make();
            }
        }
        bool make() { // true: the iomap has just ended
            due = false;
            return of.unmap(buffer, length, false) == 0;
        }
    } withdrawal{*present, buffer, length};
    const auto ret = repeat(true, Nanoseconds(cached_.send_timeout.load()),
                            [&]() -> ssize_t { return present->unmap(buffer, length, true); });
    if (ret == 0) {
        withdrawal.due = false;
        return 0;
    }
    return withdrawal.make() ? 0 : static_cast<int>(ret);
}

ssize_t Socket::write_map(const void* buffer, size_t length, int64_t offset, int flags) {
    if ((flags & MSG_OOB) != 0) {
        return -EOPNOTSUPP;
    }
    const bool more = (flags & MSG_MORE) != 0 || cached_.corked.load(std::memory_order_relaxed);
    const bool wait = !nonblocking() && (flags & MSG_DONTWAIT) == 0;
    const uint64_t began = disconnects();
    size_t written = 0;
    SendSpaceWaiter waiter(send_space_, wait_queue_);
    const Sent noted(*this, written);
    const auto attempt = [&]() -> ssize_t {
        do {
            Connection* present = nullptr;
            if (const ssize_t error = sendable(present, began); error != 0) {
                return error;
            }
            const size_t left = length - written;
            waiter.begin();
            const ssize_t n = present->write_map(static_cast<const char*>(buffer) + written, left,
                                                 offset + static_cast<int64_t>(written), more);
            if (n == -FI_EINVAL) {
                waiter.end(-EINVAL);
                return -EINVAL; // the peer has no such iomap; the connection is unaffected
            }
            const ssize_t taken = sending_result(*present, n, left);
            waiter.end(taken);
            if (taken < 0) {
                return taken;
            }
            written += static_cast<size_t>(taken);
        } while (written < length);
        return 0;
    };
    const ssize_t ret = repeat(wait, Nanoseconds(cached_.send_timeout.load()), attempt);
    if (written != 0) {
        keep_for_next(ret, began);
        return static_cast<ssize_t>(written);
    }
    return ret;
}

} // namespace rsockets
