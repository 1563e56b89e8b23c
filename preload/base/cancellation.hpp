// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls in which a thread may be cancelled. The library is built without exceptions, so no destructor runs then: the
// caller passes what must be undone.
#pragma once

#include <cerrno>
#include <type_traits>

#include <pthread.h>

namespace preload {

// Returns the result of call(), with its errno. Runs undo() if the thread is cancelled in it.
template <class Call, class Undo> auto cancellable(Call&& call, Undo&& undo) {
    using Plain = std::remove_reference_t<Undo>;
    std::invoke_result_t<Call&> result{};
    int error = 0;
    // NOLINTNEXTLINE: a macro of pthread.h
    pthread_cleanup_push([](void* what) { (*static_cast<Plain*>(what))(); },
                         const_cast<void*>(static_cast<const void*>(&undo)));
    result = call();
    error = errno;
    pthread_cleanup_pop(0); // NOLINT: the same
    errno = error;
    return result;
}

} // namespace preload
