// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Waiting for several descriptors.
#include "preload/base/lowest_fd.hpp"
#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/connection/lifecycle.hpp"
#include "preload/connection/made_sockets.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/poll.hpp"

#include <array>
#include <climits>
#include <optional>

#include "preload/base/cancellation.hpp"
#include "preload/base/system.hpp"

using namespace preload;

extern "C" [[noreturn]] void __chk_fail() noexcept;

namespace {

constexpr int64_t for_ever = -1;
constexpr int64_t max_seconds = INT64_MAX / 1000000000 - 1;

int64_t from_ms(int milliseconds) { return milliseconds < 0 ? for_ever : milliseconds * int64_t{1000000}; }

int64_t from(const timespec* time) {
    return time == nullptr ? for_ever : std::min<int64_t>(time->tv_sec, max_seconds) * 1000000000 + time->tv_nsec;
}

bool is_valid(const timespec* time) {
    return time == nullptr || (time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < 1000000000);
}

EpollSet* set_of(int epfd) { return table::set(epfd); }

// A thread that is about to poll sets without careful members: one that is added from then on wakes it.
class AsleepInSets {
  public:
    void add(int fd) {
        if (EpollSet* set = set_of(fd); set != nullptr && used_ < sets_.size()) {
            sets_[used_++].emplace(*set);
        }
    }
    [[nodiscard]] bool any() const { return used_ != 0; }
    // The result of kernel().
    template <class Kernel> int sleep(Kernel&& kernel) {
        return any() ? cancellable(kernel, [this] { end(); }) : kernel();
    }
    void end() {
        for (auto& one : sets_) {
            one.reset();
        }
    }

  private:
    std::array<std::optional<EpollSet::Asleep>, 4> sets_;
    size_t used_ = 0;
};

// kernel(): the original call. Its result is checked again if a connection has become careful meanwhile.
template <class Kernel>
int poll_any(pollfd* fds, nfds_t count, int64_t timeout_ns, const sigset_t* mask, Kernel&& kernel) {
    if (fds == nullptr || count == 0 || count > table::chunk_size * table::chunk_count) {
        return kernel();
    }
    const uint64_t begin = timeout_ns > 0 ? sys::now_ns() : 0;
    if (!wait::note_all(fds, count)) {
        AsleepInSets asleep;
        for (nfds_t i = 0; timeout_ns != 0 && i < count; ++i) {
            asleep.add(fds[i].fd);
        }
        if (!asleep.any() || !wait::any_careful(fds, count)) {
            const int n = asleep.sleep(kernel);
            if (n <= 0 || !wait::any_careful(fds, count)) {
                return n;
            }
        }
        if (timeout_ns > 0) {
            timeout_ns = std::max<int64_t>(timeout_ns - static_cast<int64_t>(sys::now_ns() - begin), 0);
        }
    }
    return wait::poll(fds, count, timeout_ns, mask);
}

// Sleeps in a set without careful members. One that becomes careful from then on wakes this thread by the kernel.
// False: there is one already.
template <class Kernel> bool sleep_in(EpollSet& set, Kernel&& kernel, int& result) {
    EpollSet::Asleep asleep(set);
    set.note_waiter();
    if (set.has_careful()) {
        return false;
    }
    result = cancellable(kernel, [&] { asleep.end(); });
    return true;
}

int64_t left_of(int64_t timeout_ns, uint64_t begin) {
    return timeout_ns <= 0 ? timeout_ns
                           : std::max<int64_t>(timeout_ns - static_cast<int64_t>(sys::now_ns() - begin), 0);
}

template <class Kernel>
int epoll_any(int epfd, epoll_event* events, int max, int64_t timeout_ns, const sigset_t* mask, Kernel&& kernel) {
    EpollSet* set = set_of(epfd);
    if (events == nullptr || max <= 0) [[unlikely]] {
        return kernel();
    }
    if (set != nullptr) {
        set->note_waiter();
        set->note_waited();
    }
    if (set == nullptr || !set->has_careful()) {
        const uint64_t begin = timeout_ns > 0 ? sys::now_ns() : 0;
        int n = 0;
        const bool slept = set != nullptr && sleep_in(*set, kernel, n);
        if (set == nullptr) {
            n = kernel();
        }
        if (set == nullptr || slept) {
            set = set_of(epfd); // another thread may have added a connection meanwhile
            if (n <= 0 || set == nullptr) {
                return n;
            }
            // Members may be converted meanwhile: the kernel's events may be about frames.
            const int kept = set->has_careful() ? set->sift(events, n) : set->without_own(events, n);
            if (kept != 0) {
                return kept;
            }
            timeout_ns = left_of(timeout_ns, begin);
        }
    }
    return set->wait(epfd, events, max, timeout_ns, mask);
}

// Null: it cannot be tracked.
EpollSet* track_set(int epfd) {
    EpollSet* set = set_of(epfd);
    if (set != nullptr || lifecycle::in_vfork_child()) {
        return set;
    }
    set = EpollSet::make(epfd);
    uintptr_t before = 0;
    if (set != nullptr && !table::put(epfd, reinterpret_cast<uintptr_t>(set) | table::set_bit, before)) {
        set->drop_number();
        set = nullptr;
    }
    return set;
}

template <class Create> int created(Create&& create) {
    const int fd = [&] {
        const lowest_fd::ProgramCall call_of_program(lifecycle::in_vfork_child);
        return create();
    }();
    if (fd >= 0 && !lifecycle::in_vfork_child()) {
        const sys::ErrnoKept kept;
        if (table::find(fd) != 0) {
            lifecycle::forget(fd);
        }
        track_set(fd); // it may become a member of another set before it has members
    }
    return fd;
}

} // namespace

