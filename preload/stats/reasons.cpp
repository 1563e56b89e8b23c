// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/stats/reasons.hpp"

namespace preload {

const char* text_of(Reason reason) {
    switch (reason) {
    case Reason::none:
        return "-";
    case Reason::young:
        return "ended before an upgrade was due";
    case Reason::no_peer:
        return "the peer does not run under rsrun, or keeps to the kernel";
    case Reason::remote:
        return "the peer is not in this network namespace of this host";
    case Reason::other_user:
        return "another user answered for the peer";
    case Reason::rule:
        return "a rule leaves the address to the kernel";
    case Reason::not_named:
        return "no rule names the address";
    case Reason::never:
        return "upgrades are switched off (RSPRELOAD_UPGRADE=never)";
    case Reason::half_closed:
        return "one direction was shut down";
    case Reason::past_library:
        return "bytes were moved past the library (io_uring or raw system calls)";
    case Reason::option:
        return "an option that only the kernel has";
    case Reason::urgent:
        return "urgent data (MSG_OOB)";
    case Reason::stdio:
        return "a stdio stream uses it";
    case Reason::asynchronous:
        return "asynchronous or signal-driven I/O uses it";
    case Reason::passed:
        return "passed to another process";
    case Reason::executed:
        return "another program was executed on it";
    case Reason::several:
        return "several processes use it";
    case Reason::sandboxed:
        return "the kernel cannot be asked for the peer's owner (sandbox)";
    case Reason::no_memory:
        return "no memory, descriptor or thread";
    case Reason::self_connected:
        return "connected to itself";
    case Reason::broken:
        return "the peer broke the protocol: reset";
    case Reason::failed:
        return "the peer's offer was not valid";
    case Reason::spliced:
        return "spliced";
    case Reason::fabric_lost:
        return "the fabric has failed";
    case Reason::no_device:
        return "to another host, and no RDMA device has the local address";
    case Reason::port_taken:
        return "to another host, and its port is taken on the fabric";
    case Reason::unread:
        return "more was sent than a ring takes before the reader read, again and again";
    case Reason::other_netns:
        return "of another network namespace than the process";
    case Reason::unseen_wait:
        return "no call of libc's waited for it";
    case Reason::shared_set:
        return "in an epoll set in which several processes wait";
    }
    return "-";
}

} // namespace preload
