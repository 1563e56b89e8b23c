// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Listening and accepting. Where the core's port space is the kernel's own (tcp), the port is the fabric's alone; where
// it is apart (verbs), the kernel's socket listens as well, and accept gives what either has.
#include "rsockets/preload/carrier.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>

#include "preload/rules/rules.hpp"
#include "rsockets/preload/eligible.hpp"
#include "rsockets/preload/explain.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/numbers.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

// A parent that forks a daemon exits; this is what it is given to let go of the port.
constexpr int tries_to_listen = 100;
constexpr int between_tries = 10; // milliseconds

bool one_port_space(const Carrier& carrier, int rsocket) {
    rsocket_report report{};
    return carrier.own->report(rsocket, &report) != 0 || report.kernel_ports != 0;
}

// The library's socket listens where the kernel's is bound. 0, or an errno. The kernel's has SO_REUSEADDR from then on,
// or the core could not have its port.
int listen_alike(const Carrier& carrier, int kernel, int rsocket, Entry& entry) {
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    if (real::getsockname(kernel, generic(bound), &length) != 0) {
        return errno;
    }
    if (is_bound(bound)) {
        const int on = 1;
        (void)real::setsockopt(kernel, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        (void)carrier.setsockopt(rsocket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (carrier.bind(rsocket, generic(bound), length) != 0) {
            return errno;
        }
    }
    int shared = 0;
    socklen_t size = sizeof(shared);
    (void)real::getsockopt(kernel, SOL_SOCKET, SO_REUSEPORT, &shared, &size);
    const caller::SharingPort sharing(shared != 0);
    if (carrier.listen(rsocket, entry.backlog) != 0) {
        return errno;
    }
    length = sizeof(bound);
    if (carrier.getsockname(rsocket, generic(bound), &length) == 0) {
        memcpy(&entry.address, &bound, sizeof(bound));
        entry.address_length = length;
        memcpy(&entry.local, &bound, sizeof(bound));
    }
    return 0;
}

void restore_reuse(int kernel, int before) {
    (void)real::setsockopt(kernel, SOL_SOCKET, SO_REUSEADDR, &before, sizeof(before));
}

// The kernel's socket listens too, if it can.
void listen_beside(const Carrier& carrier, int fd, int kernel, Entry& entry) {
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    if (real::getsockname(kernel, generic(bound), &length) == 0 && !is_bound(bound)) {
        (void)real::bind(kernel, generic(entry.address), entry.address_length);
    }
    const auto flags = static_cast<unsigned long>(real::fcntl(kernel, F_GETFL, 0UL));
    (void)real::fcntl(kernel, F_SETFL, flags | O_NONBLOCK);
    entry.apart = real::listen(kernel, entry.backlog) == 0 && carrier.own->listen_beside(fd, kernel) == 0;
    log(entry.apart ? "descriptor %d: listens on the fabric, and on the kernel's TCP beside it"
                    : "descriptor %d: listens on the fabric only, the kernel refuses the port",
        fd);
}

} // namespace

bool carry_listen(int fd, int backlog, int& ret) {
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    if (real::getsockname(fd, generic(bound), &length) != 0 || !eligible_address(generic(bound), length)) {
        return false;
    }
    const char* reason = nullptr;
    const Decision decision = Rules::get().for_listen(generic(bound), length);
    const Carrier* carrier = nullptr;
    if (decision.verdict == Verdict::kernel) {
        reason = decision.reason;
    } else if (eligible_socket(fd, reason)) {
        carrier = Carrier::get();
        reason = carrier == nullptr ? "librsocket-ofi cannot be loaded" : nullptr;
    }
    if (carrier == nullptr) {
        explain::note_kernel(fd, Entry::Role::listen, reason, nullptr, 0);
        return false;
    }
    const Changing changing;
    const caller::Inside inside;
    Entry* entry = table::entry(fd) != nullptr ? table::entry(fd) : table::new_entry();
    const int made = carrier->socket(bound.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int kernel = keep(fd);
    int before = 0;
    socklen_t size = sizeof(before);
    (void)real::getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &before, &size);
    if (entry == nullptr || made < 0 || kernel < 0) {
        reason = "no descriptor is free";
    } else if ((reason = copy_options(*carrier, kernel, made)) == nullptr) {
        entry->backlog = backlog;
        if (const int error = listen_alike(*carrier, kernel, made, *entry); error != 0) {
            log("descriptor %d: cannot listen on the fabric, the kernel does: %s", fd, strerror(error));
            reason = "the fabric cannot listen there";
            restore_reuse(kernel, before);
        } else if (!become(*carrier, fd, made, Kind::listener, *entry)) {
            reason = "no memory";
        }
    }
    caller::look_again();
    if (reason == nullptr) {
        entry->kernel.store(kernel);
        entry->role = Entry::Role::listen;
        entry->nonblocking = (real::fcntl(kernel, F_GETFL, 0UL) & O_NONBLOCK) != 0;
        if (one_port_space(*carrier, made)) {
            log("descriptor %d: listens on the fabric only, whose ports are the kernel's own", fd);
        } else {
            listen_beside(*carrier, fd, kernel, *entry);
        }
        explain::note_names(*entry, fd, true);
        ret = 0;
    } else if (kernel >= 0) {
        table::remove(kernel);
        real::close(kernel);
    }
    if (made >= 0) {
        (void)carrier->close(made);
    }
    if (reason != nullptr) {
        explain::note_kernel(fd, Entry::Role::listen, reason, nullptr, 0);
    }
    return reason == nullptr;
}

bool make_anew(int fd) {
    const Carrier* carrier = Carrier::get();
    Entry* entry = table::entry(fd);
    if (carrier == nullptr || entry == nullptr) {
        return true;
    }
    const Changing changing;
    if (table::kind(fd) != Kind::inherited_listener) {
        return !table::plain(fd);
    }
    const caller::Inside inside;
    const int kernel = entry->kernel.load();
    int error = EADDRINUSE;
    for (int i = 0; i < tries_to_listen && error == EADDRINUSE; ++i) {
        const int made = carrier->socket(entry->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (made < 0) {
            break;
        }
        (void)copy_options(*carrier, kernel, made);
        (void)carrier->fcntl(made, F_SETFL, entry->nonblocking ? O_NONBLOCK : 0);
        error = listen_alike(*carrier, kernel, made, *entry);
        if (error == 0) {
            (void)become(*carrier, fd, made, Kind::listener, *entry);
            if (entry->apart) {
                (void)carrier->own->listen_beside(fd, kernel);
            }
        }
        (void)carrier->close(made);
        if (error == EADDRINUSE && real::poll(nullptr, 0UL, between_tries) < 0) {
            break;
        }
    }
    if (error != 0) {
        log("descriptor %d: a listener of the parent's cannot be made anew in this process while the parent has it: %s",
            fd, strerror(error));
        (void)switch_number(*carrier, fd, kernel, false);
        table::change(entry, Kind::noted);
        return false;
    }
    log("descriptor %d: a listener of the parent's was made anew", fd);
    return true;
}

namespace {

// A connection that the library's listener has given, under a high number, gets the lowest that is free.
int hand_over(const Carrier& carrier, int made, int flags) {
    const caller::Inside inside;
    const bool rsocket = carrier.own->is_socket(made) == 1;
    const int fd = real::fcntl(made, (flags & SOCK_CLOEXEC) != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 0UL);
    const int error = errno;
    Entry* entry = nullptr;
    if (fd >= 0) {
        table::remove(fd);
        if (rsocket && ((entry = table::new_entry()) == nullptr || carrier.own->share(made, fd) != 0 ||
                        !table::put(fd, Kind::carried, entry))) {
            real::close(fd);
        } else if (rsocket) {
            entry->role = Entry::Role::accept;
            explain::note_names(*entry, fd, true);
        } else {
            explain::note_kernel(fd, Entry::Role::accept, "it came over the kernel's TCP", nullptr, 0);
        }
    }
    if (rsocket) {
        (void)carrier.own->drop(made);
    }
    real::close(made);
    table::remove(made);
    errno = error;
    return fd;
}

int accept_on(int fd, sockaddr* address, socklen_t* length, int flags, const void* caller) {
    if (!ours(fd, caller)) {
        const auto accept = [&] {
            return flags != 0 ? real::accept4(fd, address, length, flags) : real::accept(fd, address, length);
        };
        if (caller::is_internal(caller)) {
            return numbers::make(caller, accept);
        }
        const int made = accept();
        if (made < 0) {
            return made;
        }
        table::remove(made);
        explain::note_kernel(made, Entry::Role::accept, "the listener is the kernel's", nullptr, 0);
        return made;
    }
    int made = -1;
    {
        const caller::Inside inside;
        made = Carrier::loaded().accept4(fd, address, length, flags);
    }
    return made >= 0 ? hand_over(Carrier::loaded(), made, flags) : made;
}

} // namespace

} // namespace preload

using namespace preload;

PRELOAD_EXPORT int listen(int fd, int backlog) noexcept {
    const void* caller = PRELOAD_CALLER;
    if (!table::plain(fd)) {
        if (!ours(fd, caller)) {
            return real::listen(fd, backlog);
        }
        const caller::Inside inside;
        Entry* entry = table::entry(fd);
        if (entry != nullptr && table::kind(fd) == Kind::listener) {
            entry->backlog = backlog;
            if (entry->apart) {
                (void)real::listen(entry->kernel.load(), backlog);
            }
        }
        return Carrier::loaded().listen(fd, backlog);
    }
    int ret = 0;
    if (!caller::is_for_internal(caller) && carry_listen(fd, backlog, ret)) {
        return ret;
    }
    return real::listen(fd, backlog);
}

PRELOAD_EXPORT int accept(int fd, struct sockaddr* address, socklen_t* length) {
    return accept_on(fd, address, length, 0, PRELOAD_CALLER);
}

PRELOAD_EXPORT int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
    return accept_on(fd, address, length, flags, PRELOAD_CALLER);
}
