// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/wakeup.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include <sys/eventfd.h>
#include <sys/random.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/wait/wakeup_page.hpp"
#include "preload/wait/wakeup_pipe.hpp"

namespace preload::wakeup {

namespace {

// An id consists of the process's random part and the index of one of its own.
constexpr uint32_t own_count = 32;
constexpr uint64_t index_mask = 63;

constinit std::atomic<uint64_t> process{0};
constinit std::atomic<uint32_t> busy{0};
// A thread reuses its last id if it can: what it armed at its connections' peers stays valid, and names no other
// thread. Indexes that were used are noted, so that threads begin with different ones.
constinit std::atomic<uint32_t> preferred{0};
constinit thread_local uint32_t last_index = UINT32_MAX;
constinit std::array<std::atomic<int>, own_count> own{}; // fd + 1; 0: not made
struct Pipe {
    std::atomic<int> reader{0}; // fd + 1; 0: not made, -1: it failed
    std::atomic<int> writer{-1};
};
constinit std::array<Pipe, own_count> pipes{};
static_assert(own_count <= WakeupPage::count);
constinit std::atomic<WakeupPage*> page{nullptr};
constinit std::atomic<int> page_fd{0}; // fd + 1; 0: not made, -1: it failed, or is being made

// Ids of other processes. Only the service thread adds and removes them.
struct Known {
    std::atomic<Id> id{0};
    std::atomic<int> fd{-1};
    std::atomic<uid_t> user{0}; // of the process that has passed it
    std::atomic<bool> is_pipe{false};
    std::atomic<WakeupPage*> page{nullptr}; // of its process
    std::atomic<uint32_t> users{0};         // threads that are writing it
    std::atomic<bool> used{false};          // since the last sweep
};
constexpr size_t known_count = 128;
constexpr size_t places = 8; // slots in which one may be
constinit std::array<Known, known_count> known{};
// Peers come and go. An id that was not used from one sweep to the next is requested again when it is needed.
constexpr uint64_t sweep_pause_ns = 10000000000U;
constinit uint64_t next_sweep_ns = UINT64_MAX;

Known& place_of(Id id, size_t i) {
    const uint64_t mixed = id * 0x9e3779b97f4a7c15U;
    return known[((mixed >> 32) + i) % known_count];
}

uint64_t process_part() {
    uint64_t part = process.load();
    if (part == 0) {
        uint64_t made = 0;
        if (sys::call(SYS_getrandom, &made, sizeof(made), GRND_NONBLOCK) != sizeof(made)) {
            return 0;
        }
        made = (made & ~index_mask) | (uint64_t{1} << 63);
        part = process.compare_exchange_strong(part, made) ? made : part;
    }
    return part;
}

// fd: an eventfd. A write fails, or blocks, only if the waiter has not read 2^64 others.
void write_one(int fd) {
    const uint64_t one = 1;
    sys::call(SYS_write, fd, &one, sizeof(one));
}

// own_count: there is none.
uint32_t free_index(uint32_t taken) {
    if (last_index < own_count && (taken >> last_index & 1) == 0) {
        return last_index;
    }
    const uint32_t others = taken | preferred.load(std::memory_order_relaxed);
    return static_cast<uint32_t>(std::countr_one(others != UINT32_MAX ? others : taken));
}

WakeupPage::Slot* own_slot(Id id) {
    WakeupPage* own_page = page.load(std::memory_order_acquire);
    const uint64_t index = id & index_mask;
    return own_page != nullptr && id != 0 && index < own_count ? &own_page->slots[index] : nullptr;
}

// Without a page, each wake-up writes the descriptor.
void make_page() {
    int not_made = 0;
    if (page_fd.load() != 0 || !page_fd.compare_exchange_strong(not_made, -1)) {
        return;
    }
    const int kept = descriptors::make_spare(WakeupPage::open_file);
    WakeupPage* made = WakeupPage::make(kept);
    if (made == nullptr) {
        descriptors::close(kept);
        return;
    }
    page.store(made, std::memory_order_release);
    page_fd = kept + 1;
}

} // namespace

Id acquire() {
    const sys::ErrnoKept kept;
    const uint64_t part = process_part();
    uint32_t taken = busy.load(std::memory_order_relaxed);
    uint32_t index = 0;
    do {
        index = free_index(taken);
        if (part == 0 || index >= own_count) {
            return 0;
        }
    } while (!busy.compare_exchange_weak(taken, taken | uint32_t{1} << index, std::memory_order_acquire));
    if (index != last_index) {
        last_index = index;
        preferred.fetch_or(uint32_t{1} << index, std::memory_order_relaxed);
    }
    if (own[index].load() == 0) {
        own[index] = descriptors::make_spare([] { return sys::call(SYS_eventfd2, 0, EFD_CLOEXEC); }) + 1;
        make_page();
    }
    const Id id = part | index;
    clear(id); // the new owner has not armed it yet
    if (own[index].load() == 0) {
        release(id);
        return 0;
    }
    return id;
}

void release(Id id) { busy.fetch_and(~(uint32_t{1} << (id & index_mask)), std::memory_order_release); }

uint64_t notified_at(Id id) {
    const WakeupPage::Slot* slot = own_slot(id);
    return slot != nullptr ? WakeupPage::notified_at(*slot) : 0;
}

void clear(Id id) {
    if (WakeupPage::Slot* slot = own_slot(id); slot != nullptr) {
        WakeupPage::clear(*slot);
    }
}

int page_file() { return std::max(page_fd.load(), 0) - 1; }

bool is_own(Id id) { return (id & ~index_mask) == process.load() && process.load() != 0 && descriptor(id) >= 0; }

int descriptor(Id id) {
    const uint64_t index = id & index_mask;
    return index < own_count ? own[index].load(std::memory_order_relaxed) - 1 : -1;
}

namespace {

bool make_pipe(Pipe& one) {
    int reader = -1;
    int writer = -1;
    {
        const lowest_fd::Opening opening;
        const wakeup_pipe::Ends made = wakeup_pipe::make();
        reader = descriptors::keep_spare(made.reader);
        writer = descriptors::keep_spare(made.writer);
    }
    if (reader < 0 || writer < 0) {
        descriptors::close(reader);
        descriptors::close(writer);
        return false;
    }
    one.writer = writer;
    one.reader = reader + 1;
    return true;
}

} // namespace

int pipe_reader(Id id) {
    const uint64_t index = id & index_mask;
    if (index >= own_count || !is_own(id)) {
        return -1;
    }
    Pipe& one = pipes[index];
    if (one.reader.load() == 0) {
        const sys::ErrnoKept kept;
        if (!make_pipe(one)) {
            one.reader = -1;
        }
    }
    return std::max(one.reader.load(), 0) - 1;
}

int pipe_writer(Id id) {
    const uint64_t index = id & index_mask;
    return index < own_count && is_own(id) ? pipes[index].writer.load() : -1;
}

void drain(Id id) {
    if (const int fd = pipe_reader(id); fd >= 0) {
        wakeup_pipe::drain(fd);
    }
}

namespace {

// slot: of the id that fd belongs to, or null.
void write_unless_written(WakeupPage::Slot* slot, int fd) {
    const uint64_t notice = slot != nullptr ? WakeupPage::notify(*slot) : 0;
    if (slot == nullptr || notice != 0) {
        write_one(fd);
    }
    if (notice != 0) {
        WakeupPage::written(*slot, notice);
    }
}

} // namespace

void wake_own(Id id) {
    if (is_own(id)) {
        if (WakeupPage::Slot* slot = own_slot(id); slot != nullptr) {
            WakeupPage::notify(*slot);
        }
        write_one(descriptor(id)); // always: some callers report changes that are not visible in memory
    }
}

bool wake(Id id, uid_t user) {
    if (is_own(id)) {
        write_unless_written(own_slot(id), descriptor(id));
        return true;
    }
    for (size_t i = 0; i < places; ++i) {
        Known& one = place_of(id, i);
        if (one.id.load(std::memory_order_relaxed) != id || one.user.load(std::memory_order_relaxed) != user) {
            continue;
        }
        if (!one.used.load(std::memory_order_relaxed)) {
            one.used.store(true, std::memory_order_relaxed);
        }
        one.users.fetch_add(1);
        bool done = one.id.load() == id && one.user.load() == user; // else it is being replaced
        if (done && one.is_pipe.load()) {
            done = wakeup_pipe::notify(one.fd.load());
        } else if (done) {
            WakeupPage* theirs = one.page.load();
            write_unless_written(theirs != nullptr ? &theirs->slots[id & index_mask] : nullptr, one.fd.load());
        }
        one.users.fetch_sub(1);
        return done;
    }
    return false;
}

namespace {

// False: a thread is writing it.
bool forget(Known& one) {
    const Id before = one.id.exchange(0);
    if (one.users.load() != 0) {
        one.id.store(before);
        return false;
    }
    descriptors::close(one.fd.exchange(-1));
    WakeupPage::unmap(one.page.exchange(nullptr));
    return true;
}

bool keep_known(Id id, uid_t user, int fd, bool is_pipe, WakeupPage* theirs) {
    static uint32_t next = 0;
    Known* place = nullptr;
    for (size_t i = 0; i < places && place == nullptr; ++i) {
        Known& one = place_of(id, i);
        if (one.id.load() == id && one.user.load() == user) {
            descriptors::close(fd); // it was requested twice
            WakeupPage::unmap(theirs);
            return true;
        }
        place = one.fd.load() < 0 ? &one : nullptr;
    }
    // A replaced one is requested again when needed.
    for (size_t i = 0; i < places && place == nullptr; ++i) {
        Known& one = place_of(id, next++ % places);
        place = forget(one) ? &one : nullptr;
    }
    if (place == nullptr || !descriptors::is_spare(fd)) {
        descriptors::close(fd);
        WakeupPage::unmap(theirs);
        return false;
    }
    place->page = theirs;
    place->user = user;
    place->fd = fd;
    place->is_pipe = is_pipe;
    place->used = true;
    place->id = id;
    next_sweep_ns = std::min(next_sweep_ns, sys::now_ns() + sweep_pause_ns);
    return true;
}

} // namespace

bool learn(Id id, uid_t user, int fd, int page) {
    WakeupPage* theirs = page >= 0 && (id & index_mask) < WakeupPage::count ? WakeupPage::map(page) : nullptr;
    return keep_known(id, user, fd, false, theirs);
}

bool learn_pipe(Id id, uid_t user, int writer) {
    const int made = descriptors::make_spare([&] { return wakeup_pipe::open_writer(writer); });
    return made >= 0 && keep_known(id, user, made, true, nullptr);
}

uint64_t sweep(uint64_t now) {
    if (now < next_sweep_ns) [[likely]] {
        return next_sweep_ns;
    }
    next_sweep_ns = UINT64_MAX;
    for (Known& one : known) {
        if (one.fd.load() >= 0 && (one.used.exchange(false) || !forget(one))) {
            next_sweep_ns = now + sweep_pause_ns;
        }
    }
    return next_sweep_ns;
}

void after_fork_in_child() {
    process = 0;
    next_sweep_ns = UINT64_MAX;
    busy = 0;
    preferred = 0;
    last_index = UINT32_MAX;
    for (auto& one : own) {
        one = 0;
    }
    WakeupPage::leave_to_parent(page.exchange(nullptr));
    page_fd = 0;
    for (Pipe& one : pipes) {
        one.reader = 0;
        one.writer = -1;
    }
    for (Known& one : known) {
        one.id = 0;
        one.fd = -1;
        WakeupPage::leave_to_parent(one.page.exchange(nullptr));
        one.users = 0;
    }
}

} // namespace preload::wakeup
