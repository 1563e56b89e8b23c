// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/upgrades.hpp"

#include <algorithm>
#include <utility>

#include <sys/random.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/fabric/spawn.hpp"
#include "preload/rendezvous/agreements.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/loop.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service.hpp"

namespace preload::fabric {

using rendezvous::agreed;
using rendezvous::failure;
using rendezvous::Outcome;
using rendezvous::Upgrade;

bool Upgrades::ensure_worker() {
    if (worker_ < 0 && !impossible_) {
        worker_ = descriptors::keep(spawn_worker());
        impossible_ = worker_ < 0 || !rendezvous::watch(epoll_, worker_, EPOLLIN, rendezvous::worker_mark);
    }
    return !impossible_;
}

bool Upgrades::begin(const Upgrade& upgrade) {
    const auto free = std::find_if(pending_.begin(), pending_.end(), [](const Pending& p) { return p.token == 0; });
    if (free == pending_.end()) {
        return false;
    }
    Connection& c = *upgrade.connection;
    uint64_t token = 0;
    int memory = -1;
    constexpr uint64_t tokens = uint64_t{1} << 63; // the worker has other uses for the least numbers
    path::Segment* segment = nullptr;
    if (ensure_worker() && getrandom(&token, sizeof(token), GRND_NONBLOCK) == sizeof(token)) {
        token |= tokens;
        segment = path::make_segment(token, memory);
    }
    if (segment == nullptr) {
        rendezvous::conclude(c, failure(Reason::no_memory, impossible_), epoll_);
        return true;
    }
    free->upgrade = upgrade;
    free->token = token;
    free->segment = segment;
    free->direction = upgrade.ends.is_first() ? 0 : 1;
    Control task;
    task.kind = Control::serve;
    task.token = token;
    task.direction = free->direction;
    task.service = service::own_name();
    task.ends = upgrade.ends;
    task.accepted = c.role == Role::accept ? 1 : 0;
    c.duplicated = true;
    const bool sent = rendezvous::send_with(worker_, &task, sizeof(task), memory, nullptr, 0, upgrade.fd);
    sys::call(SYS_close, memory);
    if (!sent) {
        conclude(*free, failure(Reason::no_memory));
    }
    return true;
}

void Upgrades::conclude(Pending& pending, const Outcome& outcome) {
    Connection& c = *pending.upgrade.connection;
    path::unmap_segment(std::exchange(pending.segment, nullptr));
    pending.token = 0;
    rendezvous::conclude(c, outcome, epoll_);
}

void Upgrades::drop(Pending& pending) {
    Control message;
    message.kind = Control::drop;
    message.token = pending.token;
    (void)rendezvous::send_with(worker_, &message, sizeof(message), -1);
}

void Upgrades::on_closed() {
    for (Pending& pending : pending_) {
        if (pending.token != 0 && pending.upgrade.connection->requested.load() == 2) {
            drop(pending);
            conclude(pending, failure(Reason::none));
        }
    }
}

void Upgrades::on_message(const Control& message) {
    const auto found = std::find_if(pending_.begin(), pending_.end(),
                                    [&](const Pending& p) { return p.token != 0 && p.token == message.token; });
    if (found == pending_.end()) {
        return; // it was closed meanwhile
    }
    if (message.kind != Control::attach) {
        conclude(*found, failure(message.why));
        return;
    }
    Reason why = Reason::none;
    Upgrade upgrade = found->upgrade;
    upgrade.user = getuid(); // the worker's, who is at the other end of the memory
    if (rendezvous::attach(upgrade, found->segment, found->token, found->direction, why)) {
        found->segment = nullptr; // the connection's
        conclude(*found, agreed);
    } else {
        drop(*found);
        conclude(*found, failure(why));
    }
}

void Upgrades::on_worker() {
    for (;;) {
        Control message;
        const long n = sys::recv(worker_, &message, sizeof(message), MSG_DONTWAIT);
        if (n == -EAGAIN || n == -EINTR) {
            return;
        }
        if (n <= 0) {
            worker_ended();
            return;
        }
        if (n == sizeof(message) && message.magic == Control::expected_magic) {
            on_message(message);
        }
    }
}

// Killed, perhaps. Whatever it has not yet sent goes by TCP.
void Upgrades::worker_ended() {
    descriptors::close(std::exchange(worker_, -1));
    for (Pending& pending : pending_) {
        if (pending.token != 0) {
            conclude(pending, failure(Reason::fabric_lost));
        }
    }
    table::for_each_connection([](int fd, Connection& c) {
        if (c.fd.load() == fd && c.mirrored && c.segment.load() != nullptr) {
            using path::MirrorFields;
            uint32_t moving = MirrorFields::moving;
            uint32_t proving = MirrorFields::proving;
            c.shared().mirror.stage.compare_exchange_strong(moving, MirrorFields::lost);
            c.shared().mirror.stage.compare_exchange_strong(proving, MirrorFields::failed);
            stream::attend(c, fd);
        }
    });
}

} // namespace preload::fabric
