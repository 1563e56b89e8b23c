// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The calls of carrying.h, for the preload shim.
#include "rsockets/api.hpp"

#include <cstring>

#include "base/descriptor.hpp"
#include "rsockets/carrying.h"
#include "rsockets/epoll_set.hpp"
#include "rsockets/poll.hpp"
#include "rsockets/provider.hpp"

using namespace rsockets;

namespace {

int share(int from, int number) {
    return answer([&] {
        const Use use = fd_table::find(from);
        if (!use) {
            return -ENOTSOCK;
        }
        if (!fd_table::put(number, use.ref())) {
            return -ENOMEM;
        }
        if (auto* socket = use.as<Socket>(); socket != nullptr) {
            socket->set_number(number);
        }
        return 0;
    });
}

int drop(int number) {
    return answer([&] { return fd_table::take(number) ? 0 : -ENOTSOCK; });
}

int is_socket(int number) {
    return answer([&] { return fd_table::find(number).as<Socket>() != nullptr ? 1 : 0; });
}

int set_alternative(int number, int on) {
    return with_socket(number, [&](Socket& socket) {
        socket.set_alternative(on != 0);
        return 0;
    });
}

int outcome(int number) {
    const Call call;
    if (call.refusal() != 0) {
        return -call.refusal();
    }
    const Use use = fd_table::find(number);
    const auto* socket = use.as<Socket>();
    return socket != nullptr ? -socket->outcome() : ENOTSOCK;
}

int listen_beside(int number, int kernel) {
    return with_socket(number, [&](Socket& socket) { return socket.listen_beside(number, kernel); });
}

int epoll_around(int kernel) {
    return answer([&] {
        int fd = -1;
        const Ref<EpollSet> set = EpollSet::make_around(base::Descriptor(kernel), fd);
        if (!set) {
            return -errno;
        }
        if (!fd_table::put(fd, Ref<Object>(set.get()))) {
            ::close(fd);
            return -ENOMEM;
        }
        return fd;
    });
}

int epoll_interest(int set, int number, epoll_event* event) {
    return answer([&] {
        const Use use = fd_table::find(set);
        auto* found = use.as<EpollSet>();
        return found != nullptr ? found->interest_in(number, *event) : -EINVAL;
    });
}

int wait_for_events(int set, epoll_event* events, int most, const timespec* timeout, const sigset_t* mask) {
    return answer(
        [&] {
            const Use use = fd_table::find(set);
            auto* found = use.as<EpollSet>();
            if (found == nullptr) {
                return -EINVAL;
            }
            const Deadline deadline = timeout != nullptr ? Deadline::in(*timeout) : Deadline::never();
            return found->wait(events, most, deadline, mask);
        },
        waits);
}

int report(int number, rsocket_report* out) {
    return with_socket(number, [&](Socket& socket) {
        *out = {};
        out->sent = socket.bytes_sent();
        out->received = socket.bytes_received();
        strncpy(out->core, socket.core().c_str(), sizeof(out->core) - 1);
        out->kernel_ports = socket.has_kernel_ports() ? 1 : 0;
        return 0;
    });
}

void load_providers() {
    const Call call;
    base::Info found;
    if (const base::Info wishes = provider::hints(); call.refusal() == 0 && wishes) {
        (void)provider::get_info(*wishes, found);
    }
}

constexpr rsocket_carrying table = {
    .share = share,
    .drop = drop,
    .is_socket = is_socket,
    .set_alternative = set_alternative,
    .outcome = outcome,
    .listen_beside = listen_beside,
    .epoll_around = epoll_around,
    .epoll_interest = epoll_interest,
    .epoll_wait = wait_for_events,
    .report = report,
    .load_providers = load_providers,
};

} // namespace

RSOCKET_API const struct rsocket_carrying* rsocket_carrying_2(void) { return &table; }
