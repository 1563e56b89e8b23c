// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/eq.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/fabric.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

constexpr int rest_of_watch = 10; // milliseconds
constexpr int most_rounds = 64;
constexpr std::chrono::microseconds look_interval{1000};
constexpr std::chrono::microseconds look_cost{10};

// A core event and the most private data that any core delivers with one.
union CoreEvent {
    fi_eq_cm_entry entry;
    std::byte bytes[sizeof(fi_eq_cm_entry) + 1024];
};

class Sleeping {
  public:
    explicit Sleeping(Pump& pump) : pump_(pump) { pump_.expect_sleeper(); }
    Sleeping(const Sleeping&) = delete;
    Sleeping& operator=(const Sleeping&) = delete;
    ~Sleeping() { pump_.sleeper_awake(); }

  private:
    Pump& pump_;
};

} // namespace

// ---- Pump

int Pump::open(fid_fabric* core_fabric) {
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    attr.flags = FI_WRITE;
    fid_eq* eq = nullptr;
    int ret = fi_eq_open(core_fabric, &attr, &eq, nullptr);
    if (ret != 0) {
        return ret;
    }
    core_.reset(eq);
    core_fabric_ = core_fabric;
    watch_fd_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (watch_fd_.get() < 0) {
        return -errno;
    }
    ret = fi_control(&eq->fid, FI_GETWAIT, &wait_fd_);
    close_queue_on_exec(wait_fd_);
    return ret;
}

void Pump::add(AnyFid* core_fid, EqTarget* target) {
    const std::lock_guard lock(mutex_);
    targets_[core_fid] = target;
}

void Pump::remove(AnyFid* core_fid, EqTarget* target, int quiet, const std::function<bool()>& more) {
    const std::lock_guard lock(mutex_);
    // tcp takes a connection in one step and its request in another, and does not survive that its passive endpoint
    // goes in between: as long as there is something to be done, it is done first.
    AnyFid* core = &core_->fid;
    pollfd event{wait_fd_, POLLIN, 0};
    int rounds = 0;
    do {
        (void)drain(core_.get());
        // Without this, the descriptor stays readable after any event, and nothing would be waited for.
    } while (++rounds < most_rounds &&
             (fi_trywait(core_fabric_, &core, 1) != 0 || poll(&event, 1, quiet) > 0 || (more && more())));
    targets_.erase(core_fid);
    set_needy(target, false);
    unwatch_data(target); // it may have been connected by the last event
}

Pump::Ran Pump::run() {
    const std::lock_guard lock(mutex_);
    (void)drain(core_.get());
    Ran ran;
    epoll_event ready[64];
    const int count = epoll_wait(watch_fd_.get(), ready, 64, 0);
    for (int i = 0; i < count; ++i) {
        auto* target = static_cast<EqTarget*>(ready[i].data.ptr);
        {
            const std::lock_guard leaf(needy_mutex_);
            unarmed_.insert(target);
            if (const auto data = data_.find(target); data != data_.end() && data->second.watched) {
                epoll_ctl(watch_fd_.get(), EPOLL_CTL_DEL, data->second.fd, nullptr);
                data->second.watched = false;
                ran.dropped = true;
            }
        }
        target->progress(); // none can leave meanwhile: `remove` waits for `mutex_`
    }
    ran.moved = count > 0;
    std::vector<EqTarget*> rest;
    {
        const std::lock_guard leaf(needy_mutex_);
        ran.dropped = std::exchange(fresh_, false) || ran.dropped;
        rest.assign(needy_.begin(), needy_.end());
        if (look_due()) {
            std::copy_if(unarmed_.begin(), unarmed_.end(), std::back_inserter(rest),
                         [this](EqTarget* target) { return data_.contains(target) && !needy_.contains(target); });
        }
    }
    for (EqTarget* target : rest) {
        target->progress();
    }
    return ran;
}

// Whether those that nothing tells of are to be looked at: not at each read, as a look costs a system call, and less
// often the more they are.
bool Pump::look_due() {
    if (unarmed_.empty()) {
        return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) {
        return false;
    }
    next_look_ = now + look_interval + look_cost * unarmed_.size();
    return true;
}

