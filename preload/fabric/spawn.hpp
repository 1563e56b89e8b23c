// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#pragma once

namespace preload::fabric {

// Starts a worker, as a process that is not the program's child, so that the program does not notice it. Returns the
// socket to it, or -1: it could not be started.
int spawn_worker();
// After the end of a worker.
void note_worker_ended();

} // namespace preload::fabric
