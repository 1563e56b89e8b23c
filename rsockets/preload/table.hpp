// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the shim knows of a descriptor's number, found without a lock: a call on a number that the shim has nothing to
// do with costs one look here. What is known of the open file behind it is an Entry, which all its numbers share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <sys/socket.h>

namespace preload {

enum class Kind : uint8_t {
    none,
    noted,      // a socket of the kernel's with an entry
    kernel_set, // an epoll set of the kernel's
    internal,   // a descriptor of the library's own, which the program does not know of
    last_plain = internal,

    carried,
    pending, // connecting, and the kernel's socket is kept for the case that this fails
    listener,
    set,                // an epoll set with something carried in it
    inherited,          // a connection of the parent's
    inherited_listener, // of the parent's, to be made anew at first use
};

// Entries are never freed, only used again: who found one by a number that another thread closes reads old news, not
// freed memory.
struct Entry {
    enum class Role : uint8_t { none, connect, listen, accept };

    std::atomic<int> numbers{0};
    std::atomic<int> kernel{-1}; // pending, listener: the kernel's socket; set: the kernel's epoll descriptor
    Role role = Role::none;
    bool apart = false;       // a listener: the kernel's socket listens as well
    bool nonblocking = false; // listener
    bool told_reset = false;  // inherited: the log says so
    bool told = true;         // the program was told how the kernel's attempt to connect went
    // The program has not bound it. After a connect that the kernel refused, its socket still names the port that this
    // one had, which is anybody's by then.
    bool unbound = false;
    const char* reason = nullptr; // why it is with the kernel
    std::atomic<int> waiters{0};  // kernel_set: threads in the kernel's epoll_wait
    std::atomic<int> kick{-1};    // set: wakes those
    std::atomic<int> number{-1};  // one of its numbers
    sockaddr_storage address{};   // pending: where to; listener: its own
    socklen_t address_length = 0;
    int backlog = 0;
    std::array<char, 32> core{}; // for the record: the library's name for what is below
    sockaddr_storage local{};    // for the record
    sockaddr_storage peer{};
    Entry* next = nullptr; // of those not in use
};

namespace table {

inline constexpr size_t chunk_size = 1024;
inline constexpr size_t chunk_count = 1024; // up to 2^20, the kernel's own default of fs.nr_open

struct Slot {
    std::atomic<Kind> kind{Kind::none};
    std::atomic<Entry*> entry{nullptr};
};
using Chunk = std::array<Slot, chunk_size>;
extern std::array<std::atomic<Chunk*>, chunk_count> chunks;

inline Slot* find(int fd) {
    const auto number = static_cast<size_t>(static_cast<unsigned>(fd));
    if (number >= chunk_size * chunk_count) {
        return nullptr;
    }
    Chunk* chunk = chunks[number / chunk_size].load(std::memory_order_acquire);
    return chunk != nullptr ? &(*chunk)[number % chunk_size] : nullptr;
}

inline Kind kind(int fd) {
    const Slot* slot = find(fd);
    return slot != nullptr ? slot->kind.load(std::memory_order_acquire) : Kind::none;
}

// Whether calls on it go to libc as they are.
inline bool plain(int fd) { return kind(fd) <= Kind::last_plain; }

inline Entry* entry(int fd) {
    const Slot* slot = find(fd);
    return slot != nullptr ? slot->entry.load(std::memory_order_acquire) : nullptr;
}

Entry* new_entry(); // null for want of memory
void after_fork();  // in the child
// The number stands for this from now on; what it stood for loses it. False for want of memory, or if the number is
// beyond all sense.
bool put(int fd, Kind kind, Entry* entry);
// All numbers of an entry change their kind.
void change(Entry* entry, Kind kind);
// The number stands for nothing any more.
void remove(int fd);
// Calls body(fd, kind, entry) for each number that is known.
template <class Body> void for_each(Body&& body) {
    for (size_t i = 0; i < chunk_count; ++i) {
        Chunk* chunk = chunks[i].load(std::memory_order_acquire);
        for (size_t j = 0; chunk != nullptr && j < chunk_size; ++j) {
            Slot& slot = (*chunk)[j];
            if (const Kind kind = slot.kind.load(std::memory_order_acquire); kind != Kind::none) {
                body(static_cast<int>(i * chunk_size + j), kind, slot.entry.load(std::memory_order_acquire));
            }
        }
    }
}

} // namespace table
} // namespace preload
