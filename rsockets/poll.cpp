// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/poll.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory_resource>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rsockets/call.hpp"
#include "rsockets/epoll_set.hpp"
#include "rsockets/fd_table.hpp"
#include "rsockets/inherited.hpp"
#include "rsockets/library.hpp"
#include "rsockets/socket.hpp"

namespace rsockets {

namespace {

constexpr int always = POLLERR | POLLHUP | POLLNVAL;
constexpr int read_events = POLLIN | POLLRDNORM;
constexpr int write_events = POLLOUT | POLLWRNORM;
constexpr int max_polls = 64;
// Bytes on the stack, enough for a set of some dozens: little stack may be left.
constexpr size_t bytes_for_few = 1024;

// The capacity of this process's descriptor table in the kernel: select(2) reads no bit beyond it, so that a set may be
// smaller than the program's count. Allocates no memory.
[[gnu::noinline]] int table_size() {
    constexpr char key[] = "\nFDSize:";
    char text[512]; // it is among the first lines
    const int fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd < 0 ? -1 : ::read(fd, text, sizeof(text) - 1);
    if (fd >= 0) {
        ::close(fd);
    }
    text[std::max<ssize_t>(length, 0)] = '\0';
    const char* found = length > 0 ? strstr(text, key) : nullptr;
    if (found != nullptr) {
        return atoi(found + sizeof(key) - 1);
    }
    rlimit limit{}; // there may be no descriptor left to open the file with
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX))
                                                 : INT_MAX;
}

// As FD_ISSET and FD_CLR, for sets larger than an fd_set.
constexpr int bits_a_word = 8 * sizeof(fd_mask);
fd_mask& word_of(fd_set& set, int fd) { return reinterpret_cast<fd_mask*>(&set)[fd / bits_a_word]; }
fd_mask bit_of(int fd) { return static_cast<fd_mask>(1UL << (fd % bits_a_word)); }

// select: events that were not asked for are reported as select(2) does, POLLHUP to readers, POLLERR to readers and
// writers; nobody is woken for others.
enum class Kind : uint8_t { poll, select };

class Poll {
  public:
    Poll(pollfd* fds, nfds_t count, Kind kind)
        : kind_(kind), fds_(fds), count_(count), objects_(count, &memory_), reads_(count, &memory_),
          hidden_(count, &memory_) {
        kernel_.reserve(count);
        for (nfds_t i = 0; i < count; ++i) {
            objects_[i] = fd_table::find(fds[i].fd);
            reads_[i] = (fds[i].events & read_events) != 0;
            ours_ = ours_ || static_cast<bool>(objects_[i]);
            if (of_kernel(i)) {
                kernel_.push_back(fds[i]);
                kernel_.back().revents = 0;
            }
        }
    }

    [[nodiscard]] bool ours() const { return ours_; }

    // Polls all. The number of entries with events, or -errno.
    int check() {
        if (!kernel_.empty() && ::poll(kernel_.data(), kernel_.size(), 0) < 0) {
            return -errno;
        }
        int ready = 0;
        size_t next = 0;
        for (nfds_t i = 0; i < count_; ++i) {
            const short wanted = shown(fds_[i].events);
            if (objects_[i]) {
                const short found = of(*objects_[i].get(), i);
                hidden_[i] = (found & ~wanted & (POLLHUP | POLLERR)) != 0;
                fds_[i].revents = static_cast<short>(found & wanted);
            } else if (of_kernel(i)) {
                fds_[i].revents = static_cast<short>(kernel_[next++].revents & wanted);
            } else {
                fds_[i].revents = 0;
            }
            ready += fds_[i].revents != 0 ? 1 : 0;
        }
        return ready;
    }

    Poll(const Poll&) = delete;
    Poll& operator=(const Poll&) = delete;
    ~Poll() {
        for (nfds_t i = 0; listens_ && i < count_; ++i) {
            if (auto* set = waited_set(i); set != nullptr) {
                set->waiter_ends();
            }
        }
    }

