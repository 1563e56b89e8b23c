// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/wait/poll.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include <sys/mman.h>

#include "preload/base/cancellation.hpp"
#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/stream.hpp"
#include "preload/connection/table.hpp"
#include "preload/rules/decide.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/seen.hpp"
#include "preload/wait/spin.hpp"
#include "preload/wait/wakeup.hpp"

namespace preload::wait {

namespace {

Connection* careful(int fd) {
    Connection* c = table::connection(fd);
    return c != nullptr && gate::is_careful(*c) ? c : nullptr;
}

EpollSet* careful_set(int fd) {
    EpollSet* set = table::set(fd);
    return set != nullptr && set->has_careful() ? set : nullptr;
}

// An array for a call: on the stack only if it is short, since stacks may be small.
template <class T, size_t N> class Scratch {
  public:
    explicit Scratch(size_t count) : count_(count) {
        if (count > N) {
            void* got = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            at_ = got != MAP_FAILED ? static_cast<T*>(got) : nullptr;
        }
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { free(); }
    void free() {
        if (at_ != nullptr && at_ != few_.data()) {
            munmap(at_, count_ * sizeof(T));
        }
    }
    T* get() { return at_; }

  private:
    const size_t count_;
    std::array<T, N> few_;
    T* at_ = few_.data();
};
constexpr size_t few = 64;

// When the thread last polled the kernel: while memory is ready, the kernel's turn comes as in EpollSet::wait().
constinit thread_local uint64_t asked_kernel_ns = 0;

// One call's check of all descriptors.
class Poll {
  public:
    Poll(pollfd* fds, nfds_t count, pollfd* shadow) : fds_(fds), count_(count), shadow_(shadow) {}

    // Fills revents; returns how many are not zero. sleeper: see stream::check().
    int check(uint64_t sleeper);
    // Polls the kernel for the others, and merges its events. Negative: -1, and errno.
    int add_kernel(const sigset_t* mask);
    // Sleeps on what check() has selected, and on the descriptors of `own`, if it is an id.
    template <class Undo> int sleep(int64_t timeout_ns, const sigset_t* mask, wakeup::Id own, Undo&& undo);
    // Whether peers can wake the thread by an id, and which users' they are.
    struct Takers {
        bool any = false;
        bool others = false; // some are of other users
    };
    [[nodiscard]] Takers takers() const;
    void use_pipe(int reader) { pipe_ = reader; } // of the id that check() and sleep() are given
    [[nodiscard]] bool anything_in_memory() const;
    [[nodiscard]] bool polls_again_soon() const { return soon_; }
    // The thread is awake, and checks again before it sleeps: peers need not wake it meanwhile.
    void disarm(wakeup::Id own) const;

  private:
    int merge();
    bool use_free_entries(pollfd*& mine, pollfd*& piped);

    pollfd* fds_;
    nfds_t count_;
    pollfd* shadow_; // what the kernel polls; two entries more than the program's
    int pipe_ = -1;
    bool soon_ = false; // a connection must be checked again, see stream::gives_back()
};

int Poll::check(uint64_t sleeper) {
    const bool to_sleep = sleeper != path::nobody;
    int ready = 0;
    soon_ = false;
    for (nfds_t i = 0; i < count_; ++i) {
        pollfd& one = fds_[i];
        shadow_[i] = {one.fd, one.events, 0};
        one.revents = 0;
        if (Connection* c = careful(one.fd); c != nullptr) {
            const bool by_frame = sleeper > path::by_frame && pipe_ < 0 && !c->same_user.load();
            const stream::Readiness r =
                stream::check(*c, one.fd, one.events, by_frame ? uint64_t{path::by_frame} : sleeper);
            if (r.only_soon(one.events)) {
                soon_ = true;
                shadow_[i].fd = -1;
                continue;
            }
            if (r.blocked) {
                continue; // the kernel's answer counts
            }
            one.revents = static_cast<short>(r.events & (one.events | POLLHUP | POLLERR));
            shadow_[i].events = r.kernel;
            if (!to_sleep && ((one.revents | r.kernel) & POLLIN) == 0) {
                shadow_[i].events = POLLIN; // for the next call, see stream::note_kernel_readable()
            } else if (!to_sleep) {
                shadow_[i].fd = -1; // check() has polled it
            }
        } else if (EpollSet* set = careful_set(one.fd); set != nullptr) {
            if (set->ready(to_sleep, soon_)) {
                one.revents = static_cast<short>(one.events & (POLLIN | POLLRDNORM));
            }
        }
        ready += one.revents != 0 ? 1 : 0;
    }
    return ready;
}

int Poll::merge() {
    int ready = 0;
    for (nfds_t i = 0; i < count_; ++i) {
        if (Connection* c = careful(fds_[i].fd); c != nullptr && shadow_[i].fd >= 0) {
            if ((shadow_[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
                c->state.load()->ended = true;
            }
            if ((shadow_[i].revents & POLLIN) != 0) {
                stream::note_kernel_readable(*c);
            }
        } else {
            const short wanted = static_cast<short>(fds_[i].events | POLLHUP | POLLERR | POLLNVAL);
            fds_[i].revents = static_cast<short>(fds_[i].revents | (shadow_[i].revents & wanted));
        }
        ready += fds_[i].revents != 0 ? 1 : 0;
    }
    return ready;
}

int Poll::add_kernel(const sigset_t* mask) {
    const timespec none{};
    asked_kernel_ns = sys::now_ns();
    const int n = real::ppoll(shadow_, count_, &none, mask);
    if (n < 0) {
        for (nfds_t i = 0; i < count_; ++i) {
            shadow_[i].revents = 0;
        }
    }
    const int ready = merge();
    return n < 0 && ready == 0 ? n : ready;
}

// Exists from before the last check until after the sleep: a thread that consumes frames meanwhile waits for this
// thread to wake, and has them sent again if it does not. Other threads may close the fds meanwhile; a thread may be
// cancelled.
class Asleep {
  public:
    Asleep(const pollfd* fds, nfds_t count) : counts_(count) {
        stream::own_sleeps = 1;
        if (counts_.get() == nullptr) {
            return;
        }
        for (nfds_t i = 0; i < count; ++i) {
            std::atomic<uint32_t>* sleepers = nullptr;
            if (Connection* c = table::connection(fds[i].fd); c != nullptr) {
                sleepers = &c->state.load()->sleepers;
            } else if (EpollSet* set = careful_set(fds[i].fd); set != nullptr) {
                sleepers = &set->sleepers();
            }
            if (sleepers != nullptr) {
                sleepers->fetch_add(1);
                counts_.get()[used_++].sleepers = sleepers;
            }
        }
    }
    Asleep(const Asleep&) = delete;
    Asleep& operator=(const Asleep&) = delete;
    ~Asleep() { end(); }
    void end() {
        stream::own_sleeps = 0;
        for (nfds_t i = 0; i < used_; ++i) {
            counts_.get()[i].sleepers->fetch_sub(1);
        }
        used_ = 0;
    }
    void free() { counts_.free(); }

  private:
    struct Count {
        std::atomic<uint32_t>* sleepers;
    };
    Scratch<Count, few> counts_;
    nfds_t used_ = 0;
};

Poll::Takers Poll::takers() const {
    Takers takers;
    for (nfds_t i = 0; i < count_; ++i) {
        const Connection* c = careful(fds_[i].fd);
        if (c != nullptr && stream::takes_ids(*c)) {
            takers.any = true;
            takers.others = takers.others || !c->same_user.load(std::memory_order_relaxed);
        }
    }
    return takers;
}

// The program has as many entries as RLIMIT_NOFILE allows: ours go where it has no descriptor. False: there is no
// place.
bool Poll::use_free_entries(pollfd*& mine, pollfd*& piped) {
    for (pollfd** ours : {&mine, &piped}) {
        pollfd* place = std::find_if(shadow_, shadow_ + count_, [](const pollfd& one) { return one.fd < 0; });
        if (place == shadow_ + count_) {
            return (*ours)->fd < 0; // it is not needed
        }
        *place = **ours;
        *ours = place;
    }
    return true;
}

// undo: called if the thread is cancelled.
template <class Undo> int Poll::sleep(int64_t timeout_ns, const sigset_t* mask, wakeup::Id own, Undo&& undo) {
    constexpr int64_t pause_ns = stream::give_back_pause_ms * 1000000;
    const bool shortened = soon_ && (timeout_ns < 0 || timeout_ns > pause_ns);
    timeout_ns = shortened ? pause_ns : timeout_ns;
    const timespec time{timeout_ns / 1000000000, timeout_ns % 1000000000};
    const uint64_t begin = sys::now_ns();
    pollfd* mine = shadow_ + count_;
    pollfd* piped = mine + 1;
    *mine = {wakeup::descriptor(own), POLLIN, 0};
    *piped = {pipe_, POLLIN, 0};
    const nfds_t added = own == 0 ? 0 : pipe_ < 0 ? 1 : 2;
    const auto ask = [&](nfds_t asked) {
        return cancellable([&] { return real::ppoll(shadow_, asked, timeout_ns < 0 ? nullptr : &time, mask); }, undo);
    };
    int n = ask(count_ + added);
    if (n < 0 && errno == EINVAL && added != 0 && use_free_entries(mine, piped)) {
        n = ask(count_);
    }
    const int error = errno;
    if (n > 0 && own != 0 && mine->revents != 0) {
        uint64_t wakes = 0;
        sys::call(SYS_read, wakeup::descriptor(own), &wakes, sizeof(wakes));
    }
    if (n > 0 && added == 2 && piped->revents != 0) {
        wakeup::drain(own);
    }
    *mine = *piped = {-1, 0, 0};
    asked_kernel_ns = sys::now_ns();
    spin::slept(begin, asked_kernel_ns, own != 0 ? wakeup::notified_at(own) : 0);
    errno = error;
    n += n == 0 && shortened ? 1 : 0; // the timeout has not expired
    if (n > 0) {
        merge();
    }
    return n;
}

bool Poll::anything_in_memory() const {
    for (nfds_t i = 0; i < count_; ++i) {
        const short wanted = fds_[i].events;
        const Connection* c = careful(fds_[i].fd);
        if (c != nullptr && (((wanted & (POLLIN | POLLRDNORM)) != 0 && stream::ring_has_bytes(*c)) ||
                             ((wanted & (POLLOUT | POLLWRNORM)) != 0 && stream::ring_has_space(*c)))) {
            return true;
        }
    }
    return false;
}

void Poll::disarm(wakeup::Id own) const {
    for (nfds_t i = 0; own != 0 && i < count_; ++i) {
        if (Connection* c = careful(fds_[i].fd); c != nullptr) {
            stream::disarm(*c, own);
        }
    }
}

int poll_careful(pollfd* fds, nfds_t count, int64_t timeout_ns, const sigset_t* mask) {
    Scratch<pollfd, few> shadow(count + 2);
    if (shadow.get() == nullptr) {
        errno = ENOMEM;
        return -1;
    }
    Poll all(fds, count, shadow.get());
    const uint64_t begin = timeout_ns > 0 ? sys::now_ns() : 0;
    int64_t left = timeout_ns;
    for (;;) {
        int ready = all.check(path::nobody);
        if (ready == 0 && left != 0 && !spin::until([&] { return all.anything_in_memory(); })) {
            int n = 1;
            {
                Asleep asleep(fds, count);
                const Poll::Takers takers = all.takers();
                const wakeup::Own own(takers.any);
                all.use_pipe(takers.others && own.id() != 0 ? wakeup::pipe_reader(own.id()) : -1);
                ready = all.check(own.id() != 0 ? own.id() : wakeup::Id{path::by_frame});
                if (all.polls_again_soon()) {
                    asleep.end(); // consumers of frames need not wait for this thread
                }
                const auto undo = [&] {
                    asleep.end();
                    asleep.free();
                    shadow.free();
                    if (own.id() != 0) {
                        wakeup::release(own.id());
                    }
                };
                n = ready == 0 ? all.sleep(left, mask, own.id(), undo) : 1;
                all.disarm(own.id());
            }
            if (n < 0) {
                return n;
            }
            if (n == 0) {
                all.check(path::nobody); // fills revents once more
                return all.add_kernel(nullptr);
            }
            if (ready == 0) {
                ready = all.check(path::nobody);
            }
        }
        if (ready != 0 && mask == nullptr && sys::now_ns() - asked_kernel_ns < policy::max_kernel_pause_ns()) {
            return ready;
        }
        ready = all.add_kernel(timeout_ns == 0 && ready == 0 ? mask : nullptr);
        if (ready != 0 || timeout_ns == 0) {
            return ready;
        }
        if (timeout_ns > 0) {
            left = std::max<int64_t>(timeout_ns - static_cast<int64_t>(sys::now_ns() - begin), 0);
            if (left == 0) {
                return 0;
            }
        }
    }
}

// Notes that the program waits for it. True: it must be polled in memory.
bool note(int fd, short events) {
    if (Connection* c = table::connection(fd); c != nullptr) {
        note_polled(*c, events);
        return gate::is_careful(*c);
    }
    EpollSet* set = table::set(fd);
    if (set != nullptr) {
        set->note_waited();
    }
    return set != nullptr && set->has_careful();
}

} // namespace

bool note_all(const pollfd* fds, nfds_t count) {
    bool any = false;
    for (nfds_t i = 0; i < count; ++i) {
        any = note(fds[i].fd, fds[i].events) || any;
    }
    return any;
}

bool any_careful(const pollfd* fds, nfds_t count) {
    return std::any_of(fds, fds + count,
                       [](const pollfd& one) { return careful(one.fd) != nullptr || careful_set(one.fd) != nullptr; });
}

int poll(pollfd* fds, nfds_t count, int64_t timeout_ns, const sigset_t* mask) {
    return poll_careful(fds, count, timeout_ns, mask);
}

namespace {

// Whether the fd is beyond the kernel's descriptor table, which grows on demand: select(2) ignores such fds. Only the
// kernel can tell: it returns EBADF for a closed fd within the table.
bool is_beyond_table(int fd) {
    constexpr size_t bits = 8 * sizeof(long);
    constexpr size_t usual = FD_SETSIZE / bits;
    const size_t words = static_cast<size_t>(fd) / bits + 1;
    Scratch<unsigned long, usual> set(words);
    if (set.get() == nullptr) {
        return false;
    }
    std::fill_n(set.get(), words, 0UL);
    set.get()[words - 1] = 1UL << (static_cast<size_t>(fd) % bits);
    const timespec now{0, 0};
    return sys::call(SYS_pselect6, fd + 1, set.get(), nullptr, nullptr, &now, nullptr) == 0;
}

} // namespace

int select(int count, fd_set* in, fd_set* out, fd_set* except, int64_t timeout_ns, const sigset_t* mask) {
    const auto has = [](const fd_set* set, int fd) {
        // A program may have larger sets than FD_SETSIZE, which FD_ISSET does not support.
        constexpr int bits = 8 * sizeof(long);
        return set != nullptr && (reinterpret_cast<const unsigned long*>(set)[fd / bits] >> (fd % bits) & 1) != 0;
    };
    const auto clear = [](fd_set* set, int fd) {
        constexpr int bits = 8 * sizeof(long);
        if (set != nullptr) {
            reinterpret_cast<unsigned long*>(set)[fd / bits] &= ~(1UL << (fd % bits));
        }
    };
    nfds_t used = 0;
    bool any = false;
    for (int fd = 0; fd < count; ++fd) {
        if (has(in, fd) || has(out, fd) || has(except, fd)) {
            ++used;
            any = note(fd, static_cast<short>((has(in, fd) ? POLLIN : 0) | (has(out, fd) ? POLLOUT : 0))) || any;
        }
    }
    if (!any) {
        return -2;
    }
    Scratch<pollfd, few> list(used);
    if (list.get() == nullptr) {
        errno = ENOMEM;
        return -1;
    }
    nfds_t next = 0;
    for (int fd = 0; fd < count; ++fd) {
        const int events = (has(in, fd) ? POLLIN : 0) | (has(out, fd) ? POLLOUT : 0) | (has(except, fd) ? POLLPRI : 0);
        if (events != 0) {
            list.get()[next++] = {fd, static_cast<short>(events), 0};
        }
    }
    const auto wanted = [](const pollfd& one) {
        short reported = one.revents;
        // POLLHUP and POLLERR do not make an exceptional condition.
        reported = static_cast<short>(reported & (((one.events & POLLIN) != 0 ? POLLIN | POLLHUP | POLLERR : 0) |
                                                  ((one.events & POLLOUT) != 0 ? POLLOUT | POLLERR : 0) |
                                                  ((one.events & POLLPRI) != 0 ? POLLPRI : 0) | POLLNVAL));
        return reported;
    };
    const uint64_t begin = timeout_ns > 0 ? sys::now_ns() : 0;
    int64_t left = timeout_ns;
    for (;;) {
        const int n = poll_careful(list.get(), used, left, mask);
        if (n < 0) {
            return n;
        }
        const auto counts = [&](const pollfd& one) { return wanted(one) != 0; };
        if (n == 0 || std::any_of(list.get(), list.get() + used, counts)) {
            break;
        }
        // Connections that have ended, of which the program wants exceptions only: nothing more comes from them.
        for (pollfd& one : std::span(list.get(), used)) {
            one.fd = one.revents != 0 && one.fd >= 0 ? ~one.fd : one.fd;
        }
        if (timeout_ns > 0) {
            left = std::max<int64_t>(timeout_ns - static_cast<int64_t>(sys::now_ns() - begin), 0);
        }
    }
    const pollfd* bad =
        std::find_if(list.get(), list.get() + used, [](const pollfd& one) { return (one.revents & POLLNVAL) != 0; });
    if (bad != list.get() + used) {
        if (!is_beyond_table(bad->fd)) {
            errno = EBADF;
            return -1;
        }
        return select(bad->fd, in, out, except, timeout_ns, mask); // it was reported at once, so no time has passed
    }
    int result = 0;
    for (nfds_t i = 0; i < used; ++i) {
        const pollfd& one = list.get()[i];
        const short reported = wanted(one);
        const auto report = [&](fd_set* set, int event, int signs) {
            if ((one.events & event) != 0) {
                if ((reported & signs) != 0) {
                    ++result;
                } else {
                    clear(set, one.fd < 0 ? ~one.fd : one.fd);
                }
            }
        };
        report(in, POLLIN, POLLIN | POLLHUP | POLLERR);
        report(out, POLLOUT, POLLOUT | POLLERR);
        report(except, POLLPRI, POLLPRI);
    }
    return result;
}

} // namespace preload::wait