PRELOAD_EXPORT int poll(struct pollfd* fds, nfds_t count, int timeout) {
    return poll_any(fds, count, from_ms(timeout), nullptr, [&] { return real::poll(fds, count, timeout); });
}
PRELOAD_ALIAS(__poll, poll);

PRELOAD_EXPORT int ppoll(struct pollfd* fds, nfds_t count, const struct timespec* timeout, const sigset_t* mask) {
    const auto kernel = [&] { return real::ppoll(fds, count, timeout, mask); };
    return is_valid(timeout) ? poll_any(fds, count, from(timeout), mask, kernel) : kernel();
}

PRELOAD_EXPORT int __poll_chk(struct pollfd* fds, nfds_t count, int timeout, size_t capacity) {
    return capacity / sizeof(*fds) < count ? (__chk_fail(), -1) : poll(fds, count, timeout);
}
PRELOAD_EXPORT int __ppoll_chk(struct pollfd* fds, nfds_t count, const struct timespec* timeout, const sigset_t* mask,
                               size_t capacity) {
    return capacity / sizeof(*fds) < count ? (__chk_fail(), -1) : ppoll(fds, count, timeout, mask);
}

namespace {

// Copies of the given sets, to check again: the kernel overwrites them.
struct Sets {
    fd_set in;
    fd_set out;
    fd_set except;

    Sets(const fd_set* i, const fd_set* o, const fd_set* e) {
        in = i != nullptr ? *i : fd_set{};
        out = o != nullptr ? *o : fd_set{};
        except = e != nullptr ? *e : fd_set{};
    }
    void restore(fd_set* i, fd_set* o, fd_set* e) const {
        if (i != nullptr) {
            *i = in;
        }
        if (o != nullptr) {
            *o = out;
        }
        if (e != nullptr) {
            *e = except;
        }
    }
};

template <class Kernel>
int select_any(int count, fd_set* in, fd_set* out, fd_set* except, int64_t timeout_ns, const sigset_t* mask,
               Kernel&& kernel) {
    if (count <= 0) {
        return kernel();
    }
    const int n = wait::select(count, in, out, except, timeout_ns, mask);
    if (n != -2) {
        return n;
    }
    if (count > FD_SETSIZE) {
        return kernel();
    }
    const uint64_t begin = timeout_ns > 0 ? sys::now_ns() : 0;
    const Sets given(in, out, except);
    AsleepInSets asleep;
    for (int fd = 0; timeout_ns != 0 && fd < count; ++fd) {
        if (FD_ISSET(fd, &given.in) || FD_ISSET(fd, &given.out) || FD_ISSET(fd, &given.except)) {
            asleep.add(fd);
        }
    }
    // One may have been added before this thread counted as asleep.
    if (asleep.any() && wait::select(count, in, out, except, 0, nullptr) != -2) {
        asleep.end(); // it counts itself, and a thread that is cancelled there must not count twice
        given.restore(in, out, except);
        if (const int late = wait::select(count, in, out, except, timeout_ns, mask); late != -2) {
            return late;
        }
    }
    const int said = asleep.sleep(kernel);
    asleep.end();
    if (said <= 0) {
        return said;
    }
    const Sets watched(in, out, except);
    watched.restore(in, out, except);
    const int again = wait::select(count, in, out, except, left_of(timeout_ns, begin), mask);
    if (again == -2) {
        watched.restore(in, out, except);
        return said;
    }
    return again;
}

} // namespace

