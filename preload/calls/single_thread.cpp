// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/calls/single_thread.hpp"

#include <linux/nsfs.h>
#include <sched.h>

#include "preload/base/system.hpp"
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

using namespace preload;

namespace {

// alone: the call is refused to a process with several threads. last: no thread can be made after it, so that the
// library's could not begin again.
template <class Call> int change(bool alone, bool last, Call&& call) {
    if (alone && last && service::own_name() != 0) {
        lifecycle::leave_everything_to_the_kernel();
    }
    return static_cast<int>(alone ? single_thread::with_one(call) : call());
}

} // namespace

extern "C" {

PRELOAD_EXPORT int unshare(int flags) noexcept {
    constexpr int for_one_thread = CLONE_NEWUSER | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM;
    return change((flags & for_one_thread) != 0, (flags & (CLONE_NEWPID | CLONE_NEWTIME)) != 0,
                  [&] { return real::syscall(SYS_unshare, flags); });
}

PRELOAD_EXPORT int setns(int fd, int type) noexcept {
    constexpr int for_one_thread = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWTIME;
    // Without a type, the file has one.
    const long found = type != 0 ? type : sys::call(SYS_ioctl, fd, NS_GET_NSTYPE, 0);
    return change(found > 0 && (found & for_one_thread) != 0, found > 0 && (found & CLONE_NEWPID) != 0,
                  [&] { return real::syscall(SYS_setns, fd, type); });
}

// No header of libc's declares it.
PRELOAD_EXPORT int capset(void* header, const void* data) noexcept;
PRELOAD_EXPORT int capset(void* header, const void* data) noexcept {
    return static_cast<int>(single_thread::with_one([&] { return real::syscall(SYS_capset, header, data); }));
}
}
