// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Processes. A child after a fork has copies of the parent's numbers and none of its connections: those are reset
// there, and a listener is made anew when the child first uses it. A child of vfork shares the table with its parent,
// and calls there are the kernel's alone.
#include <atomic>
#include <cerrno>

#include <netinet/in.h>
#include <unistd.h>

#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/numbers.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

constinit std::atomic<pid_t> owner{0};

// The library's own sockets hold ports and connections of the parent's, which the child cannot use: it must not keep
// them open after the parent has closed them. Its other descriptors do no harm.
void close_sockets_of_parent() {
    const auto mark_kept = [](Kind as) {
        table::for_each([&](int, Kind, Entry* entry) {
            table::Slot* kept = entry != nullptr ? table::find(entry->kernel.load()) : nullptr;
            if (kept != nullptr) {
                kept->kind.store(as);
            }
        });
    };
    mark_kept(Kind::noted); // a listener is made anew by it
    table::for_each([](int fd, Kind kind, Entry*) {
        int type = 0;
        socklen_t length = sizeof(type);
        if (kind == Kind::internal && real::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0) {
            table::remove(fd);
            real::close(fd);
        }
    });
    mark_kept(Kind::internal);
}

// Only what is safe in a child of a process with threads: no memory is asked for, no lock taken.
void in_child() {
    owner.store(getpid());
    Changing::forget();
    forget_streams_lock();
    table::after_fork();
    caller::after_fork();
    numbers::after_fork();
    caller::Inside::depth = 0;
    table::for_each([](int fd, Kind kind, Entry* entry) {
        if (kind == Kind::carried || kind == Kind::pending) {
            table::find(fd)->kind.store(Kind::inherited);
        } else if (kind == Kind::listener) {
            table::find(fd)->kind.store(Kind::inherited_listener);
        }
        if (entry != nullptr) {
            entry->waiters.store(0);
            entry->role = Entry::Role::none; // the record is the parent's
        }
    });
    close_sockets_of_parent();
}

__attribute__((constructor)) void prepare() {
    owner.store(getpid());
    pthread_atfork(nullptr, nullptr, in_child);
}

} // namespace

bool in_vfork_child() {
    const pid_t known = owner.load(std::memory_order_relaxed);
    return known != 0 && getpid() != known;
}

bool revive(int fd) {
    if (in_vfork_child()) {
        return false;
    }
    if (table::kind(fd) == Kind::inherited_listener) {
        return make_anew(fd);
    }
    if (Entry* entry = table::entry(fd); entry != nullptr && !entry->told_reset) {
        entry->told_reset = true;
        log("descriptor %d: a connection of the parent process's cannot be used in its child: ECONNRESET", fd);
    }
    return true;
}

} // namespace preload

using namespace preload;

// The child serves at once what the parent listened for: the parent has gone, and nobody else would wake the listener.
PRELOAD_EXPORT int daemon(int stay, int keep_open) noexcept {
    const int ret = real::daemon(stay, keep_open);
    if (ret == 0) {
        table::for_each([](int fd, Kind kind, Entry*) {
            if (kind == Kind::inherited_listener) {
                (void)make_anew(fd);
            }
        });
    }
    return ret;
}
