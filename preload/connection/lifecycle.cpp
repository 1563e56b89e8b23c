// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/lifecycle_internal.hpp"

#include <array>
#include <utility>

#include "preload/base/system.hpp"
#include "preload/connection/connection_pool.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/made_sockets.hpp"
#include "preload/connection/outside_use.hpp"
#include "preload/connection/positions.hpp"
#include "preload/connection/stream.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/explain.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/poll.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::lifecycle {

namespace {

bool put(int fd, uintptr_t what) {
    uintptr_t before = 0;
    return table::put(fd, what, before);
}

// The last fd of this process is closed.
void end(Connection& c) {
    ConnectionState* s = c.state.load();
    leave(c);
    stats::ended(c);
    const bool is_member = !forget_watches(c);
    path::unmap_segment(c.segment.exchange(nullptr));
    for (uint8_t*& area : c.give_back) {
        path::unmap_give_back(area);
        area = nullptr;
    }
    release_state(s);
    if (is_member) {
        return; // a set refers to it as long as the process lives
    }
    for (;;) { // the service may finish with it at the same time
        uint8_t idle = 0;
        if (c.requested.compare_exchange_strong(idle, 3)) {
            free_connection(c);
            return;
        }
        uint8_t working = 1;
        if (c.requested.compare_exchange_strong(working, 2)) {
            service::abandoned();
            return;
        }
    }
}

constinit std::atomic<uint32_t> moves{0};

// One of its fds is not in the table any more: if it was `c.fd`, another one is from now on. Other threads may close
// that one at the same time: either they see that it is `c.fd`, or this one sees that it is gone from the table. There
// may be none: who finds then that it has closed the last one uses that.
void leave_number(Connection& c, int fd) {
    bool moved = false;
    for (int gone = fd; c.fd.load() == gone;) {
        int other = -1;
        table::for_each_connection([&](int number, Connection& one) { other = &one == &c ? number : other; });
        if (other < 0) {
            break;
        }
        moves.fetch_add(1);
        moved = c.fd.compare_exchange_strong(gone, other) || moved;
        gone = other;
        if (table::connection(other) == &c) {
            break;
        }
    }
    if (moved) {
        service::guard_again(c);
    }
}

// The locks of both directions, which threads hold that use the connection by its fd, or have its memory. False: in a
// signal handler that has interrupted one of them.
bool acquire_both(ConnectionState& s) {
    if (!s.read_lock.acquire()) {
        return false;
    }
    if (!s.write_lock.acquire()) {
        s.read_lock.release();
        return false;
    }
    return true;
}

void release_both(ConnectionState& s) {
    s.write_lock.release();
    s.read_lock.release();
}

} // namespace

uint32_t count_of_moves() { return moves.load(); }

bool leave(Connection& c) { return !c.left.exchange(true) && c.state.load()->open.fetch_sub(1) == 1; }

void stay(Connection& c) {
    if (c.left.exchange(false)) {
        if (c.resets.exchange(false)) {
            sys::call(SYS_setsockopt, c.fd.load(), SOL_SOCKET, SO_LINGER, &c.linger_before, sizeof(c.linger_before));
        }
        stream::undo_reset(c);
        c.state.load()->open.fetch_add(1);
        if (stream::undo_close(c)) {
            stream::wake_again(c); // other threads may sleep, and a frame for them was not sent
        }
    }
}

void free_abandoned(Connection& c) { free_connection(c); }

Connection* began(int fd, Role role) {
    if (is_left_to_kernel()) {
        return nullptr;
    }
    const sys::ErrnoKept kept;
    if (table::find(fd) != 0) {
        if (Connection* known = table::connection(fd); known != nullptr && role != Role::accept) {
            known->role = role;
            stats::began(*known, fd);
            return known;
        }
        forget(fd); // closed past the library
    }
    Connection* c = new_connection();
    if (c == nullptr) {
        return nullptr;
    }
    ConnectionState* s = new_state();
    if (s == nullptr) {
        free_connection(*c);
        return nullptr;
    }
    s->worth_at = policy::worth_after_calls();
    s->began_ns = explain::is_wanted() ? sys::now_ns() : 0;
    if (policy::never()) {
        s->reason = Reason::never;
        s->gate.fetch_or(gate::pinned);
    }
    // In no order: the table publishes them.
    c->state.store(s, std::memory_order_relaxed);
    c->numbers.store(1, std::memory_order_relaxed);
    c->fd.store(fd, std::memory_order_relaxed);
    c->refusals.store(0, std::memory_order_relaxed);
    c->row.store(nullptr, std::memory_order_relaxed);
    for (std::atomic<bool>* flag : {&c->used, &c->polled, &c->left, &c->resets, &c->attached, &c->standard, &c->watched,
                                    &c->duplicated, &c->mirrored, &c->row_claimed}) {
        flag->store(false, std::memory_order_relaxed);
    }
    c->uses.fetch_add(1, std::memory_order_relaxed);
    c->role = role;
    c->watches = nullptr;
    c->peer = {};
    explain::note_peer(*c, fd);
    if (!put(fd, reinterpret_cast<uintptr_t>(c))) {
        release_state(s);
        free_connection(*c);
        return nullptr;
    }
    outside_use::note_number(*c, fd);
    stats::began(*c, fd);
    return c;
}

