// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/eq.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/eventfd.hpp"
#include "prov/rstream/fabric.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

constexpr int rest_of_watch = 10; // milliseconds

class Sleeping {
  public:
    explicit Sleeping(EventDispatcher& dispatcher) : dispatcher_(dispatcher) { dispatcher_.expect_sleeper(); }
    Sleeping(const Sleeping&) = delete;
    Sleeping& operator=(const Sleeping&) = delete;
    ~Sleeping() { dispatcher_.sleeper_awake(); }

  private:
    EventDispatcher& dispatcher_;
};

} // namespace

EventQueue::EventQueue(Fabric& fabric) : fid_eq{}, fabric_(fabric), dispatcher_(std::make_shared<EventDispatcher>()) {}

EventQueue::~EventQueue() {
    if (epoll_fd_ >= 0) {
        ::close(epoll_fd_);
    }
    if (signal_fd_ >= 0) {
        ::close(signal_fd_);
    }
}

namespace {
extern fi_ops eq_fid_ops;
extern fi_ops_eq eq_ops;
} // namespace

int EventQueue::open(Fabric& fabric, const fi_eq_attr& attr, void* context, EventQueue** out) {
    switch (attr.wait_obj) {
    case FI_WAIT_NONE:
    case FI_WAIT_UNSPEC:
    case FI_WAIT_FD:
        break;
    default:
        RSTREAM_WARN(FI_LOG_EQ, "wait object %d: only FI_WAIT_NONE, FI_WAIT_UNSPEC and FI_WAIT_FD are offered\n",
                     static_cast<int>(attr.wait_obj));
        return -FI_ENOSYS;
    }
    struct Deleter {
        void operator()(EventQueue* q) const { delete q; }
    };
    std::unique_ptr<EventQueue, Deleter> queue(new EventQueue(fabric));
    if (const int ret = queue->dispatcher_->open(fabric.core()); ret != 0) {
        return ret;
    }
    queue->wait_object_ = attr.wait_obj == FI_WAIT_NONE ? FI_WAIT_NONE : FI_WAIT_FD;
    if (queue->wait_object_ == FI_WAIT_FD) {
        queue->epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
        queue->signal_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (queue->epoll_fd_ < 0 || queue->signal_fd_ < 0) {
            return -errno;
        }
        for (const int fd : {queue->signal_fd_, queue->dispatcher_->wait_fd(), queue->dispatcher_->watch_fd()}) {
            epoll_event event{};
            event.events = EPOLLIN;
            if (epoll_ctl(queue->epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
                return -errno;
            }
        }
    }
    queue->fid.fclass = FI_CLASS_EQ;
    queue->fid.context = context;
    queue->fid.ops = &eq_fid_ops;
    queue->ops = &eq_ops;
    *out = queue.release();
    return 0;
}

int EventQueue::close() {
    if (users_.load(std::memory_order_acquire) != 0) {
        return -FI_EBUSY;
    }
    Fabric& fabric = fabric_;
    delete this;
    fabric.release();
    return 0;
}

EventQueue::Reading::Reading(EventQueue& queue) : queue_(queue) {
    const std::lock_guard lock(queue_.mutex_);
    ++queue_.readers_;
    anything_ = !queue_.events_.empty() && !queue_.events_.front().error;
}

EventQueue::Reading::~Reading() {
    const std::lock_guard lock(queue_.mutex_);
    --queue_.readers_;
    queue_.show();
}

void EventQueue::add(Event&& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    show();
}

void EventQueue::pop_front() {
    events_.pop_front();
    show();
}

// With `mutex_` held.
void EventQueue::show() {
    const bool wanted = !events_.empty() || kicked_;
    if (wanted == signaled_ || (wanted && readers_ != 0 && !kicked_) || signal_fd_ < 0) {
        return;
    }
    signaled_ = wanted;
    wanted ? base::notify(signal_fd_) : base::consume_notifications(signal_fd_);
}

// Another thread may sleep on fds that were dropped, and would not wake for further activity.
void EventQueue::kick() {
    const std::lock_guard lock(mutex_);
    kicked_ = true;
    show();
}

// True if waiters were to be woken: the caller arms for them, or calls `kick`.
bool EventQueue::take_kick() {
    const std::lock_guard lock(mutex_);
    const bool kicked = std::exchange(kicked_, false);
    show();
    return kicked;
}

void EventQueue::push(uint32_t event, AnyFid* subject, fi_info* info, std::span<const std::byte> data) {
    Event e;
    e.event = event;
    e.cm = true;
    e.subject = subject;
    e.info.reset(info);
    e.bytes.resize(sizeof(fi_eq_cm_entry) + data.size());
    fi_eq_cm_entry entry{};
    entry.fid = subject;
    entry.info = info;
    memcpy(e.bytes.data(), &entry, sizeof(fi_eq_cm_entry));
    std::copy(data.begin(), data.end(), e.bytes.begin() + sizeof(fi_eq_cm_entry));
    add(std::move(e));
}

void EventQueue::push_error(const fi_eq_err_entry& entry, std::span<const std::byte> err_data) {
    Event e;
    e.error = true;
    e.subject = entry.fid;
    e.bytes.resize(sizeof(entry));
    memcpy(e.bytes.data(), &entry, sizeof(entry));
    e.err_data.assign(err_data.begin(), err_data.end());
    add(std::move(e));
}

void EventQueue::forget(const AnyFid* subject) {
    const std::lock_guard lock(mutex_);
    std::erase_if(events_, [subject](const Event& e) { return e.subject == subject; });
    show();
}

EventDispatcher::Ran EventQueue::move_events(int awake) {
    const EventDispatcher::Ran ran = dispatcher_->run();
    if (ran.dropped && dispatcher_->sleepers() > awake) {
        kick();
    }
    fabric_.reap_lingering();
    return ran;
}

ssize_t EventQueue::read(uint32_t* event, void* buf, size_t len, uint64_t flags) {
    bool moved = false;
    return read(event, buf, len, flags, 0, moved);
}

ssize_t EventQueue::read(uint32_t* event, void* buf, size_t len, uint64_t flags, int awake, bool& moved) {
    if ((flags & ~FI_PEEK) != 0 || event == nullptr || (buf == nullptr && len != 0)) {
        return -FI_EINVAL;
    }
    const Reading reading(*this);
    if (!reading.anything() || (flags & FI_PEEK) != 0) {
        moved = move_events(awake).moved;
    }
    const std::lock_guard lock(mutex_);
    if (events_.empty()) {
        read_in_vain_.store(true);
        return -FI_EAGAIN;
    }
    Event& front = events_.front();
    if (front.error) {
        return -FI_EAVAIL;
    }
    if (len < (front.cm ? sizeof(fi_eq_cm_entry) : front.bytes.size())) {
        return -FI_ETOOSMALL;
    }
    const size_t length = std::min(len, front.bytes.size());
    *event = front.event;
    const bool consumes = (flags & FI_PEEK) == 0;
    if (front.cm && consumes) { // the caller owns it from now on
        reinterpret_cast<fi_eq_cm_entry*>(front.bytes.data())->info = front.info.release();
    }
    memcpy(buf, front.bytes.data(), length);
    if (consumes) {
        pop_front();
    }
    return static_cast<ssize_t>(length);
}

ssize_t EventQueue::sread(uint32_t* event, void* buf, size_t len, int timeout, uint64_t flags) {
    if (wait_object_ == FI_WAIT_NONE) {
        return -FI_EINVAL; // fi_eq(3): only a queue with a wait object can be waited on
    }
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::milliseconds(std::max(timeout, 0));
    const Sleeping sleeping(*dispatcher_);
    for (bool last = false;;) {
        bool moved = false;
        const ssize_t got = read(event, buf, len, flags, 1, moved);
        if (got != -FI_EAGAIN || last) {
            return got;
        }
        moved = moved && dispatcher_->sleepers() == 1; // the other waiters need all fds watched
        const bool kicked = take_kick();
        // While data flows, its receivers make progress on their own: connections are not watched again for a moment.
        const int armed = dispatcher_->arm(!moved);
        if (armed != 0 && kicked) {
            kick();
        }
        int left = -1;
        if (timeout >= 0) {
            left = static_cast<int>(
                std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count()));
        }
        if (armed == -FI_EAGAIN) {
            last = left == 0; // the activity may be an event
            continue;
        }
        if (armed != 0 || left == 0) {
            return armed != 0 ? armed : -FI_EAGAIN;
        }
        pollfd fds[] = {
            {signal_fd_, POLLIN, 0}, {dispatcher_->wait_fd(), POLLIN, 0}, {dispatcher_->watch_fd(), POLLIN, 0}};
        if (moved) {
            left = left < 0 ? rest_of_watch : std::min(left, rest_of_watch);
        }
        if (poll(fds, moved ? 2 : 3, left) < 0) {
            return -errno; // -FI_EINTR as well: fi_eq(3)
        }
    }
}

