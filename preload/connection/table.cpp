// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/connection/table.hpp"

#include <new>

#include <sys/mman.h>

namespace preload::table {

constinit std::array<std::atomic<Chunk*>, chunk_count> chunks{};

namespace {

Slot* make(int fd) {
    const auto number = static_cast<size_t>(static_cast<unsigned>(fd));
    if (number >= chunk_size * chunk_count) {
        return nullptr;
    }
    auto& place = chunks[number / chunk_size];
    Chunk* chunk = place.load(std::memory_order_acquire);
    if (chunk == nullptr) {
        // Not from malloc, which may be the caller.
        void* memory = mmap(nullptr, sizeof(Chunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return nullptr;
        }
        auto* made = static_cast<Chunk*>(memory); // zeroes are empty slots
        if (place.compare_exchange_strong(chunk, made, std::memory_order_acq_rel)) {
            chunk = made;
        } else {
            munmap(memory, sizeof(Chunk));
        }
    }
    return &(*chunk)[number % chunk_size];
}

} // namespace

bool put(int fd, uintptr_t what, uintptr_t& before) {
    Slot* slot = make(fd);
    before = slot != nullptr ? slot->exchange(what, std::memory_order_acq_rel) : 0;
    return slot != nullptr;
}

uintptr_t take(int fd) {
    if (find(fd) == 0) {
        return 0;
    }
    const auto number = static_cast<size_t>(static_cast<unsigned>(fd));
    return (*chunks[number / chunk_size].load(std::memory_order_acquire))[number % chunk_size].exchange(
        0, std::memory_order_acq_rel);
}

bool take(int fd, uintptr_t what) {
    Slot* slot = place_of(fd);
    return slot != nullptr && slot->compare_exchange_strong(what, 0, std::memory_order_acq_rel);
}

} // namespace preload::table
