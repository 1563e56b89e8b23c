// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/service.hpp"

#include <cstdio>
#include <utility>

#include <csignal>
#include <sys/mman.h>
#include <sys/random.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/kept_state.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/local_lock.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/rendezvous/agreements.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/discard.hpp"
#include "preload/rendezvous/inbox.hpp"
#include "preload/rendezvous/loop.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/token_index.hpp"
#include "preload/rules/decide.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::service {

namespace {

using rendezvous::Attend;
using rendezvous::WakeupGiven;
using rendezvous::WakeupWanted;

constexpr size_t stack_bytes = size_t{256} << 10;

enum class Stage : uint8_t { none, starting, running, paused, impossible };

constinit std::atomic<Stage> stage{Stage::none};
constinit std::atomic<uint64_t> name{0};
constinit std::atomic<uint64_t> promised{0}; // the name that it has or will have
constinit std::atomic<int> inbox{-1};        // a datagram socket at the name
constinit std::atomic<Connection*> requests{nullptr};
constinit std::atomic<bool> stopped{false};
constinit std::atomic<bool> leaves{false};             // the thread is to end
constinit std::atomic<pid_t> thread_id{0};             // of the kernel's; 0: it has not begun
constinit std::atomic<bool> any_abandoned{false};      // a connection that is being agreed on was closed
constinit std::atomic<uint64_t> steps_due{UINT64_MAX}; // when stream::on_time() is called
constinit std::atomic<uint64_t> usual_mask{0};
constinit std::atomic<uint32_t> postponed{0};

using rendezvous::send_to;

// False: there is no such service. A service whose inbox is full is awake.
bool send_attend(int from, uint64_t service, uint64_t token) {
    Attend message;
    message.token = token;
    return send_to(from, service, message) != -ECONNREFUSED;
}

// Owned by the service thread, and used by that alone.
constinit rendezvous::TokenIndex* token_index = nullptr;

// Calls body(fd, connection) for each that has the token: both ends may be in this process. False: there is none.
template <class Body> bool with_connection(uint64_t token, Body&& body) {
    bool found = false;
    const auto look = [&](Connection& c) {
        const int fd = c.fd.load();
        const KeptState kept(c, fd);
        if (kept && kept.get()->token == token && c.segment.load() != nullptr) {
            found = true;
            body(fd, c);
        }
    };
    if (token != 0 && !token_index->for_each(token, look)) {
        table::for_each_connection([&](int fd, Connection& c) {
            if (c.fd.load() == fd) {
                look(c);
            }
        });
    }
    return found;
}

bool may_have_descriptors(msghdr& header) { return rendezvous::is_from_own_user(header) && !policy::test_strangers(); }

// The requester has the connection's token, so it is one of its two ends. Only processes of the same user get the
// eventfd and the board.
void give_wakeup(const WakeupWanted& wanted, bool same_user) {
    if (!wakeup::is_own(wanted.id) || !with_connection(wanted.token, [](int, Connection&) {})) {
        return;
    }
    wakeup::wake_own(wanted.id);
    WakeupGiven given;
    given.token = wanted.token;
    given.id = wanted.id;
    const int fd = same_user ? wakeup::descriptor(wanted.id) : wakeup::pipe_writer(wanted.id);
    (void)rendezvous::give_wakeup(inbox, wanted.service, given, fd, same_user ? wakeup::board_file() : -1);
}

// Takes ownership of fd.
void take_wakeup(const WakeupGiven& given, int fd, int board, uid_t sender, bool same_user) {
    bool wanted = false;
    bool known = false;
    with_connection(given.token, [&](int, Connection& c) {
        if (c.asked_for.load() != given.id) {
            return;
        }
        const bool from_peer = !wanted && sender == c.peer_user.load();
        if (from_peer && same_user && fd >= 0 && rendezvous::is_eventfd(fd)) {
            known = wakeup::learn(given.id, sender, std::exchange(fd, -1), board);
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

// The service thread: its upgrade attempts, and its event loop.
class Thread {
  public:
    explicit Thread(int epoll);
    void run(); // until it is to end; may be called again, in another thread
    void close();

  private:
    void take_requests();
    bool begin_waiting(); // true: more requests may begin at once
    void read_inbox();
    unsigned read_messages();
    void attend(int fd, Connection& c) const;
    void watch_for_service(int fd, Connection& c) const;
    void on_connection(int fd);
    void take_steps(uint64_t now) const;

    const int epoll_;
    const unsigned many_messages_ = rendezvous::many_messages();
    rendezvous::TokenIndex tokens_;
    rendezvous::Agreements agreements_;
    // Requests that have not begun, oldest first, linked by Connection::next_request.
    Connection* waiting_ = nullptr;
    Connection* last_waiting_ = nullptr;
};

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
        if (stream::wants_service(*c) || (c->mirrored && (one.revents & POLLPRI) != 0)) {
            stream::attend(*c, fd);
            if (!stream::wants_service(*c)) { // else the next edge: a new epoll_ctl reports the present state
                watch_for_service(fd, *c);
            }
        }
        c->kernel_events.fetch_add(1);
        wakeup::wake_own(c->guarded.load());
    }
}

// True: it was not due before.
bool lower_steps_due(uint64_t due) {
    uint64_t before = steps_due.load();
    while (due < before) {
        if (steps_due.compare_exchange_weak(before, due)) {
            return true;
        }
    }
    return false;
}

void Thread::take_steps(uint64_t now) const {
    steps_due = UINT64_MAX; // first: what is noted from now on is due later
    table::for_each_connection([&](int fd, Connection& c) {
        const KeptState kept(c, fd);
        if (kept && c.fd.load() == fd && c.segment.load() != nullptr) {
            (void)lower_steps_due(stream::on_time(c, fd, now));
        }
    });
    (void)lower_steps_due(stream::linger_on_time(now));
}

void Thread::run() {
    std::array<epoll_event, 64> events;
    for (;;) {
        if (bool asked = true; leaves && leaves.compare_exchange_strong(asked, false)) {
            return;
        }
        take_requests();
        const bool more = begin_waiting();
        const uint64_t next = more ? 0 : std::min(agreements_.deadline(), steps_due.load());
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
    }
}

void Thread::close() {
    agreements_.close();
    descriptors::close(epoll_);
}

constinit Thread* service_thread = nullptr;

void* run_thread(void*) {
    thread_id = static_cast<pid_t>(sys::call(SYS_gettid));
    service_thread->run();
    return nullptr;
}

// In its own mapping: the thread's stack is small, and malloc is not used.
Thread* make_thread(int epoll) {
    void* memory = mmap(nullptr, sizeof(Thread), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? new (memory) Thread(epoll) : nullptr;
}

bool open_inbox() {
    const uint64_t own = promised_name();
    if (own == 0) {
        return false;
    }
    inbox = rendezvous::open_inbox(own);
    name = own;
    return inbox >= 0;
}

// Makes the kernel's thread.
bool begin_thread() {
    leaves = false;
    thread_id = 0;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_t made{};
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool begun = pthread_create(&made, &attributes, run_thread, nullptr) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return begun;
}

// Waits until the kernel's thread has gone: it makes no system call, and is not counted as one, any more. False: it is
// delayed, and goes on.
bool end_thread() {
    constexpr uint64_t timeout_ns = 1000000000;
    leaves = true;
    send_attend(inbox, own_name(), 0); // a thread whose inbox is full is awake
    const auto has_gone = [process = sys::call(SYS_getpid)] {
        const pid_t id = thread_id;
        return id != 0 && sys::call(SYS_tgkill, process, id, 0) == -ESRCH;
    };
    const auto wait = [&] {
        numbers::wait_for(timeout_ns, [&] {
            sys::call(SYS_sched_yield);
            return has_gone();
        });
    };
    wait();
    if (bool asked = true; leaves.compare_exchange_strong(asked, false)) {
        return false;
    }
    wait(); // it has seen the request
    return has_gone();
}

bool start() {
    if (!open_inbox()) {
        return false;
    }
    const int epoll = descriptors::make([] { return sys::call(SYS_epoll_create1, EPOLL_CLOEXEC); });
    epoll_event event{};
    event.events = EPOLLIN;
    Thread* thread = epoll >= 0 && sys::call(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, inbox.load(), &event) == 0
                         ? make_thread(epoll)
                         : nullptr;
    service_thread = thread;
    const bool started = thread != nullptr && begin_thread();
    if (!started) {
        descriptors::close(epoll);
        descriptors::close(inbox.exchange(-1));
        name = 0;
    }
    return started;
}

uint64_t current_mask() {
    uint64_t mask = 0;
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &mask, sizeof(mask));
    return mask;
}

// Making a thread takes malloc's locks, which the code that a signal handler interrupts may hold. A handler has its
// signal blocked.
bool may_start() {
    constexpr uint32_t most_postponed = 64;
    const uint64_t mask = current_mask();
    return mask == 0 || mask == usual_mask.load() || postponed.fetch_add(1) > most_postponed;
}

} // namespace

uint64_t own_name() { return name.load(std::memory_order_relaxed); }

uint64_t promised_name() {
    uint64_t own = promised.load(std::memory_order_relaxed);
    if (own == 0) {
        uint64_t made = 0;
        if (sys::call(SYS_getrandom, &made, sizeof(made), GRND_NONBLOCK) != sizeof(made) || made == 0) {
            return 0;
        }
        own = promised.compare_exchange_strong(own, made) ? made : own;
    }
    return own;
}

void note_signal_mask() {
    constexpr uint32_t interval = 64; // a system call for some calls only: the mask seldom changes
    static constinit std::atomic<uint32_t> calls{0};
    if (stage.load(std::memory_order_relaxed) == Stage::none && calls.fetch_add(1) % interval == 0) {
        usual_mask = current_mask();
    }
}

namespace {

// Only the thread has ended: what others send meanwhile, and the kernel's events, are still there.
void go_on() {
    Stage paused = Stage::paused;
    if (stage.load(std::memory_order_relaxed) == Stage::paused &&
        stage.compare_exchange_strong(paused, Stage::starting)) {
        const sys::ErrnoKept kept;
        stage = begin_thread() ? Stage::running : Stage::paused;
    }
}

void ensure() {
    if (stage.load(std::memory_order_relaxed) == Stage::paused && !stopped && may_start()) {
        go_on(); // a thread could not be made before
    }
    Stage none = Stage::none;
    if (stage.load(std::memory_order_relaxed) != Stage::none || stopped || !may_start() ||
        !stage.compare_exchange_strong(none, Stage::starting)) {
        return;
    }
    const sys::ErrnoKept kept;
    stage = start() ? Stage::running : Stage::impossible;
}

} // namespace

void request(Connection& c) {
    if (c.requested.load(std::memory_order_relaxed) != 0 || stopped) {
        return;
    }
    ensure();
    const Stage now = stage.load();
    if (now != Stage::running) {
        if (now == Stage::impossible) {
            c.state.load()->reason = Reason::no_memory;
            gate::pin(*c.state.load());
        }
        return; // the next call tries again
    }
    uint8_t idle = 0;
    if (!c.requested.compare_exchange_strong(idle, 1)) {
        return;
    }
    Connection* head = requests.load(std::memory_order_relaxed);
    do {
        c.next_request.store(head, std::memory_order_relaxed);
    } while (!requests.compare_exchange_weak(head, &c, std::memory_order_release));
    send_attend(inbox, own_name(), 0);
}

namespace {

// How long a thread of the program waits for space in a service's inbox.
constexpr uint64_t short_ns = 5000000U;
constexpr uint64_t long_ns = 1000000000U;

// Also for a process without a service.
template <class Message> long send_anyhow(uint64_t service, const Message& message, uint64_t timeout_ns = 0) {
    if (inbox.load() >= 0) {
        return send_to(inbox, service, message, timeout_ns);
    }
    long result = 0;
    const int fd =
        descriptors::make([] { return sys::call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    if (fd >= 0) {
        result = send_to(fd, service, message, timeout_ns);
        descriptors::close(fd);
    }
    return result;
}

} // namespace

bool ask_holder(uint64_t service, uint64_t token) {
    Attend message;
    message.token = token;
    return send_anyhow(service, message, short_ns) != -ECONNREFUSED;
}

// If the inbox is full, the service checks all connections after it has read the queued messages.
bool ask(path::Segment& segment, unsigned end) {
    Attend message;
    message.token = segment.token;
    segment.asked[end] = 1;
    return send_anyhow(segment.service[end].load(), message) != -ECONNREFUSED;
}

bool ask_to_wake(Connection& c, uint64_t id) {
    if (inbox.load() < 0) {
        return false;
    }
    c.asked_for = id;
    WakeupWanted message;
    message.token = c.shared().token;
    message.id = id;
    message.service = own_name();
    return send_to(inbox, c.shared().service[1 - c.out_index()].load(), message, short_ns) == 0;
}

void note_token(uint64_t token, Connection& c) { token_index->note(token, c); }

void tell_of_shared_set(uint64_t service) { (void)send_anyhow(service, rendezvous::SetsShared(), long_ns); }

void guard(Connection& c) {
    Guard none = Guard::none;
    if (inbox.load() >= 0 && c.guard.compare_exchange_strong(none, Guard::asked)) {
        send_attend(inbox, own_name(), c.state.load()->token);
    }
}

void guard_again(Connection& c) {
    if (inbox.load() >= 0 && c.guard.load() != Guard::none) {
        c.guard = Guard::asked;
        send_attend(inbox, own_name(), c.state.load()->token);
    }
}

bool take_steps_at(uint64_t due) {
    if (inbox.load() < 0) {
        ensure(); // a child uses what its parent has upgraded
    }
    if (inbox.load() < 0) {
        return false;
    }
    if (lower_steps_due(due)) {
        send_attend(inbox, own_name(), 0);
    }
    return true;
}

bool go_on_with(Connection& c) {
    if (!take_steps_at(sys::now_ns())) {
        return false;
    }
    c.shared().asked[c.out_index()] = 1; // if the inbox is full
    send_attend(inbox, own_name(), c.shared().token);
    return true;
}

void abandoned() {
    any_abandoned = true;
    if (inbox.load() >= 0) {
        send_attend(inbox, own_name(), 0);
    }
}

bool pause() {
    Stage running = Stage::running;
    if (!stage.compare_exchange_strong(running, Stage::paused)) {
        return false;
    }
    if (!end_thread()) {
        stage = Stage::running;
        return false;
    }
    return true;
}

void resume() { go_on(); }

void refuse() { stopped = true; }

void stop() {
    refuse();
    if (!pause()) {
        return;
    }
    stage = Stage::impossible;
    service_thread->close();
    descriptors::discard(inbox.exchange(-1));
    name = 0;
}

void after_fork_in_child() {
    if (stage.load() != Stage::none) {
        descriptors::close_all();
        descriptors::forget_children();
    }
    wakeup::after_fork_in_child();
    inbox = -1;
    name = 0;
    promised = 0;
    requests = nullptr;
    steps_due = UINT64_MAX;
    stream::linger_after_fork_in_child();
    leaves = false;
    thread_id = 0;
    service_thread = nullptr;
    stage = Stage::none;
}

} // namespace preload::service
