// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/fd_table.hpp"

#include <array>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

namespace rsockets::fd_table {

namespace {

constexpr size_t chunk_size = 1024;
constexpr size_t chunk_count = 1024; // the kernel's limit of descriptors, fs.nr_open, is 2^20 by default

struct Slot {
    std::atomic_flag locked;
    Object* object = nullptr;
};

using Chunk = std::array<Slot, chunk_size>;

// Never destroyed: threads may still run while the program exits.
constinit std::array<std::atomic<Chunk*>, chunk_count> chunks{};

class SlotLock {
  public:
    explicit SlotLock(Slot& slot) : slot_(slot) {
        while (slot_.locked.test_and_set(std::memory_order_acquire)) {
            std::this_thread::yield();
        }
    }
    SlotLock(const SlotLock&) = delete;
    SlotLock& operator=(const SlotLock&) = delete;
    ~SlotLock() { slot_.locked.clear(std::memory_order_release); }

  private:
    Slot& slot_;
};

Slot* slot_of(int fd) {
    const auto number = static_cast<size_t>(fd);
    if (fd < 0 || number >= chunk_size * chunk_count) {
        return nullptr;
    }
    Chunk* chunk = chunks[number / chunk_size].load(std::memory_order_acquire);
    return chunk != nullptr ? &(*chunk)[number % chunk_size] : nullptr;
}

Slot* make_slot(int fd) {
    const auto number = static_cast<size_t>(fd);
    if (fd < 0 || number >= chunk_size * chunk_count) {
        return nullptr;
    }
    auto& place = chunks[number / chunk_size];
    if (place.load(std::memory_order_acquire) == nullptr) {
        auto* const made = new (std::nothrow) Chunk;
        Chunk* none = nullptr;
        if (made != nullptr && !place.compare_exchange_strong(none, made, std::memory_order_acq_rel)) {
            delete made; // another thread was first
        }
    }
    return slot_of(fd);
}

} // namespace

Use find(int fd) {
    Slot* slot = slot_of(fd);
    if (slot == nullptr) {
        return {};
    }
    const SlotLock lock(*slot);
    return Use(slot->object);
}

bool put(int fd, const Ref<Object>& object) {
    Slot* slot = make_slot(fd);
    if (slot == nullptr) {
        return false;
    }
    object->number_given();
    object->retain();
    Object* old = nullptr;
    {
        const SlotLock lock(*slot);
        old = std::exchange(slot->object, object.get());
    }
    if (old != nullptr) {
        old->number_taken();
        old->release();
    }
    return true;
}

Use take(int fd) {
    Slot* slot = slot_of(fd);
    if (slot == nullptr) {
        return {};
    }
    Object* taken = nullptr;
    Use use;
    {
        const SlotLock lock(*slot);
        taken = std::exchange(slot->object, nullptr);
        use = Use(taken);
    }
    if (taken != nullptr) {
        taken->number_taken();
        taken->release();
    }
    return use;
}

void forget_all(const std::function<void(int)>& inherited) {
    for (size_t i = 0; i < chunk_count; ++i) {
        Chunk* chunk = chunks[i].load(std::memory_order_acquire);
        for (size_t j = 0; chunk != nullptr && j < chunk_size; ++j) {
            Slot& slot = (*chunk)[j];
            slot.locked.clear(); // its holder is not in this process
            if (std::exchange(slot.object, nullptr) != nullptr) {
                inherited(static_cast<int>(i * chunk_size + j));
            }
        }
    }
}

void for_each(const std::function<void(int, Object&)>& body) {
    for (size_t i = 0; i < chunk_count; ++i) {
        if (chunks[i].load(std::memory_order_acquire) == nullptr) {
            continue;
        }
        for (size_t j = 0; j < chunk_size; ++j) {
            const int fd = static_cast<int>(i * chunk_size + j);
            if (const Use use = find(fd)) {
                body(fd, *use.get());
            }
        }
    }
}

} // namespace rsockets::fd_table
