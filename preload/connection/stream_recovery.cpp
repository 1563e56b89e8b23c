// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When the fabric fails, a connection continues by TCP. Data in flight between the two segments may be lost, and what
// each end knows of the other may be stale. So each end stops, and sends a record of its state by TCP, behind an urgent
// byte that marks its place in the stream: the reader stops there, whatever it takes the bytes in front for. From the
// other end's record, an end knows what that end has read, sends the rest by TCP, and continues.
//
// The record is behind all that TCP has carried before, and in front of what is resent. An epoch that had ended before
// had its Frame::resume only if all of it was in the far segment, see far_end_knows(): then nothing of it is resent,
// and the reader has read it before it reaches the record.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>
#include <cstring>

#include <netinet/in.h>

#include "preload/base/system.hpp"
#include "preload/path/record.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"

namespace preload::stream {

using path::MirrorFields;
using path::Record;

namespace {

// A thread that sleeps on the socket waits for data there, or for space that the ring does not provide any more. The
// record wakes all of them, and nothing else may come for a long time: so it stays unread until they are awake. A
// thread that was killed in its sleep never wakes.
bool may_take_record(Connection& c, int fd) {
    constexpr uint64_t timeout_ns = 1000000000U;
    ConnectionState& s = *c.state.load();
    const uint64_t now = sys::now_ns();
    s.record_since_ns = s.record_since_ns != 0 ? s.record_since_ns : now;
    let_others_wake(c, fd);
    const bool asleep =
        s.sleepers.load() > own_sleeps || (c.watched.load(std::memory_order_relaxed) && watches_sleep_by_frame(c));
    return !asleep || now - s.record_since_ns > timeout_ns;
}

enum class Sent : uint8_t {
    later, // there is no space for it yet
    record,
    nothing, // the own direction has ended
};

// Under both locks.
Sent send_record(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    pollfd space{fd, POLLOUT, 0};
    if (sys::poll(&space, 1, 0) <= 0) {
        return Sent::later;
    }
    if ((space.revents & (POLLERR | POLLHUP)) != 0) {
        return Sent::nothing;
    }
    Record record;
    record.head = s.out.position;
    record.tail = s.in.position;
    record.epoch = s.out_epoch.load();
    record.followed = s.in_epoch.load();
    record.resumed = (record.epoch & 1) == 0 && !s.resume_due ? 1 : 0;
    // A writable socket has more than enough space for both.
    if (const long n = sys::send(fd, &Record::mark, 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL); n != 1) {
        return n == -EAGAIN ? Sent::later : Sent::nothing;
    }
    count_sent(c, 1);
    if (sys::send(fd, &record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<long>(sizeof(record))) {
        reset(c, fd); // it was closed meanwhile, or nothing more can be sent
        return Sent::record;
    }
    count_sent(c, sizeof(record));
    c.out_ring().writer.frames.fetch_add(1 + sizeof(record), std::memory_order_release);
    return Sent::record;
}

// Whether the far end has returned, as far as it is known here: then the own segment has all bytes of its ring.
bool has_whole_epoch(const Connection& c) { return (published_epoch(c) & 1) == 0; }

// Under both locks: sends the own record, once. False: not yet, or not any more.
bool send_own_record(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (s.recovery != Recovery::begun) {
        return true;
    }
    const Sent sent = send_record(c, fd);
    if (sent == Sent::later || s.broken) {
        return false;
    }
    c.shared().mirror.recovering.store(1); // not before: a process that ends by then leaves all of it to the worker
    changed(c);
    s.sends_no_record = sent == Sent::nothing;
    s.recovery = Recovery::sent;
    if (!s.sends_no_record) {
        // The ring is not read any more, unless Frame::resume was consumed: then it is drained.
        s.awaits_resume = (s.in_epoch.load() & 1) != 0 && !s.resume_seen;
    } // else the far end does not learn what this end has read: the ring must have all of it, see recover()
    return true;
}

// Under both locks, if the far end has sent no record and can send none: it had shut down its direction before, so it
// has all that this end has written to the ring, and this end has all that it has written.
void take_end(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    uint8_t byte = 0;
    const long n = sys::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0 || n == -EAGAIN) {
        return;
    }
    if (n < 0 || !has_whole_epoch(c) || (s.out_epoch.load() & 1) != 0) {
        reset(c, fd); // the far end was killed
        return;
    }
    const uint32_t epoch = s.in_epoch.load();
    s.resume_seen = (epoch & 1) != 0;
    s.awaits_resume = false;
    s.far_epoch = epoch + (epoch & 1);
    s.far_tail = s.out.position;
    s.far_record_seen = true;
}

// Under the write lock, after both records.
void resume_out(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const uint32_t epoch = s.out_epoch.load();
    const bool again = (epoch & 1) != 0 || s.resume_due;
    if (again) {
        const uint64_t tail = s.far_tail;
        if (tail > s.out.position || tail < c.out_ring().reader.tail.load() ||
            s.out.position - tail > path::ring_bytes) {
            reset(c, fd);
            return;
        }
        s.backlog_from = tail;
        s.backlog_to = s.out.position;
        s.resume_due = false;
        const uint32_t next = epoch + (epoch & 1);
        c.out_ring().writer.epoch.store(next, std::memory_order_release);
        s.out_epoch.store(next, std::memory_order_release);
        c.out_ring().reader.tail.store(s.out.position); // nothing of the ring is used any more
        s.returns.fetch_add(epoch & 1);
    }
    c.out_ring().reader.epoch.store(s.out_epoch.load());
}

} // namespace

// Under a lock of the connection, or when no other thread can have begun: all of it may be done twice.
void begin_recovery(Connection& c) {
    ConnectionState& s = *c.state.load();
    Recovery none = Recovery::none;
    if (s.recovered || !s.recovery.compare_exchange_strong(none, Recovery::begun)) {
        return;
    }
    give_reason(s, Reason::fabric_lost);
    s.hold = true;
    c.shared().mirror.stage.store(MirrorFields::lost); // the far end may have detected it first
    changed(c);
    stats::refresh(c);
}

// The far end's program closes its direction when this segment has all of it. Before that, EOF says that the far end
// and its worker were killed, or that the far end's worker was, and then a record comes. After shutdown(2) for reading,
// the kernel reports EOF in any case.
bool is_cut_off(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    const MirrorFields& mirror = c.shared().mirror;
    return c.mirrored && !s.recovered && !s.read_shut && !has_whole_epoch(c) && mirror.far_closed.load() == 0 &&
           mirror.stage.load() < MirrorFields::ended;
}

// Behind a recovery: a far end that ends now was killed before it had sent everything again.
bool lacks_resent_bytes(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return s.received.load() < s.resent_to.load() && !s.read_shut;
}

bool is_recovering(const Connection& c) { return c.state.load()->recovery.load() != Recovery::none; }

// Under the read lock, at a mark. 1: a record was consumed; 0: there is none; -EAGAIN: it is incomplete, or must stay.
ssize_t take_record(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    Record record;
    uint8_t urgent = 0;
    if (sys::recv(fd, &urgent, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) != 1 || urgent != Record::mark) {
        return 0; // the last one of the proof, which was consumed; the program's bytes follow, whatever they are
    }
    const long n = sys::recv(fd, &record, sizeof(record), MSG_PEEK | MSG_DONTWAIT);
    const size_t compared = std::min<size_t>(sizeof(record.magic), static_cast<size_t>(std::max(n, 0L)));
    constexpr uint64_t magic = Record::expected_magic;
    if (memcmp(&record, &magic, compared) != 0 || !c.mirrored ||
        c.shared().mirror.stage.load() < MirrorFields::proved) {
        return 0;
    }
    if (n < static_cast<long>(sizeof(record))) {
        return n > 0 || n == -EAGAIN ? -EAGAIN : 0;
    }
    begin_recovery(c);
    if (!may_take_record(c, fd)) {
        return -EAGAIN;
    }
    if (sys::recv(fd, &record, sizeof(record), MSG_DONTWAIT) != static_cast<long>(sizeof(record))) {
        return violation(c, fd);
    }
    count_received(c, 1 + sizeof(record)); // and the urgent byte in front
    s.frames_seen.fetch_add(1 + sizeof(record));
    const uint32_t epoch = s.in_epoch.load();
    const uint32_t next = record.epoch + (record.epoch & 1);
    const bool again = (record.epoch & 1) != 0 || record.resumed == 0;
    if (next - epoch > 2 || s.giving_back || s.taken != 0 || s.far_record_seen ||
        (again && record.head < s.in.position)) {
        return violation(c, fd);
    }
    s.far_tail = record.tail;
    s.far_record_seen = true;
    if (next != epoch) {
        if (!again) {
            return violation(c, fd); // its Frame::resume has not arrived
        }
        s.skip_to = record.head; // once the own record has reported how far this end has read
    }
    s.far_epoch = next;
    return 1;
}

void recover(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const ReadSection reading(c, fd);
    if (!reading) {
        return;
    }
    const WriteSection writing(c, fd);
    if (!writing || s.broken || s.recovered) { // another thread may have done all of it since the caller checked
        return;
    }
    begin_recovery(c);
    if (s.giving_back || s.taken != 0 || has_backlog(s)) {
        reset(c, fd); // one of the ends is handing the connection over to another program
        return;
    }
    const bool sent = send_own_record(c, fd);
    // The far end's record is behind all that TCP has carried: in front of it, this function may consume only frames.
    follow(c, fd, true);
    if (!s.far_record_seen && (s.in_epoch.load() & 1) == 0 && is_at_mark(fd)) {
        take_record(c, fd);
    }
    if (sent && !s.far_record_seen && !s.broken) {
        take_end(c, fd);
        follow(c, fd, true);
    }
    if (!sent || !s.far_record_seen || s.broken || s.resume_seen) {
        return; // the last: the ring must be drained first
    }
    const uint32_t epoch = s.far_epoch;
    if (epoch != s.in_epoch.load() && s.sends_no_record) {
        if (epoch != s.in_epoch.load() + 1 || c.in_ring().writer.head.load() != s.skip_to) {
            reset(c, fd);
        } else {
            s.resume_seen = true; // the ring is drained
        }
        return;
    }
    if (epoch != s.in_epoch.load()) {
        s.resent_to = s.received.load() + (s.skip_to - std::min(s.skip_to, s.in.position));
        s.in.position = s.skip_to;
        c.in_ring().writer.head.store(s.in.position); // the worker's field, and the worker has gone
        c.in_ring().writer.epoch.store(epoch);
        c.in_ring().reader.tail.store(s.in.position);
        follow_to(c, epoch);
    }
    s.awaits_resume = false;
    s.resume_seen = false;
    c.in_ring().wake.consent.store(path::Consent::withheld);
    c.in_ring().writer.frames.store(s.frames_seen.load());
    resume_out(c, fd);
    s.recovery = Recovery::none;
    s.recovered = true;
    c.mirrored = false;
    stats::refresh(c);
    flush_due(c, fd);
    // The record has woken those who sleep by frames, see may_take_record(). A worker that was killed may have taken
    // the ids without waking their waiters.
    wake_everybody(c);
}

// By time, and not by calls as before a first upgrade: the connection may have made millions. A fabric that fails each
// time after some bytes costs the program a pause of seconds each time, so that it is tried ever more seldom. Where it
// cannot be reached, attempts are more frequent: the far end's begin at other times, as it notices failures earlier or
// later; but one end listens for ten seconds and the other one connects for two, so that they meet after some of them.
void retry_fabric_later(ConnectionState& s, bool was_on_it) {
    constexpr uint64_t first_pause_ns = 1000000000U;
    constexpr uint64_t works_well_after_ns = 60 * first_pause_ns;
    constexpr uint32_t most_doublings_of_failures = 10;
    constexpr uint32_t most_doublings_of_attempts = 4;
    const uint64_t now = sys::now_ns();
    uint32_t doublings = 0;
    if (was_on_it) {
        if (now - s.fabric_since_ns > works_well_after_ns) {
            s.fabric_failures = 0;
        }
        doublings = std::min(2 * s.fabric_failures.load(), most_doublings_of_failures);
        s.fabric_failures = std::min(s.fabric_failures + 1, most_doublings_of_failures);
        s.attempts = 0;
    } else {
        doublings = std::min(s.attempts.fetch_add(1), most_doublings_of_attempts);
    }
    s.retry_at_ns = now + (first_pause_ns << doublings);
    s.worth_at = s.calls.load() + 1;
}

} // namespace preload::stream