    void listen(Sleeper& sleeper) {
        for (nfds_t i = 0; i < count_; ++i) {
            if (auto* set = waited_set(i); set != nullptr) {
                set->waiter_begins();
            }
        }
        listens_ = true;
        for (const Use& object : objects_) {
            if (auto* socket = object.as<Socket>()) {
                sleeper.wait_on(socket->wait_queue());
            }
        }
    }

    bool may_sleep(const Sleeper& sleeper) {
        bool may = true;
        for (nfds_t i = 0; i < count_; ++i) {
            if (auto* socket = objects_[i].as<Socket>(); socket != nullptr && !hidden_[i]) {
                may = socket->may_sleep(sleeper) && may;
            }
        }
        return may;
    }

    int sleep(const Sleeper& sleeper, const HeldSignals& signals, const timespec* time, const sigset_t* mask) {
        waited_.assign(kernel_.begin(), kernel_.end());
        for (pollfd& one : waited_) {
            // What has ended, and is in exceptfds alone, would end the sleep at once. Nothing more comes from it.
            one.fd = (one.revents & ~shown(one.events)) != 0 ? -1 : one.fd;
        }
        waited_.push_back({sleeper.fd(), POLLIN, 0});
        for (nfds_t i = 0; i < count_; ++i) {
            if (auto* socket = objects_[i].as<Socket>(); socket != nullptr && socket->wait_fd() >= 0 && !hidden_[i]) {
                waited_.push_back({socket->wait_fd(), POLLIN, 0});
            } else if (auto* set = waited_set(i); set != nullptr) {
                waited_.push_back({set->wait_fd(), POLLIN, 0});
            }
        }
        return std::min(0, signals.sleep(waited_.data(), waited_.size(), time, mask));
    }

  private:
    // Entries without a descriptor are left out: with them and our own ones there might be more than the kernel takes.
    [[nodiscard]] bool of_kernel(nfds_t i) const { return !objects_[i] && fds_[i].fd >= 0; }
    [[nodiscard]] short shown(short wanted) const {
        if (kind_ == Kind::poll) {
            return static_cast<short>(wanted | always);
        }
        return static_cast<short>(wanted | POLLNVAL | ((wanted & read_events) != 0 ? POLLHUP | POLLERR : 0) |
                                  ((wanted & write_events) != 0 ? POLLERR : 0));
    }
    // A set that this thread waits for.
    [[nodiscard]] EpollSet* waited_set(nfds_t i) const { return reads_[i] != 0 ? objects_[i].as<EpollSet>() : nullptr; }
    short of(Object& object, nfds_t i) const {
        const short wanted = fds_[i].events;
        int events = 0;
        if (auto* socket = as_kind<Socket>(&object)) {
            events = socket->events(wanted);
        } else if (auto* set = as_kind<EpollSet>(&object)) {
            const auto caller = listens_ ? EpollSet::Caller::waiter : EpollSet::Caller::thread;
            events = waited_set(i) != nullptr && set->ready(caller) ? POLLIN | POLLRDNORM : 0;
        } else {
            events = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLRDHUP | POLLERR | POLLHUP; // see Inherited
        }
        return static_cast<short>(events);
    }

    const Kind kind_;
    pollfd* fds_;
    nfds_t count_;
    std::array<std::byte, bytes_for_few> buffer_;
    std::pmr::monotonic_buffer_resource memory_{buffer_.data(), buffer_.size()};
    std::pmr::vector<Use> objects_;
    std::pmr::vector<pollfd> kernel_{&memory_}; // those that are not ours
    std::pmr::vector<pollfd> waited_{&memory_}; // kernel_, and descriptors that signal ours
    bool ours_ = false;
    bool listens_ = false;
    std::pmr::vector<char> reads_;  // asked for at the beginning: the program may change its array meanwhile
    std::pmr::vector<char> hidden_; // sockets that have ended, of which select(2) does not report that
};

// poll(2) checks the number of entries against RLIMIT_NOFILE.
bool too_many(nfds_t count) {
    constexpr nfds_t surely_allowed = 64;
    rlimit limit{};
    return count > surely_allowed && getrlimit(RLIMIT_NOFILE, &limit) == 0 && count > limit.rlim_cur;
}

