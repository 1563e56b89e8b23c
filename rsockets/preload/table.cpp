// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/table.hpp"

#include <new>

#include <sys/mman.h>

#include "rsockets/preload/explain.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/real.hpp"

namespace preload::table {

constinit std::array<std::atomic<Chunk*>, chunk_count> chunks{};

namespace {

constexpr size_t entries_at_once = 64;

constinit SpinLock free_lock;
constinit Entry* unused = nullptr;

// Not from malloc, which may be what is calling.
void* memory(size_t size) {
    void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return got != MAP_FAILED ? got : nullptr;
}

Slot* make(int fd) {
    const auto number = static_cast<size_t>(static_cast<unsigned>(fd));
    if (number >= chunk_size * chunk_count) {
        return nullptr;
    }
    auto& place = chunks[number / chunk_size];
    if (place.load(std::memory_order_acquire) == nullptr) {
        void* room = memory(sizeof(Chunk));
        if (room == nullptr) {
            return nullptr;
        }
        Chunk* none = nullptr;
        if (!place.compare_exchange_strong(none, new (room) Chunk, std::memory_order_acq_rel)) {
            munmap(room, sizeof(Chunk));
        }
    }
    return find(fd);
}

void release(Entry* entry) {
    if (entry == nullptr || entry->numbers.fetch_sub(1, std::memory_order_acq_rel) != 1) {
        return;
    }
    if (const int kernel = entry->kernel.exchange(-1); kernel >= 0) {
        remove(kernel);
        real::close(kernel);
    }
    const SpinLock::Hold hold(free_lock);
    entry->next = unused;
    unused = entry;
}

} // namespace

void after_fork() { free_lock.forget(); }

Entry* new_entry() {
    const SpinLock::Hold hold(free_lock);
    if (unused == nullptr) {
        auto* room = static_cast<char*>(memory(sizeof(Entry) * entries_at_once));
        for (size_t i = 0; room != nullptr && i < entries_at_once; ++i) {
            auto* made = new (room + i * sizeof(Entry)) Entry;
            made->next = unused;
            unused = made;
        }
    }
    Entry* made = unused;
    if (made != nullptr) {
        unused = made->next;
        made->~Entry();
        new (made) Entry;
    }
    return made;
}

bool put(int fd, Kind kind, Entry* entry) {
    Slot* slot = make(fd);
    if (slot == nullptr) {
        return false;
    }
    if (entry != nullptr) {
        entry->numbers.fetch_add(1, std::memory_order_relaxed);
        entry->number.store(fd, std::memory_order_relaxed);
    }
    slot->kind.store(Kind::none, std::memory_order_release);
    Entry* old = slot->entry.exchange(entry, std::memory_order_acq_rel);
    slot->kind.store(kind, std::memory_order_release);
    release(old);
    return true;
}

void change(Entry* entry, Kind kind) {
    if (entry->numbers.load() == 1) {
        if (Slot* slot = find(entry->number.load()); slot != nullptr && slot->entry.load() == entry) {
            slot->kind.store(kind, std::memory_order_release);
            return;
        }
    }
    for_each([&](int fd, Kind, Entry* one) {
        if (one == entry) {
            find(fd)->kind.store(kind, std::memory_order_release);
        }
    });
}

void remove(int fd) {
    Slot* slot = find(fd);
    if (slot == nullptr) {
        return;
    }
    slot->kind.store(Kind::none, std::memory_order_release);
    release(slot->entry.exchange(nullptr, std::memory_order_acq_rel));
}

} // namespace preload::table
