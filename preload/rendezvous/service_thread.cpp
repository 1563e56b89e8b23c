// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/service_thread.hpp"

#include <array>
#include <utility>

#include "preload/base/system.hpp"
#include "preload/connection/kept_state.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/discard.hpp"
#include "preload/rendezvous/loop.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::service {

namespace {

using rendezvous::Attend;
using rendezvous::WakeupGiven;
using rendezvous::WakeupWanted;

// Owned by the service thread, and used by that alone.
constinit rendezvous::TokenIndex* token_index = nullptr;

// Calls body(fd, connection) for each that has the token: both ends may be in this process. False: there is none.
template <class Body> bool with_connection(uint64_t token, Body&& body) {
    bool found = false;
    const auto check = [&](Connection& c) {
        const int fd = c.fd.load();
        const KeptState kept(c, fd);
        if (kept && kept.get()->token == token && c.segment.load() != nullptr) {
            found = true;
            body(fd, c);
        }
    };
    if (token != 0 && !token_index->for_each(token, check)) {
        table::for_each_connection([&](int fd, Connection& c) {
            if (c.fd.load() == fd) {
                check(c);
            }
        });
    }
    return found;
}

bool may_have_descriptors(msghdr& header) { return rendezvous::is_from_own_user(header) && !policy::test_strangers(); }

// The requester has the connection's token, so it is one of its two ends. Only processes of the same user get the
// eventfd and the page.
void give_wakeup(const WakeupWanted& wanted, bool same_user) {
    if (!wakeup::is_own(wanted.id) || !with_connection(wanted.token, [](int, Connection&) {})) {
        return;
    }
    wakeup::wake_own(wanted.id);
    WakeupGiven given;
    given.token = wanted.token;
    given.id = wanted.id;
    const int fd = same_user ? wakeup::descriptor(wanted.id) : wakeup::pipe_writer(wanted.id);
    rendezvous::give_wakeup(inbox, wanted.service, given, fd, same_user ? wakeup::page_file() : -1);
}

// Takes ownership of fd.
void take_wakeup(const WakeupGiven& given, int fd, int page, uid_t sender, bool same_user) {
    bool wanted = false;
    bool known = false;
    with_connection(given.token, [&](int, Connection& c) {
        if (c.asked_for.load() != given.id) {
            return;
        }
        const bool from_peer = !wanted && sender == c.peer_user.load();
        if (from_peer && same_user && fd >= 0 && rendezvous::is_eventfd(fd)) {
            known = wakeup::learn(given.id, sender, std::exchange(fd, -1), page);
        } else if (from_peer && !same_user && fd >= 0) {
            known = wakeup::learn_pipe(given.id, sender, fd);
        }
        wanted = true;
        if (!known) {
            c.out_ring().writer.wakes = 0; // wake by frames instead
        }
    });
    descriptors::close(fd);
}

} // namespace

void note_token(uint64_t token, Connection& c) { token_index->note(token, c); }

Thread::Thread(int epoll) : epoll_(epoll), agreements_(epoll) {
    token_index = &tokens_;
    table::for_each_connection([&](int fd, Connection& c) { // inherited from a parent
        uint64_t token = 0;
        if (const KeptState kept(c, fd); kept) {
            token = kept.get()->token;
        }
        if (token != 0) {
            tokens_.note(token, c);
        }
    });
}

// Pending sends wait for space, a give-back for the peer's bytes, and a guarded thread, which sleeps elsewhere, for
// bytes.
void Thread::watch_for_service(int fd, Connection& c) const {
    const bool guards = c.guard.load() != Guard::none;
    rendezvous::watch_connection(epoll_, fd,
                                 (stream::wants_service(c) ? EPOLLOUT | EPOLLIN
                                  : guards                 ? EPOLLIN
                                                           : 0U) |
                                     (c.mirrored ? EPOLLPRI : 0U)); // for a proof, or a record of the far end
    if (guards) {
        c.guard = Guard::on;
    }
}

// In order of arrival, which the peer has as well, so that both work on the same connections.
void Thread::take_requests() {
    Connection* const youngest = requests.exchange(nullptr, std::memory_order_acquire);
    Connection* oldest = nullptr;
    for (Connection* c = youngest; c != nullptr;) {
        Connection* before = c->next_request.load(std::memory_order_relaxed);
        c->next_request.store(oldest, std::memory_order_relaxed);
        oldest = c;
        c = before;
    }
    if (oldest == nullptr) {
        return;
    }
    if (waiting_ == nullptr) {
        waiting_ = oldest;
    } else {
        last_waiting_->next_request.store(oldest, std::memory_order_relaxed);
    }
    last_waiting_ = youngest;
}

// A limited number at a time: peers' requests do not wait for all.
bool Thread::begin_waiting() {
    constexpr int at_once = 64;
    const uint64_t now = waiting_ != nullptr ? sys::now_ns() : 0;
    for (int i = 0; i < at_once && waiting_ != nullptr; ++i) {
        Connection& c = *waiting_;
        Connection* const next = c.next_request.load(std::memory_order_relaxed); // c may be requested again at once
        if (!agreements_.begin(c, now)) {
            return false;
        }
        waiting_ = next;
    }
    return waiting_ != nullptr;
}

void Thread::attend(int fd, Connection& c) const {
    c.shared().asked[c.out_index()] = 0;
    stream::attend(c, fd);
    watch_for_service(fd, c);
}

