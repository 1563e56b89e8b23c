// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Gives unread bytes back: they are to come by the kernel, in order, since another holder reads them, or the peer's end
// is about to be shut down or handed over.
//
// Only the peer can put bytes into the kernel's connection. So the reader takes all bytes in front of the ring's (what
// TCP has carried up to the switch), writes them to the give-back area, and requests the peer to send these, and then
// the unread ones in the ring, by TCP (Request::resend). If the peer has returned to the kernel already, it must stop
// first, at a position that both ends know: Request::halt makes it switch to the ring once more.
//
// If it is the peer that wants this, a wait may have reported bytes to the program just before. Until the peer is asked
// to send them again, the program may read what was taken.
#include "preload/connection/stream_internal.hpp"

#include <sched.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/service.hpp"

namespace preload::stream {

using path::Consent;
using path::Direction;

namespace {

constexpr uint64_t reading_time_ns = 5000000U; // for a process that goes on reading, before the peer is asked

// Null: no memory.
uint8_t* area_of_taken(Connection& c) {
    const unsigned direction = 1 - c.out_index();
    uint8_t*& area = c.give_back[direction];
    if (area == nullptr) {
        area = path::map_give_back(c.segment.load(), direction);
    }
    return area;
}

// Where the next bytes are taken to, and how many there is space for. Null: no space or no memory.
uint8_t* space_for_taken(Connection& c, uint64_t& space) {
    const ConnectionState& s = *c.state.load();
    uint8_t* area = area_of_taken(c);
    space = path::give_back_bytes - s.taken;
    return area != nullptr && space != 0 ? area + s.taken : nullptr;
}

// Some bytes were read here, and are not given back any more.
void forget_read(Connection& c) {
    ConnectionState& s = *c.state.load();
    if (uint8_t* area = s.taken_read != 0 ? area_of_taken(c) : nullptr; area != nullptr) {
        s.taken -= s.taken_read;
        memmove(area, area + s.taken_read, s.taken);
        s.taken_read = 0;
    }
}

ssize_t take_from_kernel(Connection& c, int fd, uint64_t until) {
    ConnectionState& s = *c.state.load();
    while (s.received.load() < until) {
        uint64_t space = 0;
        uint8_t* to = space_for_taken(c, space);
        if (to == nullptr) {
            return -ENOBUFS;
        }
        const long n = sys::recv(fd, to, std::min(space, until - s.received.load()), MSG_DONTWAIT);
        if (n <= 0) {
            return n == 0 ? -ECONNRESET : n;
        }
        count_received(c, static_cast<uint64_t>(n));
        s.taken += static_cast<uint64_t>(n);
    }
    return 0;
}

ssize_t take_from_ring(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    const uint8_t* memory = path::ring_memory(c.segment.load(), 1 - c.out_index());
    for (;;) {
        uint64_t count = 0;
        if (!readable(ring, s.in, count)) {
            return violation(c, fd);
        }
        if (count == 0) {
            return 0;
        }
        uint64_t space = 0;
        uint8_t* to = space_for_taken(c, space);
        if (to == nullptr) {
            return -ENOBUFS;
        }
        const size_t n = s.in.contiguous(std::min(count, space));
        memcpy(to, memory + s.in.offset_of(s.in.position), n);
        s.in.position += n;
        s.taken += n;
        ring.reader.given_back.store(s.taken); // before the tail, see is_clear()
        ring.reader.tail.store(s.in.position);
    }
}

// 0: Frame::resume was consumed.
ssize_t take_resume(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    ssize_t error = -EAGAIN;
    if (!s.resume_seen && take_frames(c, fd, false, error) == Taken::end) {
        return -ECONNRESET;
    }
    return s.resume_seen ? 0 : error;
}

// The peer may still answer a request, unless it has ended in the epoch in which the request was made.
ssize_t wait_for_peer(Connection& c, int fd, uint32_t epoch) {
    if (!peer_has_ended(c, fd) && !peer_has_gone_meanwhile(c, fd)) {
        return -EAGAIN;
    }
    return c.in_ring().writer.epoch.load() == epoch ? -ECONNRESET : -ERESTART;
}

} // namespace

namespace {

// All that was taken was read here meanwhile. False: the peer has begun to halt, and waits for the next request.
bool withdraw_halt(Connection& c, uint32_t epoch) {
    Direction& ring = c.in_ring();
    if (!path::requests(ring.reader.request.load(), epoch, path::halt)) {
        return true;
    }
    uint32_t consent = Consent::given;
    if (!ring.wake.consent.compare_exchange_strong(consent, Consent::withheld) && consent == Consent::used) {
        return false;
    }
    ring.reader.request.store(path::request_of(0, path::return_quietly));
    return true;
}

} // namespace

ssize_t give_back_step(Connection& c, int fd) {
    constexpr int max_epochs = 16; // at once: a peer that switches endlessly would keep this thread here
    ConnectionState& s = *c.state.load();
    Direction& ring = c.in_ring();
    forget_read(c);
    for (int turn = 0;; ++turn) {
        const uint32_t epoch = s.in_epoch.load();
        const uint32_t theirs = published_epoch(c);
        if (s.broken || theirs - epoch > 2 || turn > max_epochs) {
            return violation(c, fd);
        }
        if ((epoch & 1) == 0) {
            if (theirs == epoch) {
                if (s.taken == 0 && withdraw_halt(c, epoch)) {
                    return 0;
                }
                // A reader that was told of these bytes has time to read them, which is simpler, too.
                if (may_read_taken(c) && sys::now_ns() - s.giving_since_ns.load() < reading_time_ns) {
                    return -EAGAIN;
                }
                if (s.taken != 0) {
                    uint32_t withheld = Consent::withheld;
                    ring.wake.consent.compare_exchange_strong(withheld, Consent::given);
                    ring.reader.request.store(path::request_of(epoch, path::halt));
                    changed(c);
                }
                if (const ssize_t result = wait_for_peer(c, fd, epoch); result != -ERESTART) {
                    return result;
                }
                continue;
            }
            if (const ssize_t error = take_from_kernel(c, fd, ring.writer.switch_at.load()); error < 0) {
                return error;
            }
            follow_to(c, epoch + 1);
            continue;
        }
        if (theirs == epoch) {
            s.awaits_resume = true;
            ring.reader.given_back.store(s.taken, std::memory_order_release);
            ring.reader.request.store(path::request_of(epoch, path::resend));
            changed(c);
            if (const ssize_t result = wait_for_peer(c, fd, epoch); result != -ERESTART) {
                return result;
            }
            continue;
        }
        const bool resent = ring.writer.resent.load(std::memory_order_acquire) == epoch && s.awaits_resume;
        if (!resent) {
            s.awaits_resume = false;
            if (const ssize_t error = take_from_ring(c, fd); error < 0) {
                return error;
            }
        }
        if (const ssize_t error = take_resume(c, fd); error < 0) {
            // It waits for the peer's next byte, see flush_if_awaited(), unless the epoch was requested to end.
            const uint32_t request = ring.reader.request.load();
            if (error == -EAGAIN &&
                (path::requested_epoch(request) != epoch || path::requests(request, epoch, path::return_quietly))) {
                ring.reader.request.store(path::request_of(epoch, path::return_to_kernel));
            }
            return error;
        }
        if (resent) {
            s.given_back_to = s.received.load() + s.taken + (ring.writer.head.load() - s.in.position);
            s.taken = 0;
            ring.reader.given_back = 0;
            s.in.position = ring.writer.head.load(); // behind what was resent
            ring.reader.tail.store(s.in.position);
        }
        follow_to(c, epoch + 1);
    }
}

bool gives_back(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (!s.giving_back) [[likely]] {
        return false;
    }
    const ReadSection section(c, fd);
    if (!section || !s.giving_back) {
        return s.giving_back;
    }
    if (!s.handed_over) { // the service may be busy
        const uint32_t before = c.in_ring().reader.request.load();
        if (const ssize_t step = give_back_step(c, fd); step != -EAGAIN) {
            give_back_ended(c, fd, step);
            return false;
        }
        // A busy service may have missed a request.
        ask_after(c, c.in_ring().reader.request.load() != before);
    }
    if (!s.handed_over && // else the service goes on, as long as the peer is there
        static_cast<int64_t>(sys::now_ns() - s.giving_since_ns.load()) > static_cast<int64_t>(answer_limit_ns(c))) {
        s.giving_back = false;
        reset(c, fd);
    }
    return !may_read_taken(c);
}

// A far end learns too late that a request was withdrawn.
bool may_read_taken(const Connection& c) {
    const ConnectionState& s = *c.state.load();
    return s.taken != 0 && !s.awaits_resume && !s.handed_over && !c.mirrored;
}

// A program that polls again and again without reading does not keep the peer waiting for long.
void note_taken_reported(Connection& c) {
    constexpr uint64_t longest_ns = 20000000U;
    ConnectionState& s = *c.state.load();
    if (s.giving_back && may_read_taken(c)) {
        if (const uint64_t now = sys::now_ns(); now - s.giving_began_ns < longest_ns) {
            s.giving_since_ns = now;
        }
    }
}

bool lacks_given_back(const Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    return s.giving_back ? !may_read_taken(c)
                         : (s.received.load() < s.given_back_to.load() && unread_in_kernel(fd) == 0);
}

bool await_given_back(Connection& c, int fd, uint64_t begin) {
    constexpr uint64_t call_limit_ns = 1000000U;
    constexpr uint64_t limit_ns = 10000000U; // of all calls: a peer that does not answer costs no more than that
    const uint64_t end =
        std::min(begin + call_limit_ns, c.state.load()->giving_since_ns.load(std::memory_order_relaxed) + limit_ns);
    while (gives_back(c, fd) || lacks_given_back(c, fd)) {
        if (sys::now_ns() > end) {
            return false;
        }
        sched_yield();
    }
    return sys::now_ns() <= end;
}

bool can_take(Connection& c) { return area_of_taken(c) != nullptr; }

void begin_to_give_back(Connection& c) {
    ConnectionState& s = *c.state.load();
    if (s.giving_back) {
        return;
    }
    forget_read(c);
    s.giving_began_ns = sys::now_ns();
    s.giving_since_ns = s.giving_began_ns;
    s.peer_asked_ns = 0;
    s.giving_back = true;
}

void give_back_ended(Connection& c, int fd, ssize_t result) {
    ConnectionState& s = *c.state.load();
    s.giving_back = false;
    if (result == 0) {
        return;
    }
    if (!peer_has_ended(c, fd) && !peer_has_gone(c, fd)) {
        reset(c, fd);
        return;
    }
    // Nothing is resent any more: taken bytes are read from the area.
    c.in_ring().reader.request.store(path::request_of(0, path::return_quietly));
    s.awaits_resume = false;
}

ssize_t read_taken(Connection& c, Parts& parts, int flags) {
    ConnectionState& s = *c.state.load();
    const uint8_t* area = area_of_taken(c);
    if (area == nullptr) {
        return -ENOMEM;
    }
    const uint64_t n = std::min(s.taken.load() - s.taken_read, parts.size());
    if ((flags & MSG_TRUNC) != 0) {
        parts.skip(n);
    } else {
        parts.put(area + s.taken_read, n);
    }
    if ((flags & MSG_PEEK) != 0) {
        return static_cast<ssize_t>(n);
    }
    s.taken_read += n;
    s.giving_since_ns = sys::now_ns(); // it has begun to read them
    if (s.taken_read == s.taken) {
        s.taken = s.taken_read = 0;
        c.in_ring().reader.given_back = 0;
        c.in_ring().reader.epoch.store(s.in_epoch.load(), std::memory_order_release);
    }
    return static_cast<ssize_t>(n);
}

} // namespace preload::stream