ssize_t EventQueue::read_error(fi_eq_err_entry* buf, uint64_t flags) {
    if (buf == nullptr || (flags & ~FI_PEEK) != 0) {
        return -FI_EINVAL;
    }
    const std::lock_guard lock(mutex_);
    if (events_.empty() || !events_.front().error) {
        return -FI_EAGAIN;
    }
    Event& front = events_.front();
    void* const buffer = buf->err_data;
    const size_t buffer_size = buf->err_data_size;
    memcpy(buf, front.bytes.data(), sizeof(*buf));
    // fi_eq(3): data goes into the caller's buffer if one was given, else it stays in the queue's until the next read.
    // A program of an older API does not set these members.
    const bool own_buffer = FI_VERSION_GE(fabric_.api_version, FI_VERSION(1, 5));
    if (own_buffer && buffer != nullptr && buffer_size != 0) {
        buf->err_data = buffer;
        buf->err_data_size = std::min(buffer_size, front.err_data.size());
        std::copy_n(front.err_data.begin(), buf->err_data_size, static_cast<std::byte*>(buffer));
    } else {
        last_err_data_ = front.err_data;
        buf->err_data = last_err_data_.empty() ? nullptr : last_err_data_.data();
        buf->err_data_size = last_err_data_.size();
    }
    if ((flags & FI_PEEK) == 0) {
        pop_front();
    }
    return sizeof(*buf);
}

