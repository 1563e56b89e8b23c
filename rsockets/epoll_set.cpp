// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/epoll_set.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "base/eventfd.hpp"
#include "rsockets/call.hpp"
#include "rsockets/fd_table.hpp"
#include "rsockets/library.hpp"

namespace rsockets {

namespace {

// Data of the kernel's events for our own two descriptors; ids of interests start at 16.
constexpr uint64_t wake_id = 1;
constexpr uint64_t others_id = 2;

constexpr uint32_t always = EPOLLERR | EPOLLHUP;
constexpr uint32_t flags_of_set = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
constexpr uint32_t with_exclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE | EPOLLRDNORM | EPOLLWRNORM;
constexpr int deepest_nesting = 4;
constexpr int max_polls = 64;

// Held while a set is nested in another one, over the check for a cycle. Locked before the mutex of any set.
constinit Mutex nesting;

epoll_event watching(uint64_t id) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id;
    return event;
}

// By edge where the program wants edges: what the kernel reports is new then. Not at all where it wants nothing.
epoll_event watching_nested(uint64_t id, uint32_t wanted) {
    epoll_event event = watching(id);
    event.events = wanted & EPOLLET;
    if ((wanted & (EPOLLIN | EPOLLRDNORM)) != 0) {
        event.events |= EPOLLIN;
    }
    return event;
}

// Counts the calling thread as one that may sleep.
class Waiting {
  public:
    explicit Waiting(std::atomic<int>& count) : count_(count) { count_.fetch_add(1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { count_.fetch_sub(1); }

  private:
    std::atomic<int>& count_;
};

} // namespace

Ref<EpollSet> EpollSet::make(int flags, int& fd) {
    fd = epoll_create1(flags);
    if (fd < 0) {
        return {};
    }
    Ref<EpollSet> set = Ref<EpollSet>::adopt(new EpollSet);
    set->kernel_ = base::Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    set->wake_ = base::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    epoll_event event = watching(wake_id);
    if (!set->kernel_.open() || !set->wake_.open() || epoll_ctl(fd, EPOLL_CTL_ADD, set->wake_.get(), &event) != 0) {
        const int error = errno;
        ::close(fd);
        errno = error;
        return {};
    }
    return set;
}

EpollSet::~EpollSet() {
    for (const auto& [key, interest] : interests_) {
        interest->wait_queue().remove(interest.get());
    }
}

void EpollSet::after_fork() { new (&nesting) Mutex; }

void EpollSet::hang_up() {
    std::map<Key, std::unique_ptr<Interest>> gone; // sockets may be destroyed with it: without our lock
    const Guard lock(mutex_);
    others_ = base::Descriptor(); // a set that this one is nested in still refers to this one
    for (const auto& [key, interest] : interests_) {
        interest->wait_queue().remove(interest.get());
    }
    candidates_.clear();
    by_id_.clear();
    gone.swap(interests_);
    const Guard notified_lock(notified_mutex_); // nothing is left that a set around this one could report
    notified_.clear();
    base::consume_notifications(wake_.get());
}

int EpollSet::control(int set_fd, int operation, int fd, const epoll_event* event) {
    if (operation != EPOLL_CTL_DEL && event == nullptr) {
        return -EFAULT;
    }
    if (fcntl(fd, F_GETFD) < 0) {
        return -EBADF;
    }
    const Use use = fd_table::find(fd);
    if (!use) {
        return control_kernel(operation, fd, event);
    }
    const Ref<Object> object = use.ref();
    if (use.as<Socket>() == nullptr && use.as<EpollSet>() == nullptr) {
        return -EPERM; // a parent's socket
    }
    if (fd == set_fd || object.get() == this) {
        return -EINVAL;
    }
    if (operation == EPOLL_CTL_ADD || operation == EPOLL_CTL_MOD) {
        const uint32_t wanted = event->events;
        if ((wanted & EPOLLEXCLUSIVE) != 0 && (operation == EPOLL_CTL_MOD || (wanted & ~with_exclusive) != 0)) {
            return -EINVAL;
        }
    }
    if (auto* nested = as_kind<EpollSet>(object.get()); nested != nullptr && operation == EPOLL_CTL_ADD) {
        if ((event->events & EPOLLEXCLUSIVE) != 0) {
            return -EINVAL;
        }
        const Guard alone(nesting); // else two threads could nest two sets in each other, and find no cycle
        return nested->reaches(*this, deepest_nesting) ? -ELOOP : control_ours(operation, fd, object, event);
    }
    return control_ours(operation, fd, object, event);
}

int EpollSet::control_ours(int operation, int fd, const Ref<Object>& object, const epoll_event* event) {
    const Guard lock(mutex_);
    drop_closed();
    const auto found = interests_.find({fd, object.get()});
    switch (operation) {
    case EPOLL_CTL_ADD:
        return found != interests_.end() ? -EEXIST : add(fd, object, *event);
    case EPOLL_CTL_MOD:
        return found == interests_.end() ? -ENOENT : modify(*found->second, *event);
    case EPOLL_CTL_DEL:
        if (found == interests_.end()) {
            return -ENOENT;
        }
        erase(found->first);
        return 0;
    default:
        return -EINVAL;
    }
}

int EpollSet::control_kernel(int operation, int fd, const epoll_event* event) {
    {
        const Guard lock(mutex_);
        if (!others_.open()) {
            base::Descriptor made(epoll_create1(EPOLL_CLOEXEC));
            epoll_event watch = watching(others_id);
            if (!made.open() || epoll_ctl(kernel_.get(), EPOLL_CTL_ADD, made.get(), &watch) != 0) {
                return -errno;
            }
            others_ = std::move(made);
        }
    }
    epoll_event copy = event != nullptr ? *event : epoll_event{};
    return epoll_ctl(others_.get(), operation, fd, &copy) != 0 ? -errno : 0;
}

// Whether `other` is this set or nested in it, or the nesting is too deep.
bool EpollSet::reaches(const EpollSet& other, int depth) {
    if (this == &other || depth == 0) {
        return true;
    }
    std::vector<Ref<Object>> nested;
    {
        const Guard lock(mutex_);
        for (const auto& [key, interest] : interests_) {
            if (interest->nested_ != nullptr) {
                nested.push_back(interest->object_);
            }
        }
    }
    return std::any_of(nested.begin(), nested.end(),
                       [&](const Ref<Object>& one) { return as_kind<EpollSet>(one.get())->reaches(other, depth - 1); });
}

int EpollSet::add(int fd, const Ref<Object>& object, const epoll_event& event) {
    const Key key{fd, object.get()};
    Interest& interest = *interests_.emplace(key, std::make_unique<Interest>(*this, fd, object)).first->second;
    interest.id_ = next_id_++;
    interest.wanted_ = event;
    try {
        reserve();
        by_id_[interest.id_] = &interest;
        if (interest.nested_ != nullptr) {
            epoll_event watch = watching_nested(interest.id_, event.events);
            if (epoll_ctl(kernel_.get(), EPOLL_CTL_ADD, interest.nested_->wait_fd(), &watch) != 0) {
                const int error = errno;
                erase(key);
                return -error;
            }
            interest.watched_ = interest.nested_->wait_fd();
        }
        interest.wait_queue().add(&interest);
        interest.notify(); // waiters must poll it
    } catch (...) {        // no memory
        erase(key);
        throw;
    }
    return 0;
}

void EpollSet::watch_nested(const Interest& interest, uint32_t wanted) {
    if (epoll_event watch = watching_nested(interest.id_, wanted); interest.nested_ != nullptr) {
        epoll_ctl(kernel_.get(), EPOLL_CTL_MOD, interest.watched_.load(), &watch);
    }
}

int EpollSet::modify(Interest& interest, const epoll_event& event) {
    if ((interest.wanted_.events & EPOLLEXCLUSIVE) != 0) {
        return -EINVAL;
    }
    watch_nested(interest, event.events);
    interest.wanted_ = event;
    interest.disabled_ = false;
    interest.reported_ = 0;
    interest.notify();
    return 0;
}

void EpollSet::erase(const Key& key) {
    const auto found = interests_.find(key);
    Interest& interest = *found->second;
    interest.wait_queue().remove(&interest);
    interest.let_go(); // it was not in the queue if memory was lacking
    std::erase(candidates_, &interest);
    by_id_.erase(interest.id_);
    interests_.erase(found);
}

// Removes closed objects, which have no descriptor left.
void EpollSet::drop_closed() {
    for (auto at = interests_.begin(); at != interests_.end();) {
        const auto next = std::next(at);
        if (at->second->object_->closed()) {
            erase(at->first);
        }
        at = next;
    }
}

// So that `notify`, which destructors call, and a wait that has found something allocate nothing.
void EpollSet::reserve() {
    const auto grow = [](auto& list, size_t wanted) {
        if (list.capacity() < wanted) {
            list.reserve(std::max(wanted, 2 * list.capacity()));
        }
    };
    grow(candidates_, interests_.size());
    grow(polled_, interests_.size());
    const Guard lock(notified_mutex_);
    grow(collected_, interests_.size() + notified_.size());
    grow(notified_, interests_.size() + notified_.size());
}

void EpollSet::make_candidate(Interest& interest) {
    if (!interest.candidate_) {
        interest.candidate_ = true;
        candidates_.push_back(&interest);
    }
}

void EpollSet::take_heard() {
    collected_.clear();
    {
        const Guard lock(notified_mutex_);
        collected_.swap(notified_);
        if (!collected_.empty()) {
            base::consume_notifications(wake_.get());
        }
        for (const uint64_t id : collected_) {
            if (const auto found = by_id_.find(id); found != by_id_.end()) {
                found->second->notified_ = false;
            }
        }
    }
    for (const uint64_t id : collected_) {
        if (const auto found = by_id_.find(id); found != by_id_.end()) {
            if (found->second->object_->closed()) {
                erase({found->second->fd_, found->second->object_.get()});
            } else {
                make_candidate(*found->second);
                found->second->heard_ = true;
            }
        }
    }
}

std::shared_lock<std::shared_mutex> EpollSet::keep_connection(const Interest& interest) {
    return interest.socket_ != nullptr ? interest.socket_->keep_connection() : std::shared_lock<std::shared_mutex>();
}

uint32_t EpollSet::events_of(Interest& interest) {
    const uint32_t wanted = (interest.wanted_.events & ~flags_of_set) | always;
    if (interest.disabled_) {
        return 0;
    }
    if (interest.nested_ != nullptr) {
        return !interest.object_->closed() && interest.nested_->ready(Caller::thread, (wanted & EPOLLET) != 0)
                   ? wanted & (EPOLLIN | EPOLLRDNORM)
                   : 0;
    }
    return static_cast<uint16_t>(interest.socket_->events(static_cast<short>(wanted & 0xffff))) & wanted;
}

Socket::Progress EpollSet::progress_of(const Interest& interest) {
    if (interest.socket_ != nullptr) {
        return interest.socket_->progress();
    }
    Socket::Progress progress;
    progress.arrived = interest.nested_->progress();
    return progress;
}

uint64_t EpollSet::progress() {
    const Guard lock(mutex_);
    uint64_t sum = 0;
    for (const auto& [key, interest] : interests_) {
        const auto kept = keep_connection(*interest);
        const Socket::Progress one = progress_of(*interest);
        sum += one.arrived + one.ended + one.moves + one.starved;
    }
    return sum;
}

bool EpollSet::has_others() {
    const Guard lock(mutex_);
    return others_.open();
}

// Whether to report the events: with EPOLLET, only if something is new since the last poll.
bool EpollSet::edge(Interest& interest, uint32_t events, bool take) {
    if ((interest.wanted_.events & EPOLLET) == 0) {
        return events != 0;
    }
    if (events == 0) {
        interest.reported_ = 0; // whatever comes is new
        return false;
    }
    const Socket::Progress now = progress_of(interest);
    const bool fresh = (events & ~interest.reported_) != 0 || now.moves != interest.seen_.moves ||
                       (now.ended & ~interest.seen_.ended) != 0 ||
                       ((events & (EPOLLIN | EPOLLRDNORM)) != 0 && now.arrived != interest.seen_.arrived) ||
                       ((events & (EPOLLOUT | EPOLLWRNORM)) != 0 && now.starved != interest.seen_.starved);
    if (take || !fresh) {
        interest.reported_ = events;
        interest.seen_ = now;
    }
    return fresh;
}

// An event of `kernel_` for an interest.
void EpollSet::kernel_reports(uint64_t id) {
    const auto known = by_id_.find(id);
    if (known == by_id_.end()) {
        return;
    }
    Interest& interest = *known->second;
    if (interest.nested_ != nullptr && (interest.wanted_.events & EPOLLET) != 0 && interest.nested_->has_others()) {
        interest.reported_ = 0; // of the kernel's descriptors there, nothing else tells that they have something new
    }
    make_candidate(interest);
}

// True if the kernel signals when the interest must be polled again.
bool EpollSet::arm(Interest& interest) {
    if (interest.socket_ == nullptr) {
        return true;
    }
    const int fd = interest.disabled_ ? -1 : interest.socket_->wait_fd();
    if (fd != interest.watched_.load()) {
        interest.let_go();
        epoll_event watch = watching(interest.id_);
        if (fd >= 0 && epoll_ctl(kernel_.get(), EPOLL_CTL_ADD, fd, &watch) != 0) {
            // A socket is a member under two descriptors. For each, the kernel has its own events.
            base::Descriptor duplicate(errno == EEXIST ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1);
            if (!duplicate.open() || epoll_ctl(kernel_.get(), EPOLL_CTL_ADD, duplicate.get(), &watch) != 0) {
                return false;
            }
            interest.duplicate_.store(duplicate.release());
        }
        interest.watched_.store(fd);
    }
    return interest.disabled_ || interest.socket_->may_sleep(interest);
}

// Of one whose events were just stored: it may still be ready next time.
bool EpollSet::stays_candidate(Interest& interest, bool others_wait, bool heard) {
    interest.disabled_ = (interest.wanted_.events & EPOLLONESHOT) != 0;
    if (interest.disabled_) {
        watch_nested(interest, 0);
    }
    if ((interest.wanted_.events & EPOLLET) != 0 && !interest.disabled_) {
        return false;
    }
    make_candidate(interest);
    if (others_wait && !interest.disabled_ && (heard || !interest.watched_by_kernel())) {
        interest.queue(); // of a listener, for example; else the kernel goes on to report it
    }
    return true;
}

// Stores the events of candidates. The kernel watches those that have none. others_wait: other threads may sleep, and
// this one uses up what has told of the events. at_once: this is not repeated before the call returns.
int EpollSet::poll_candidates(epoll_event* events, int most, bool others_wait, bool at_once, bool& may_sleep) {
    take_heard();
    int count = 0;
    polled_.clear();
    polled_.swap(candidates_);
    for (size_t i = 0; i < polled_.size(); ++i) {
        Interest& interest = *polled_[i];
        const auto kept = keep_connection(interest);
        if (count == most) {
            candidates_.insert(candidates_.begin(), polled_.begin() + static_cast<ptrdiff_t>(i), polled_.end());
            if (others_wait) {
                interest.queue();
            }
            break; // the rest comes first next time
        }
        interest.candidate_ = false;
        if (interest.nested_ != nullptr) {
            if (interest.object_->closed()) {
                erase({interest.fd_, interest.object_.get()});
                continue;
            }
            make_candidate(interest); // a thread that waits in it may have used up what tells of its events
        }
        const bool heard = std::exchange(interest.heard_, false);
        // What kept it from being armed is consumed, and was often all that there was: then it need not be told of.
        int attempts = at_once ? 2 : 1;
        do {
            const uint32_t found = events_of(interest);
            if (edge(interest, found, true)) {
                events[count].events = found;
                events[count].data = interest.wanted_.data;
                ++count;
                attempts = 1;
                if (stays_candidate(interest, others_wait, heard)) {
                    break;
                }
            }
            if (arm(interest)) {
                break;
            }
            if (--attempts == 0) {
                make_candidate(interest);
                may_sleep = false;
                if (at_once) {
                    interest.queue(); // the caller may sleep on the set's descriptor next
                }
            }
        } while (attempts != 0);
    }
    return count;
}

bool EpollSet::ready(Caller caller, bool all) {
    const Guard lock(mutex_);
    const bool others_wait = waiting_.load() > (caller == Caller::waiter ? 1 : 0);
    take_heard();
    bool found = false;
    for (Interest* interest : std::vector(candidates_)) {
        const auto kept = keep_connection(*interest);
        if (edge(*interest, events_of(*interest), false)) {
            found = true;
            if (others_wait && (interest->heard_ || !interest->watched_by_kernel())) {
                interest->queue();
            }
            if (!all) {
                return true;
            }
            continue;
        }
        interest->heard_ = false;
        if (interest->nested_ == nullptr && arm(*interest)) {
            interest->candidate_ = false;
            std::erase(candidates_, interest);
        }
    }
    // Reading the kernel's events does not consume those of our sockets: their descriptors are level-triggered.
    std::array<epoll_event, 64> kernel;
    const int count = epoll_wait(kernel_.get(), kernel.data(), kernel.size(), 0);
    for (int i = 0; i < count; ++i) {
        const uint64_t id = kernel[static_cast<size_t>(i)].data.u64;
        if (id == others_id) {
            found = true;
        } else if (const auto known = by_id_.find(id); known != by_id_.end()) {
            kernel_reports(id);
            const auto kept = keep_connection(*known->second);
            found = edge(*known->second, events_of(*known->second), false) || found;
        }
    }
    return found;
}

int EpollSet::wait(epoll_event* events, int most, const Deadline& deadline, const sigset_t* mask) {
    if (most <= 0 || static_cast<size_t>(most) > SIZE_MAX / sizeof(epoll_event) / 2) {
        return -EINVAL;
    }
    if (events == nullptr) {
        return -EFAULT;
    }
    const Config& config = Library::get().config();
    std::optional<HeldSignals> signals;
    std::optional<Spin> spin;
    std::optional<Waiting> waiting;
    for (int polls = 0;; ++polls) {
        int count = 0;
        bool may_sleep = true;
        int others = -1;
        {
            const Guard lock(mutex_);
            std::array<epoll_event, 64> kernel;
            const int ready = epoll_wait(kernel_.get(), kernel.data(), kernel.size(), 0);
            for (int i = 0; i < ready; ++i) {
                const uint64_t id = kernel[static_cast<size_t>(i)].data.u64;
                if (id == others_id) {
                    others = others_.get();
                } else {
                    kernel_reports(id);
                }
            }
            // Other descriptors first get part of the space, so that neither kind starves the other; with space for one
            // event, they alternate.
            others_turn_ = !others_turn_;
            const int part = most > 1 ? most / 2 : others_turn_ ? 1 : 0;
            if (others >= 0 && part != 0) {
                count = std::max(0, epoll_wait(others, events, part, 0));
            }
            const bool others_wait = waiting_.load() > (waiting ? 1 : 0);
            count += poll_candidates(events + count, most - count, others_wait, deadline.passed(), may_sleep);
            if (others >= 0 && part == 0 && count == 0) {
                count = std::max(0, epoll_wait(others, events, most, 0));
            }
        }
        if (count != 0 || deadline.passed()) {
            return count;
        }
        if (!signals) { // from here on signals end the sleep, and one more poll follows
            signals.emplace();
            waiting.emplace(waiting_);
            spin.emplace(*signals, std::chrono::microseconds(config.polling_time));
            continue;
        }
        if ((!may_sleep && polls < max_polls) || (polls < max_polls && spin->goes_on())) {
            polls -= may_sleep ? 1 : 0;
            continue;
        }
        timespec storage{};
        std::optional<std::chrono::nanoseconds> longest;
        if (polls >= max_polls) {
            longest = std::chrono::milliseconds(1);
        } else if (config.wake_up != 0) {
            longest = std::chrono::milliseconds(config.wake_up);
        }
        polls = 0;
        pollfd fd{kernel_.get(), POLLIN, 0};
        if (const int ret = signals->sleep(&fd, 1, deadline.left(storage, longest), mask); ret < 0) {
            return ret;
        }
    }
}

} // namespace rsockets