int Pump::arm(bool watched) {
    const std::lock_guard lock(mutex_);
    AnyFid* queue = &core_->fid;
    if (const int ret = fi_trywait(core_fabric_, &queue, 1); ret != 0 || !watched) {
        return ret;
    }
    std::unordered_set<EqTarget*> unarmed;
    {
        const std::lock_guard leaf(needy_mutex_);
        unarmed.swap(unarmed_);
        for (EqTarget* target : unarmed) {
            if (!watch_again(target)) {
                unarmed_.insert(target); // it stays with those that are looked at, and is tried again
            }
        }
    }
    int result = 0;
    for (EqTarget* target : unarmed) { // none can leave meanwhile: `remove` waits for `mutex_`
        if (target->arm() != 0) {
            const std::lock_guard leaf(needy_mutex_);
            unarmed_.insert(target);
            result = -FI_EAGAIN;
        }
    }
    return result;
}

void Pump::watch(int fd, EqTarget* target) {
    const std::lock_guard leaf(needy_mutex_);
    unarmed_.insert(target);
    add_watch(fd, target);
}

void Pump::unwatch(int fd, EqTarget* target) {
    epoll_ctl(watch_fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
    const std::lock_guard leaf(needy_mutex_);
    unarmed_.erase(target);
}

void Pump::watch_data(int fd, EqTarget* target) {
    const std::lock_guard leaf(needy_mutex_);
    unarmed_.insert(target);
    data_[target] = {fd, false};
    fresh_ = true;
}

void Pump::unwatch_data(EqTarget* target) {
    const std::lock_guard leaf(needy_mutex_);
    unarmed_.erase(target);
    if (const auto data = data_.find(target); data != data_.end()) {
        if (data->second.watched) {
            epoll_ctl(watch_fd_.get(), EPOLL_CTL_DEL, data->second.fd, nullptr);
        }
        data_.erase(data);
    }
}

bool Pump::watch_again(EqTarget* target) {
    const auto data = data_.find(target);
    if (data == data_.end()) {
        return true;
    }
    data->second.watched = data->second.watched || add_watch(data->second.fd, target);
    return data->second.watched;
}

bool Pump::add_watch(int fd, EqTarget* target) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = target;
    if (epoll_ctl(watch_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        RSTREAM_WARN(FI_LOG_EQ, "a connection cannot be watched: %s\n", fi_strerror(errno));
        return false;
    }
    return true;
}

int Pump::drain(fid_eq* queue) {
    const std::lock_guard lock(mutex_);
    CoreEvent event;
    for (;;) {
        uint32_t kind = 0;
        const ssize_t got = fi_eq_read(queue, &kind, &event, sizeof(event), 0);
        if (got == -FI_EAVAIL) {
            fi_eq_err_entry error{};
            std::byte data[512];
            error.err_data = data;
            error.err_data_size = sizeof(data);
            if (fi_eq_readerr(queue, &error, 0) < 0) {
                return 0;
            }
            if (auto found = targets_.find(error.fid); found != targets_.end()) {
                found->second->on_core_error(error);
            } else {
                RSTREAM_INFO(FI_LOG_EQ, "core error for an unknown fid: %s\n", fi_strerror(error.err));
            }
            continue;
        }
        if (got < static_cast<ssize_t>(sizeof(fi_eq_cm_entry))) {
            if (got == -FI_EAGAIN) {
                return 0;
            }
            RSTREAM_WARN(FI_LOG_EQ, "the core's event queue answers %zd\n", got);
            return got < 0 ? static_cast<int>(got) : -FI_EIO;
        }
        const std::span<const std::byte> data(event.bytes + sizeof(fi_eq_cm_entry),
                                              static_cast<size_t>(got) - sizeof(fi_eq_cm_entry));
        if (auto found = targets_.find(event.entry.fid); found != targets_.end()) {
            found->second->on_core_event(kind, event.entry, data);
        } else if (event.entry.info != nullptr && kind == FI_CONNREQ) {
            fi_freeinfo(event.entry.info);
        }
    }
}

void Pump::set_needy(EqTarget* target, bool needy) {
    const std::lock_guard lock(needy_mutex_);
    if (needy) {
        needy_.insert(target);
    } else {
        needy_.erase(target);
    }
}

// ---- EventQueue

EventQueue::EventQueue(Fabric& fabric) : fid_eq{}, fabric_(fabric), pump_(std::make_shared<Pump>()) {}

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
    if (const int ret = queue->pump_->open(fabric.core()); ret != 0) {
        return ret;
    }
    queue->wait_object_ = attr.wait_obj == FI_WAIT_NONE ? FI_WAIT_NONE : FI_WAIT_FD;
    if (queue->wait_object_ == FI_WAIT_FD) {
        queue->epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
        queue->signal_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (queue->epoll_fd_ < 0 || queue->signal_fd_ < 0) {
            return -errno;
        }
        for (const int fd : {queue->signal_fd_, queue->pump_->wait_fd(), queue->pump_->watch_fd()}) {
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
    if (wanted == signaled_ || signal_fd_ < 0) {
        return;
    }
    signaled_ = wanted;
    uint64_t count = 1;
    (void)!(wanted ? ::write(signal_fd_, &count, sizeof(count)) : ::read(signal_fd_, &count, sizeof(count)));
}

// Another thread may sleep on what was dropped, and is not woken by what comes next.
void EventQueue::kick() {
    const std::lock_guard lock(mutex_);
    kicked_ = true;
    show();
}

void EventQueue::arm_again() {
    const std::lock_guard lock(mutex_);
    kicked_ = false;
    show();
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

bool EventQueue::move_events(int awake) {
    const Pump::Ran ran = pump_->run();
    if (ran.dropped && pump_->sleepers() > awake) {
        kick();
    }
    fabric_.reap_lingering();
    return ran.moved;
}

ssize_t EventQueue::read(uint32_t* event, void* buf, size_t len, uint64_t flags) {
    bool moved = false;
    return read(event, buf, len, flags, 0, moved);
}

ssize_t EventQueue::read(uint32_t* event, void* buf, size_t len, uint64_t flags, int awake, bool& moved) {
    if ((flags & ~FI_PEEK) != 0 || event == nullptr || (buf == nullptr && len != 0)) {
        return -FI_EINVAL;
    }
    moved = move_events(awake);
    const std::lock_guard lock(mutex_);
    if (events_.empty()) {
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
    memcpy(buf, front.bytes.data(), length);
    if ((flags & FI_PEEK) == 0) {
        (void)front.info.release(); // now the caller's
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
    const Sleeping sleeping(*pump_);
    for (;;) {
        bool moved = false;
        const ssize_t got = read(event, buf, len, flags, 1, moved);
        if (got != -FI_EAGAIN) {
            return got;
        }
        moved = moved && pump_->sleepers() == 1; // the others need all to be watched
        arm_again();
        // While data flows, whoever receives it needs no help: the connections are not looked at again for a moment.
        if (pump_->arm(!moved) != 0) {
            continue;
        }
        int left = -1;
        if (timeout >= 0) {
            left = static_cast<int>(
                std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count()));
            if (left == 0) {
                return -FI_EAGAIN;
            }
        }
        pollfd fds[] = {{signal_fd_, POLLIN, 0}, {pump_->wait_fd(), POLLIN, 0}, {pump_->watch_fd(), POLLIN, 0}};
        if (moved) {
            left = left < 0 ? rest_of_watch : std::min(left, rest_of_watch);
        }
        if (poll(fds, moved ? 2 : 3, left) < 0 && errno != EINTR) {
            return -errno;
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
    void* const room = buf->err_data;
    const size_t room_size = buf->err_data_size;
    memcpy(buf, front.bytes.data(), sizeof(*buf));
    // fi_eq(3): data goes into the caller's buffer if one was given, else it is the queue's until the next read.
    if (room != nullptr && room_size != 0) {
        buf->err_data = room;
        buf->err_data_size = std::min(room_size, front.err_data.size());
        std::copy_n(front.err_data.begin(), buf->err_data_size, static_cast<std::byte*>(room));
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
        pump_->expect_sleeper();
    }
    move_events(std::numeric_limits<int>::max()); // what is dropped is watched again below
    arm_again();
    {
        const std::lock_guard lock(mutex_);
        if (!events_.empty()) {
            return -FI_EAGAIN;
        }
    }
    return pump_->arm(true);
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
        return fi_eq_strerror(queue_of(eq)->pump()->core(), prov_errno, err_data, buf, len);
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