ssize_t EventQueue::write(uint32_t event, const void* buf, size_t len, uint64_t flags) {
    if (flags != 0 || (buf == nullptr && len != 0)) {
        return -FI_EINVAL;
    }
    Event e;
    e.event = event;
    const auto* bytes = static_cast<const std::byte*>(buf);
    e.bytes.assign(bytes, bytes + len);
    add(std::move(e));
    return static_cast<ssize_t>(len);
}

int EventQueue::control(int command, void* arg) {
    switch (command) {
    case FI_GETWAIT:
        if (wait_object_ != FI_WAIT_FD || arg == nullptr) {
            return wait_object_ != FI_WAIT_FD ? -FI_ENODATA : -FI_EINVAL;
        }
        *static_cast<int*>(arg) = epoll_fd_;
        return 0;
    case FI_GETWAITOBJ:
        if (arg == nullptr) {
            return -FI_EINVAL;
        }
        *static_cast<fi_wait_obj*>(arg) = wait_object_;
        return 0;
    default:
        return -FI_ENOSYS;
    }
}

int EventQueue::try_wait() {
    if (!descriptor_used_.exchange(true)) {
        dispatcher_->expect_sleeper();
    }
    bool dropped = false;
    // Activity since a read that found nothing makes the fd readable: the dispatcher need not run again.
    if (read_in_vain_.exchange(false)) {
        fabric_.reap_lingering();
    } else {
        // Dropped fds are watched again below.
        dropped = move_events(std::numeric_limits<int>::max()).dropped;
    }
    const bool kicked = take_kick();
    const int ret = has_event() ? -FI_EAGAIN : dispatcher_->arm(true);
    if (ret != 0 && (kicked || dropped)) {
        kick();
    }
    return ret;
}

bool EventQueue::has_event() {
    const std::lock_guard lock(mutex_);
    return !events_.empty();
}

namespace {

EventQueue* queue_of(fid_eq* eq) { return object_of<EventQueue>(eq); }

fi_ops_eq eq_ops = {
    .size = sizeof(fi_ops_eq),
    .read = [](fid_eq* eq, uint32_t* event, void* buf, size_t len, uint64_t flags) -> ssize_t {
        return guarded([&] { return queue_of(eq)->read(event, buf, len, flags); });
    },
    .readerr = [](fid_eq* eq, fi_eq_err_entry* buf, uint64_t flags) -> ssize_t {
        return guarded([&] { return queue_of(eq)->read_error(buf, flags); });
    },
    .write = [](fid_eq* eq, uint32_t event, const void* buf, size_t len, uint64_t flags) -> ssize_t {
        return guarded([&] { return queue_of(eq)->write(event, buf, len, flags); });
    },
    .sread = [](fid_eq* eq, uint32_t* event, void* buf, size_t len, int timeout, uint64_t flags) -> ssize_t {
        return guarded([&] { return queue_of(eq)->sread(event, buf, len, timeout, flags); });
    },
    .strerror = [](fid_eq* eq, int prov_errno, const void* err_data, char* buf, size_t len) -> const char* {
        return fi_eq_strerror(queue_of(eq)->dispatcher()->core(), prov_errno, err_data, buf, len);
    },
};

fi_ops eq_fid_ops = {
    .size = sizeof(fi_ops),
    .close = [](AnyFid* f) { return guarded([&] { return object_of<EventQueue, fid_eq>(f)->close(); }); },
    .bind = RSTREAM_REFUSE(fi_ops, bind),
    .control = [](AnyFid* f, int command,
                  void* arg) { return object_of<EventQueue, fid_eq>(f)->control(command, arg); },
    .ops_open = RSTREAM_REFUSE(fi_ops, ops_open),
    .tostr = nullptr,
    .ops_set = nullptr,
};

} // namespace

} // namespace rstream