int poll(pollfd* fds, nfds_t count, Kind kind, const Deadline& deadline, const sigset_t* mask) {
    if (kind == Kind::poll && too_many(count)) {
        return -EINVAL;
    }
    Poll poll(fds, count, kind);
    timespec storage{};
    if (!poll.ours() && kind == Kind::poll) {
        return sleep_at_once(fds, count, deadline.left(storage), mask);
    }
    int ready = poll.check();
    if (ready == 0 && mask != nullptr && deadline.passed()) { // signals that the mask unblocks are delivered even so
        constexpr timespec at_once{};
        return sleep_at_once(nullptr, 0, &at_once, mask); // asleep: a handler may make calls
    }
    if (ready != 0 || deadline.passed()) {
        return ready;
    }
    const HeldSignals signals; // signals from here on end the sleep
    const Config& config = Library::get().config();
    if (config.polling_time != 0) {
        Spin spin(signals, std::chrono::microseconds(config.polling_time));
        while (spin.goes_on()) {
            if ((ready = poll.check()) != 0) {
                return ready;
            }
        }
    }
    std::optional<std::chrono::nanoseconds> most;
    if (config.wake_up != 0) {
        most = std::chrono::milliseconds(config.wake_up);
    }
    Sleeper sleeper;
    if (sleeper.fd() < 0) {
        return -ENOMEM;
    }
    poll.listen(sleeper);
    for (int polls = 0;; ++polls) {
        sleeper.clear();
        if ((ready = poll.check()) != 0 || deadline.passed()) {
            return ready;
        }
        if (!poll.may_sleep(sleeper) && polls < max_polls) {
            continue;
        }
        const auto longest = polls < max_polls ? most : std::chrono::milliseconds(1);
        polls = 0;
        if (const int ret = poll.sleep(sleeper, signals, deadline.left(storage, longest), mask); ret != 0) {
            return ret; // mostly a signal: poll(2) is never restarted
        }
    }
}

} // namespace

int poll(pollfd* fds, nfds_t count, const Deadline& deadline, const sigset_t* mask) {
    return poll(fds, count, Kind::poll, deadline, mask);
}

int select(int count, fd_set* read, fd_set* write, fd_set* except, const Deadline& deadline, const sigset_t* mask) {
    if (count < 0) {
        return -EINVAL;
    }
    std::array<std::byte, bytes_for_few / 3> memory;
    std::pmr::monotonic_buffer_resource resource(memory.data(), memory.size());
    std::pmr::vector<pollfd> fds(&resource);
    if (count > FD_SETSIZE) {
        count = std::min(count, std::max(table_size(), FD_SETSIZE));
    }
    for (int fd = 0; fd < count; ++fd) {
        const auto wanted = [fd](fd_set* set) { return set != nullptr && (word_of(*set, fd) & bit_of(fd)) != 0; };
        const int events = (wanted(read) ? read_events : 0) | (wanted(write) ? write_events : 0) |
                           (wanted(except) ? static_cast<int>(POLLPRI) : 0);
        if (events != 0) {
            fds.push_back({fd, static_cast<short>(events), 0});
        }
    }
    const int ret = poll(fds.data(), fds.size(), Kind::select, deadline, mask);
    if (ret < 0) {
        return ret;
    }
    int bits = 0;
    for (const pollfd& one : fds) {
        if ((one.revents & POLLNVAL) != 0) {
            return -EBADF;
        }
    }
    for (const pollfd& one : fds) {
        const auto keep = [&](fd_set* set, int events) {
            if (set != nullptr && (word_of(*set, one.fd) & bit_of(one.fd)) != 0) {
                if ((one.revents & events) != 0) {
                    ++bits;
                } else {
                    word_of(*set, one.fd) &= ~bit_of(one.fd);
                }
            }
        };
        keep(read, read_events | POLLHUP | POLLERR);
        keep(write, write_events | POLLERR);
        keep(except, POLLPRI);
    }
    if (const int beyond = count % bits_a_word; beyond != 0) { // whole words are written back, as by the kernel
        for (fd_set* set : {read, write, except}) {
            if (set != nullptr) {
                word_of(*set, count) &= bit_of(beyond) - 1;
            }
        }
    }
    return bits;
}

} // namespace rsockets
