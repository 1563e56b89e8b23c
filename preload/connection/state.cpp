// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/state.hpp"

#include <cstddef>
#include <cstring>
#include <new>

#include <sys/mman.h>

#include "preload/connection/local_lock.hpp"

namespace preload {

namespace {

// States are allocated in chunks. A process hands out and recycles states of its own chunks only; a child keeps its
// parent's mappings as long as it runs.
constexpr size_t chunk_states = 256;

constinit LocalLock lock;
constinit ConnectionState* unused = nullptr;
// Closed here, and open in a child: recycled once the child has closed it too.
constinit ConnectionState* waiting = nullptr;
// What the service thread uses. All accesses read and write it, and so have one order: either the thread sees that the
// number is gone from the table, or the thread that has released the state sees that it is kept.
constinit std::atomic<const ConnectionState*> kept{nullptr};
constinit ConnectionState* chunk = nullptr; // the newest
constinit size_t chunk_used = 0;

struct Chunk {
    ConnectionState* begin;
};
// The chunks of this process, to distinguish its own states from its parent's.
constexpr size_t max_chunks = 4096;
constinit Chunk* own_chunks = nullptr;
constinit size_t own_count = 0;

void* memory(size_t size, int flags) {
    void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return got != MAP_FAILED ? got : nullptr;
}

bool is_own(const ConnectionState* state) {
    for (size_t i = 0; i < own_count; ++i) {
        if (state >= own_chunks[i].begin && state < own_chunks[i].begin + chunk_states) {
            return true;
        }
    }
    return false;
}

void push(ConnectionState*& list, ConnectionState* state) {
    state->link = reinterpret_cast<uint64_t>(list);
    list = state;
}

ConnectionState* pop(ConnectionState*& list) {
    ConnectionState* got = list;
    if (got != nullptr) {
        list = reinterpret_cast<ConnectionState*>(got->link);
    }
    return got;
}

bool is_kept(const ConnectionState* state) { return kept.fetch_add(0) == state; }

bool is_idle(const ConnectionState* state) {
    return !is_kept(state) && state->holders.load(std::memory_order_acquire) == 0 && state->sleepers.load() == 0 &&
           (state->gate.load(std::memory_order_acquire) & gate::count_mask) == 0;
}

void collect_waiting() {
    ConnectionState* rest = nullptr;
    while (ConnectionState* state = pop(waiting)) {
        push(is_idle(state) ? unused : rest, state);
    }
    waiting = rest;
}

// Resets all but what calls still in flight decrement: the gate's count, and that of sleepers.
ConnectionState* renew(ConnectionState* state) {
    static constinit const ConnectionState fresh;
    constexpr size_t kept = sizeof(fresh.gate) + sizeof(fresh.sleepers);
    static_assert(offsetof(ConnectionState, sleepers) == sizeof(fresh.gate));
    memcpy(reinterpret_cast<char*>(state) + kept, reinterpret_cast<const char*>(&fresh) + kept, sizeof(fresh) - kept);
    state->gate.fetch_and(gate::count_mask);
    return state;
}

} // namespace

ConnectionState* new_state() {
    const LocalLock::Hold hold(lock);
    if (!hold) {
        return nullptr; // a signal handler has interrupted this function
    }
    if (unused == nullptr && (chunk == nullptr || chunk_used == chunk_states)) {
        collect_waiting();
    }
    if (ConnectionState* got = pop(unused); got != nullptr) {
        return renew(got);
    }
    if (chunk == nullptr || chunk_used == chunk_states) {
        if (own_chunks == nullptr) {
            own_chunks = static_cast<Chunk*>(memory(max_chunks * sizeof(Chunk), MAP_PRIVATE));
        }
        void* made = own_chunks != nullptr && own_count < max_chunks
                         ? memory(chunk_states * sizeof(ConnectionState), MAP_SHARED)
                         : nullptr;
        if (made == nullptr) {
            return nullptr;
        }
        chunk = static_cast<ConnectionState*>(made);
        chunk_used = 0;
        own_chunks[own_count++].begin = chunk;
    }
    return new (static_cast<void*>(&chunk[chunk_used++])) ConnectionState;
}

void release_state(ConnectionState* state) {
    state->holders.fetch_sub(1, std::memory_order_acq_rel);
    const LocalLock::Hold hold(lock);
    if (hold && is_own(state)) {
        push(is_idle(state) ? unused : waiting, state);
    }
}

void keep_state(const ConnectionState* state) { kept.exchange(state); }

void states_after_fork() {
    lock.forget();
    kept.exchange(nullptr);
    unused = nullptr;
    waiting = nullptr;
    chunk = nullptr;
    chunk_used = 0;
    own_count = 0; // the table's memory is private, and is reused
}

} // namespace preload
