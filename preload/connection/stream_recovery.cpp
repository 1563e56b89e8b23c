// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When the fabric fails, a connection goes on by TCP. What was under way between the two segments may be lost, and what
// each end knows of the other may be old. So each end stops, and sends a record of its state by TCP, behind an urgent
// byte that says where in the stream it is: the reader stops there, whatever it takes the bytes in front for. When an
// end has the other one's record, it knows what that has read, sends the rest by TCP, and goes on.
//
// The record is behind all that TCP has carried before, and in front of what is sent again. An epoch that had ended
// before had its Frame::resume only if all of it was in the far segment, see far_end_knows(): then nothing of that is
// sent again, and the reader has read it before it comes to the record.
#include "preload/connection/stream_internal.hpp"

#include <cstring>

#include <netinet/in.h>

#include "preload/base/system.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::stream {

using path::MirrorFields;

namespace {

struct Record {
    static constexpr uint64_t expected_magic = 0x64726365'52737372; // "rssRecrd"
    uint64_t magic = expected_magic;
    uint64_t head = 0; // of the ring that the sender writes
    uint64_t tail = 0; // and of the one that it reads
    uint32_t epoch = 0;
    uint32_t followed = 0;
    uint32_t resumed = 0; // the epoch is even, and all in front of it is in the far segment
    uint32_t reserved = 0;
};
constexpr uint8_t mark = 0xb3;

void wake_everybody(Connection& c) {
    for (std::atomic<uint64_t>* word : {&c.in_ring().wake.data_wanted, &c.out_ring().wake.space_wanted}) {
        if (const uint64_t sleeper = word->load(); sleeper > path::by_frame) {
            wakeup::wake_own(sleeper);
        }
    }
    c.kernel_events.fetch_add(1);
    wakeup::wake_own(c.guarded.load());
}

// With both locks. False: there is no space for it yet.
bool send_record(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    pollfd space{fd, POLLOUT, 0};
    if (sys::poll(&space, 1, 0) <= 0 || (space.revents & (POLLERR | POLLHUP)) != 0) {
        return false;
    }
    Record record;
    record.head = s.out.position;
    record.tail = s.in.position;
    record.epoch = s.out_epoch.load();
    record.followed = s.in_epoch.load();
    record.resumed = (record.epoch & 1) == 0 && !s.resume_due ? 1 : 0;
    // A socket that is writable has space for both, by far.
    if (sys::send(fd, &mark, 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL) != 1) {
        return false;
    }
    count_sent(c, 1);
    if (sys::send(fd, &record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<long>(sizeof(record))) {
        (void)violation(c, fd); // it has gone meanwhile, or nothing can be said any more
        return true;
    }
    count_sent(c, sizeof(record));
    c.out_ring().writer.frames.fetch_add(1 + sizeof(record), std::memory_order_release);
    return true;
}

// With the write lock, after both records.
void resume_out(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const uint32_t epoch = s.out_epoch.load();
    const bool again = (epoch & 1) != 0 || s.resume_due;
    if (again) {
        const uint64_t tail = s.far_tail;
        if (tail > s.out.position || tail < c.out_ring().reader.tail.load() ||
            s.out.position - tail > path::ring_bytes) {
            (void)violation(c, fd);
            return;
        }
        s.backlog_from = tail;
        s.backlog_to = s.out.position;
        s.resume_due = false;
        const uint32_t next = epoch + (epoch & 1);
        c.out_ring().writer.epoch.store(next, std::memory_order_release);
        s.out_epoch.store(next, std::memory_order_release);
        c.out_ring().reader.tail.store(s.out.position); // nothing of the ring is anybody's any more
        s.returns.fetch_add(epoch & 1);
    }
    c.out_ring().reader.epoch.store(s.out_epoch.load());
}

} // namespace

bool is_recovering(const Connection& c) { return c.state.load()->recovery.load() != Recovery::none; }

// With the read lock, at a mark. 1: a record was taken; 0: it is none; -EAGAIN: it has not come whole.
ssize_t take_record(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    Record record;
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
    if (sys::recv(fd, &record, sizeof(record), MSG_DONTWAIT) != static_cast<long>(sizeof(record))) {
        return violation(c, fd);
    }
    count_received(c, 1 + sizeof(record)); // and the urgent byte in front
    s.frames_seen.fetch_add(1 + sizeof(record));
    const uint32_t epoch = s.in_epoch.load();
    const uint32_t next = record.epoch + (record.epoch & 1);
    const bool again = (record.epoch & 1) != 0 || record.resumed == 0;
    if (s.recovery == Recovery::none) {
        s.recovery = Recovery::begun; // the far end has seen it first
        c.shared().mirror.stage.store(MirrorFields::lost);
    }
    if (next - epoch > 2 || s.giving_back || s.taken != 0 || s.far_record_seen ||
        (again && record.head < s.in.position)) {
        return violation(c, fd);
    }
    s.far_tail = record.tail;
    s.far_record_seen = true;
    if (next != epoch) {
        if (again) {
            s.skip_to = record.head; // once the own record has said how far this end has read
        } else {
            return violation(c, fd); // its Frame::resume has not come
        }
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
    if (!writing || s.broken || s.recovered) { // another thread may have done all of it since the caller looked
        return;
    }
    if (s.recovery == Recovery::none) {
        s.recovery = Recovery::begun;
        s.recovery_since_ns = sys::now_ns();
        Reason none = Reason::none;
        s.reason.compare_exchange_strong(none, Reason::fabric_lost);
        stats::refresh(c);
    }
    s.hold = true;
    if (s.giving_back || s.taken != 0 || has_backlog(s)) {
        (void)violation(c, fd); // its program, or this one's, is about to be another one
        return;
    }
    if ((s.in_epoch.load() & 1) != 0) {
        s.awaits_resume = true; // nothing of the ring is read any more
    }
    if (s.recovery == Recovery::begun && send_record(c, fd)) {
        s.recovery = Recovery::sent;
    }
    if (!s.far_record_seen) {
        // It is behind all that TCP has carried: of that, only frames are this function's to take.
        if ((s.in_epoch.load() & 1) != 0) {
            ssize_t error = 0;
            (void)take_frames(c, fd, true, error);
        } else if (is_at_mark(fd)) {
            (void)take_record(c, fd);
        }
    }
    if (s.recovery != Recovery::sent || !s.far_record_seen || s.broken) {
        return;
    }
    const uint32_t epoch = s.far_epoch;
    if (epoch != s.in_epoch.load()) {
        s.in.position = s.skip_to;
        c.in_ring().writer.head.store(s.in.position); // of the worker's, which has gone
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
    (void)flush_due(c, fd);
    wake_everybody(c);
}

} // namespace preload::stream
