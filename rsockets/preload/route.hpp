// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The way of a call on one number: to libc, or to the socket library.
#pragma once

#include <cerrno>

#include "rsockets/preload/carrier.hpp"
#include "rsockets/preload/export.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

// Not inlined: what most calls need is only the look at the table.
template <class Real, class Library>
[[gnu::noinline]] auto route_carried(int fd, const void* caller, Real& kernel, Library& library) {
    if (!ours(fd, caller) || table::kind(fd) == Kind::set) {
        return kernel();
    }
    const caller::Inside inside;
    const auto ret = library(Carrier::loaded());
    if (ret < 0 && table::kind(fd) == Kind::pending) {
        const int error = errno;
        if (!settle(fd)) { // it waited for a connect that failed, and there is the kernel's now
            return kernel();
        }
        errno = error;
    }
    return ret;
}

template <class Real, class Library> inline auto route(int fd, const void* caller, Real&& kernel, Library&& library) {
    if (table::plain(fd)) [[likely]] {
        return kernel();
    }
    return route_carried(fd, caller, kernel, library);
}

} // namespace preload
