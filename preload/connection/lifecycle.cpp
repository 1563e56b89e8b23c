// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/lifecycle.hpp"

#include <cstdlib>
#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "preload/base/numbers.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/local_lock.hpp"
#include "preload/connection/made_sockets.hpp"
#include "preload/connection/outside_use.hpp"
#include "preload/connection/stream.hpp"
#include "preload/rendezvous/raised_limit.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/explain.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/poll.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::lifecycle {

namespace {

constinit LocalLock lock;
constinit Connection* unused = nullptr;
constinit std::atomic<pid_t> owner{0};
constinit std::atomic<bool> filtered{false};
#if defined(__x86_64__)
constinit std::atomic<bool> unseen_children{false};
#else
constinit std::atomic<bool> unseen_children{true}; // vfork is not detected, see calls/children.cpp
#endif

Connection* new_connection() {
    constexpr size_t at_once = 64;
    const LocalLock::Hold hold(lock);
    if (!hold) {
        return nullptr;
    }
    if (unused == nullptr) {
        void* memory =
            mmap(nullptr, at_once * sizeof(Connection), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return nullptr;
        }
        const uint32_t first = stats::next_ordinals(at_once);
        for (size_t i = 0; i < at_once; ++i) {
            auto* made = new (static_cast<char*>(memory) + i * sizeof(Connection)) Connection;
            made->next = unused;
            made->ordinal = first + static_cast<uint32_t>(at_once - 1 - i); // the last is used first
            unused = made;
        }
    }
    Connection* got = unused;
    unused = got->next;
    return got;
}

void free_connection(Connection& c) {
    c.requested = 0;
    const LocalLock::Hold hold(lock);
    if (hold) {
        c.next = unused;
        unused = &c;
    }
}

void put(int fd, uintptr_t what) {
    uintptr_t before = 0;
    (void)table::put(fd, what, before);
}

// This process is about to close it. True, once: it is the last one.
bool leave(Connection& c) { return !c.left.exchange(true) && c.state.load()->open.fetch_sub(1) == 1; }

// The close did not take place, and a later one may find all bytes read.
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

// The last fd of this process is closed.
void end(Connection& c) {
    ConnectionState* s = c.state.load();
    (void)leave(c);
    stats::ended(c);
    forget_watches(c);
    path::unmap_segment(c.segment.exchange(nullptr));
    for (uint8_t*& area : c.give_back) {
        path::unmap_give_back(area);
        area = nullptr;
    }
    release_state(s);
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

} // namespace

void free_abandoned(Connection& c) { free_connection(c); }

Connection* began(int fd, Role role) {
    if (filtered) {
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
    c->state = s;
    c->numbers = 1;
    c->fd = fd;
    c->role = role;
    c->used = false;
    c->left = false;
    c->resets = false;
    c->forks = 0;
    c->attached = false;
    c->standard = false;
    c->watches = nullptr;
    c->watched = false;
    c->duplicated = c->mirrored = false;
    c->peer = {};
    explain::note_peer(*c, fd);
    put(fd, reinterpret_cast<uintptr_t>(c));
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
    if (c.numbers.fetch_sub(1) == 1) {
        end(c);
    }
}

namespace {

// SO_LINGER with a timeout: until the peer's kernel has all bytes. The ring plays the part of its receive buffer, which
// has space once the peer reads. The kernel does the same for the bytes that it has.
void linger_in_ring(Connection& c, int fd) {
    linger how{};
    socklen_t length = sizeof(how);
    if (c.segment.load() == nullptr || (c.state.load()->out_epoch.load() & 1) == 0 ||
        sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &how, &length) != 0 || how.l_onoff == 0 || how.l_linger <= 0) {
        return;
    }
    pollfd one{fd, POLLOUT, 0};
    (void)wait::poll(&one, 1, how.l_linger * int64_t{1000000000}, nullptr);
}

// For a careful connection that this process is about to close. may_wait: by its end, or by exec.
void finish(Connection& c, int fd, bool last, bool may_wait) {
    if (!last) {
        // Frames go to the other holders, which may not have seen a request yet, or be killed.
        (void)stream::finish_out(c, fd, may_wait);
        return;
    }
    if (stream::prepare_close(c, fd, may_wait) &&
        c.state.load()->open.load() == 0) { // else a fork took place meanwhile
        // The kernel resets a connection that is closed with unread bytes.
        const linger reset{1, 0};
        socklen_t length = sizeof(c.linger_before);
        c.resets = sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &c.linger_before, &length) == 0;
        sys::call(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    stream::note_reset(c, fd);
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
    watches_closing(*c);
    const bool only = c->numbers.load() == 1;
    const bool careful = (s.gate.load() & gate::careful) != 0;
    if (only && careful && s.open.load() == 1) {
        linger_in_ring(*c, fd); // the thread may be cancelled there, with the connection still open
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &closing.cancel_state);
    if (only) {
        const bool last = leave(*c);
        explain::record(*c, fd);
        if (careful) {
            finish(*c, fd, last, false);
        }
        if (c->duplicated && last) {
            watches_leave_kernel(*c);
        }
        if (c->mirrored && last && c->segment.load() != nullptr) {
            uint32_t open = path::MirrorFields::open; // else it is aborted, and stays so
            c->shared().mirror.closed.compare_exchange_strong(open, path::MirrorFields::closed_by_last);
            stream::changed(*c);
        }
        wakeup::wake_own(c->guarded.load());
        // Threads that use it by its fd hold these locks.
        if (c->segment.load() != nullptr || c->requested.load()) {
            closing.locked = s.read_lock.acquire();
            if (closing.locked && !s.write_lock.acquire()) {
                s.read_lock.release();
                closing.locked = false;
            }
        }
    }
    if (table::take(fd) != reinterpret_cast<uintptr_t>(c)) { // another thread was first
        if (closing.locked) {
            s.write_lock.release();
            s.read_lock.release();
            closing.locked = false;
        }
        return closing;
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
        s.write_lock.release();
        s.read_lock.release();
    }
    if (c->numbers.fetch_sub(1) == 1) {
        end(*c);
        return;
    }
    // Its memberships stay, as in the kernel, as long as another fd keeps the connection open.
    if (c->fd.load() == fd) {
        table::for_each_connection([&](int other, Connection& one) {
            if (&one == c) {
                c->fd = other;
            }
        });
        service::guard_again(*c);
    }
    stay(*c); // another thread has duplicated the fd meanwhile
    outside_use::leave_standard_number(*c);
}

void disconnected(Connection& c) {
    int taken = 0; // the connection is not ended before the last: it would be recycled
    table::for_each_connection([&](int fd, Connection& one) {
        if (&one != &c || table::take(fd) != reinterpret_cast<uintptr_t>(&c)) {
            return;
        }
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
    });
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
        reinterpret_cast<EpollSet*>(what & ~table::set_bit)->add_number();
        put(made, what);
    } else if (Connection* c = table::connection(fd); c != nullptr) {
        c->numbers.fetch_add(1);
        put(made, reinterpret_cast<uintptr_t>(c));
        outside_use::note_number(*c, made);
    }
}

namespace {

// All at once: their peers may be slow, or stopped.
void hand_over_all(Reason reason) {
    constexpr uint64_t timeout_ns = 5000000000;
    constexpr int pause_ms = 1;
    const uint64_t end = sys::now_ns() + timeout_ns;
    for (bool all = false; !all;) {
        all = true;
        const uint64_t now = sys::now_ns();
        table::for_each_connection([&](int fd, Connection& c) {
            ConnectionState& s = *c.state.load();
            if (c.role != Role::listen && c.fd.load() == fd && (s.gate.load() & (gate::careful | gate::wanted)) != 0 &&
                !s.broken.load()) {
                if (stream::hand_over(c, fd, reason, now)) {
                    return;
                }
                all = false;
                if (now > end) { // the program would read frames as bytes
                    const sockaddr none_at_all{AF_UNSPEC, {}};
                    s.broken = true;
                    c.out_ring().writer.resets = 1;
                    sys::call(SYS_connect, fd, &none_at_all, sizeof(none_at_all));
                }
            }
        });
        if (!all) {
            (void)sys::poll(nullptr, 0, pause_ms);
        }
    }
}

} // namespace

void leave_everything_to_the_kernel() {
    if (in_vfork_child() || filtered.exchange(true)) {
        return;
    }
    const sys::ErrnoKept kept;
    explain::record_all();
    service::refuse();
    table::for_each_connection([](int fd, Connection& c) {
        ConnectionState& s = *c.state.load();
        if (c.role == Role::listen || c.fd.load() != fd) {
            return;
        }
        s.uncounted = Uncounted::yes; // a later holder may upgrade it
        if ((s.gate.load() & (gate::careful | gate::wanted)) == 0) {
            (void)leave(c);
            s.holders.fetch_sub(1);
        }
    });
    hand_over_all(Reason::sandboxed);
    service::stop(); // only now: it may serve the other end of a connection
    table::for_each([](int fd, uintptr_t what) {
        if (what != table::internal) { // open as before, and not the program's
            (void)table::take(fd);
        }
    });
}

void note_unseen_child() { unseen_children = true; }

bool in_vfork_child() {
    if (filtered.load(std::memory_order_relaxed)) {
        return true; // as there, its calls go to the kernel only
    }
    if (!unseen_children.load(std::memory_order_relaxed)) [[likely]] {
        return false;
    }
    const pid_t known = owner.load(std::memory_order_relaxed);
    return known != 0 && static_cast<pid_t>(sys::call(SYS_getpid)) != known;
}

namespace {

// Whether the calling thread is forking in a signal handler that has interrupted it while it holds a connection's lock.
thread_local bool forks_inside = false;

// Children share connections: one more process holds each. Counted by one fd each: several may refer to one.
void before_fork() {
    forks_inside = false;
    table::for_each_set([](int, EpollSet& set) {
        set.leave_wakeup();
        set.share();
    });
    table::for_each_connection([](int fd, Connection& c) {
        if (c.fd.load() == fd) {
            watches_closing(c);
            if (c.mirrored) {
                c.shared().mirror.shared = 1;
            }
            ConnectionState& s = *c.state.load();
            s.open.fetch_add(1);
            s.holders.fetch_add(1);
            c.forks.fetch_add(1);
            const bool reads = s.read_lock.note_fork();
            const bool writes = s.write_lock.note_fork();
            forks_inside = forks_inside || reads || writes;
        }
    });
}

void after_fork_in_parent(bool made) {
    table::for_each_set([](int, EpollSet& set) { set.after_fork_in_parent(); });
    table::for_each_connection([&](int fd, Connection& c) {
        if (c.fd.load() != fd || c.forks.load() == 0) { // it has begun since
            return;
        }
        c.forks.fetch_sub(1);
        if (!made) {
            c.state.load()->open.fetch_sub(1);
            c.state.load()->holders.fetch_sub(1);
        }
    });
}

// In a child in another PID namespace: a process there that is killed while it holds a lock would block the others.
void leave_shared_to_the_kernel() {
    constexpr uint64_t longest_delay_ns = 250000000; // of all together: peers may be stopped
    const uint64_t goes_on_at = sys::now_ns() + longest_delay_ns;
    table::for_each_connection([&](int fd, Connection& c) {
        const uint64_t flags = c.state.load()->gate.load();
        const bool moves =
            (flags & gate::careful) != 0 && c.segment.load() != nullptr && !stream::has_last_bytes(c, fd);
        if (c.role != Role::listen && c.fd.load() == fd && (moves || (flags & gate::wanted) != 0)) {
            (void)stream::hand_over(c, fd, Reason::several, goes_on_at);
        }
    });
}

void after_fork_in_child() {
    owner = getpid();
    lock.forget();
    const bool sees_parent = forget_thread_id();
    if (forks_inside) {
        note_interrupted_parent();
    }
    states_after_fork();
    stats::after_fork_in_child();
    watches_after_fork();
    shared_sets_after_fork();
    table::for_each([](int, uintptr_t what) {
        if ((what & table::set_bit) != 0) {
            reinterpret_cast<EpollSet*>(what & ~table::set_bit)->after_fork();
        } else if (what != table::internal) {
            auto& c = *reinterpret_cast<Connection*>(what);
            c.requested = 0;
            c.used = false;
            c.forks = 0;
            if (c.left.exchange(false)) { // another thread of the parent was about to close it
                (void)stream::undo_close(c);
            }
            c.attached = false;
            c.guard = Guard::none; // the child's service does not watch it
            c.guarded = 0;
        }
    });
    for (Connection* c = unused; c != nullptr; c = c->next) {
        c->requested = 0;
    }
    service::after_fork_in_child();
    if (!sees_parent) {
        leave_shared_to_the_kernel();
    }
}

// Connections that other processes of this end have, too, but only this one has the memory of, return to the kernel.
void leave_to_others() {
    table::for_each_connection([](int fd, Connection& c) {
        const ConnectionState& s = *c.state.load();
        if ((s.gate.load() & gate::careful) == 0 || c.segment.load() == nullptr || c.fd.load() != fd) {
            return;
        }
        watches_closing(c); // a set may be inherited
        if (c.attached && s.holders.load() > 1) {
            (void)stream::hand_over(c, fd, Reason::several);
        }
        finish(c, fd, leave(c), true);
    });
}

} // namespace

void leave_inheritable_sets() {
    const sys::ErrnoKept kept;
    if (!in_vfork_child()) {
        table::for_each_set([](int fd, EpollSet& set) {
            if ((sys::call(SYS_fcntl, fd, F_GETFD, 0) & FD_CLOEXEC) == 0) {
                set.leave_wakeup();
            }
        });
    }
}

void leave_process() {
    leave_to_others();
    table::for_each_connection([](int fd, Connection& c) {
        if (c.fd.load() == fd) {
            (void)leave(c);
            c.state.load()->holders.fetch_sub(1);
        }
    });
}

void stay_in_process() {
    table::for_each_connection([](int fd, Connection& c) {
        if (c.fd.load() == fd) {
            stay(c);
            c.state.load()->holders.fetch_add(1);
        }
    });
}

namespace {

// This process does not use the connections any more; children may.
__attribute__((destructor)) void at_exit() {
    explain::record_all();
    leave_process();
}

// Whether the calling thread is in forked(), which learns whether there is a child: these handlers do not.
thread_local bool learns_result = false;

void atfork_before() {
    before_fork();
    numbers::Using::begin(in_vfork_child);
    raised_limit::begin_pause();
}
void atfork_parent() {
    raised_limit::end_pause();
    numbers::Using::end();
    if (!learns_result) { // libc's own, in forkpty(3)
        after_fork_in_parent(true);
    }
}
void atfork_child() {
    learns_result = false;
    numbers::after_fork_in_child();
    raised_limit::after_fork_in_child();
    after_fork_in_child();
}

__attribute__((constructor(102))) void prepare() {
    owner = getpid();
    pthread_atfork(atfork_before, atfork_parent, atfork_child);
    at_quick_exit(at_exit);
    adopt_inherited();
}

} // namespace

void before_forking() {
    const sys::ErrnoKept kept;
    atfork_before();
}

void after_forking(long made) {
    const sys::ErrnoKept kept;
    if (made == 0) {
        atfork_child();
        return;
    }
    raised_limit::end_pause();
    numbers::Using::end();
    after_fork_in_parent(made > 0);
}

pid_t forked(pid_t (*make)()) {
    const bool before = std::exchange(learns_result, true);
    const pid_t child = make();
    learns_result = before;
    if (child != 0) {
        const sys::ErrnoKept kept;
        after_fork_in_parent(child > 0);
    }
    return child;
}

} // namespace preload::lifecycle
