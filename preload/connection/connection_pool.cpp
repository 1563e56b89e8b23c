// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/connection_pool.hpp"

#include <new>

#include <sys/mman.h>

#include "preload/connection/local_lock.hpp"

namespace preload {

namespace {

constinit LocalLock lock;
constinit Connection* unused = nullptr;
constinit uint32_t next_ordinal = 0;
// What the service thread uses, ordered as the state that it uses: see state.cpp.
constinit std::atomic<const Connection*> kept{nullptr};

// Null: there is none but one that is kept.
Connection* take_unused() {
    Connection** place = &unused;
    if (unused != nullptr && kept.fetch_add(0) == unused) {
        place = &unused->next;
    }
    Connection* const got = *place;
    if (got != nullptr) {
        *place = got->next;
    }
    return got;
}

} // namespace

Connection* new_connection() {
    constexpr uint32_t at_once = 64;
    const LocalLock::Hold hold(lock);
    if (!hold) {
        return nullptr;
    }
    if (Connection* got = take_unused(); got != nullptr) {
        return got;
    }
    void* memory =
        mmap(nullptr, at_once * sizeof(Connection), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    for (uint32_t i = 0; i < at_once; ++i) {
        auto* made = new (static_cast<char*>(memory) + i * sizeof(Connection)) Connection;
        made->next = unused;
        made->ordinal = next_ordinal + at_once - 1 - i; // the last is used first
        unused = made;
    }
    next_ordinal += at_once;
    return take_unused();
}

void free_connection(Connection& c) {
    c.requested = 0;
    const LocalLock::Hold hold(lock);
    if (hold) {
        c.next = unused;
        unused = &c;
    }
}

void keep_connection(const Connection* c) { kept.exchange(c); }

void connections_after_fork() {
    lock.forget();
    keep_connection(nullptr);
    for (Connection* c = unused; c != nullptr; c = c->next) {
        c->requested = 0;
    }
}

} // namespace preload
