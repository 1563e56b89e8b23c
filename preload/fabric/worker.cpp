// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/fabric/worker.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#include "preload/base/system.hpp"
#include "preload/fabric/processor_time.hpp"
#include "preload/rendezvous/descriptors.hpp"
#include "preload/rendezvous/holders.hpp"
#include "preload/rendezvous/inbox.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/passing.hpp"
#include "preload/wait/spin.hpp"
#include "preload/wait/wakeup.hpp"
#include "rsockets/loading.h"

namespace preload::fabric {

using rendezvous::Attend;
using rendezvous::WakeupGiven;
using rendezvous::WakeupWanted;

namespace {

// epoll data. Any other value is a link's token.
constexpr uint64_t control_mark = 1;
constexpr uint64_t inbox_mark = 2;
constexpr uint64_t wakeup_mark = 3;
constexpr uint64_t idle_mark = 4;
constexpr uint64_t first_token = 16;

constexpr uint64_t second = 1000000000;
constexpr uint64_t idle_after = 20000000; // ns

// A program that has changed its user, or asked for it (prctl(2), PR_SET_DUMPABLE), shows them only to root.
// 0: of another PID namespace, where nothing is known of it.
bool shows_its_descriptors(pid_t process) {
    if (process == 0) {
        return true;
    }
    const std::string path = "/proc/" + std::to_string(process) + "/exe"; // which needs the same permission, proc(5)
    std::array<char, 1> target{};
    return readlink(path.c_str(), target.data(), target.size()) >= 0 || kill(process, 0) != 0;
}

// Of sockets; sorted.
using Inodes = std::vector<uint64_t>;

// False: not all of them.
bool find_sockets_elsewhere(Inodes& out) {
    const bool all = rendezvous::for_each_socket_elsewhere(
        &out, [](void* context, uint64_t inode) { static_cast<Inodes*>(context)->push_back(inode); });
    std::sort(out.begin(), out.end());
    return all;
}

bool has_socket(const Inodes& among, int fd) {
    struct stat one {};
    return fstat(fd, &one) != 0 || std::binary_search(among.begin(), among.end(), one.st_ino);
}

} // namespace

Worker::Worker() {
    if (getrandom(&name_, sizeof(name_), 0) != sizeof(name_) || name_ == 0) {
        throw std::runtime_error("no random numbers");
    }
    ucred program{};
    socklen_t length = sizeof(program);
    if (getsockopt(control_fd, SOL_SOCKET, SO_PEERCRED, &program, &length) == 0) {
        program_ = program.pid;
    }
    inbox_ = rendezvous::open_inbox(name_);
    epoll_ = repoll_create(EPOLL_CLOEXEC);
    wakeup_ = wakeup::acquire();
    idle_wakeup_ = wakeup::acquire();
    now_ = sys::now_ns();
    if (inbox_ < 0 || epoll_ < 0 || wakeup_ == 0 || idle_wakeup_ == 0 || !watch(control_fd, control_mark, false) ||
        !watch(inbox_, inbox_mark, false) || !watch_wakeup(wakeup_, wakeup_mark) ||
        !watch_wakeup(idle_wakeup_, idle_mark)) {
        throw std::runtime_error("no descriptors");
    }
    rsocket_load_providers_1();
    send_control(Control::ready, 0, Reason::none);
}

Worker::~Worker() {
    links_.clear();
    if (epoll_ >= 0) {
        rclose(epoll_);
    }
    if (inbox_ >= 0) {
        close(inbox_);
    }
}

namespace {

bool add_to(int set, int fd, uint64_t data, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return repoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0 ||
           (errno == ENOENT && repoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

} // namespace

bool Worker::watch(int fd, uint64_t token, bool out) {
    return add_to(epoll_, fd, token, EPOLLIN | (out ? EPOLLOUT : 0U));
}

// By edges: each write to it is one, so that it need not be read.
bool Worker::watch_wakeup(wakeup::Id id, uint64_t mark) const {
    return add_to(epoll_, wakeup::descriptor(id), mark, EPOLLIN | EPOLLET);
}

void Worker::unwatch(int fd) { repoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void Worker::attend(const path::Segment& segment, unsigned end) {
    queue({segment.service[end].load(), segment.token, 0});
}

void Worker::wake(path::Segment& segment, unsigned end, uint64_t id) {
    queue({segment.service[end].load(), segment.token, id});
}

// A thread that is woken often takes this one's processor at once. So what arrives for several connections of a program
// is all there when its thread runs, and wakes it once.
void Worker::queue(const Notice& notice) {
    constexpr uint64_t longest_ns = 50 * 1000UL;
    const auto is_same = [&](const Notice& other) { return notice.id != 0 ? other.id == notice.id : other == notice; };
    const uint64_t now = sys::now_ns();
    if (queued_.empty()) {
        queued_at_ = now;
    }
    if (std::none_of(queued_.begin(), queued_.end(), is_same)) {
        queued_.push_back(notice);
    }
    if (now - queued_at_ > longest_ns) {
        notify_queued();
    }
}

void Worker::notify_queued() {
    for (const Notice& notice : queued_) {
        if (notice.id == 0 || !wakeup::wake(notice.id, user_)) {
            notify(notice);
        }
    }
    queued_.clear();
}

// An inbox has space for a few messages only (net.unix.max_dgram_qlen), each about one connection: a lost one leaves a
// thread asleep.
void Worker::notify(const Notice& notice) {
    long result = 0;
    if (notice.id == 0) {
        Attend message;
        message.token = notice.token;
        result = rendezvous::send_to(inbox_, notice.service, message);
    } else {
        WakeupWanted message;
        message.token = notice.token;
        message.id = notice.id;
        message.service = name_;
        result = rendezvous::send_to(inbox_, notice.service, message);
    }
    if (result == -EAGAIN && std::find(unsent_.begin(), unsent_.end(), notice) == unsent_.end()) {
        unsent_.push_back(notice);
    }
}

void Worker::notify_again() {
    for (const Notice& notice : std::exchange(unsent_, {})) {
        notify(notice);
    }
}

// What does not arrive is given up by the program's service after a while, see Upgrades::on_time().
void Worker::send_control(Control::Kind kind, uint64_t token, Reason why) {
    Control message;
    message.kind = kind;
    message.token = token;
    message.why = why;
    rendezvous::send_with(control_fd, &message, sizeof(message), -1);
}

Link* Worker::find(uint64_t token) {
    const auto found = links_.find(token);
    if (found == links_.end()) {
        return nullptr;
    }
    make_busy(found->second);
    return found->second.link.get();
}

void Worker::make_busy(Served& one) {
    one.active_ns = now_;
    if (std::exchange(one.is_idle, false)) {
        busy_.push_back(&one);
    }
}

// The program of one of them has woken this process.
void Worker::check_idle() {
    if (!wakeup::is_notified(idle_wakeup_)) {
        return;
    }
    wakeup::clear(idle_wakeup_);
    for (auto& [token, one] : links_) {
        if (one.is_idle && one.link->arm(idle_wakeup_)) {
            make_busy(one);
        }
    }
}

void Worker::let_idle(uint64_t now) {
    if (now < next_idle_) {
        return;
    }
    next_idle_ = now + idle_after / 2;
    std::erase_if(busy_, [&](Served* one) {
        one->is_idle = now - one->active_ns > idle_after && one->link->may_be_idle() &&
                       one->link->leaving_process() == 0 && !one->link->arm(idle_wakeup_);
        return one->is_idle;
    });
}

void Worker::forget_ended() {
    std::erase_if(busy_, [&](Served* one) {
        if (!one->link->is_over()) {
            return false;
        }
        links_.erase(one->link->token());
        return true;
    });
}

bool Worker::progress_busy() {
    bool moved = false;
    for (Served* one : busy_) {
        if (one->link->progress()) {
            one->active_ns = now_;
            moved = true;
        }
    }
    notify_queued();
    forget_ended();
    return moved;
}

bool Worker::poll_busy() {
    bool moved = false;
    for (Served* one : busy_) {
        const bool sent = one->link->progress();
        if (one->link->poll() || sent) {
            one->active_ns = now_;
            moved = true;
        }
    }
    notify_queued();
    forget_ended();
    return moved;
}

bool Worker::arm_busy() {
    bool work = false;
    for (const Served* one : busy_) {
        work = one->link->arm(wakeup_) || work;
    }
    return work;
}

uint64_t Worker::next_deadline() const {
    uint64_t next = std::min(next_check_, next_look_);
    for (const Served* one : busy_) {
        const bool may_be_idle = one->link->may_be_idle();
        next =
            std::min(next, may_be_idle ? std::max(next_idle_, one->active_ns + idle_after + 1) : one->link->deadline());
    }
    return next;
}

void Worker::serve(const Control& task, int memory, int tcp) {
    const char* why = nullptr;
    path::Segment* segment = path::map_segment(memory, why);
    rendezvous::Ends ends;
    // Before it was sent, the fd may have been closed, and its number reused.
    if (!rendezvous::Ends::of(tcp, ends) || !(ends == task.ends)) {
        path::unmap_segment(segment);
        close(tcp);
        send_control(Control::failed, task.token, Reason::young);
        return;
    }
    if (segment == nullptr || segment->token != task.token || task.direction > 1 || task.token < first_token) {
        path::unmap_segment(segment);
        close(tcp);
        send_control(Control::failed, task.token, Reason::no_memory);
        return;
    }
    segment->service[task.direction] = task.service;
    segment->service[1 - task.direction] = name_;
    segment->direction[1 - task.direction].writer.wakes = 1;
    auto link = std::make_unique<Link>(*this, task, segment, tcp);
    Served& one = links_[task.token];
    one.link = std::move(link);
    make_busy(one);
}

void Worker::read_control() {
    for (;;) {
        Control message;
        iovec part{&message, sizeof(message)};
        rendezvous::Control control{};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        const ssize_t n = recvmsg(control_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            program_ended_ = true;
            next_check_ = 0;
            unwatch(control_fd);
            return;
        }
        auto [memory, tcp] = rendezvous::passed_descriptors(header);
        const bool whole = n == sizeof(message) && message.magic == Control::expected_magic;
        if (whole && message.kind == Control::serve && memory >= 0 && tcp >= 0) {
            serve(message, memory, std::exchange(tcp, -1));
        } else if (whole && message.kind == Control::serve) {
            send_control(Control::failed, message.token, Reason::no_memory); // no descriptors were free
        } else if (Link* link = whole && message.kind == Control::drop ? find(message.token) : nullptr;
                   link != nullptr) {
            link->drop();
        }
        for (const int left : {memory, tcp}) {
            if (left >= 0) {
                close(left);
            }
        }
    }
}

// As the service of a program reads its inbox, see rendezvous/service.cpp.
void Worker::read_inbox() {
    if (read_messages() < rendezvous::many_messages()) {
        return;
    }
    for (auto& [token, one] : links_) {
        if (one.link->take_asked()) {
            make_busy(one);
            one.link->attended();
        }
    }
}

// Returns the number of messages.
unsigned Worker::read_messages() {
    for (unsigned count = 0;; ++count) {
        std::array<uint8_t, rendezvous::inbox_bytes> bytes{};
        iovec part{bytes.data(), bytes.size()};
        rendezvous::Control control{};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        const ssize_t n = recvmsg(inbox_, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0) {
            return count;
        }
        auto [fd, page] = rendezvous::passed_descriptors(header);
        const bool own_user = rendezvous::is_from_own_user(header);
        const auto received = rendezvous::delivered({bytes.data(), static_cast<size_t>(n)}, name_);
        if (const auto attended = rendezvous::parse<Attend>(received); attended) {
            if (Link* link = find(attended->token); link != nullptr) {
                link->take_asked();
                link->attended();
            }
        } else if (const auto wanted = rendezvous::parse<WakeupWanted>(received); wanted && own_user) {
            if ((wanted->id == wakeup_ || wanted->id == idle_wakeup_) && find(wanted->token) != nullptr) {
                wakeup::wake_own(wanted->id);
                WakeupGiven given;
                given.token = wanted->token;
                given.id = wanted->id;
                rendezvous::give_wakeup(inbox_, wanted->service, given, wakeup::descriptor(wanted->id),
                                        wakeup::page_file());
            }
        } else if (const auto given = rendezvous::parse<WakeupGiven>(received); given && own_user && fd >= 0) {
            if (find(given->token) != nullptr && rendezvous::is_eventfd(fd)) {
                wakeup::learn(given->id, getuid(), descriptors::keep(std::exchange(fd, -1)), page);
            }
        }
        for (const int left : {fd, page}) {
            if (left >= 0) {
                close(left);
            }
        }
    }
}

// A killed process sends nothing. The kernel shows which processes have a connection.
void Worker::check_processes() {
    const uint64_t begin = processor_time_ns();
    bool any = false;
    for (auto& [token, one] : links_) {
        Link& link = *one.link;
        if (!link.has_closed() && !link.is_shared() && program_ended_) {
            link.abandon();
            make_busy(one);
        }
        any = any || (!link.has_closed() && link.is_shared());
    }
    if (any && (program_ended_ || shows_its_descriptors(program_))) {
        abandon_shared();
    }
    next_check_ = any || !program_ended_ ? after(sys::now_ns(), second, begin) : UINT64_MAX;
}

// No event tells that the kernel has closed the descriptors of a process that ends, or executes another program. That
// the process is the last one to have a connection is known without looking at others.
void Worker::check_leaving(uint64_t now) {
    constexpr uint64_t pause = 1000000;
    const bool due = next_look_ == UINT64_MAX || now >= next_look_;
    uint64_t begin = 0;
    bool any = false;
    for (Served* one : busy_) {
        Link& link = *one->link;
        const pid_t process = link.leaving_process();
        if (process == 0) {
            continue;
        }
        if (due && !any) {
            begin = processor_time_ns(); // a system call, and most of the time none leaves
        }
        any = true;
        if (!due) {
            continue;
        }
        const std::optional<bool> has_it = rendezvous::has_socket(process, link.tcp());
        if (!has_it) {
            link.forget_leaving_process();
        } else if (!*has_it) {
            link.abandon();
        }
    }
    if (!any || due) {
        next_look_ = any ? after(sys::now_ns(), pause, begin) : UINT64_MAX;
    }
}

// Those that no process has any more.
void Worker::abandon_shared() {
    Inodes elsewhere;
    if (!find_sockets_elsewhere(elsewhere)) {
        return;
    }
    for (auto& [token, one] : links_) {
        Link& link = *one.link;
        // Twice: a process may have passed it to one that had been looked at before.
        if (!link.has_closed() && link.is_shared() && !has_socket(elsewhere, link.tcp()) &&
            rendezvous::is_sole_holder(link.tcp())) {
            link.abandon();
            make_busy(one);
        }
    }
}

void Worker::on_event(uint64_t mark, uint32_t events, uint64_t now) {
    switch (mark) {
    case control_mark:
        read_control();
        return;
    case inbox_mark:
        read_inbox();
        return;
    case wakeup_mark:
    case idle_mark:
        return; // all links are looked at
    default:
        if (Link* link = find(mark); link != nullptr) {
            link->on_event(events, now);
        }
    }
}

// More connections are seldom all about to move something: looking at each costs more than their events.
bool Worker::has_few_busy() const {
    constexpr size_t few = 8;
    return !busy_.empty() && busy_.size() <= few;
}

// The answer to what was just moved often comes at once, and then the program does not have to wake this process.
bool Worker::spin() {
    return has_few_busy() && spin::until([this] { return poll_busy(); });
}

// On the set's descriptor: a repoll_wait(3) that sleeps would look at everything once more, and hold back signals.
void Worker::sleep() const {
    const uint64_t next = next_deadline();
    const uint64_t now = sys::now_ns();
    constexpr uint64_t until_space = 1; // ms: no event reports space
    const uint64_t longest = unsent_.empty() ? 60000 : until_space;
    sys::sleep_until(epoll_, POLLIN,
                     next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / 1000000 + 1, longest)));
    spin::learn(now, sys::now_ns(), wakeup::notified_at(wakeup_));
}

void Worker::run() {
    constexpr int max_rounds = 8;                 // before the others have their turn,
    constexpr uint64_t longest_ns = 200 * 1000UL; // also while spinning finds something
    std::array<epoll_event, 64> events;
    next_check_ = sys::now_ns() + second;
    for (;;) {
        wakeup::clear(wakeup_);
        notify_again();
        check_idle();
        bool moved = progress_busy();
        for (int rounds = 1; moved && rounds < max_rounds; ++rounds) {
            moved = progress_busy();
        }
        let_idle(now_);
        if (program_ended_ && links_.empty()) {
            return;
        }
        moved = moved || spin();
        if (moved && has_few_busy() && sys::now_ns() - now_ < longest_ns) {
            continue;
        }
        int n = repoll_wait(epoll_, events.data(), events.size(), 0);
        if (n == 0 && !moved && !arm_busy()) {
            sleep();
            // Few links are looked at without a system call, and the set is before the next sleep.
            n = has_few_busy() ? 0 : repoll_wait(epoll_, events.data(), events.size(), 0);
        }
        now_ = sys::now_ns();
        for (int i = 0; i < n; ++i) {
            on_event(events[static_cast<size_t>(i)].data.u64, events[static_cast<size_t>(i)].events, now_);
        }
        notify_queued();
        for (const Served* one : busy_) {
            one->link->on_time(now_);
        }
        if (next_check_ <= now_) {
            check_processes();
        }
        check_leaving(now_);
    }
}

} // namespace preload::fabric
