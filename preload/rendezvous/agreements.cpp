// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/agreements.hpp"

#include <algorithm>

#include <sys/random.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/kept_state.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/stream.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/loop.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/page.hpp"

namespace preload::rendezvous {

namespace {

constexpr uint64_t millisecond = 1000000;
// A peer on a channel that has the connection is usually ready as soon as this end is.
constexpr uint64_t timeout = 50 * millisecond;
constexpr uint64_t timeout_without_space = 1000 * millisecond;
constexpr uint64_t answering_time = 1000 * millisecond;
constexpr uint64_t tick = 10 * millisecond; // entries that are due within it are handled together
constexpr size_t max_offers = 32;           // unanswered, on one channel: each has a descriptor in flight
constexpr int max_received = 64;            // messages at once, before other channels have their turn

uint64_t rounded_up(uint64_t time) { return (time / tick + 1) * tick; }

// A call that is counted while an upgrade is concluded may request another one, of what is in memory by then.
bool is_settled(const Connection& c) {
    const KeptState kept(c, c.fd.load());
    return kept && gate::is_settled(*kept.get());
}

void end_request(Connection& c) {
    uint8_t working = 1;
    if (!c.requested.compare_exchange_strong(working, 0)) {
        lifecycle::free_abandoned(c);
    }
}

} // namespace

void conclude(Connection& c, const Outcome& outcome, int epoll) {
    if (c.requested.load() != 2) {
        const int fd = c.fd.load();
        if (outcome.result == Outcome::Result::agreed) {
            watch_connection(epoll, fd, c.mirrored ? EPOLLPRI : 0U);
        }
        const KeptState kept(c, fd);
        if (kept && outcome.result != Outcome::Result::agreed) {
            ConnectionState& s = *kept.get();
            // Keeps the reason of an earlier failed attempt if the connection ends meanwhile.
            const bool ends = outcome.why == Reason::half_closed || outcome.why == Reason::young;
            if (outcome.why != Reason::none && !(ends && s.reason.load() != Reason::none)) {
                s.reason = outcome.why;
            }
            if (!outcome.for_good && s.fabric_since_ns.load() != 0) {
                stream::retry_fabric_later(s, false);
            } else if (outcome.for_good || s.attempts.fetch_add(1) + 1 >= policy::max_attempts) {
                gate::pin(s);
            } else {
                s.worth_at = std::max(s.calls.load(), 1U) *
                             (outcome.why == Reason::several ? policy::retry_factor_several : policy::retry_factor);
            }
        }
        if (kept) {
            stats::refresh(c);
        }
    }
    end_request(c);
}

bool Agreements::begin(Connection& c, uint64_t now) {
    if (c.requested.load() == 2) {
        lifecycle::free_abandoned(c);
        return true;
    }
    if (is_settled(c)) {
        end_request(c);
        return true;
    }
    if (pending_.full()) {
        return false;
    }
    Upgrade upgrade;
    if (const Outcome outcome = examine(c, upgrade); outcome.result != Outcome::Result::going_on) {
        rendezvous::conclude(c, outcome, epoll_);
        return true;
    }
    if (upgrade.remote) {
        const bool begun = fabric_.begin(upgrade);
        deadline_ = std::min(deadline_, fabric_.deadline());
        return begun;
    }
    Pending& pending = *pending_.add(upgrade);
    pending.since = now;
    if (Channel* from = channels_.ready_received_on(upgrade.ends); from != nullptr && from->user() == upgrade.user) {
        pending.channel = from;
    }
    send_ready(pending, now);
    begin_meetings();
    return true;
}

// The pending entry is removed.
void Agreements::conclude(Pending& pending, const Outcome& outcome) {
    end_meeting(pending);
    withdraw_offer(pending);
    Connection& c = *pending.upgrade.connection;
    pending_.remove(pending);
    rendezvous::conclude(c, outcome, epoll_);
}

void Agreements::at(Pending& pending, uint64_t due) {
    pending.due = due;
    deadline_ = std::min(deadline_, due);
}

void Agreements::on_time(uint64_t now) {
    deadline_ = UINT64_MAX;
    const bool check_all = any_closed_;
    any_closed_ = false;
    if (check_all) {
        fabric_.on_closed();
    }
    fabric_.on_time(now);
    deadline_ = fabric_.deadline();
    pending_.for_each([&](Pending& pending) {
        if (check_all && pending.upgrade.connection->requested.load() == 2) {
            conclude(pending, failure(Reason::none));
        } else if (pending.due <= now) {
            pending.due = UINT64_MAX;
            check(pending, now);
        } else {
            deadline_ = std::min(deadline_, pending.due);
        }
    });
    begin_meetings();
}

void Agreements::check(Pending& pending, uint64_t now) {
    if (pending.offer != nullptr) {
        conclude(pending, unanswered(pending.upgrade));
    } else if (pending.meeting != nullptr) {
        on_outcome(pending, pending.meeting->on_time(now));
    } else {
        await_meeting(pending);
    }
}

void Agreements::close() {
    for (Meeting& meeting : meetings_) {
        if (meeting.in_use()) {
            meeting.end();
        }
    }
    channels_.close_all();
}

// Meetings.

void Agreements::await_meeting(Pending& pending) {
    if (!pending.awaits_meeting) {
        awaiting_.add(pending);
    }
}

// Oldest first, as at the other end, so that both work on the same connections.
void Agreements::begin_meetings() {
    while (free_meetings_ != 0 && awaiting_.oldest() != nullptr) {
        Pending* oldest = awaiting_.oldest();
        awaiting_.remove(*oldest);
        --free_meetings_;
        oldest->meeting =
            std::find_if(meetings_.begin(), meetings_.end(), [](const Meeting& m) { return !m.in_use(); });
        on_outcome(*oldest, oldest->meeting->begin(oldest->upgrade, epoll_));
    }
}

void Agreements::end_meeting(Pending& pending) {
    awaiting_.remove(pending);
    if (pending.meeting != nullptr) {
        pending.meeting->end();
        pending.meeting = nullptr;
        ++free_meetings_;
    }
}

void Agreements::on_meeting(Meeting& meeting, uint64_t now) {
    if (!meeting.in_use()) {
        return; // it has ended since the event
    }
    Pending* found = pending_.find(meeting.upgrade());
    if (found != nullptr) {
        on_outcome(*found, meeting.on_event(now));
        begin_meetings();
    }
}

void Agreements::on_outcome(Pending& pending, const Outcome& outcome) {
    if (outcome.result == Outcome::Result::going_on) {
        at(pending, pending.meeting->deadline());
        return;
    }
    if (outcome.result == Outcome::Result::agreed) {
        keep_socket(*pending.meeting);
    }
    conclude(pending, outcome);
}

void Agreements::keep_socket(Meeting& meeting) {
    if (!channels_.wants(meeting.peer_service())) {
        return; // the meeting closes it
    }
    if (Channel* replaced = channels_.to_replace(); replaced != nullptr) {
        close_channel(*replaced);
    }
    const int socket = meeting.take_socket();
    if (!descriptors::is_spare(socket) || !channels_.add(socket, meeting.peer_service(), meeting.upgrade())) {
        close_of_user(socket, meeting.upgrade().user);
        return;
    }
    const uint64_t now = sys::now_ns();
    pending_.for_each([&](Pending& pending) {
        if (pending.ready_sent_on == nullptr && pending.upgrade.connection != meeting.upgrade().connection) {
            send_ready(pending, now);
        }
    });
}

// Channels.

// Sends `ready`. The second end makes an offer instead, if the peer has sent `ready`.
void Agreements::send_ready(Pending& pending, uint64_t now) {
    if (pending.channel != nullptr) {
        if (pending.upgrade.ends.is_first()) {
            send_ready_on(pending, *pending.channel);
            if (pending.meeting == nullptr) {
                at(pending, rounded_up(now + timeout_without_space));
            }
        } else {
            make_offer(pending, now);
        }
        return;
    }
    const Channels::Candidates candidates = channels_.candidates(pending.upgrade);
    for (size_t i = 0; i < candidates.count; ++i) {
        send_ready_on(pending, *candidates.channels[i]);
    }
    if (pending.meeting != nullptr) {
        return; // the meeting has its own deadline
    }
    if (candidates.count == 0) {
        await_meeting(pending);
    } else {
        awaiting_.remove(pending);
        at(pending, rounded_up(now + (pending.ready_sent_on != nullptr ? timeout : timeout_without_space)));
    }
}

bool Agreements::send_ready_on(Pending& pending, Channel& channel) {
    Proposal proposal;
    proposal.kind = Proposal::ready;
    proposal.ends = pending.upgrade.ends;
    if (!channel.has_space() || !channel.send(proposal)) {
        wait_for_space(channel);
        return false;
    }
    pending.ready_sent_on = &channel;
    return true;
}

void Agreements::wait_for_space(Channel& channel) {
    if (!channel.waiting && !channel.has_space()) {
        channels_.watch_space(channel, true);
    }
    channel.waiting = true;
}

void Agreements::make_offer(Pending& pending, uint64_t now) {
    Channel& channel = *pending.channel;
    if (pending.meeting != nullptr && pending.meeting->has_offered()) {
        return;
    }
    if (pending.meeting == nullptr) {
        at(pending, rounded_up(now + timeout_without_space));
    }
    if (channel.offers >= max_offers || !channel.has_space()) {
        wait_for_space(channel);
        return;
    }
    Proposal proposal;
    const int memory = descriptors::make(path::open_memory);
    if (getrandom(&proposal.token, sizeof(proposal.token), GRND_NONBLOCK) != sizeof(proposal.token) ||
        proposal.token == 0 || (pending.offer = path::make_segment(proposal.token, memory)) == nullptr) {
        descriptors::close(memory);
        conclude(pending, failure(Reason::no_memory));
        return;
    }
    pending.offer->service[1] = service::own_name();
    pending.token = proposal.token;
    ++channel.offers;
    proposal.kind = Proposal::offer;
    proposal.ends = pending.upgrade.ends;
    proposal.bytes = path::file_bytes;
    const bool sent = channel.send(proposal, memory);
    descriptors::close(memory);
    if (!sent) { // the peer does not read, or has ended: a meeting finds out
        withdraw_offer(pending);
        wait_for_space(channel);
        return;
    }
    end_meeting(pending);
    at(pending, rounded_up(now + answering_time));
}

void Agreements::withdraw_offer(Pending& pending) {
    if (pending.offer != nullptr) {
        --pending.channel->offers;
        path::unmap_segment(pending.offer);
        pending.offer = nullptr;
        pending.token = 0;
    }
}

// The channel has space again, or one offer less.
void Agreements::send_waiting(Channel& channel, uint64_t now) {
    channel.waiting = false;
    pending_.for_each([&](Pending& pending) {
        if (channel.waiting || pending.offer != nullptr) {
            return;
        }
        if (pending.ready_sent_on == nullptr || (pending.channel == &channel && !pending.upgrade.ends.is_first())) {
            send_ready(pending, now);
        }
    });
}

void Agreements::close_channel(Channel& channel) {
    pending_.for_each([&](Pending& pending) {
        if (pending.channel == &channel) {
            withdraw_offer(pending);
            pending.channel = nullptr;
            if (pending.meeting == nullptr) {
                await_meeting(pending);
            }
        }
        if (pending.ready_sent_on == &channel) {
            pending.ready_sent_on = nullptr;
        }
    });
    channels_.close(channel);
}

void Agreements::on_channel(uint64_t event, uint32_t events, uint64_t now) {
    Channel* channel = channels_.at(event);
    if (channel == nullptr) {
        return; // closed since the event
    }
    for (int i = 0; i < max_received; ++i) {
        Proposal proposal;
        int memory = -1;
        const Channel::Received received = channel->receive(proposal, memory);
        if (received == Channel::Received::nothing) {
            break;
        }
        if (received == Channel::Received::message) {
            on_proposal(*channel, proposal, memory, now);
        }
        descriptors::close(memory);
        if (received == Channel::Received::ended) {
            close_channel(*channel);
        }
        if (!channel->in_use()) {
            break;
        }
    }
    if (channel->in_use() && (events & EPOLLOUT) != 0) {
        channels_.watch_space(*channel, false);
        send_waiting(*channel, now);
    }
    begin_meetings();
}

void Agreements::on_proposal(Channel& channel, const Proposal& proposal, int memory, uint64_t now) {
    switch (proposal.kind) {
    case Proposal::ready:
        on_ready(channel, proposal.ends.reversed(), now);
        break;
    case Proposal::offer: {
        Proposal answer;
        answer.kind = on_offer(channel, proposal, memory) ? Proposal::taken : Proposal::declined;
        answer.token = proposal.token;
        answer.ends = proposal.ends.reversed();
        if (!channel.send(answer)) {
            close_channel(channel); // the peer does not read: only the close can inform it
        }
        break;
    }
    default:
        on_answer(channel, proposal, now);
    }
}

void Agreements::on_ready(Channel& channel, const Ends& ends, uint64_t now) {
    Pending* pending = pending_.find(ends);
    if (pending == nullptr || pending->upgrade.user != channel.user()) {
        channels_.note_ready(channel, ends);
        return;
    }
    if (pending->offer != nullptr) {
        return;
    }
    pending->channel = &channel;
    if (!ends.is_first()) {
        make_offer(*pending, now);
    } else if (pending->ready_sent_on != &channel) {
        send_ready_on(*pending, channel);
    }
}

// Returns whether the offer was taken.
bool Agreements::on_offer(Channel& channel, const Proposal& proposal, int memory) {
    const Ends ends = proposal.ends.reversed();
    Pending* pending = pending_.find(ends);
    if (pending == nullptr || pending->upgrade.user != channel.user() || !ends.is_first() ||
        proposal.bytes != path::file_bytes || memory < 0) {
        return false;
    }
    const char* why = nullptr;
    path::Segment* segment = path::map_segment(memory, why);
    if (segment == nullptr) {
        return false;
    }
    segment->service[0] = service::own_name();
    Reason why_not = Reason::none;
    // Attach before answering `taken`: from then on the other end writes into the ring.
    const bool attached = attach(pending->upgrade, segment, proposal.token, 0, why_not);
    if (!attached) {
        path::unmap_segment(segment);
    }
    channels_.note_use(channel, ends);
    conclude(*pending, attached ? agreed : failure(why_not));
    return attached;
}

void Agreements::on_answer(Channel& channel, const Proposal& proposal, uint64_t now) {
    Pending* pending = pending_.find(proposal.ends.reversed());
    if (pending == nullptr || pending->offer == nullptr || pending->channel != &channel ||
        pending->token != proposal.token) {
        return; // too late, or never offered
    }
    if (proposal.kind == Proposal::declined) {
        withdraw_offer(*pending);
        pending->channel = nullptr;
        at(*pending, rounded_up(now + timeout));
    } else {
        Reason why_not = Reason::none;
        const bool attached = attach(pending->upgrade, pending->offer, proposal.token, 1, why_not);
        if (attached) {
            pending->offer = nullptr; // owned by the connection
            --channel.offers;
        }
        channels_.note_use(channel, pending->upgrade.ends);
        conclude(*pending, attached ? agreed : failure(why_not));
    }
    if (channel.waiting && channel.offers <= max_offers / 2) {
        send_waiting(channel, now);
    }
}

} // namespace preload::rendezvous
