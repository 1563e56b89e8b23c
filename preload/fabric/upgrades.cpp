// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/upgrades.hpp"

#include <algorithm>
#include <utility>

#include <sys/random.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/connection/kept_state.hpp"
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

namespace {

constexpr uint64_t loading_time_ns = 60000000000U;   // a busy machine takes seconds to load libfabric
constexpr uint64_t answering_time_ns = 60000000000U; // the worker itself waits for a peer for 12 s at most

} // namespace

bool Upgrades::ensure_worker() {
    const uint64_t now = sys::now_ns();
    if (worker_ < 0 && !hung_ && pause_.is_over(now)) {
        ready_by_ = now + loading_time_ns;
        worker_ = spawn_worker();
        if (worker_ >= 0 && !rendezvous::watch(epoll_, worker_, EPOLLIN, rendezvous::worker_mark)) {
            descriptors::close(std::exchange(worker_, -1));
        }
        if (worker_ < 0) {
            pause_.note_failed(now);
        }
    }
    return worker_ >= 0;
}

bool Upgrades::begin(const Upgrade& upgrade) {
    const auto free = std::find_if(pending_.begin(), pending_.end(), [](const Pending& p) { return p.token == 0; });
    if (free == pending_.end()) {
        return false;
    }
    Connection& c = *upgrade.connection;
    if (addresses_.has_no_device(upgrade.ends.own, sys::now_ns())) {
        rendezvous::conclude(c, failure(Reason::no_device, !addresses_.had_device(upgrade.ends.own)), epoll_);
        return true;
    }
    uint64_t token = 0;
    int memory = -1;
    constexpr uint64_t tokens = uint64_t{1} << 63; // the worker uses the lowest numbers for other events
    path::Segment* segment = nullptr;
    if (ensure_worker() && getrandom(&token, sizeof(token), GRND_NONBLOCK) == sizeof(token)) {
        token |= tokens;
        memory = descriptors::make(path::open_memory);
        segment = path::make_segment(token, memory);
    }
    if (segment == nullptr) {
        descriptors::close(memory);
        rendezvous::conclude(c, failure(Reason::no_memory), epoll_);
        return true;
    }
    free->upgrade = upgrade;
    free->token = token;
    free->segment = segment;
    free->memory = memory;
    free->direction = upgrade.ends.is_first() ? 0 : 1;
    if (ready_) {
        give(*free);
    }
    return true;
}

void Upgrades::give(Pending& pending) {
    Connection& c = *pending.upgrade.connection;
    if (table::connection(pending.upgrade.fd) != &c) {
        conclude(pending, failure(Reason::none)); // the connection was closed, or this fd of it
        return;
    }
    Control task;
    task.kind = Control::serve;
    task.token = pending.token;
    task.direction = pending.direction;
    task.service = service::own_name();
    task.ends = pending.upgrade.ends;
    task.accepted = c.role == Role::accept ? 1 : 0;
    c.duplicated = true;
    const bool sent =
        rendezvous::send_with(worker_, &task, sizeof(task), pending.memory, nullptr, 0, pending.upgrade.fd);
    descriptors::close(std::exchange(pending.memory, -1));
    pending.answer_by = sys::now_ns() + answering_time_ns;
    answers_due_ = std::min(answers_due_, pending.answer_by);
    if (!sent) {
        conclude(pending, failure(Reason::no_memory));
    }
}

void Upgrades::conclude(Pending& pending, const Outcome& outcome) {
    Connection& c = *pending.upgrade.connection;
    path::unmap_segment(std::exchange(pending.segment, nullptr));
    descriptors::close(std::exchange(pending.memory, -1));
    pending.token = 0;
    rendezvous::conclude(c, outcome, epoll_);
}

// Without this message, the worker ends the link at the deadline of its phase.
void Upgrades::drop(Pending& pending) {
    if (pending.memory >= 0) {
        return; // it was not sent to the worker
    }
    Control message;
    message.kind = Control::drop;
    message.token = pending.token;
    rendezvous::send_with(worker_, &message, sizeof(message), -1);
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
    if (message.kind == Control::ready) {
        ready_ = true;
        pause_.note_succeeded();
        for (Pending& pending : pending_) {
            if (pending.memory >= 0) {
                give(pending);
            }
        }
        return;
    }
    const auto found = std::find_if(pending_.begin(), pending_.end(),
                                    [&](const Pending& p) { return p.token != 0 && p.token == message.token; });
    if (found == pending_.end()) {
        return; // it was closed meanwhile
    }
    if (message.kind != Control::attach) {
        const rendezvous::Address& own = found->upgrade.ends.own;
        const bool no_device = message.why == Reason::no_device;
        if (no_device) {
            addresses_.note_no_device(own, sys::now_ns());
        }
        conclude(*found, failure(message.why, no_device && !addresses_.had_device(own)));
        return;
    }
    addresses_.note_device(found->upgrade.ends.own);
    Reason why = Reason::none;
    Upgrade upgrade = found->upgrade;
    upgrade.user = getuid(); // the worker's user: it is the other end of the memory
    if (rendezvous::attach(upgrade, found->segment, found->token, found->direction, why)) {
        found->segment = nullptr; // owned by the connection
        conclude(*found, agreed);
    } else {
        drop(*found);
        conclude(*found, failure(why));
    }
}

// The worker may hang in a device, and so would the next one.
void Upgrades::on_time(uint64_t now) {
    if (deadline() > now) {
        return;
    }
    if (ready_) {
        end_overdue(now);
    } else {
        hung_ = true;
        worker_ended();
    }
}

// The worker has been ready, and its other connections may still work: these ones stay with TCP.
void Upgrades::end_overdue(uint64_t now) {
    answers_due_ = UINT64_MAX;
    for (Pending& pending : pending_) {
        if (pending.token == 0 || pending.memory >= 0) {
            continue;
        }
        if (pending.answer_by > now) {
            answers_due_ = std::min(answers_due_, pending.answer_by);
            continue;
        }
        drop(pending);
        conclude(pending, failure(Reason::no_peer));
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
            if (!ready_) {
                pause_.note_failed(sys::now_ns());
            }
            worker_ended();
            return;
        }
        if (n == sizeof(message) && message.magic == Control::expected_magic) {
            on_message(message);
        }
    }
}

// It may have been killed. What it has not sent yet goes by TCP.
void Upgrades::worker_ended() {
    rendezvous::unwatch(epoll_, worker_);
    descriptors::close(std::exchange(worker_, -1));
    ready_ = false;
    answers_due_ = UINT64_MAX;
    for (Pending& pending : pending_) {
        if (pending.token != 0) {
            conclude(pending, failure(Reason::fabric_lost));
        }
    }
    table::for_each_connection([](int fd, Connection& c) {
        const KeptState kept(c, fd);
        if (kept && c.fd.load() == fd && c.mirrored && c.segment.load() != nullptr) {
            using path::MirrorFields;
            uint32_t moving = MirrorFields::moving;
            uint32_t proving = MirrorFields::proving;
            c.shared().mirror.stage.compare_exchange_strong(moving, MirrorFields::lost);
            c.shared().mirror.stage.compare_exchange_strong(proving, MirrorFields::failed);
            stream::attend(c, fd);
        }
    });
    note_worker_ended();
}

} // namespace preload::fabric