void forget(int fd) {
    const uintptr_t was = table::take(fd);
    if (was == 0 || was == table::internal) {
        return;
    }
    if ((was & table::set_bit) != 0) {
        reinterpret_cast<EpollSet*>(was & ~table::set_bit)->drop_number();
        return;
    }
    auto& c = *reinterpret_cast<Connection*>(was);
    if (c.numbers.load() != 1) {
        leave_number(c, fd);
    }
    if (c.numbers.fetch_sub(1) == 1) {
        end(c);
    }
}

namespace {

// SO_LINGER with a timeout: until the peer's kernel has all bytes. The ring plays the part of its receive buffer, which
// has space once the peer reads; what the peer has requested again must fit into TCP. The kernel does the same for the
// bytes that it has. Afterwards, the service goes on with the rest, as the kernel does. Returns the cookie of the
// socket if it has waited: the thread may be cancelled there, with the connection still open, or another one may close
// the fd.
uint64_t linger_in_memory(Connection& c, int fd) {
    linger how{};
    socklen_t length = sizeof(how);
    if (c.segment.load() == nullptr || sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &how, &length) != 0 ||
        how.l_onoff == 0 || how.l_linger <= 0) {
        return 0;
    }
    const uint64_t begin = sys::now_ns();
    const uint64_t timeout_ns = static_cast<uint64_t>(how.l_linger) * 1000000000U;
    uint64_t waits_on = 0;
    const auto wait_for_space = [&] {
        waits_on = waits_on != 0 ? waits_on : cookie_of(fd);
        const uint64_t waited = sys::now_ns() - begin;
        pollfd one{fd, POLLOUT, 0};
        return waited < timeout_ns && wait::poll(&one, 1, static_cast<int64_t>(timeout_ns - waited), nullptr) > 0 &&
               (one.revents & (POLLERR | POLLHUP | POLLNVAL)) == 0 && table::connection(fd) == &c;
    };
    if ((c.state.load()->out_epoch.load() & 1) != 0 && !wait_for_space()) {
        return waits_on;
    }
    while (!stream::finish_out(c, fd, false) && wait_for_space()) {
    }
    return waits_on;
}

} // namespace

namespace {

// The peer asks the service of the process that was the last to use this end. The one that has upgraded the connection
// may still have it.
void leave_service(const Connection& c) {
    uint64_t own = service::own_name();
    const uint64_t other = c.state.load()->holder_service.load();
    if (own != 0 && other != 0 && own != other) {
        c.shared().service[c.out_index()].compare_exchange_strong(own, other);
    }
}

} // namespace

void finish(Connection& c, int fd, bool last, bool may_wait) {
    if (!last) {
        leave_service(c);
        // Frames go to the other holders, which may not have seen a request yet, or be killed.
        stream::finish_out(c, fd, may_wait);
        stream::forget_unread(c);
        return;
    }
    const stream::Ending ending = stream::prepare_close(c, fd, may_wait);
    if (ending == stream::Ending::kept) {
        return;
    }
    if (ending == stream::Ending::reset && c.state.load()->open.load() == 0) { // else a fork took place meanwhile
        // The kernel resets a connection that is closed with unread bytes.
        const linger reset{1, 0};
        socklen_t length = sizeof(c.linger_before);
        c.resets = sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &c.linger_before, &length) == 0;
        sys::call(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    stream::note_reset(c, fd);
}

namespace {

// One of its fds is about to be closed, and is not in the table any more. Its memberships stay, as in the kernel, as
// long as another fd keeps the connection open. False: other threads have closed all others meanwhile, so that it is
// the last, and is in the table again. The connection is not used after that: the last one's thread may end it.
bool leave_to_other_fds(Connection& c, int fd) {
    leave_number(c, fd);
    outside_use::leave_standard_number(c);
    if (c.numbers.fetch_sub(1) != 1) {
        return true;
    }
    c.numbers.fetch_add(1);
    c.fd = fd;
    put(fd, reinterpret_cast<uintptr_t>(&c)); // where it was before: there is memory
    return false;
}

} // namespace

Closing before_close(int fd) {
    Closing closing;
    const uintptr_t what = table::find(fd);
    if (what == 0 || in_vfork_child()) {
        return closing;
    }
    if ((what & table::set_bit) != 0) {
        forget(fd);
        return closing;
    }
    Connection* c = table::connection(fd);
    if (c == nullptr) {
        return closing;
    }
    const sys::ErrnoKept kept;
    ConnectionState& s = *c->state.load();
    const uint32_t use = c->uses.load();
    watches_closing(*c);
    if (c->numbers.load() != 1) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &closing.cancel_state);
        if (!table::take(fd, what) || leave_to_other_fds(*c, fd)) {
            return closing; // if it was not in the table, another thread was first
        }
    }
    const bool careful = (s.gate.load() & gate::careful) != 0;
    const uint64_t lingers_on = careful && s.open.load() == 1 ? linger_in_memory(*c, fd) : 0;
    // Another thread was first: then another fd may keep the connection open, or it is another one by now, even with
    // the same fd.
    if (table::connection(fd) != c || c->uses.load() != use) {
        closing.too_late = lingers_on != 0 && cookie_of(fd) != lingers_on;
        return closing;
    }
    if (closing.cancel_state < 0) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &closing.cancel_state);
    }
    const bool last = leave(*c);
    explain::record(*c, fd);
    if (careful) {
        finish(*c, fd, last, false);
    } else if (last) {
        stream::note_reset(*c, fd); // the other end may still have to tell a reset from EOF
    }
    if (c->duplicated && last) {
        watches_leave_kernel(*c);
    }
    if (c->mirrored && last && c->segment.load() != nullptr) {
        uint32_t open = path::MirrorFields::open; // else it is aborted, and stays so
        c->shared().mirror.closed.compare_exchange_strong(open, path::MirrorFields::closed_by_last);
        stream::changed(*c);
    }
    // Threads that use it by its fd hold these locks.
    closing.locked = (c->segment.load() != nullptr || c->requested.load()) && acquire_both(s);
    if (!table::take(fd, what)) {
        if (std::exchange(closing.locked, false)) {
            release_both(s);
        }
        return closing; // another thread was first
    }
    closing.connection = c;
    return closing;
}

