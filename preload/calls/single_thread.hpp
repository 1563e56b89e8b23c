// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls that the kernel refuses to a process with several threads, or that change nothing but the thread that makes
// them. The library's thread is not the program's, so it ends before such a call, and begins again after it, with what
// the calling thread has then. Meanwhile its descriptors and state stay as they are: nothing that is sent to it is
// lost.
#pragma once

#include "preload/connection/lifecycle.hpp"
#include "preload/rendezvous/service.hpp"

namespace preload::single_thread {

template <class Call> long with_one(Call&& call) {
    const bool paused = !lifecycle::in_vfork_child() && service::pause();
    const long result = call();
    if (paused && !service::resume()) {
        lifecycle::leave_everything_to_the_kernel(); // peers would ask in vain
    }
    return result;
}

} // namespace preload::single_thread
