// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Before a close or a shutdown in the kernel: nothing of the stream may be left where the peer could not get it any
// more, and no frame of the library may arrive where it would cause a reset.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/mman.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/probes.hpp"

namespace preload::stream {

using path::Consent;
using path::Direction;

namespace {

// Sockets that the program has closed, while the kernel's close would lose something: bytes that the peer has asked for
// again, and that TCP has no space for yet, or bytes that a reset would discard, in answer to a frame that the peer is
// about to send. The kernel itself keeps a closed socket for as long. The service polls them: there are seldom any.
struct Lingering {
    enum State : uint32_t { free, filling, used };
    std::atomic<uint32_t> state{free};
    int fd = -1; // a duplicate
    uint8_t resume = 0;
    uint8_t* area = nullptr; // give-back area
    uint8_t* ring = nullptr; // a copy
    size_t ring_size = 0;
    std::array<iovec, 3> bytes{}; // of these, to send
    uint32_t frames = 0;          // to come
    bool shut = false;
    bool resets = false;                // SO_LINGER is set: if this process ends now, no EOF in the middle of the bytes
    std::atomic<uint64_t> since_ns = 0; // or the last progress
};
constexpr size_t max_lingering = 16; // else peers could make a process keep any number
constinit std::array<Lingering, max_lingering> lingering;

// Takes what is left to send: Frame::resume if it is due, given-back bytes, and then those in the ring. Under the write
// lock.
void take_backlog(Connection& c, Lingering& to) {
    ConnectionState& s = *c.state.load();
    const uint64_t given = s.give_to.load() - s.give_from.load();
    const uint64_t in_ring = s.backlog_to.load() - s.backlog_from.load();
    uint8_t*& area = c.give_back[c.out_index()];
    if (given != 0 && area == nullptr) {
        return;
    }
    const long made =
        in_ring != 0 ? sys::call(SYS_mmap, nullptr, in_ring, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : 0;
    if (made < 0 && made > -4096) {
        return;
    }
    to.ring = in_ring != 0 ? reinterpret_cast<uint8_t*>(made) : nullptr; // NOLINT(performance-no-int-to-ptr)
    to.ring_size = in_ring;
    to.bytes[2] = {to.ring, in_ring};
    const uint8_t* memory = path::ring_memory(c.segment.load(), c.out_index());
    for (uint8_t* at = to.ring; s.backlog_from.load() != s.backlog_to.load();) {
        const size_t n = next_of_backlog(s);
        memcpy(at, memory + offset_of_backlog(s), n);
        at += n;
        s.backlog_from += n;
    }
    if (given != 0) {
        to.area = std::exchange(area, nullptr);
        to.bytes[1] = {to.area + s.give_from.load(), given};
        s.give_from = s.give_to.load();
    }
    if (s.resume_due.exchange(false)) {
        to.resume = static_cast<uint8_t>(path::Frame::resume);
        to.bytes[0] = {&to.resume, sizeof(to.resume)};
        c.out_ring().writer.frames.fetch_add(1);
    }
    s.end_due = false; // a shutdown that is due would overtake them; linger_on() makes it
    count_sent(c, Parts(to.bytes.data(), to.bytes.size()).size()); // a reset from now on is not EOF for the peer
}

void set_linger(int fd, const linger& how) { sys::call(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &how, sizeof(how)); }

linger linger_of(int fd) {
    linger how{};
    socklen_t length = sizeof(how);
    return sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &how, &length) == 0 ? how : linger{};
}

// Whether the program wants a reset.
bool aborts(int fd) {
    const linger how = linger_of(fd);
    return how.l_onoff != 0 && how.l_linger == 0;
}

constexpr uint32_t max_frames = 1024; // to come; more of them are a lie

// The last fd of the program is about to be closed. Null: nothing is kept. The service begins by go_on_lingering().
Lingering* keep_socket(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    if (c.mirrored || s.open.load() != 0 || s.broken || lifecycle::in_vfork_child() || aborts(fd) ||
        !service::take_steps_at(sys::now_ns())) {
        return nullptr;
    }
    for (Lingering& one : lingering) {
        uint32_t free = Lingering::free;
        if (!one.state.compare_exchange_strong(free, Lingering::filling)) {
            continue;
        }
        const int kept = descriptors::make([&] { return sys::call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0); });
        one.area = one.ring = nullptr;
        one.bytes = {};
        {
            const WriteSection section(c, fd);
            if (kept >= 0 && section && has_backlog(s)) {
                take_backlog(c, one);
            }
        }
        if (kept < 0 || has_backlog(s)) {
            descriptors::close(kept);
            one.state = Lingering::free;
            return nullptr;
        }
        one.fd = kept;
        one.shut = false;
        one.resets = Parts(one.bytes.data(), one.bytes.size()).size() != 0;
        if (one.resets) {
            set_linger(kept, {1, 0});
        }
        c.duplicated = true; // as by a worker: the kernel's sets would keep it as a member
        return &one;
    }
    return nullptr;
}

void go_on_lingering(Lingering& one, uint32_t frames) {
    one.frames = std::min(frames, max_frames);
    const uint64_t now = sys::now_ns();
    one.since_ns = now;
    one.state = Lingering::used;
    service::take_steps_at(now);
}

// True: it is to be closed.
bool linger_on(Lingering& one, uint64_t now) {
    constexpr uint64_t send_timeout_ns = 5000000000U; // without progress: the peer does not read
    constexpr uint64_t frame_timeout_ns = 1000000000U;
    for (iovec& part : one.bytes) {
        while (part.iov_len != 0) {
            const long n = sys::send(one.fd, part.iov_base, part.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n == -EAGAIN) {
                return now - std::min(one.since_ns.load(), now) > send_timeout_ns;
            }
            if (n < 0) {
                return true;
            }
            part = {static_cast<uint8_t*>(part.iov_base) + n, part.iov_len - static_cast<size_t>(n)};
            one.since_ns = now;
        }
    }
    if (!one.shut) {
        one.shut = true;
        if (std::exchange(one.resets, false)) {
            set_linger(one.fd, {0, 0});
        }
        sys::call(SYS_shutdown, one.fd, SHUT_WR);
    }
    while (one.frames != 0) {
        std::array<uint8_t, 64> bytes{};
        const long n = sys::recv(one.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (n <= 0) {
            return n != -EAGAIN || now - std::min(one.since_ns.load(), now) > frame_timeout_ns;
        }
        one.frames -= std::min(one.frames, static_cast<uint32_t>(n));
    }
    return true;
}

bool any_lingers() {
    return std::any_of(lingering.begin(), lingering.end(),
                       [](const Lingering& one) { return one.state.load() != Lingering::free; });
}

// Frames that the peer has counted by now arrive, or it finds that this end is closed, see send_frame(): it does one or
// the other without waiting for anything, unless it lies. Returns how many have not arrived.
uint32_t await_frames_under_way(Connection& c, int fd, uint64_t timeout_ns) {
    const ConnectionState& s = *c.state.load();
    for (const uint64_t begin = sys::now_ns();;) {
        uint32_t frames = 0;
        {
            const ReadSection section(c, fd);
            if (!section) {
                return 0;
            }
            follow(c, fd, true);
            frames = c.in_ring().writer.frames.load() - s.frames_seen.load();
            // In an even epoch, unread data is bytes, which cause a reset in any case.
            if ((s.in_epoch.load() & 1) == 0 || frames == 0 || s.ended) {
                return 0;
            }
        }
        const uint64_t waited = sys::now_ns() - begin;
        if (waited >= timeout_ns) {
            return frames;
        }
        if (waited < short_wait_ns) {
            sched_yield();
            continue;
        }
        pollfd ended{fd, POLLRDHUP, 0};
        if (sys::poll(&ended, 1, 1) > 0) {
            return 0; // the peer may have been killed in between
        }
    }
}

void unmap(const Lingering& one) {
    path::unmap_give_back(one.area);
    if (one.ring != nullptr) {
        sys::call(SYS_munmap, one.ring, one.ring_size);
    }
}

void end_lingering(Lingering& one) {
    one.state = Lingering::filling; // a child that is made now must not unmap it
    descriptors::close(one.fd);
    unmap(one);
    one.state = Lingering::free;
}

} // namespace

void await_lingering() {
    constexpr uint64_t longest_ns = 5000000000U;
    const uint64_t begin = sys::now_ns();
    uint64_t moved = begin;
    for (uint64_t now = begin; service::own_name() != 0 && any_lingers() && now - std::min(moved, now) < exit_wait_ns &&
                               now - begin < longest_ns;
         now = sys::now_ns()) {
        sys::sleep_ms(1);
        for (const Lingering& one : lingering) {
            moved = one.state.load() == Lingering::used ? std::max(moved, one.since_ns.load()) : moved;
        }
    }
}

void end_all_lingering() {
    for (Lingering& one : lingering) {
        if (one.state.load() == Lingering::used) {
            end_lingering(one);
        }
    }
}

uint64_t linger_on_time(uint64_t now) {
    constexpr uint64_t pause_ns = 10000000U;
    bool again = false;
    for (Lingering& one : lingering) {
        if (one.state.load() != Lingering::used) {
            continue;
        }
        if (!linger_on(one, now)) {
            again = true;
            continue;
        }
        end_lingering(one);
    }
    return again ? now + pause_ns : UINT64_MAX;
}

void linger_after_fork_in_child() {
    for (Lingering& one : lingering) {
        if (one.state.load() == Lingering::used) {
            unmap(one);
        }
        one.state = Lingering::free; // the parent's service has them; the child's descriptors are closed
    }
}

Ending prepare_close(Connection& c, int fd, bool may_wait) {
    ConnectionState& s = *c.state.load();
    bool unread = false;
    {
        const ReadSection section(c, fd);
        if (!section) {
            return Ending::whole;
        }
        follow(c, fd, true);
        // While the worker has the connection, it does this at the last close, and the next urgent byte may be a
        // record's.
        if (c.mirrored && c.shared().mirror.stage.load() >= path::MirrorFields::ended) {
            step_over_mark(fd);
        }
        unread = (s.in_epoch.load() & 1) != 0 && !s.ended && c.in_ring().writer.head.load() != s.in.position;
    }
    c.out_ring().writer.ends = path::ends_soon;
    Lingering* kept = nullptr;
    if (!finish_out(c, fd, may_wait) && has_backlog(s)) {
        kept = !unread && !may_wait ? keep_socket(c, fd) : nullptr;
        // What the service cannot take is waited for here, unless it is lost in any case.
        const bool waits = kept == nullptr && !unread && !may_wait && !c.mirrored && !aborts(fd);
        unread = unread || (kept == nullptr && !(waits && finish_out(c, fd, true)) && has_backlog(s));
    }
    {
        const WriteSection section(c, fd);
        if (section) {
            c.out_ring().wake.space_wanted.store(path::nobody);
            if ((s.out_epoch.load() & 1) == 0) {
                flush_if_awaited(c, fd);
            }
        }
    }
    // The far end takes what is behind the own record for the rest: without that, an end would look like the whole.
    if (c.mirrored && s.recovery == Recovery::sent && ((s.out_epoch.load() & 1) != 0 || s.resume_due) &&
        s.out.position != c.out_ring().reader.tail.load()) {
        unread = true;
    }
    c.out_ring().writer.ends = path::ends_whole;
    if (kept != nullptr) {
        go_on_lingering(*kept, await_frames_under_way(c, fd, 0));
    } else if (!c.mirrored && !unread) {
        const uint32_t frames = await_frames_under_way(c, fd, may_wait ? exit_wait_ns : short_wait_ns);
        // A reset loses nothing if the peer has received all.
        if (frames != 0 && !may_wait && c.out_ring().reader.received.load() < s.sent.load()) {
            kept = frames <= max_frames ? keep_socket(c, fd) : nullptr;
            if (kept != nullptr) {
                go_on_lingering(*kept, frames);
            } else {
                await_frames_under_way(c, fd, close_wait_ns);
            }
        }
    }
    if (s.open.load() != 0) { // a fork took place meanwhile
        undo_close(c);
    }
    return kept != nullptr ? Ending::kept : unread ? Ending::reset : Ending::whole;
}

bool undo_close(Connection& c) {
    uint32_t whole = path::ends_whole;
    if (!c.out_ring().writer.ends.compare_exchange_strong(whole, path::ends_soon)) {
        return false;
    }
    changed(c);
    return true;
}

void note_reset(Connection& c, int fd) {
    if (c.segment.load() != nullptr && aborts(fd)) {
        announce_reset(c, fd);
    }
}

void announce_reset(Connection& c, int fd) {
    if (c.segment.load() != nullptr) {
        c.out_ring().writer.resets = 1;
        c.shared().mirror.closed = path::MirrorFields::aborted;
        RSPRELOAD_PROBE(reset, fd, static_cast<int>(Reason::none));
    }
}

void undo_reset(Connection& c) {
    if (c.segment.load() != nullptr && !c.state.load()->broken) {
        c.out_ring().writer.resets = 0;
        uint32_t aborted = path::MirrorFields::aborted;
        c.shared().mirror.closed.compare_exchange_strong(aborted, path::MirrorFields::open);
    }
}

namespace {

// Whether TCP has space for what the peer has not read, even if it reads no more.
bool fits_in_tcp(const Connection& c, int fd) {
    constexpr uint64_t always = 64 << 10;
    const ConnectionState& s = *c.state.load();
    const path::ReaderFields& reader = c.out_ring().reader;
    const uint64_t in_ring = s.out.position - reader.tail.load();
    const uint64_t in_tcp = s.sent.load() - reader.received.load();
    if (in_ring <= always && in_tcp <= always) {
        return true;
    }
    int buffer = 0;
    int queued = 0;
    socklen_t length = sizeof(buffer);
    // The kernel also counts its own overhead, which is less than the bytes.
    return sys::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &length) == 0 &&
           sys::ioctl(fd, SIOCOUTQ, &queued) == 0 &&
           in_ring + in_tcp <= static_cast<uint64_t>(std::max(buffer - queued, 0)) / 2;
}

} // namespace

