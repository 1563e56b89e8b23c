// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections of a process that forks, executes another program, or ends; and of one that leaves them all to the
// kernel.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "preload/base/lowest_fd.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/connection_pool.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/lifecycle_internal.hpp"
#include "preload/connection/outside_use.hpp"
#include "preload/connection/stream_internal.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/raised_limit.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/stats/explain.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"

namespace preload::lifecycle {

namespace {

constinit std::atomic<pid_t> owner{0};
constinit std::atomic<bool> leaving{false};  // leave_everything_to_the_kernel() has begun
constinit std::atomic<bool> filtered{false}; // it is done: nothing in the table is used any more
#if defined(__x86_64__)
constinit std::atomic<bool> unseen_children{false};
#else
constinit std::atomic<bool> unseen_children{true}; // vfork is not detected, see calls/children.cpp
#endif

// All at once: their peers may be slow, or stopped.
void hand_over_all(Reason reason) {
    constexpr uint64_t timeout_ns = 5000000000;
    constexpr int pause_ms = 1;
    constexpr uint64_t for_readers_ns = 250000000; // of bytes that a peer which has ended has left
    const uint64_t begin = sys::now_ns();
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
                if (now - begin > (stream::has_last_bytes(c, fd)
                                       ? for_readers_ns
                                       : timeout_ns)) { // the program would read frames as bytes
                    stream::reset(c, fd, reason);
                }
            }
        });
        if (!all) {
            sys::sleep_ms(pause_ms);
        }
    }
}

} // namespace

void leave_everything_to_the_kernel(Reason reason) {
    if (in_vfork_child() || leaving.exchange(true)) {
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
            leave(c);
            s.holders.fetch_sub(1);
            table::take(fd); // others may close it meanwhile
        }
    });
    hand_over_all(reason);
    stream::await_lingering();
    service::stop();       // only now: it may serve the other end of a connection
    hand_over_all(reason); // what it has agreed on meanwhile
    filtered = true;       // other threads have used the table as always
    table::for_each([](int fd, uintptr_t what) {
        if (what != table::internal) { // open as before, and not the program's
            table::take(fd);
        }
    });
}

bool is_left_to_kernel() { return leaving; }

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

// Children share connections: one more process holds each. Counted by one fd each: several may refer to one. Other
// threads begin and close connections until the child is made: the child goes by what was counted for it.
struct Counted {
    struct Entry {
        Connection* connection;
        ConnectionState* state; // is not recycled before the child has left it
    };
    Counted* outer; // of a fork that a signal handler has interrupted
    size_t capacity;
    size_t used;

    Entry* entries() { return reinterpret_cast<Entry*>(this + 1); }
    static size_t bytes(size_t capacity) { return sizeof(Counted) + capacity * sizeof(Entry); }
};
constinit thread_local Counted* counted = nullptr;
constinit Counted no_memory{}; // all connections are counted, and the child goes by what it has

Counted* begin_to_count() {
    constexpr size_t further = 64;
    size_t capacity = further;
    table::for_each_connection([&](int, Connection&) { ++capacity; });
    const long made = sys::call(SYS_mmap, nullptr, Counted::bytes(capacity), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made < 0 && made > -4096) {
        return &no_memory;
    }
    auto* const begun = reinterpret_cast<Counted*>(made); // NOLINT(performance-no-int-to-ptr)
    begun->outer = counted;
    begun->capacity = capacity;
    return begun;
}

void end_counting() {
    Counted* const done = counted;
    if (done == nullptr) {
        return;
    }
    counted = done->outer;
    if (done != &no_memory) {
        sys::call(SYS_munmap, done, Counted::bytes(done->capacity));
    }
}

// False: another thread has just closed it.
bool add_holder(ConnectionState& s) {
    uint32_t holders = s.holders.load();
    while (holders != 0 && !s.holders.compare_exchange_weak(holders, holders + 1)) {
    }
    if (holders != 0) {
        s.open.fetch_add(1);
    }
    return holders != 0;
}

void remove_holder(ConnectionState& s) {
    s.open.fetch_sub(1);
    s.holders.fetch_sub(1);
}

bool is_counted(const Connection& c) {
    const Counted::Entry* entries = counted->entries();
    const ConnectionState* s = c.state.load();
    return std::any_of(entries, entries + counted->used, [s](const Counted::Entry& one) { return one.state == s; });
}

void before_fork() {
    forks_inside = false;
    table::for_each_set([](int, EpollSet& set) {
        set.leave_wakeup();
        set.share();
    });
    counted = begin_to_count();
    const bool listed = counted != &no_memory;
    const auto count = [listed](int fd, Connection& c) {
        if (listed && counted->used == counted->capacity) {
            return;
        }
        watches_closing(c);
        if (c.mirrored) {
            c.shared().mirror.shared = path::MirrorFields::several;
        }
        stream::push(c, fd); // this process may end before its service would do that
        ConnectionState& s = *c.state.load();
        if (!add_holder(s)) {
            return;
        }
        if (listed) {
            counted->entries()[counted->used++] = {&c, &s};
        }
        const bool reads = s.read_lock.note_fork();
        const bool writes = s.write_lock.note_fork();
        forks_inside = forks_inside || reads || writes;
    };
    const uint32_t moves = count_of_moves();
    table::for_each_connection([&](int fd, Connection& c) {
        if (c.fd.load() == fd && count_of_moves() == moves) {
            count(fd, c);
        }
    });
    // Of several fds, another thread may be about to close the one by which the connection is counted.
    table::for_each_connection([&](int fd, Connection& c) {
        if (listed && (c.fd.load() != fd || count_of_moves() != moves) && !is_counted(c)) {
            count(fd, c);
        }
    });
}

