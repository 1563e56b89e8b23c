// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/closed_recovery.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace preload::fabric {

using path::Record;

namespace {

constexpr int max_reads = 64; // in one call

bool is_for_later(int error) { return error == EAGAIN || error == EINTR; }

bool is_beginning_of_record(const Record& record, size_t bytes) {
    constexpr uint64_t magic = Record::expected_magic;
    return memcmp(&record.magic, &magic, std::min(bytes, sizeof(magic))) == 0;
}

} // namespace

// After a reset, SIOCOUTQ still reports what was under way.
bool is_unacknowledged(int tcp) {
    int queued = 0;
    tcp_info info{};
    socklen_t length = sizeof(info);
    return ioctl(tcp, SIOCOUTQ, &queued) == 0 && queued != 0 &&
           getsockopt(tcp, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state != TCP_CLOSE;
}

ClosedRecovery::ClosedRecovery(path::Segment& segment, unsigned own, int tcp, const path::Cursor& ring,
                               const path::Cursor& before)
    : segment_(segment), own_(own), tcp_(tcp), ring_(ring), before_(before),
      head_(segment.direction[own].writer.head.load()) {}

ClosedRecovery::Step ClosedRecovery::step() {
    if (stage_ == Stage::sending) {
        errno = 0;
        if (!send_record()) {
            return is_for_later(errno) ? Step::later : Step::failed;
        }
        stage_ = Stage::receiving;
    }
    if (stage_ == Stage::receiving) {
        if (const Step read = read_until_record(); read != Step::done) {
            return read;
        }
        stage_ = Stage::resending;
    }
    if (stage_ == Stage::resending) {
        if (const Step sent = send_rest(); sent != Step::done) {
            return sent;
        }
        shutdown(tcp_, SHUT_WR);
        stage_ = Stage::ending;
    }
    return await_acknowledgement();
}

bool ClosedRecovery::send_record() {
    // A writable socket has more than enough space for both.
    if (pollfd space{tcp_, POLLOUT, 0}; poll(&space, 1, 0) <= 0) {
        errno = EAGAIN;
        return false;
    }
    if (!marked_) {
        const uint8_t mark = Record::mark;
        if (send(tcp_, &mark, 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL) != 1) {
            return false;
        }
        marked_ = true;
    }
    const path::Direction& theirs = segment_.direction[1 - own_];
    Record record;
    record.head = head_;
    record.tail = theirs.reader.tail.load();
    record.epoch = segment_.direction[own_].writer.epoch.load();
    record.followed = theirs.reader.epoch.load();
    return send(tcp_, &record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(record));
}

// What is in front of the record was for the program, which reads no more. A far end that has shut down its direction
// sends none, and cannot be sent the rest: it compares the own record with what it has, and takes the end for an error
// if bytes are missing. A reset would be sent only once.
ClosedRecovery::Step ClosedRecovery::read_until_record() {
    for (int i = 0; i < max_reads; ++i) {
        // A read skips an urgent byte that is the next one, and it may arrive at any moment. What a peek has returned
        // is in front of it, or behind it: that shows afterwards.
        std::array<uint8_t, 4096> unread{};
        const ssize_t n = recv(tcp_, unread.data(), unread.size(), MSG_PEEK | MSG_DONTWAIT);
        const int error = errno;
        if (is_at_mark()) {
            Record record;
            const ssize_t there = recv(tcp_, &record, sizeof(record), MSG_PEEK | MSG_DONTWAIT);
            if (there < 0) {
                return is_for_later(errno) ? Step::reading : Step::failed;
            }
            if (is_beginning_of_record(record, static_cast<size_t>(there))) {
                if (there > 0 && there < static_cast<ssize_t>(sizeof(record))) {
                    return Step::later; // there is something to read all the time
                }
                return there > 0 && recv(tcp_, &record, sizeof(record), MSG_DONTWAIT) == there && take(record)
                           ? Step::done
                           : Step::failed;
            }
        }
        if (n == 0) {
            sent_ = head_;
            return Step::done;
        }
        if (n < 0) {
            return is_for_later(error) ? Step::reading : Step::failed;
        }
        recv(tcp_, unread.data(), static_cast<size_t>(n), MSG_DONTWAIT); // what it leaves is peeked at again
    }
    return Step::reading;
}

// The urgent byte of a record is the next one, or the last one of the proof, which may have the same value.
bool ClosedRecovery::is_at_mark() const {
    int at = 0;
    uint8_t urgent = 0;
    return ioctl(tcp_, SIOCATMARK, &at) == 0 && at != 0 &&
           recv(tcp_, &urgent, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) == 1 && urgent == Record::mark;
}

bool ClosedRecovery::take(const Record& record) {
    sent_ = record.tail;
    return record.magic == Record::expected_magic && record.tail <= head_ && head_ == ring_.position &&
           record.tail >= segment_.direction[own_].reader.tail.load() && head_ - record.tail <= path::ring_bytes &&
           (record.tail >= ring_.base || record.tail >= before_.base);
}

ClosedRecovery::Step ClosedRecovery::send_rest() {
    const uint8_t* memory = path::ring_memory(&segment_, own_);
    while (sent_ != head_) {
        const bool older = sent_ < ring_.base;
        path::Cursor at = older ? before_ : ring_;
        at.position = sent_;
        const size_t length = at.contiguous((older ? ring_.base : head_) - sent_);
        const ssize_t n = send(tcp_, memory + at.offset_of(sent_), length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            return is_for_later(errno) && discard() ? Step::later : Step::failed;
        }
        sent_ += static_cast<uint64_t>(n);
    }
    return Step::done;
}

// A far end that sends on must not be held up before it reads. False: the connection was reset.
bool ClosedRecovery::discard() {
    std::array<uint8_t, 4096> unread{};
    ssize_t n = 1;
    for (int i = 0; i < max_reads && n > 0; ++i) {
        n = recv(tcp_, unread.data(), unread.size(), MSG_DONTWAIT);
    }
    return n >= 0 || is_for_later(errno);
}

// A close with unread bytes would be a reset, and what arrives after it is answered with one.
ClosedRecovery::Step ClosedRecovery::await_acknowledgement() {
    const bool open = discard();
    return open && is_unacknowledged(tcp_) ? Step::later : Step::done;
}

} // namespace preload::fabric
