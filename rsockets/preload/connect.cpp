// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connecting: over the fabric where the rules say so, and over the kernel's TCP if that does not come about. The
// kernel's socket is kept aside until it is known.
#include "rsockets/preload/carrier.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "preload/rules/rules.hpp"
#include "rsockets/preload/eligible.hpp"
#include "rsockets/preload/explain.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

// Binds the library's socket to what the kernel's is bound to. That one gives way by SO_REUSEADDR.
bool bind_alike(const Carrier& carrier, int kernel, int rsocket, Entry& entry) {
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    if (real::getsockname(kernel, generic(bound), &length) != 0) {
        return false;
    }
    entry.unbound = entry.unbound || !is_bound(bound);
    if (entry.unbound) {
        return true;
    }
    const int on = 1;
    int before = 0;
    socklen_t size = sizeof(before);
    (void)real::getsockopt(kernel, SOL_SOCKET, SO_REUSEADDR, &before, &size);
    (void)real::setsockopt(kernel, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    (void)carrier.setsockopt(rsocket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const bool done = carrier.bind(rsocket, generic(bound), length) == 0;
    (void)carrier.setsockopt(rsocket, SOL_SOCKET, SO_REUSEADDR, &before, sizeof(before));
    if (!done) {
        (void)real::setsockopt(kernel, SOL_SOCKET, SO_REUSEADDR, &before, sizeof(before));
    }
    return done;
}

// A pending number is connected by now: the kernel's socket has had its time.
void take(int fd, Entry& entry) {
    const Changing changing;
    if (table::kind(fd) != Kind::pending || table::entry(fd) != &entry) {
        return;
    }
    const caller::Inside inside;
    (void)Carrier::loaded().own->set_alternative(fd, 0);
    table::change(&entry, Kind::carried);
    const int kernel = entry.kernel.exchange(-1);
    if (kernel >= 0) {
        table::remove(kernel);
        real::close(kernel);
    }
    explain::note_names(entry, fd, true);
}

// A pending number becomes the kernel's socket again, which was asked to connect. False: nothing was changed, and the
// program is to hear how the library's attempt went.
bool fall_back(int fd, Entry& entry, bool may_wait, int& ret) {
    int kernel = -1;
    {
        const Changing changing;
        if (table::kind(fd) != Kind::pending || table::entry(fd) != &entry) {
            return true; // another thread was quicker
        }
        const Carrier& carrier = Carrier::loaded();
        const caller::Inside inside;
        kernel = entry.kernel.load();
        const auto flags = static_cast<unsigned long>(carrier.fcntl(fd, F_GETFL));
        (void)real::fcntl(kernel, F_SETFL, flags | (may_wait ? 0 : O_NONBLOCK));
        if (!may_wait) {
            ret = real::connect(kernel, reinterpret_cast<const sockaddr*>(&entry.address), entry.address_length);
            if (ret != 0 && errno != EINPROGRESS) {
                const int error = errno;
                (void)carrier.own->set_alternative(fd, 0); // no way at all: the library's answer stands
                log("descriptor %d: neither the fabric nor the kernel connects: %s", fd, strerror(error));
                entry.reason = "the fabric and the kernel refused";
                table::change(&entry, Kind::carried);
                return false;
            }
            (void)real::fcntl(kernel, F_SETFL, flags);
        }
        std::array<int, 16> numbers{};
        size_t count = 0;
        table::for_each([&](int one, Kind, Entry* its) {
            if (its == &entry && count < numbers.size()) {
                numbers[count++] = one;
            }
        });
        for (size_t i = 0; i < count; ++i) {
            (void)switch_number(carrier, numbers[i], kernel, false);
        }
        table::change(&entry, Kind::noted);
        (void)entry.kernel.exchange(-1);
        table::remove(kernel);
        real::close(kernel);
        entry.reason = "the fabric refused or has no route";
        entry.told = may_wait;
        log("descriptor %d: the fabric does not connect, the kernel is asked", fd);
    }
    if (may_wait) {
        ret = real::connect(fd, reinterpret_cast<const sockaddr*>(&entry.address), entry.address_length);
        entry.told = ret == 0 || (errno != EINPROGRESS && errno != EINTR);
    }
    return true;
}

} // namespace

bool carry_connect(int fd, const sockaddr* address, socklen_t length, int& ret) {
    const char* reason = nullptr;
    if (!eligible_address(address, length)) {
        return false;
    }
    const Decision decision = Rules::get().for_connect(address, length);
    if (decision.verdict == Verdict::kernel) {
        explain::note_kernel(fd, Entry::Role::connect, decision.reason, address, length);
        return false;
    }
    if (!eligible_socket(fd, reason)) {
        explain::note_kernel(fd, Entry::Role::connect, reason, address, length);
        return false;
    }
    const Carrier* carrier = Carrier::get();
    if (carrier == nullptr) {
        explain::note_kernel(fd, Entry::Role::connect, "librsocket-ofi cannot be loaded", address, length);
        return false;
    }
    Entry* entry = nullptr;
    {
        const Changing changing;
        const caller::Inside inside;
        const int made = carrier->socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int kernel = keep(fd);
        entry = table::entry(fd) != nullptr ? table::entry(fd) : table::new_entry();
        if (entry == nullptr) {
            reason = "no memory";
        } else if (made < 0 || kernel < 0) {
            reason = "no descriptor is free";
        } else if ((reason = copy_options(*carrier, kernel, made)) == nullptr &&
                   !bind_alike(*carrier, kernel, made, *entry)) {
            reason = "its address cannot be bound on the fabric";
        }
        if (reason == nullptr && !become(*carrier, fd, made, Kind::pending, *entry)) {
            reason = "no memory";
        }
        if (made >= 0) {
            (void)carrier->close(made);
        }
        if (reason != nullptr) {
            if (kernel >= 0) {
                table::remove(kernel);
                real::close(kernel);
            }
            explain::note_kernel(fd, Entry::Role::connect, reason, address, length);
            return false;
        }
        entry->kernel.store(kernel);
        memcpy(&entry->address, address, std::min<size_t>(length, sizeof(entry->address)));
        entry->address_length = length;
        entry->role = Entry::Role::connect;
        memcpy(&entry->peer, &entry->address, sizeof(entry->peer));
        (void)carrier->own->set_alternative(fd, 1);
    }
    {
        const caller::Inside inside;
        ret = carrier->connect(fd, address, length);
    }
    const int error = errno;
    caller::look_again();
    if (ret == 0) {
        take(fd, *entry);
    } else if (error != EINPROGRESS && error != EINTR && error != EALREADY) {
        if (fall_back(fd, *entry, true, ret)) {
            return true;
        }
    }
    errno = error;
    return true;
}

bool settle(int fd) {
    const int saved = errno;
    Entry* entry = table::entry(fd);
    bool carried = true;
    if (entry != nullptr) {
        int outcome = 0;
        {
            const caller::Inside inside;
            outcome = Carrier::loaded().own->outcome(fd);
        }
        if (outcome == 0 || outcome == ECANCELED) {
            take(fd, *entry);
        } else if (outcome != EINPROGRESS) {
            int ret = 0;
            (void)fall_back(fd, *entry, false, ret);
        }
        carried = !table::plain(fd);
    }
    errno = saved;
    return carried;
}

void settle_all() {
    table::for_each([](int fd, Kind kind, Entry*) {
        if (kind == Kind::pending) {
            (void)settle(fd);
        }
    });
}

} // namespace preload

using namespace preload;

PRELOAD_EXPORT int connect(int fd, const struct sockaddr* address, socklen_t length) {
    const void* caller = PRELOAD_CALLER;
    if (!table::plain(fd)) {
        if (ours(fd, caller)) {
            const caller::Inside inside;
            const int ret = Carrier::loaded().connect(fd, address, length);
            if (ret == 0 && table::kind(fd) == Kind::pending) {
                (void)settle(fd);
            }
            return ret;
        }
        return real::connect(fd, address, length);
    }
    int ret = 0;
    Entry* entry = table::entry(fd);
    if (entry != nullptr && !entry->told) { // it is to hear how the kernel's attempt goes, before there is another
        ret = real::connect(fd, address, length);
        entry->told = ret == 0 || (errno != EINPROGRESS && errno != EALREADY && errno != EINTR);
        return ret;
    }
    if (!caller::is_for_internal(caller) && carry_connect(fd, address, length, ret)) {
        return ret;
    }
    return real::connect(fd, address, length);
}
PRELOAD_ALIAS(__connect, connect);
