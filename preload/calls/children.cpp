// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Children for which no pthread_atfork(3) handler runs. Those of vfork share the memory of their parent: from the first
// one on, each call that matters checks which process makes it. Those of _Fork and clone have a copy, as those of fork.
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/lifecycle.hpp"

#include <cstdarg>

#include <sched.h>

using namespace preload;

#if defined(__x86_64__)
// vfork returns twice, so no C++ function may wrap it: note the call, then jump to libc's as if it was called directly.
extern "C" __attribute__((visibility("hidden"), used)) void* rspreload_note_vfork() {
    lifecycle::note_unseen_child();
    lifecycle::leave_inheritable_sets();
    return real::look_up("vfork");
}

__asm__(".pushsection .text\n"
        ".globl vfork\n"
        ".type vfork, @function\n"
        "vfork:\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "subq $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call rspreload_note_vfork\n"
        "addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "jmp *%rax\n"
        ".cfi_endproc\n"
        ".size vfork, . - vfork\n"
        ".globl __vfork\n"
        ".set __vfork, vfork\n"
        ".popsection\n");
#endif

namespace {

// What a child of clone runs. It has a copy of this.
struct Started {
    int (*run)(void*);
    void* argument;

    static int begin(void* of) {
        const Started started = *static_cast<Started*>(of);
        lifecycle::after_forking(0);
        const int result = started.run(started.argument);
        lifecycle::leave_process(); // libc ends it by an exit that cannot be interposed
        return result;
    }
};

} // namespace

PRELOAD_EXPORT pid_t _Fork() noexcept {
    lifecycle::before_forking();
    const pid_t child = real::_Fork();
    lifecycle::after_forking(child);
    return child;
}

// NOLINTBEGIN(clang-analyzer-valist.Uninitialized): the analyzer does not follow va_start here
PRELOAD_EXPORT int clone(int (*run)(void*), void* stack, int flags, void* argument, ...) noexcept {
    va_list rest;
    va_start(rest, argument);
    auto* parent_tid = va_arg(rest, void*);
    auto* tls = va_arg(rest, void*);
    auto* child_tid = va_arg(rest, void*);
    va_end(rest);
    if ((flags & CLONE_VM) == 0) {
        Started started{run, argument};
        lifecycle::before_forking();
        const int child = real::clone(Started::begin, stack, flags, &started, parent_tid, tls, child_tid);
        lifecycle::after_forking(child);
        return child;
    }
    if ((flags & CLONE_THREAD) == 0) {
        lifecycle::note_unseen_child();
    }
    return real::clone(run, stack, flags, argument, parent_tid, tls, child_tid);
}
// NOLINTEND(clang-analyzer-valist.Uninitialized)