namespace {

// Whether the far end may write to its ring, or has and may not be done. Requests it to return.
bool far_end_returns(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    const ReadSection section(c, fd);
    if (!section || c.shared().mirror.stage.load() != path::MirrorFields::moving) {
        return false;
    }
    Direction& in = c.in_ring();
    const uint32_t theirs = published_epoch(c);
    if ((theirs & 1) != 0) {
        const uint32_t request = path::request_of(theirs, path::return_to_kernel);
        if (path::requested_epoch(in.reader.request.load()) != theirs && !s.read_shut) {
            in.reader.request.store(request);
            changed(c);
        }
        return !s.read_shut;
    }
    uint32_t given = Consent::given;
    if (s.in_epoch.load() != theirs || in.wake.consent.compare_exchange_strong(given, Consent::withheld) ||
        in.wake.consent.load() != Consent::used) {
        return false;
    }
    if (c.shared().mirror.withdraw.exchange(1) == 0) {
        changed(c);
    }
    return true;
}

// A far end that has shut down its own direction still reads.
bool has_reader(const Connection& c, int fd) {
    pollfd one{fd, 0, 0};
    return c.shared().mirror.far_closed.load() == 0 && sys::poll(&one, 1, 0) == 0; // else POLLHUP, POLLERR
}

// EOF goes by TCP: everything in front of it must be where the far end finds it. Behind it, this end cannot report any
// more how far it has read if the fabric fails: so the far end returns first, if its program's service answers.
void wait_for_far_end(Connection& c, int fd) {
    constexpr uint64_t service_timeout_ns = 1000000000U;
    const ConnectionState& s = *c.state.load();
    const uint64_t begin = sys::now_ns();
    while (((s.resume_due && !far_end_knows(c)) || is_recovering(c) ||
            (!s.ended && far_end_returns(c, fd) && sys::now_ns() - begin < service_timeout_ns)) &&
           !s.broken && has_reader(c, fd) && sys::now_ns() - begin < far_answer_timeout_ns) {
        if (is_recovering(c)) {
            recover(c, fd);
        }
        sys::sleep_ms(give_back_pause_ms);
    }
}

} // namespace

