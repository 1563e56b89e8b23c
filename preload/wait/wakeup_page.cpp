// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/wakeup_page.hpp"

#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "preload/base/system.hpp"

namespace preload {

namespace {

constexpr long bytes = 4096;
static_assert(sizeof(WakeupPage) <= bytes);
constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

void* map_file(int fd) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at != MAP_FAILED ? at : nullptr;
}

} // namespace

int WakeupPage::open_file() {
    return static_cast<int>(sys::call(SYS_memfd_create, "rspreload-wakeups", MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

WakeupPage* WakeupPage::make(int fd) {
    // By a thread of the program, when it first sleeps.
    const bool made = fd >= 0 &&
                      sys::without_file_limit_signal([&] { return sys::call(SYS_ftruncate, fd, bytes); }) == 0 &&
                      sys::call(SYS_fcntl, fd, F_ADD_SEALS, wanted_seals) == 0;
    void* at = made ? map_file(fd) : nullptr;
    return at != nullptr ? new (at) WakeupPage : nullptr;
}

WakeupPage* WakeupPage::map(int fd) {
    struct stat about {};
    // Checks the seals first: only memory files have any.
    const long seals = sys::call(SYS_fcntl, fd, F_GET_SEALS, 0);
    if (seals < 0 || (seals & wanted_seals) != wanted_seals || fstat(fd, &about) != 0 || about.st_size != bytes) {
        return nullptr;
    }
    return static_cast<WakeupPage*>(map_file(fd));
}

void WakeupPage::unmap(WakeupPage* page) {
    if (page != nullptr) {
        munmap(page, bytes);
    }
}

void WakeupPage::leave_to_parent(WakeupPage* page) {
    if (page != nullptr) {
        // If there is no memory, the parent's page stays, and a late user of it wakes a thread of the parent for
        // nothing.
        sys::call(SYS_mmap, page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
}

} // namespace preload
