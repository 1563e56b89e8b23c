// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/stats.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>

#include <netinet/in.h>
#include <unistd.h>

#include "rsockets/mutex.hpp"
#include "rsockets/probes.hpp"

namespace rsockets {

namespace {

namespace stats = base::stats;
using stats::Header;
using stats::SocketRow;

constexpr uint32_t none = UINT32_MAX;

// Rows are allocated and freed with sockets, which takes system calls anyway. Never destroyed: sockets are used until
// the process ends.
constinit Mutex mutex;
constinit bool tried RSOCKET_GUARDED_BY(mutex) = false;
constinit uint32_t fresh RSOCKET_GUARDED_BY(mutex) = 0;         // rows from here on were never used
constinit uint32_t first_free RSOCKET_GUARDED_BY(mutex) = none; // each free row names the next one in `seen`
constinit std::atomic<Header*> page{nullptr};
// Kept: in a child, empty memory is mapped there, so that no pointer to a row dangles.
constinit Header* address = nullptr;

long system_call(long number, auto... arguments) {
    const int saved = errno;
    const long result = ::syscall(number, arguments...);
    const long error = -static_cast<long>(errno);
    errno = saved;
    return result == -1 ? error : result;
}
constexpr auto call = [](long number, auto... arguments) { return system_call(number, arguments...); };

// Null: no row is left.
SocketRow* take_row(uint32_t& ordinal) {
    const Guard lock(mutex);
    if (!tried) {
        tried = true;
        if (Header* made = stats::make_page(stats::Library::sockets, address, call); made != nullptr) {
            address = made;
            page.store(made, std::memory_order_release);
        }
    }
    Header* header = page.load(std::memory_order_relaxed);
    if (header == nullptr) {
        return nullptr;
    }
    // Bounds check: other processes of the same user can write to the page.
    const bool reused = first_free < fresh;
    ordinal = reused ? first_free : fresh;
    auto* row = stats::place_of<SocketRow>(header, ordinal);
    if (row == nullptr) {
        header->without_row.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    }
    if (reused) {
        first_free = static_cast<uint32_t>(row->seen.load(std::memory_order_relaxed));
    } else {
        ++fresh;
        stats::note_used(*header, ordinal);
    }
    stats::renew(*row);
    return row;
}

void give_back(SocketRow& row, uint32_t ordinal) {
    const Guard lock(mutex);
    if (page.load(std::memory_order_relaxed) != nullptr && ordinal < fresh) {
        row.seen.store(first_free, std::memory_order_relaxed);
        first_free = ordinal;
    }
}

void store(stats::Word (&to)[3], const Address& from) {
    std::array<uint64_t, 3> words{};
    const Address address = from.unmapped();
    if (from.set() && address.family() == AF_INET) {
        memcpy(&words[1], &reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr, sizeof(in_addr));
    } else if (from.set() && address.family() == AF_INET6) {
        memcpy(&words[1], &reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr, sizeof(in6_addr));
    }
    if (from.set()) {
        words[0] = static_cast<uint64_t>(address.family()) | uint64_t{address.port()} << 16;
    }
    for (size_t i = 0; i < words.size(); ++i) {
        to[i].store(words[i], std::memory_order_relaxed);
    }
}

void store(stats::Word (&to)[6], const std::string& text) {
    std::array<uint64_t, 6> words{};
    memcpy(words.data(), text.data(), std::min(text.size(), sizeof(words) - 1));
    for (size_t i = 0; i < words.size(); ++i) {
        to[i].store(words[i], std::memory_order_relaxed);
    }
}

} // namespace

Counters::Counters() : row_(take_row(ordinal_)) {
    if (row_ == nullptr) {
        own_ = std::make_unique<SocketRow>();
        row_ = own_.get();
    }
}

Counters::~Counters() {
    end();
    if (own_ == nullptr) {
        give_back(*row_, ordinal_);
    }
}

void Counters::show(Role role, const Address& local, const Address& peer, const std::string& device) {
    shown_ = true;
    {
        const stats::Change change(*row_);
        row_->fd.store(number_, std::memory_order_relaxed);
        row_->role.store(static_cast<uint32_t>(role), std::memory_order_relaxed);
        row_->path.store(stats::receives_by_path | stats::sends_by_path, std::memory_order_relaxed);
        row_->began_ns.store(stats::clock_ns(CLOCK_MONOTONIC_COARSE), std::memory_order_relaxed);
        store(row_->ends.local, local);
        store(row_->ends.peer, peer);
        store(row_->ends.device, device);
        row_->live.store(1, std::memory_order_relaxed);
    }
    RSOCKET_PROBE(connect, number_, static_cast<int>(role));
}

void Counters::set_buffers(size_t receive, size_t send) {
    constexpr size_t most = UINT32_MAX;
    row_->in.buffer_bytes.store(static_cast<uint32_t>(std::min(receive, most)), std::memory_order_relaxed);
    row_->out.buffer_bytes.store(static_cast<uint32_t>(std::min(send, most)), std::memory_order_relaxed);
}

bool Counters::move_to(int fd) {
    number_ = fd;
    if (!shown_) {
        return false;
    }
    const stats::Change change(*row_);
    row_->fd.store(fd, std::memory_order_relaxed);
    return true;
}

void Counters::end() {
    if (row_->live.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const bool listens = row_->role.load(std::memory_order_relaxed) == static_cast<uint32_t>(Role::listen);
    Header* header = page.load(std::memory_order_acquire);
    std::optional<stats::Ending> ending;
    if (header != nullptr && own_ == nullptr && !listens) {
        ending.emplace(header->ended);
    }
    const stats::Change change(*row_);
    row_->live.store(0, std::memory_order_relaxed);
    if (ending) {
        ending->count(*row_, 0);
        ending.reset();
    }
}

void Counters::thread_slept(uint64_t ns) {
    if (Header* header = page.load(std::memory_order_acquire); header != nullptr) {
        header->sleeps.fetch_add(1, std::memory_order_relaxed);
        header->slept_ns.fetch_add(ns, std::memory_order_relaxed);
    }
}

void Counters::after_fork_in_child() RSOCKET_UNCHECKED {
    new (&mutex) Mutex; // its holder does not exist here
    page.store(nullptr);
    const bool empty = address == nullptr || stats::leave_to_parent(stats::Library::sockets, address, call);
    tried = !empty;
    fresh = 0;
    first_free = none;
}

} // namespace rsockets
