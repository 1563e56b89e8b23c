// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#pragma once

namespace preload {

// Whether the kernel has reported an event of a member with EPOLLONESHOT, and reports no other before the program
// requests one. A thread that is in epoll_wait(2) may not have seen the event yet.
bool is_shot(int epfd, int fd);

} // namespace preload
