// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which processes have a socket open. A descriptor that came from elsewhere (exec, SCM_RIGHTS) may still be open there,
// and whoever goes on with it as the kernel's would take frames for bytes.
#pragma once

namespace preload::rendezvous {

// Whether no other process has it open, as far as /proc tells: processes whose descriptors this one may not see (those
// of other users, for example of a root process that has started this one) do not count. Takes some milliseconds with
// hundreds of processes. False, too, if it cannot be told.
bool is_sole_holder(int fd);

} // namespace preload::rendezvous