void shut_now(Connection& c, int fd) {
    ConnectionState& s = *c.state.load();
    const WriteSection section(c, fd); // the fd is still this connection's
    if (section && s.end_due.exchange(false)) {
        sys::call(SYS_shutdown, fd, SHUT_WR);
    }
}

namespace {

// One step. True: nothing is left that EOF must not overtake.
bool may_shut(Connection& c, int fd) {
    const ConnectionState& s = *c.state.load();
    const uint32_t epoch = s.out_epoch.load();
    const ssize_t step = clear_step(c, fd);
    if (step != -EAGAIN) {
        return step != interrupted && step != elsewhere;
    }
    if (has_backlog(s)) {
        return false; // TCP reports space
    }
    // What was resent is in TCP, in front of EOF. A peer that does not answer reads the rest from the ring.
    const bool resent = !s.resume_due && c.out_ring().writer.resent.load() + 1 == s.out_epoch.load();
    const bool asked = ask_after(c, epoch != s.out_epoch.load());
    return resent || (!asked && !has_unsent(s)) || sys::now_ns() - s.steps_since_ns.load() >= clear_limit_ns(c);
}

} // namespace

void shut_if_due(Connection& c, int fd) {
    if (c.state.load()->end_due && may_shut(c, fd)) {
        shut_now(c, fd);
    }
}

