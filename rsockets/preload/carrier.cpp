// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/carrier.hpp"

#include <algorithm>
#include <cerrno>

#include <dlfcn.h>

#include "rsockets/preload/dispositions.hpp"
#include "rsockets/preload/limits.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/real.hpp"
#include "rsockets/preload/settings.hpp"

#ifndef RSOCKET_LIBRARY_DIR // the build says where
#define RSOCKET_LIBRARY_DIR "/usr/lib"
#endif

namespace preload {

namespace {

constexpr const char* soname = "librsocket-ofi.so.1";

constinit Carrier carrier{};
constinit std::atomic<bool> ready{false};
constinit std::atomic<bool> failed{false};

void* open_library() {
    if (const char* named = settings::library()) {
        return dlopen(named, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    void* found = dlopen(RSOCKET_LIBRARY_DIR "/librsocket-ofi.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return found != nullptr ? found : dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

bool load() {
    void* library = open_library();
    if (library == nullptr) {
        log("nothing is carried: %s", dlerror());
        return false;
    }
    const auto entry = reinterpret_cast<decltype(&rsocket_carrying_2)>(dlsym(library, "rsocket_carrying_2"));
    if (entry == nullptr) {
        log("nothing is carried: librsocket-ofi is of another release than this library: %s", dlerror());
        return false;
    }
    carrier.own = entry();
    bool all = true;
#define PRELOAD_FIND(name)                                                                                             \
    carrier.name = reinterpret_cast<decltype(carrier.name)>(dlsym(library, "r" #name));                                \
    all = all && carrier.name != nullptr;
    PRELOAD_CARRIER_CALLS(PRELOAD_FIND)
    PRELOAD_FIND(epoll_ctl)
#undef PRELOAD_FIND
    if (!all) {
        log("nothing is carried: librsocket-ofi lacks a call: %s", dlerror());
    }
    if (all) {
        carrier.own->load_providers();
    }
    return all;
}

} // namespace

const Carrier* Carrier::get() {
    if (ready.load(std::memory_order_acquire)) {
        return &carrier;
    }
    if (failed.load(std::memory_order_acquire) || caller::Inside::depth > 0) {
        return nullptr;
    }
    const Changing changing;
    if (!ready.load() && !failed.load()) {
        const caller::Inside inside;
        limits::make_room();
        const Dispositions dispositions;
        (load() ? ready : failed).store(true, std::memory_order_release);
        caller::look_again();
    }
    return ready.load() ? &carrier : nullptr;
}

bool Carrier::is_ready() { return ready.load(std::memory_order_acquire); }

const Carrier& Carrier::loaded() { return carrier; }

int keep(int fd) {
    int made = real::fcntl(fd, F_DUPFD_CLOEXEC, static_cast<unsigned long>(limits::first_internal()));
    if (made < 0 && (errno == EMFILE || errno == EINVAL)) {
        made = real::fcntl(fd, F_DUPFD_CLOEXEC, 0UL);
    }
    if (made >= 0 && !table::put(made, Kind::internal, nullptr)) {
        real::close(made);
        errno = ENOMEM;
        return -1;
    }
    return made;
}

int move_away(int fd) {
    if (fd < 0) {
        return fd;
    }
    const int saved = errno;
    const int made = keep(fd);
    if (made < 0) {
        errno = saved;
        return fd;
    }
    real::close(fd);
    errno = saved;
    return made;
}

} // namespace preload
