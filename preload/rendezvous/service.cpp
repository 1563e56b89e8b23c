// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/rendezvous/service.hpp"

#include <csignal>
#include <new>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "preload/base/lowest_fd.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/stream.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/discard.hpp"
#include "preload/rendezvous/inbox.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/rendezvous/service_thread.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::service {

namespace {

using rendezvous::Attend;
using rendezvous::WakeupWanted;

constexpr size_t stack_bytes = size_t{256} << 10;

enum class Stage : uint8_t {
    none,
    starting,
    running,
    pausing, // pause() waits for the thread
    held,    // until resume()
    paused,  // there is no thread, and one is made when it is needed
    impossible
};

constinit std::atomic<Stage> stage{Stage::none};
constinit std::atomic<uint64_t> promised{0}; // the name that it has or will have
constinit std::atomic<bool> stopped{false};
constinit std::atomic<pid_t> thread_id{0}; // of the kernel's; 0: it has not begun
constinit std::atomic<uint64_t> usual_mask{0};
constinit std::atomic<uint32_t> postponed{0};

using rendezvous::send_to;

// False: there is no such service. A service whose inbox is full is awake.
bool send_attend(int from, uint64_t service, uint64_t token) {
    Attend message;
    message.token = token;
    return send_to(from, service, message) != -ECONNREFUSED;
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
    constexpr uint64_t timeout_ns = 5000000000; // what the program asks for fails otherwise
    leaves = true;
    send_attend(inbox, own_name(), 0); // a thread whose inbox is full is awake
    const auto has_gone = [process = sys::call(SYS_getpid)] {
        const pid_t id = thread_id;
        return id != 0 && sys::call(SYS_tgkill, process, id, 0) == -ESRCH;
    };
    const auto wait = [&] {
        sys::wait_for(timeout_ns, [&] {
            sys::call(SYS_sched_yield);
            return has_gone();
        });
    };
    wait();
    if (bool asked = true; leaves.compare_exchange_strong(asked, false)) {
        return false;
    }
    wait(); // it has seen the request, and ends
    return true;
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

// Only the thread has ended: what others send meanwhile, and the kernel's events, are still there. False: a thread
// cannot be made.
bool go_on() {
    Stage paused = Stage::paused;
    if (stopped || !may_start() || !stage.compare_exchange_strong(paused, Stage::starting)) {
        return true;
    }
    const sys::ErrnoKept kept;
    const bool begun = begin_thread();
    stage = begun ? Stage::running : Stage::paused;
    return begun;
}

void ensure() {
    if (stage.load(std::memory_order_relaxed) == Stage::paused) {
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
            stats::refresh(c);
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

void announce_shared_set(uint64_t service) { send_anyhow(service, rendezvous::SetsShared(), long_ns); }

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
    if (inbox.load() < 0 || stage.load(std::memory_order_relaxed) == Stage::paused) {
        ensure(); // a child uses what its parent has upgraded
    }
    if (inbox.load() < 0 || stage.load() == Stage::paused) {
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
    if (!stage.compare_exchange_strong(running, Stage::pausing)) {
        return false;
    }
    const bool ended = end_thread();
    if (ended) {
        descriptors::await_discarded();
    }
    stage = ended ? Stage::held : Stage::running;
    return ended;
}

bool resume() {
    Stage held = Stage::held;
    stage.compare_exchange_strong(held, Stage::paused);
    return go_on();
}

void refuse() { stopped = true; }

void stop() {
    constexpr uint64_t timeout_ns = 11000000000; // longer than another thread's pause() takes
    refuse();
    sys::wait_for(timeout_ns, [] {
        const Stage now = stage;
        if (now == Stage::starting || now == Stage::pausing) {
            sys::call(SYS_sched_yield);
            return false;
        }
        return true;
    });
    if (stage.load() == Stage::running && !pause()) {
        return;
    }
    if (const Stage now = stage.exchange(Stage::impossible); now != Stage::held && now != Stage::paused) {
        return; // there was none
    }
    service_thread->close();
    stream::end_all_lingering();
    descriptors::discard(inbox.exchange(-1));
    descriptors::await_discarded();
    name = 0;
}

void after_fork_in_child() {
    if (stage.load() != Stage::none) {
        descriptors::close_all();
        descriptors::forget_discarded();
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