ssize_t refuse_write(int flags) {
    if ((flags & MSG_NOSIGNAL) == 0) {
        sys::call(SYS_tgkill, sys::call(SYS_getpid), sys::call(SYS_gettid), SIGPIPE);
    }
    return -EPIPE;
}

ssize_t write_to_gone_peer(int fd, int flags) {
    const long n = sys::call(SYS_sendto, fd, nullptr, 0, (flags & MSG_NOSIGNAL) | MSG_DONTWAIT, nullptr, 0);
    return n < 0 ? n : refuse_write(flags);
}

namespace {

// The service shuts down writing, or has just done so. Returns as prepare_shutdown().
int shut_reading(int fd, int how) {
    if (how == SHUT_RDWR) {
        sys::call(SYS_shutdown, fd, SHUT_RD); // an error would be about writing
    }
    return -1;
}

// For a peer that does not answer in time: the service goes on, and EOF follows the bytes. Returns as
// prepare_shutdown(); -EAGAIN: there is no service.
int shut_without_waiting(Connection& c, int fd, int how) {
    ConnectionState& s = *c.state.load();
    begin_steps(s);
    s.end_process = static_cast<int>(sys::call(SYS_getpid));
    s.end_service = 0;
    s.end_due = true;
    const uint64_t begin = sys::now_ns();
    while (s.end_due && !may_shut(c, fd)) {
        if (sys::now_ns() - begin < short_wait_ns) {
            sched_yield();
            continue;
        }
        if (!service::go_on_with(c)) {
            s.end_due = false;
            return -EAGAIN;
        }
        s.end_service = service::own_name();
        return shut_reading(fd, how);
    }
    return s.end_due.exchange(false) ? how : shut_reading(fd, how);
}

} // namespace