PRELOAD_EXPORT int select(int count, fd_set* in, fd_set* out, fd_set* except, struct timeval* timeout) {
    const auto kernel = [&] { return real::select(count, in, out, except, timeout); };
    if (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0)) {
        return kernel();
    }
    const uint64_t begin = timeout != nullptr ? sys::now_ns() : 0;
    const int64_t given = timeout == nullptr ? for_ever
                                             : std::min<int64_t>(timeout->tv_sec, max_seconds - 1000) * 1000000000 +
                                                   timeout->tv_usec * 1000LL;
    const int n = select_any(count, in, out, except, given, nullptr, kernel);
    if (timeout != nullptr) { // as Linux does: the remaining time
        const int64_t left = left_of(given, begin) / 1000;
        timeout->tv_sec = left / 1000000;
        timeout->tv_usec = left % 1000000;
    }
    return n;
}
PRELOAD_ALIAS(__select, select);

PRELOAD_EXPORT int pselect(int count, fd_set* in, fd_set* out, fd_set* except, const struct timespec* timeout,
                           const sigset_t* mask) {
    const auto kernel = [&] { return real::pselect(count, in, out, except, timeout, mask); };
    return is_valid(timeout) ? select_any(count, in, out, except, from(timeout), mask, kernel) : kernel();
}

PRELOAD_EXPORT int epoll_create(int size) noexcept {
    return created([&] { return real::epoll_create(size); });
}
PRELOAD_EXPORT int epoll_create1(int flags) noexcept {
    return created([&] { return real::epoll_create1(flags); });
}

PRELOAD_EXPORT int epoll_ctl(int epfd, int operation, int fd, struct epoll_event* event) noexcept {
    // A socket that is not connected yet is tracked once it is, and then becomes a tracked member of the set as well.
    const bool unconnected = made_sockets::is_tcp(fd) && table::find(fd) == 0 && !lifecycle::in_vfork_child();
    const bool known = unconnected || table::connection(fd) != nullptr || table::set(fd) != nullptr;
    EpollSet* set = known ? track_set(epfd) : set_of(epfd);
    if (set == nullptr || (!known && operation != EPOLL_CTL_DEL) || epfd == fd) [[likely]] {
        if (set != nullptr && operation == EPOLL_CTL_ADD) {
            set->note_others();
            set->update_kernel(); // a removed member may have had the same data
        }
        return real::epoll_ctl(epfd, operation, fd, event);
    }
    const int result = set->control(epfd, operation, fd, event);
    if (unconnected && result == 0) {
        made_sockets::note_watched(fd);
        if (Connection* c = table::connection(fd); c != nullptr) { // by another thread, just now
            made_sockets::note_connected_in(*set, *c, fd);
        }
    }
    return result;
}

PRELOAD_EXPORT int epoll_wait(int epfd, struct epoll_event* events, int max, int timeout) {
    return epoll_any(epfd, events, max, from_ms(timeout), nullptr,
                     [&] { return real::epoll_wait(epfd, events, max, timeout); });
}

PRELOAD_EXPORT int epoll_pwait(int epfd, struct epoll_event* events, int max, int timeout, const sigset_t* mask) {
    return epoll_any(epfd, events, max, from_ms(timeout), mask,
                     [&] { return real::epoll_pwait(epfd, events, max, timeout, mask); });
}

PRELOAD_EXPORT int epoll_pwait2(int epfd, struct epoll_event* events, int max, const struct timespec* timeout,
                                const sigset_t* mask) {
    const auto kernel = [&] { return real::epoll_pwait2(epfd, events, max, timeout, mask); };
    return is_valid(timeout) ? epoll_any(epfd, events, max, from(timeout), mask, kernel) : kernel();
}
