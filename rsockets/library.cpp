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

// What peers are given, all together, to take what this process has sent before it ends.
constexpr auto longest_exit = std::chrono::seconds(3);

// Never destroyed: sockets may be used until the last moment of the process.
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
    static const bool registered = [] {
        atexit(at_exit);
        pthread_atfork(nullptr, nullptr, after_fork_in_child);
        return true;
    }();
    (void)registered;
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
        // The first domain of verbs makes libfabric rewrite libc's munmap and others in place (its memhooks): no thread
        // of ours is to be in one of them. Whether it opens is for those to say who need it.
        fid_domain* first = nullptr;
        (void)out->domain(info, first);
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

// libfabric takes its providers apart behind this. So no thread is to be within a call by then, nor to begin one.
void Library::at_exit() {
    Library* made = library.load(std::memory_order_acquire);
    if (made == nullptr) {
        return;
    }
    // A signal handler may end the process on top of a call, and finds locks taken that will never be given back.
    const bool interrupted = Call::interrupted();
    Call::begin_exit();
    const bool alone = Call::others_are_out();
    if (!interrupted) {
        made->finish(alone);
    }
    Call::end_exit();
}

// As the kernel does for a process that ends: all its sockets are closed, and what they have sent is delivered. Objects
// stay, since the numbers do.
void Library::finish(bool alone) {
    service_.stop();
    const Deadline deadline = Deadline::in(longest_exit);
    fd_table::for_each([&](int, Object& object) {
        if (auto* socket = as_kind<Socket>(&object)) {
            socket->close_at_exit();
            socket->bell().ring(); // who sleeps on it returns, in case that a destructor waits for it
        }
    });
    deliver(deadline);
    for (Transport* transport : transports()) {
        if (alone) {
            transport->finish();
        }
    }
}

// Looks at all connections in turn: the two ends of one may both be in this process, and each needs the other's look.
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

// The parent's connections are out of reach here: their memory was copied, the adapter's was not. Its descriptors were
// inherited, and the numbers keep their meaning as dead connections until the child closes them.
void Library::after_fork_in_child() {
    Call::after_fork();
    Counters::after_fork_in_child();
    Sleeper::after_fork();
    EpollSet::after_fork();
    KernelOptions::after_fork();
    if (library.exchange(nullptr) == nullptr) {
        return;
    }
    new (&making) Mutex; // whoever held it is not here
    fd_table::forget_all([](int fd) { fd_table::put(fd, Ref<Object>::adopt(new Inherited)); });
}

} // namespace rsockets
