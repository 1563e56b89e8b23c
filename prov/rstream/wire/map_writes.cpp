// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/wire/map_writes.hpp"

namespace rstream::wire {

void MapWrites::add(const Write& write) {
    const uint64_t added = added_.load(std::memory_order_relaxed);
    if (!empty() && !write.apart) {
        Write& last = at(added - 1);
        if (last.serial == write.serial && last.position + last.length == write.position &&
            last.offset + last.length == write.offset) {
            last.length += write.length;
            return;
        }
    }
    at(added) = write;
    added_.store(added + 1, std::memory_order_release);
}

void MapWrites::advance(uint64_t length) {
    const uint64_t taken = taken_.load(std::memory_order_relaxed);
    Write& front = at(taken);
    front.position += length;
    front.offset += length;
    front.length -= length;
    if (front.length == 0) {
        taken_.store(taken + 1, std::memory_order_release);
    }
}

void MapWrites::restore(const Write& before, uint64_t length) {
    uint64_t taken = taken_.load(std::memory_order_relaxed);
    if (length == before.length) { // the front was removed; nothing was added since
        taken_.store(--taken, std::memory_order_release);
    }
    at(taken) = before;
}

} // namespace rstream::wire
