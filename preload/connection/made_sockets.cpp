// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/made_sockets.hpp"

#include <initializer_list>

#include <sys/stat.h>

#include "preload/connection/gate.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/table.hpp"
#include "preload/wait/epoll_set.hpp"

namespace preload::made_sockets {

namespace {

constinit std::atomic<int> highest_duplicated{-1};

void notify_sets(int fd) {
    Connection* c = table::connection(fd);
    table::for_each_set([&](int, EpollSet& set) {
        if (c != nullptr) {
            note_connected_in(set, *c, fd);
        }
    });
}

} // namespace

void note_connected_in(EpollSet& set, Connection& c, int fd) {
    if (!set.note_connected(fd)) {
        gate::pin(*c.state.load()); // a signal handler has interrupted the set's own functions
    }
}

void note_duplicated(int fd, int made) {
    for (const int one : {fd, made}) {
        if (!is_tcp(one)) {
            continue;
        }
        notes[static_cast<size_t>(one)].fetch_or(duplicated, std::memory_order_relaxed);
        int highest = highest_duplicated.load();
        while (highest < one && !highest_duplicated.compare_exchange_weak(highest, one)) {
        }
    }
}

void note_connected(int fd) {
    if (static_cast<size_t>(fd) >= numbers) {
        if (Connection* c = table::connection(fd); c != nullptr) {
            gate::pin(*c->state.load());
        }
        return;
    }
    const uint8_t before = notes[static_cast<size_t>(fd)].fetch_or(0, std::memory_order_acq_rel); // see note_watched()
    if ((before & watched) != 0) {
        notify_sets(fd);
    }
    struct stat own {};
    if ((before & duplicated) == 0 || fstat(fd, &own) != 0) {
        return;
    }
    for (int other = highest_duplicated.load(); other >= 0; --other) {
        const uint8_t note = note_of(other);
        struct stat about {};
        if ((note & duplicated) != 0 && other != fd && table::find(other) == 0 && fstat(other, &about) == 0 &&
            about.st_ino == own.st_ino && about.st_dev == own.st_dev) {
            lifecycle::duplicate(fd, other);
            if ((note & watched) != 0) {
                notify_sets(other);
            }
        }
    }
}

} // namespace preload::made_sockets
