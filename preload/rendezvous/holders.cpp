// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/holders.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/rendezvous/descriptors.hpp"

namespace preload::rendezvous {

namespace {

struct DirectoryEntry { // getdents64(2)
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

int open_folder(int within, const char* path) {
    return descriptors::make([&] { return sys::call(SYS_openat, within, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
}

bool is_number(const char* text) { return *text >= '0' && *text <= '9'; }

// Calls body(name) for each numbered entry of a folder until it returns false. False: it did, or the folder cannot be
// read.
template <class Body> bool each_entry(int folder, Body&& body) {
    alignas(DirectoryEntry) std::array<char, 8192> buffer;
    for (;;) {
        const long n = sys::call(SYS_getdents64, folder, buffer.data(), buffer.size());
        if (n <= 0) {
            return n == 0;
        }
        for (long at = 0; at < n;) {
            const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer.data() + at);
            if (is_number(entry->name) && !body(entry->name)) {
                return false;
            }
            at += entry->length;
        }
    }
}

// Reads /proc/PID/fd/N, for a socket "socket:[INODE]".
bool link_of(int folder, const char* name, std::array<char, 64>& out) {
    const long n = sys::call(SYS_readlinkat, folder, name, out.data(), out.size() - 1);
    out[static_cast<size_t>(n > 0 ? n : 0)] = '\0';
    return n > 0;
}

// Calls body(folder, name) for each /proc/PID/fd/N of other processes until it returns false. False: it did, or /proc
// cannot be read.
template <class Body> bool each_descriptor_elsewhere(Body&& body) {
    const int all = open_folder(AT_FDCWD, "/proc");
    if (all < 0) {
        return false;
    }
    const auto own = static_cast<long>(sys::call(SYS_getpid));
    const bool whole = each_entry(all, [&](const char* process) {
        if (atol(process) == own) {
            return true;
        }
        std::array<char, 64> path{};
        snprintf(path.data(), path.size(), "%s/fd", process);
        const int folder = open_folder(all, path.data());
        if (folder < 0) {
            return true; // it has ended, or is another user's
        }
        bool further = true;
        each_entry(folder, [&](const char* number) { return further = body(folder, number); });
        descriptors::close(folder);
        return further;
    });
    descriptors::close(all);
    return whole;
}

bool link_of_own(int fd, std::array<char, 64>& out) {
    std::array<char, 64> path{};
    snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
    return link_of(AT_FDCWD, path.data(), out);
}

bool is_link(int folder, const char* number, const std::array<char, 64>& wanted) {
    std::array<char, 64> link{};
    return link_of(folder, number, link) && strcmp(link.data(), wanted.data()) == 0;
}

// Its /proc/PID/fd is root's.
bool is_zombie(pid_t process) {
    std::array<char, 64> path{};
    snprintf(path.data(), path.size(), "/proc/%d/stat", static_cast<int>(process));
    const int file =
        descriptors::make([&] { return sys::call(SYS_openat, AT_FDCWD, path.data(), O_RDONLY | O_CLOEXEC); });
    std::array<char, 128> text{};
    const long n = file >= 0 ? sys::call(SYS_read, file, text.data(), text.size() - 1) : 0;
    descriptors::close(file);
    const char* name_end = n > 0 ? strrchr(text.data(), ')') : nullptr; // proc(5): PID (NAME) STATE
    return name_end != nullptr && (strncmp(name_end, ") Z", 3) == 0 || strncmp(name_end, ") X", 3) == 0);
}

} // namespace

bool is_sole_holder(int fd) {
    std::array<char, 64> wanted{};
    return link_of_own(fd, wanted) &&
           each_descriptor_elsewhere([&](int folder, const char* number) { return !is_link(folder, number, wanted); });
}

std::optional<bool> has_socket(pid_t process, int fd) {
    std::array<char, 64> wanted{};
    if (!link_of_own(fd, wanted)) {
        return std::nullopt;
    }
    std::array<char, 64> path{};
    snprintf(path.data(), path.size(), "/proc/%d/fd", static_cast<int>(process));
    const int folder = open_folder(AT_FDCWD, path.data());
    if (folder < 0) {
        return sys::call(SYS_kill, process, 0) == -ESRCH || is_zombie(process) ? std::optional(false) : std::nullopt;
    }
    bool found = false;
    bool hidden = false; // a link may need a permission that its folder does not
    const bool whole = each_entry(folder, [&](const char* number) {
        std::array<char, 64> link{};
        const long n = sys::call(SYS_readlinkat, folder, number, link.data(), link.size() - 1);
        hidden = hidden || n == -EACCES || n == -EPERM;
        found = n > 0 && strcmp(link.data(), wanted.data()) == 0;
        return !found;
    });
    descriptors::close(folder);
    return found || (whole && !hidden) ? std::optional(found) : std::nullopt;
}

bool for_each_socket_elsewhere(void* context, void (*body)(void* context, uint64_t inode)) {
    constexpr char prefix[] = "socket:[";
    return each_descriptor_elsewhere([&](int folder, const char* number) {
        std::array<char, 64> link{};
        if (link_of(folder, number, link) && strncmp(link.data(), prefix, sizeof(prefix) - 1) == 0) {
            body(context, strtoull(link.data() + sizeof(prefix) - 1, nullptr, 10));
        }
        return true;
    });
}

} // namespace preload::rendezvous