int prepare_shutdown(Connection& c, int fd, int how) {
    if (how == SHUT_RD) {
        return how;
    }
    const ConnectionState& s = *c.state.load();
    push(c, fd);
    c.out_ring().writer.ends = path::ends_soon;
    // Afterwards, the peer could not be woken when there is space for what it writes.
    pin(c, fd, Reason::half_closed);
    if (c.mirrored) {
        wait_for_far_end(c, fd);
    }
    // Nothing can be resent after EOF, and the peer may hand the connection over. If TCP has no space for the ring's
    // bytes, EOF must not wait until the peer reads, unless it has requested them: then they are not read from the
    // ring.
    pollfd space{fd, POLLOUT, 0};
    if ((s.gate.load() & gate::careful) == 0 || c.segment.load() == nullptr || !(is_awaited(c) || fits_in_tcp(c, fd)) ||
        ((c.mirrored || !has_backlog(s)) && (sys::poll(&space, 1, 0) <= 0 || (space.revents & POLLOUT) == 0))) {
        return s.end_due ? shut_reading(fd, how) : how;
    }
    if (!c.mirrored && clear_out(c, fd, close_wait_ns)) { // for a peer that is stopped, the service goes on
        return how;
    }
    if (!c.mirrored && !lifecycle::in_vfork_child()) {
        if (const int now = shut_without_waiting(c, fd, how); now != -EAGAIN) {
            return now;
        }
    }
    if (!clear_out(c, fd)) {
        if (const ReadSection section(c, fd); section) {
            reset(c, fd); // rather than EOF in the middle of the data
        }
    }
    return how;
}

} // namespace preload::stream