void after_close(int fd, Closing& closing) {
    if (closing.cancel_state >= 0) {
        pthread_setcancelstate(closing.cancel_state, nullptr);
    }
    Connection* c = closing.connection;
    if (c == nullptr) {
        return;
    }
    const sys::ErrnoKept kept;
    ConnectionState& s = *c->state.load();
    if (closing.locked) {
        release_both(s);
    }
    // Not before: a thread that found the fd in the table has noted itself by now, and one that is woken finds it gone.
    wakeup::wake_own(c->guarded.load());
    if (c->numbers.fetch_sub(1) == 1) {
        end(*c);
        return;
    }
    // Its memberships stay, as in the kernel, as long as another fd keeps the connection open.
    leave_number(*c, fd);
    stay(*c); // another thread has duplicated the fd meanwhile
    outside_use::leave_standard_number(*c);
}

void disconnected(Connection& c) {
    constexpr size_t at_once = 16;
    ConnectionState& s = *c.state.load();
    const auto what = reinterpret_cast<uintptr_t>(&c);
    int taken = 0; // the connection is not ended before the last: it would be recycled
    for (size_t count = at_once; count == at_once;) {
        std::array<int, at_once> fds{};
        count = 0;
        // The hand-over may have failed: threads that use the memory then hold these locks.
        const bool locked = acquire_both(s);
        table::for_each_connection([&](int fd, Connection& one) {
            if (&one == &c && count != at_once && table::take(fd, what)) {
                fds[count++] = fd;
            }
        });
        if (locked) {
            release_both(s);
        }
        for (size_t i = 0; i < count; ++i) {
            const int fd = fds[i];
            if (taken++ == 0) {
                explain::record(c, fd);
            }
            made_sockets::note(fd, true);
            if (c.numbers.load() > 1) {
                made_sockets::note_duplicated(fd, fd);
            }
            table::for_each_set([&](int, EpollSet& set) {
                if (set.note_disconnected(fd)) {
                    made_sockets::note_watched(fd);
                }
            });
        }
    }
    wakeup::wake_own(c.guarded.load());
    for (; taken != 0; --taken) {
        if (c.numbers.fetch_sub(1) == 1) {
            end(c);
        }
    }
}

void duplicate(int fd, int made) {
    if (made < 0 || fd == made || in_vfork_child()) {
        return;
    }
    const sys::ErrnoKept kept;
    made_sockets::note(made, made_sockets::is_tcp(fd));
    const uintptr_t what = table::find(fd);
    if (table::find(made) != 0) {
        forget(made);
    }
    if ((what & table::set_bit) != 0) {
        auto* set = reinterpret_cast<EpollSet*>(what & ~table::set_bit);
        set->add_number();
        if (!put(made, what)) { // calls with it are the kernel's
            set->leave_to_kernel();
            set->drop_number();
        }
    } else if (Connection* c = table::connection(fd); c != nullptr) {
        c->numbers.fetch_add(1);
        if (put(made, reinterpret_cast<uintptr_t>(c))) {
            outside_use::note_number(*c, made);
            return;
        }
        stream::hand_over(*c, fd, Reason::no_memory); // as above
        if (c->numbers.fetch_sub(1) == 1) {
            end(*c);
        }
    }
}

} // namespace preload::lifecycle