void Thread::read_inbox() {
    if (read_messages() < many_messages_) {
        return;
    }
    table::for_each_connection([&](int fd, Connection& c) {
        const KeptState kept(c, fd);
        if (!kept || c.fd.load() != fd || c.segment.load() == nullptr) {
            return;
        }
        if (c.shared().asked[c.out_index()].load() != 0) {
            attend(fd, c);
        } else if (c.guard.load() == Guard::asked) {
            watch_for_service(fd, c);
        }
    });
}

// Returns the number of messages.
unsigned Thread::read_messages() {
    constexpr unsigned at_once = 64; // before other events have their turn
    for (unsigned count = 0;; ++count) {
        if (count == at_once) {
            return count;
        }
        std::array<uint8_t, rendezvous::inbox_bytes> bytes{};
        iovec part{bytes.data(), bytes.size()};
        rendezvous::Control control{};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        rendezvous::Passed passed{};
        const long n = rendezvous::receive_with(inbox, header, passed, std::nullopt);
        if (n < 0) {
            return count;
        }
        const auto received = rendezvous::delivered({bytes.data(), static_cast<size_t>(n)}, name);
        if (const auto asked = rendezvous::parse<Attend>(received); asked) {
            with_connection(asked->token, [&](int number, Connection& c) { attend(number, c); });
        } else if (const auto wanted = rendezvous::parse<WakeupWanted>(received); wanted) {
            give_wakeup(*wanted, may_have_descriptors(header));
        } else if (rendezvous::parse<rendezvous::SetsShared>(received) && rendezvous::is_from_own_user(header)) {
            table::for_each_set([](int, EpollSet& set) { set.note_several(); });
        } else if (const auto given = rendezvous::parse<WakeupGiven>(received); given) {
            if (const auto sender = rendezvous::sender_of(header); sender) {
                take_wakeup(*given, std::exchange(passed[0], -1), passed[1], *sender, may_have_descriptors(header));
            }
        }
        for (const int left : passed) {
            descriptors::close(left);
        }
    }
}

// EOF or a reset: writers to the ring must poll the kernel from now on. Or space for pending sends.
void Thread::on_connection(int fd) {
    Connection* c = table::connection(fd);
    if (c == nullptr) {
        return;
    }
    const KeptState kept(*c, fd);
    pollfd one{fd, POLLRDHUP | POLLOUT | POLLIN | POLLPRI, 0};
    if (kept && c->segment.load() != nullptr && sys::poll(&one, 1, 0) > 0) {
        if ((one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
            kept.get()->ended = true;
        }
        if ((one.revents & POLLIN) != 0) { // a thread that sleeps elsewhere does not see it
            stream::note_kernel_readable(*c);
        }
        const bool wanted = stream::wants_service(*c);
        const bool mirrored = c->mirrored;
        if (wanted || (mirrored && (one.revents & POLLPRI) != 0)) {
            stream::attend(*c, fd);
            // Otherwise the next edge: a new epoll_ctl reports the present state, and an urgent byte that the program
            // does not read is present for ever.
            if (stream::wants_service(*c) != wanted || c->mirrored != mirrored) {
                watch_for_service(fd, *c);
            }
        }
        c->kernel_events.fetch_add(1);
        wakeup::wake_own(c->guarded.load());
    }
}

void Thread::take_steps(uint64_t now) const {
    steps_due = UINT64_MAX; // first: what is noted from now on is due later
    table::for_each_connection([&](int fd, Connection& c) {
        const KeptState kept(c, fd);
        if (kept && c.fd.load() == fd && c.segment.load() != nullptr) {
            lower_steps_due(stream::on_time(c, fd, now));
        }
    });
    lower_steps_due(stream::linger_on_time(now));
}

void Thread::run() {
    std::array<epoll_event, 64> events;
    uint64_t next_sweep = UINT64_MAX;
    for (;;) {
        if (bool asked = true; leaves && leaves.compare_exchange_strong(asked, false)) {
            return;
        }
        descriptors::discard_more();
        take_requests();
        const bool more = begin_waiting();
        const uint64_t next = more ? 0 : std::min({agreements_.deadline(), steps_due.load(), next_sweep});
        uint64_t now = next != 0 && next != UINT64_MAX ? sys::now_ns() : 0;
        const int timeout =
            next == UINT64_MAX
                ? -1
                : static_cast<int>(next > now ? std::min<uint64_t>((next - now) / 1000000 + 1, 60000) : 0);
        const long n = sys::call(SYS_epoll_pwait, epoll_, events.data(), events.size(), timeout, nullptr, 0);
        now = sys::now_ns();
        for (long i = 0; i < n; ++i) {
            const epoll_event& event = events[static_cast<size_t>(i)];
            if (event.data.u64 == 0) {
                read_inbox();
            } else if ((event.data.u64 & rendezvous::connection_mark) != 0) {
                on_connection(static_cast<int>(event.data.u64 & 0x7fffffff));
            } else if (event.data.u64 == rendezvous::worker_mark) {
                agreements_.on_worker();
            } else if ((event.data.u64 & rendezvous::channel_mark) != 0) {
                agreements_.on_channel(event.data.u64, event.events, now);
            } else {
                agreements_.on_meeting(*static_cast<rendezvous::Meeting*>(event.data.ptr), now);
            }
        }
        if (any_abandoned.exchange(false)) {
            agreements_.note_closed();
        }
        if (agreements_.deadline() <= now) {
            agreements_.on_time(now);
        }
        if (steps_due.load() <= now) {
            take_steps(now);
        }
        next_sweep = wakeup::sweep(now);
    }
}

void Thread::close() {
    agreements_.close();
    descriptors::close(epoll_);
}

} // namespace preload::service
