// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/users.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <span>

#include <fcntl.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"

namespace preload::rendezvous {

namespace {

constexpr uint64_t all_users = UINT32_MAX;

// The numbers that a file begins with. Returns how many there are.
size_t read_numbers(const char* path, std::span<uint64_t> numbers) {
    std::array<char, 128> text{};
    const int fd = descriptors::make([&] { return sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); });
    if (fd < 0) {
        return 0;
    }
    const long length = sys::call(SYS_read, fd, text.data(), text.size());
    descriptors::close(fd);
    const char* at = text.data();
    const char* const end = at + (length > 0 ? length : 0);
    size_t count = 0;
    while (count < numbers.size()) {
        while (at != end && *at == ' ') {
            ++at;
        }
        const auto [next, error] = std::from_chars(at, end, numbers[count]);
        if (error != std::errc()) {
            break;
        }
        at = next;
        ++count;
    }
    return count;
}

// The same for the whole system, and changed by nobody while it runs.
uint64_t overflow_user() {
    constexpr uint64_t usual = 65534;
    constexpr uint64_t unread = UINT64_MAX;
    static constinit std::atomic<uint64_t> known{unread};
    uint64_t user = known.load(std::memory_order_relaxed);
    if (user == unread) {
        uint64_t found = usual;
        user = read_numbers("/proc/sys/kernel/overflowuid", {&found, 1}) == 1 ? found : usual;
        known.store(user, std::memory_order_relaxed);
    }
    return user;
}

} // namespace

bool may_be_anyone(uid_t user) {
    if (user != overflow_user()) {
        return false;
    }
    // In a namespace where every user has its own id, it is a user like others.
    std::array<uint64_t, 3> map{};
    return read_numbers("/proc/self/uid_map", map) != map.size() || map[0] != map[1] || map[2] != all_users;
}

} // namespace preload::rendezvous