void after_fork_in_parent(bool made) {
    table::for_each_set([](int, EpollSet& set) { set.after_fork_in_parent(); });
    // Null: a handler's fork, without memory, has taken the place of the one that it interrupted.
    for (size_t i = 0; !made && counted != nullptr && i < counted->used; ++i) {
        remove_holder(*counted->entries()[i].state);
    }
    if (!made && counted == &no_memory) {
        table::for_each_connection([](int fd, Connection& c) {
            if (c.fd.load() == fd) {
                remove_holder(*c.state.load());
            }
        });
    }
    end_counting();
}

// In a child: what other threads of the parent have begun since was not counted, and the child does not know of it: its
// state may be another connection's soon. What they have closed since, the child does not have.
void go_by_what_was_counted() {
    if (counted == nullptr || counted == &no_memory) { // null: clone(2) has given the child a thread area of its own
        end_counting();
        return;
    }
    enum Seen : int { no, as_counted, in_table };
    table::for_each_connection([](int, Connection& c) { c.seen_by_child = no; });
    const auto each = [](auto&& body) {
        for (size_t i = 0; i < counted->used; ++i) {
            body(counted->entries()[i]);
        }
    };
    each([](const Counted::Entry& entry) {
        if (entry.connection->state.load() == entry.state) {
            entry.connection->seen_by_child = as_counted;
        }
    });
    table::for_each_connection([](int fd, Connection& c) {
        if (c.seen_by_child == no) {
            table::take(fd);
        } else {
            c.seen_by_child = in_table;
        }
    });
    each([](const Counted::Entry& entry) {
        if (entry.connection->state.load() != entry.state || entry.connection->seen_by_child != in_table) {
            remove_holder(*entry.state);
        }
    });
    end_counting();
}

// In a child: other threads of the parent may have been about to close an fd, or to note a duplicate.
void count_numbers() {
    table::for_each([](int, uintptr_t what) {
        if ((what & table::set_bit) != 0) {
            reinterpret_cast<EpollSet*>(what & ~table::set_bit)->forget_numbers();
        } else if (what != table::internal) {
            reinterpret_cast<Connection*>(what)->numbers = 0;
        }
    });
    table::for_each([](int fd, uintptr_t what) {
        if ((what & table::set_bit) != 0) {
            reinterpret_cast<EpollSet*>(what & ~table::set_bit)->add_number();
        } else if (what != table::internal) {
            auto& c = *reinterpret_cast<Connection*>(what);
            c.numbers.fetch_add(1);
            if (table::connection(c.fd.load()) != &c) {
                c.fd = fd;
            }
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
            stream::hand_over(c, fd, Reason::several, goes_on_at);
        }
    });
}

void after_fork_in_child() {
    owner = getpid();
    go_by_what_was_counted();
    count_numbers();
    connections_after_fork();
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
            if (c.left.exchange(false)) { // another thread of the parent was about to close it
                stream::undo_close(c);
            }
            c.attached = false;
            c.guard = Guard::none; // the child's service does not watch it
            c.guarded = 0;
        }
    });
    service::after_fork_in_child();
    if (!sees_parent) {
        leave_shared_to_the_kernel();
    }
}

// Connections that other processes of this end have, too, but only this one has the memory of, return to the kernel.
void leave_to_others() {
    table::for_each_connection([](int fd, Connection& c) {
        const ConnectionState& s = *c.state.load();
        if (c.segment.load() == nullptr || c.fd.load() != fd) {
            return;
        }
        if ((s.gate.load() & gate::careful) == 0) {
            if (s.open.load() == 1) {
                stream::note_reset(c, fd);
            }
            return;
        }
        watches_closing(c); // a set may be inherited
        if (c.attached && s.holders.load() > 1) {
            stream::hand_over(c, fd, Reason::several);
        }
        const bool last = leave(c);
        finish(c, fd, last, true);
        if (last) {
            stream::announce_leaving(c);
        }
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
            leave(c);
            c.state.load()->holders.fetch_sub(1);
        }
    });
    stream::await_lingering();
}

void stay_in_process() {
    table::for_each_connection([](int fd, Connection& c) {
        if (c.fd.load() == fd) {
            stay(c);
            stream::withdraw_leaving(c);
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
    lowest_fd::ProgramCall::begin(in_vfork_child);
    raised_limit::begin_pause();
}
void atfork_parent() {
    raised_limit::end_pause();
    lowest_fd::ProgramCall::end();
    if (!learns_result) { // libc's own, in forkpty(3)
        after_fork_in_parent(true);
    }
}
void atfork_child() {
    learns_result = false;
    lowest_fd::after_fork_in_child();
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
    lowest_fd::ProgramCall::end();
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
