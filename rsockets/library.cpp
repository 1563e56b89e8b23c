// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/library.hpp"

#include <cerrno>
#include <cstdlib>

#include <pthread.h>
#include <unistd.h>

#include "rsockets/call.hpp"
#include "rsockets/epoll_set.hpp"
#include "rsockets/fd_table.hpp"
#include "rsockets/inherited.hpp"
#include "rsockets/log.hpp"
#include "rsockets/mutex.hpp"
#include "rsockets/socket.hpp"
#include "rsockets/stats.hpp"
#include "rsockets/transport.hpp"

namespace rsockets {

namespace {

// The time that all peers together get to take the data that this process has sent before it ends.
constexpr auto longest_exit = std::chrono::seconds(3);

// Never destroyed: sockets may be used until the process ends.
constinit std::atomic<Library*> library{nullptr};
constinit Mutex making;

} // namespace

Library& Library::get() {
    if (Library* made = library.load(std::memory_order_acquire)) {
        return *made;
    }
    const Guard lock(making);
    if (Library* made = library.load(std::memory_order_acquire)) {
        return *made;
    }
    [[maybe_unused]] static const bool registered = [] {
        atexit(at_exit);
        pthread_atfork(nullptr, nullptr, after_fork_in_child);
        return true;
    }();
    auto* made = new Library;
    library.store(made, std::memory_order_release);
    return *made;
}

int Library::transport_for(fi_info& info, Transport*& out) {
    bool added = false;
    {
        const Guard lock(mutex_);
        out = nullptr;
        for (const auto& known : transports_) {
            if (known->name() == info.fabric_attr->name) {
                out = known.get();
            }
        }
        if (out == nullptr) {
            std::unique_ptr<Transport> opened;
            if (const int ret = Transport::open(info, opened); ret != 0) {
                return ret;
            }
            out = opened.get();
            transports_.push_back(std::move(opened));
            added = true;
        }
    }
    if (!service_.started()) {
        // The first verbs domain makes libfabric rewrite libc's munmap and others in place (its memhooks): no thread of
        // ours may run one of them meanwhile. A failure to open it is reported to later users.
        fid_domain* first = nullptr;
        out->domain(info, first);
    }
    if (const int error = service_.start(); error != 0) {
        return -error;
    }
    if (added) {
        service_.wake();
    }
    return 0;
}

std::vector<Transport*> Library::transports() {
    const Guard lock(mutex_);
    std::vector<Transport*> all;
    all.reserve(transports_.size());
    for (const auto& transport : transports_) {
        all.push_back(transport.get());
    }
    return all;
}

// libfabric tears down its providers after this handler: by then, no thread may be inside a call, or begin one.
void Library::at_exit() {
    Library* made = library.load(std::memory_order_acquire);
    if (made == nullptr) {
        return;
    }
    // A signal handler may call exit(3) on top of a call: locks may be held that will never be released.
    const bool interrupted = Call::interrupted();
    Call::begin_exit();
    const bool alone = Call::others_are_out();
    if (!interrupted) {
        made->finish(alone);
    }
    Call::end_exit();
}

// As the kernel does for a process that ends: closes all sockets, and delivers what they have sent. Objects are kept,
// since their descriptors are open.
void Library::finish(bool alone) {
    service_.stop();
    const Deadline deadline = Deadline::in(longest_exit);
    fd_table::for_each([&](int, Object& object) {
        if (auto* socket = as_kind<Socket>(&object)) {
            socket->close_at_exit();
            socket->wait_queue().notify_all(); // wakes sleeping waiters, in case a destructor waits for them
        }
    });
    deliver(deadline);
    for (Transport* transport : transports()) {
        if (alone) {
            transport->finish(deadline);
        }
    }
}

// Polls all connections in turn: both ends of one may be in this process, and each needs the progress of the other.
void Library::deliver(const Deadline& deadline) {
    for (;;) {
        Ref<Socket> waits;
        fd_table::for_each([&](int, Object& object) {
            auto* socket = as_kind<Socket>(&object);
            if (socket != nullptr && !socket->delivered_at_exit()) {
                waits = Ref<Socket>(socket);
            }
        });
        const bool lingering = service_.lingers();
        if ((waits.get() == nullptr && !lingering) || deadline.passed()) {
            return;
        }
        if (waits.get() != nullptr) {
            waits->wait_at_exit();
        } else {
            service_.wait_for_lingering();
        }
    }
}

// A child cannot use the parent's connections: their memory was copied, the adapter's was not. The inherited
// descriptors stand for dead connections until the child closes them.
void Library::after_fork_in_child() {
    Call::after_fork();
    Counters::after_fork_in_child();
    Sleeper::after_fork();
    EpollSet::after_fork();
    KernelOptions::after_fork();
    if (library.exchange(nullptr) == nullptr) {
        return;
    }
    new (&making) Mutex; // its holder does not exist here
    fd_table::forget_all([](int fd) { fd_table::put(fd, Ref<Object>::adopt(new Inherited)); });
}

} // namespace rsockets
