// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections between two processes, used in every way that TCP allows, at random, under the preload library: every
// byte is compared with a pattern of its position, so that one that is lost, doubled or out of order is found.
// torture.sh runs it; the long form is
//
//     RSPRELOAD_UPGRADE=test:1:100 LD_PRELOAD=$PWD/.libs/librspreload-ofi.so preload/test/torture --bytes 1000000000
//
//     --bytes N        in all (50000000)           --seed S          of all that is random (the time)
//     --connections C  at once (8)                 --rounds R        new connections each time (4)
//     --seconds T      no new round after that     --patience S      without progress is a hang (15)
//     --actions LIST   of those below, and `kill` (all)    --keep    leave the processes of a hang, for a debugger
//
// Each end of a connection is a thread. It takes turns, one action each, until its bytes are through:
//
//     drive   moves bytes in one of five ways of waiting      fork    the child writes, the parent reads
//     child   the child does all, the parent goes on later    share   parent and child write and read by turns
//     pass    another process does it (SCM_RIGHTS) and passes the descriptor back
//     keep    the same, but the sender keeps its descriptor and goes on
//     exec    a child executes this program on descriptor 0, and the parent goes on later
//
// Both directions are always read and written, so that a connection stands still only if something is wrong. State is
// in a memory file that all processes share; the first process watches it.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr size_t max_ends = 512;
constexpr size_t max_size = 256 << 10;

enum Action : uint32_t {
    drive_action,
    fork_action,
    child_action,
    share_action,
    pass_action,
    keep_action,
    exec_action,
    kill_action,
    actions
};
constexpr const char* action_names[] = {"drive", "fork", "child", "share", "pass", "keep", "exec", "kill"};
enum Style : uint32_t { by_poll, by_select, by_epoll, by_edges, by_threads, styles };
constexpr const char* style_names[] = {"poll", "select", "epoll", "epoll-edge", "blocking"};

struct End {
    uint32_t id = 0;
    uint32_t side = 0; // 0: connected, 1: accepted
    uint32_t plan = 0; // of the end of the connection
    uint64_t total_out = 0;
    uint64_t total_in = 0;
    uint64_t key_out = 0;
    uint64_t key_in = 0;
    std::atomic<uint64_t> out{0};
    std::atomic<uint64_t> in{0};
    std::atomic<uint64_t> steps{0};
    std::atomic<uint32_t> action{0};
    std::atomic<uint32_t> style{0};
    std::atomic<int> process{0};
    std::atomic<int> path{-1};
    std::atomic<uint64_t> seen[5]{}; // turns of each answer of rspreload_path
    std::atomic<bool> active{false};
    std::atomic<const char*> doing{nullptr}; // the same address in all processes but executed ones
    pthread_mutex_t read_turn;
    pthread_mutex_t write_turn;
};

struct Shared {
    uint64_t seed = 0;
    std::atomic<uint32_t> port{0};
    std::atomic<bool> failed{false};
    char failure[512] = {};
    std::atomic<uint64_t> verified{0};
    std::atomic<uint64_t> done[actions]{};
    std::atomic<uint32_t> killed{0};
    End ends[max_ends];
};

Shared* shared = nullptr;
int shared_fd = -1;
uint32_t allowed = (1U << actions) - 1;
constexpr uint32_t handing_over = 1U << pass_action | 1U << keep_action | 1U << exec_action;
uint64_t total_bytes = 50000000;
uint32_t connections = 8;
uint32_t rounds = 4;
int patience_s = 15;
int seconds = 1000000;
bool keep_hang = false;

using PathOf = int (*)(int);
PathOf path_of = nullptr;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
    if (!shared->failed.exchange(true)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(shared->failure, sizeof(shared->failure), format, arguments);
        va_end(arguments);
    }
    for (;;) {
        pause(); // the first process tells of it, and ends all
    }
}

uint64_t now_ms() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t limit) { return next() % limit; }
    // Small ones as often as large ones.
    uint64_t size(uint64_t limit) { return 1 + below(std::min<uint64_t>(limit, uint64_t{1} << below(19))); }

  private:
    uint64_t state_;
};

thread_local std::vector<uint8_t> buffer(max_size);
thread_local std::vector<uint8_t> wanted(max_size + 8);

void make_pattern(uint64_t key, uint64_t position, size_t size, uint8_t* to) {
    for (size_t done = 0; done < size;) {
        const uint64_t word = Random(key ^ ((position + done) >> 3)).next();
        const size_t first = (position + done) & 7;
        const size_t n = std::min(size - done, 8 - first);
        memcpy(to + done, reinterpret_cast<const uint8_t*>(&word) + first, n);
        done += n;
    }
}

void name_of(const End& e, char (&out)[96]) {
    snprintf(out, sizeof(out), "connection %u %s (pid %d, %s by %s, path %d)", e.id, e.side == 0 ? "client" : "server",
             getpid(), action_names[e.action], style_names[e.style], e.path.load());
}

void verify(End& e, const uint8_t* data, size_t size, const char* how) {
    const uint64_t at = e.in;
    char name[96];
    if (at + size > e.total_in) {
        name_of(e, name);
        fail("%s: %zu bytes more than were sent, at %llu (%s)", name, static_cast<size_t>(at + size - e.total_in),
             static_cast<unsigned long long>(at), how);
    }
    make_pattern(e.key_in, at, size, wanted.data());
    if (memcmp(data, wanted.data(), size) != 0) {
        size_t i = 0;
        while (data[i] == wanted[i]) {
            ++i;
        }
        name_of(e, name);
        // Where is it from? Looked for nearby.
        long long from = -1;
        if (size - i >= 16) {
            std::vector<uint8_t> around(4 << 20);
            const uint64_t begin = at + i > around.size() / 2 ? at + i - around.size() / 2 : 0;
            make_pattern(e.key_in, begin, around.size(), around.data());
            if (const void* found = memmem(around.data(), around.size(), data + i, 16); found != nullptr) {
                from = static_cast<long long>(begin) + (static_cast<const uint8_t*>(found) - around.data());
            }
        }
        fail("%s: byte %llu is wrong (%zu of %zu in a %s): 0x%02x, not 0x%02x; it is that of position %lld", name,
             static_cast<unsigned long long>(at + i), i, size, how, data[i], wanted[i], from);
    }
}

void look_at_path(End& e, int fd) {
    if (path_of != nullptr) {
        const int path = path_of(fd);
        e.path = path;
        e.seen[path + 1].fetch_add(1, std::memory_order_relaxed);
    }
}

// Bytes, or -errno. At least one byte is to be written.
long write_some(End& e, int fd, Random& random, uint64_t limit) {
    const size_t size = random.size(std::min<uint64_t>(limit, max_size));
    const uint64_t at = e.out;
    make_pattern(e.key_out, at, size, buffer.data());
    ssize_t n = 0;
    switch (random.below(4)) {
    case 0:
        n = write(fd, buffer.data(), size);
        break;
    case 1:
        n = send(fd, buffer.data(), size, MSG_NOSIGNAL);
        break;
    default: {
        const size_t first = random.below(size + 1);
        iovec parts[3] = {{buffer.data(), first}, {nullptr, 0}, {buffer.data() + first, size - first}};
        if (random.below(2) == 0) {
            n = writev(fd, parts, 3);
        } else {
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = 3;
            n = sendmsg(fd, &message, MSG_NOSIGNAL);
        }
    }
    }
    const int error = errno;
    look_at_path(e, fd);
    if (n < 0) {
        return -error;
    }
    if (n == 0 || static_cast<size_t>(n) > size) {
        char name[96];
        name_of(e, name);
        fail("%s: a write of %zu bytes gives %zd", name, size, n);
    }
    e.out = at + static_cast<uint64_t>(n);
    ++e.steps;
    return n;
}

// Bytes, 0 at the end, or -errno.
long read_some(End& e, int fd, Random& random, int flags = 0) {
    const size_t size = random.size(max_size);
    ssize_t n = 0;
    const char* how = "read";
    if (random.below(16) == 0) {
        n = recv(fd, buffer.data(), size, MSG_PEEK | flags);
        if (n > 0) {
            verify(e, buffer.data(), static_cast<size_t>(n), "peek");
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return -errno; // an error is told once
        }
    }
    switch (random.below(4)) {
    case 0:
        n = read(fd, buffer.data(), size);
        break;
    case 1:
        how = "recv";
        n = recv(fd, buffer.data(), size, flags);
        break;
    default: {
        const size_t first = random.below(size + 1);
        iovec parts[3] = {{buffer.data(), first}, {nullptr, 0}, {buffer.data() + first, size - first}};
        if (random.below(2) == 0) {
            how = "readv";
            n = readv(fd, parts, 3);
        } else {
            how = "recvmsg";
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = 3;
            n = recvmsg(fd, &message, flags);
        }
    }
    }
    const int error = errno;
    look_at_path(e, fd);
    if (n < 0) {
        return -error;
    }
    verify(e, buffer.data(), static_cast<size_t>(n), how);
    e.in += static_cast<uint64_t>(n);
    shared->verified.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    ++e.steps;
    return n;
}

void check(End& e, long result, const char* what) {
    if (result == 0 || (result < 0 && result != -EAGAIN && result != -EINTR)) {
        char name[96];
        name_of(e, name);
        fail("%s: %s gives %s, read %llu of %llu, written %llu of %llu", name, what,
             result == 0 ? "the end of the stream" : strerror(static_cast<int>(-result)),
             static_cast<unsigned long long>(e.in), static_cast<unsigned long long>(e.total_in),
             static_cast<unsigned long long>(e.out), static_cast<unsigned long long>(e.total_out));
    }
}

void set_nonblocking(int fd, bool on) {
    const int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

void set_receive_limit(int fd, int milliseconds) {
    const timeval limit{milliseconds / 1000, (milliseconds % 1000) * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

struct Targets {
    uint64_t out;
    uint64_t in;
};

// As much is written; once all is written, as much is read.
Targets targets_of(const End& e, uint64_t quota) {
    return {std::min(e.total_out, e.out + quota), e.out == e.total_out ? std::min(e.total_in, e.in + quota) : 0};
}

bool reached(const End& e, const Targets& t) { return e.out >= t.out && e.in >= t.in; }

// Sleeps until there is something to do.
void wait_for(End& e, int fd, int set, uint32_t style, bool for_in, bool for_out) {
    e.doing = style_names[style];
    if (style == by_select) {
        fd_set in;
        fd_set out;
        FD_ZERO(&in);
        FD_ZERO(&out);
        if (for_in) {
            FD_SET(fd, &in);
        }
        if (for_out) {
            FD_SET(fd, &out);
        }
        select(fd + 1, &in, &out, nullptr, nullptr);
    } else if (set >= 0) {
        epoll_event event{};
        if (style == by_epoll) {
            event.events = (for_in ? EPOLLIN : 0U) | (for_out ? EPOLLOUT : 0U);
            epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
        }
        epoll_wait(set, &event, 1, -1);
    } else {
        pollfd one{fd, static_cast<short>((for_in ? POLLIN : 0) | (for_out ? POLLOUT : 0)), 0};
        poll(&one, 1, -1);
    }
    e.doing = nullptr;
}

void drive_by_events(End& e, int fd, uint64_t quota, uint32_t style, Random& random) {
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, true);
    int set = -1;
    if (style == by_epoll || style == by_edges) {
        set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | (style == by_edges ? EPOLLET : 0U);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    }
    while (!reached(e, t)) {
        bool idle = true;
        if (e.in < e.total_in) {
            long n = 0;
            do {
                n = read_some(e, fd, random);
                check(e, n, "reading");
                idle = idle && n < 0;
            } while (n > 0 && (style == by_edges || random.below(3) == 0) && e.in < e.total_in);
        }
        if (e.out < t.out) {
            long n = 0;
            do {
                n = write_some(e, fd, random, t.out - e.out);
                check(e, n, "writing");
                idle = idle && n < 0;
            } while (n > 0 && (style == by_edges || random.below(3) == 0) && e.out < t.out);
        }
        if (!reached(e, t) && (idle || style == by_edges || random.below(2) == 0)) {
            wait_for(e, fd, set, style, e.in < e.total_in, e.out < t.out);
        }
    }
    if (set >= 0) {
        close(set);
    }
}

// Reads until told, or for as long as there is to read.
template <class Enough> void read_blocking(End& e, int fd, Random& random, Enough&& enough) {
    set_receive_limit(fd, 10);
    while (!enough() && e.in < e.total_in) {
        check(e, read_some(e, fd, random, random.below(8) == 0 ? MSG_WAITALL : 0), "reading");
    }
    set_receive_limit(fd, 0);
}

void write_blocking(End& e, int fd, uint64_t target, Random& random) {
    while (e.out < target) {
        check(e, write_some(e, fd, random, target - e.out), "writing");
    }
}

void drive_by_threads(End& e, int fd, uint64_t quota, Random& random) {
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, false);
    std::atomic<bool> written{false};
    std::thread writer([&, seed = random.next()] {
        Random own(seed);
        write_blocking(e, fd, t.out, own);
        written = true;
    });
    read_blocking(e, fd, random, [&] { return written && e.in >= t.in; });
    writer.join();
}

void drive(End& e, int fd, uint64_t quota, uint32_t style, Random& random) {
    e.style = style;
    e.process = getpid();
    if (style == by_threads) {
        drive_by_threads(e, fd, quota, random);
    } else {
        drive_by_events(e, fd, quota, style, random);
    }
}

void await(End& e, pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) {
        char name[96];
        name_of(e, name);
        fail("%s: its child ended with status 0x%x", name, status);
    }
}

pid_t fork_child(End& e) {
    const pid_t child = fork();
    if (child < 0) {
        fail("fork: %s", strerror(errno));
    }
    if (child == 0) {
        e.process = getpid();
    }
    return child;
}

// The child writes, the parent reads.
void fork_and_split(End& e, int fd, uint64_t quota, Random& random) {
    const bool blocking = random.below(2) == 0;
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, !blocking);
    e.style = blocking ? by_threads : by_poll;
    const uint64_t seed = random.next();
    const pid_t child = fork_child(e);
    if (child == 0) {
        Random own(seed);
        while (e.out < t.out) {
            const long n = write_some(e, fd, own, t.out - e.out);
            check(e, n, "writing");
            if (n < 0 && !blocking) {
                wait_for(e, fd, -1, by_poll, false, true);
            }
        }
        _exit(0);
    }
    if (blocking) {
        read_blocking(e, fd, random, [&] { return reached(e, t); });
    } else {
        while (!reached(e, t) && e.in < e.total_in) {
            const long n = read_some(e, fd, random);
            check(e, n, "reading");
            if (n < 0) {
                pollfd one{fd, POLLIN, 0};
                poll(&one, 1, 20);
            }
        }
    }
    await(e, child);
}

// Whoever has the turn: both processes write and read.
void share_loop(End& e, int fd, const Targets& t, Random& random) {
    while (!reached(e, t)) {
        bool idle = true;
        pthread_mutex_lock(&e.read_turn);
        if (e.in < e.total_in) {
            const long n = read_some(e, fd, random);
            check(e, n, "reading");
            idle = n < 0;
        }
        pthread_mutex_unlock(&e.read_turn);
        pthread_mutex_lock(&e.write_turn);
        if (e.out < t.out) {
            const long n = write_some(e, fd, random, t.out - e.out);
            check(e, n, "writing");
            idle = idle && n < 0;
        }
        pthread_mutex_unlock(&e.write_turn);
        if (idle) {
            // The other process may be the one that takes what there is.
            pollfd one{fd, static_cast<short>((e.in < e.total_in ? POLLIN : 0) | (e.out < t.out ? POLLOUT : 0)), 0};
            poll(&one, 1, 20);
        }
    }
}

void fork_and_share(End& e, int fd, uint64_t quota, Random& random) {
    const Targets t = targets_of(e, quota);
    set_nonblocking(fd, true);
    e.style = by_poll;
    const uint64_t seed = random.next();
    const pid_t child = fork_child(e);
    if (child == 0) {
        Random own(seed);
        share_loop(e, fd, t, own);
        _exit(0);
    }
    share_loop(e, fd, t, random);
    await(e, child);
}

// A process of its own, to which descriptors are passed.
struct Order {
    uint32_t end;
    uint32_t style;
    uint32_t quota;
    uint32_t back; // 1: it passes the descriptor back
    uint64_t seed;
};

// A helper for each connection: one that several took turns with would wait for a peer that waits for its turn.
std::vector<int> helper_sockets;

bool send_order(int socket, const Order& order, int fd) {
    iovec part{const_cast<Order*>(&order), sizeof(order)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(order);
}

bool receive_order(int socket, Order& order, int& fd) {
    iovec part{&order, sizeof(order)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(order)) {
        return false;
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    }
    return true;
}

[[noreturn]] void help(int socket) {
    Order order{};
    int fd = -1;
    while (receive_order(socket, order, fd)) {
        End& e = shared->ends[order.end];
        Random random(order.seed);
        drive(e, fd, order.quota, order.style, random);
        if (!send_order(socket, order, order.back != 0 ? fd : -1)) {
            fail("the helper cannot answer: %s", strerror(errno));
        }
        close(fd);
    }
    _exit(0);
}

void start_helper(int& socket) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        fail("socketpair: %s", strerror(errno));
    }
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        help(pair[1]);
    }
    close(pair[1]);
    socket = pair[0];
}

void start_helpers() {
    helper_sockets.resize((allowed & (1U << pass_action | 1U << keep_action)) != 0 ? connections : 0, -1);
    for (int& socket : helper_sockets) {
        start_helper(socket);
    }
}

void pass(End& e, int& fd, uint64_t quota, uint32_t style, bool back, Random& random) {
    const int helper = helper_sockets[static_cast<size_t>(&e - shared->ends) / 2 % connections];
    Order order{static_cast<uint32_t>(&e - shared->ends), style, static_cast<uint32_t>(quota), back ? 1U : 0U,
                random.next()};
    if (!send_order(helper, order, fd)) {
        fail("passing a descriptor: %s", strerror(errno));
    }
    if (back) {
        close(fd);
    }
    int got = -1;
    if (!receive_order(helper, order, got)) {
        fail("the helper has ended");
    }
    if (back) {
        fd = got;
    }
}

std::string number(uint64_t value) { return std::to_string(value); }

void execute(End& e, int fd, uint64_t quota, uint32_t style, Random& random) {
    const std::string file = number(static_cast<uint64_t>(shared_fd));
    const std::string index = number(static_cast<uint64_t>(&e - shared->ends));
    const std::string much = number(quota);
    const std::string way = number(style);
    const std::string seed = number(random.next());
    const pid_t child = fork_child(e);
    if (child == 0) {
        dup2(fd, 0);
        execl("/proc/self/exe", "torture", "--resume", file.c_str(), index.c_str(), much.c_str(), way.c_str(),
              seed.c_str(), nullptr);
        fail("execl: %s", strerror(errno));
    }
    await(e, child);
}

void end_connection(End& e, int fd, bool half_closed, Random& random) {
    // 0: each ends its own direction and reads the other's end. 1, 2: one side closes at once. 3: one ends its
    // direction.
    const bool closes_at_once = (e.plan == 1 && e.side == 0) || (e.plan == 2 && e.side == 1);
    // With its peer gone, nobody can send again what is unread in the ring: a connection that is handed over then is
    // reset, which is a limit of the library.
    const End& other = shared->ends[static_cast<size_t>(&e - shared->ends) ^ 1];
    while (closes_at_once && (allowed & handing_over) != 0 && other.in < other.total_in) {
        usleep(500);
    }
    if (!closes_at_once) {
        if (!half_closed && (e.plan == 0 || (e.plan == 3 && e.side == 0))) {
            if (shutdown(fd, SHUT_WR) != 0) {
                fail("shutdown: %s", strerror(errno));
            }
        }
        e.doing = "waiting for the end";
        if (random.below(2) == 0) {
            set_nonblocking(fd, true);
            wait_for(e, fd, -1, by_poll, true, false);
        } else {
            set_nonblocking(fd, false);
        }
        long n = 0;
        do {
            n = read_some(e, fd, random);
        } while (n == -EINTR);
        if (n == -EAGAIN && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) {
            set_nonblocking(fd, false);
            n = read_some(e, fd, random);
        }
        if (n != 0) {
            char name[96];
            name_of(e, name);
            fail("%s: at the end of plan %u, reading gives %s", name, e.plan, strerror(static_cast<int>(-n)));
        }
    }
    close(fd);
}

// A connection is not upgraded while several processes hold it, so none forks before most are.
std::atomic<uint32_t> warm{0};

void await_upgrade(End& e, int fd, Random& random) {
    constexpr uint64_t limit_ms = 300;
    const uint64_t began = now_ms();
    while (path_of != nullptr && path_of(fd) < 2 && now_ms() - began < limit_ms && e.out < e.total_out) {
        drive(e, fd, 1 + random.below(64), by_poll, random);
        usleep(500);
    }
    ++warm;
}

void await_all_warm() {
    while (warm < connections) {
        usleep(500);
    }
}

void run_end(End& e, int fd) {
    Random random(shared->seed ^ (uint64_t{e.id} << 20) ^ (uint64_t{e.side} << 50));
    bool half_closed = false;
    await_upgrade(e, fd, random);
    await_all_warm();
    while (e.out < e.total_out || e.in < e.total_in) {
        if (!half_closed && e.out == e.total_out && e.plan == 0 && random.below(2) == 0) {
            shutdown(fd, SHUT_WR); // long before the other direction's end
            half_closed = true;
        }
        uint32_t action = random.below(2) == 0 ? static_cast<uint32_t>(drive_action)
                                               : static_cast<uint32_t>(random.below(kill_action));
        if ((allowed >> action & 1) == 0) {
            action = drive_action;
        }
        const auto style = static_cast<uint32_t>(random.below(styles));
        const uint64_t quota = random.size(max_size);
        e.action = action;
        e.style = style;
        switch (action) {
        case fork_action:
            fork_and_split(e, fd, quota, random);
            break;
        case share_action:
            fork_and_share(e, fd, quota, random);
            break;
        case child_action: {
            const pid_t child = fork_child(e);
            if (child == 0) {
                drive(e, fd, quota, style, random);
                _exit(0);
            }
            await(e, child);
            break;
        }
        case pass_action:
        case keep_action:
            pass(e, fd, quota, style, action == pass_action, random);
            break;
        case exec_action:
            execute(e, fd, quota, style, random);
            break;
        default:
            drive(e, fd, quota, style, random);
        }
        shared->done[action].fetch_add(1);
        e.process = getpid();
    }
    e.action = drive_action;
    end_connection(e, fd, half_closed, random);
    e.active = false;
}

// One direction, whose writer is killed: what it had written is read, then the end, or a reset.
void run_killed_writer(End& e, int fd) {
    Random random(shared->seed ^ e.id);
    e.action = kill_action;
    await_all_warm();
    const pid_t child = fork_child(e);
    if (child == 0) {
        for (;;) {
            const long n = write_some(e, fd, random, max_size);
            check(e, n, "writing");
        }
    }
    close(fd);
    const uint64_t until = random.size(1 << 20);
    while (e.out < until) {
        usleep(200);
    }
    usleep(static_cast<useconds_t>(random.below(3000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ++shared->killed;
    e.active = false;
}

void run_survivor(End& e, const End& writer, int fd) {
    Random random(shared->seed ^ e.id ^ 77);
    e.action = kill_action;
    e.process = getpid();
    const bool blocking = random.below(2) == 0;
    set_nonblocking(fd, !blocking);
    e.style = blocking ? by_threads : by_poll;
    bool reset = false;
    for (;;) {
        const long n = read_some(e, fd, random);
        if (n == 0 || n == -ECONNRESET) {
            reset = n != 0;
            break;
        }
        check(e, n, "reading from a writer that is killed");
        if (n == -EAGAIN) {
            wait_for(e, fd, -1, by_poll, true, false);
        }
    }
    while (writer.active) {
        usleep(100);
    }
    // A process that is killed with a frame unread resets the connection, and what its kernel has not yet sent is lost:
    // rspreload-ofi(7), BUGS. It must not look like the end of the stream, then.
    if (e.in < writer.out && !reset) {
        fail("connection %u (path %d): of %llu bytes that a killed process had written, %llu were read", e.id,
             e.path.load(), static_cast<unsigned long long>(writer.out), static_cast<unsigned long long>(e.in));
    }
    close(fd);
    shared->done[kill_action].fetch_add(1);
    e.active = false;
}

uint32_t per_round() { return connections + ((allowed >> kill_action & 1) != 0 ? 1 : 0); }

// Ends of one round: [2 * i] connected, [2 * i + 1] accepted.
void prepare_round(uint32_t round) {
    for (uint32_t i = 0; i < per_round(); ++i) {
        const bool killed = i == connections;
        Random random(shared->seed + round * 1000 + i);
        for (uint32_t side = 0; side < 2; ++side) {
            End& e = *new (&shared->ends[2 * i + side]) End;
            e.id = round * 1000 + i;
            e.side = side;
            e.plan = (round + i) % 4;
            const uint64_t each = std::max<uint64_t>(total_bytes / rounds / connections / 2, 1);
            e.total_out = killed ? (side == 1 ? UINT64_MAX : 0) : each;
            e.total_in = killed ? (side == 0 ? UINT64_MAX : 0) : each;
            e.key_out = shared->seed * 31 + e.id * 2 + side;
            e.key_in = shared->seed * 31 + e.id * 2 + (1 - side);
            pthread_mutexattr_t attributes;
            pthread_mutexattr_init(&attributes);
            pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
            pthread_mutex_init(&e.read_turn, &attributes);
            pthread_mutex_init(&e.write_turn, &attributes);
            e.active = true;
        }
    }
}

// The two processes, by a pipe each: a byte from the first process begins a round, one back ends it.
[[noreturn]] void run_side(uint32_t side, int from, int to) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_IGN);
    start_helpers();
    int listener = -1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (side == 1) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 64) != 0 ||
            getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
            fail("listening: %s", strerror(errno));
        }
        shared->port = address.sin_port;
    }
    char byte = 0;
    while (read(from, &byte, 1) == 1) {
        std::vector<std::thread> threads;
        warm = 0;
        while (shared->port == 0) {
            usleep(1000);
        }
        address.sin_port = static_cast<in_port_t>(shared->port);
        std::vector<int> sockets;
        for (uint32_t i = 0; i < per_round(); ++i) {
            int fd = -1;
            if (side == 0) {
                fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
                    fail("connecting: %s", strerror(errno));
                }
            } else if ((fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) < 0) {
                fail("accepting: %s", strerror(errno));
            }
            sockets.push_back(fd);
        }
        for (uint32_t i = 0; i < per_round(); ++i) {
            End& e = shared->ends[2 * i + side];
            threads.emplace_back([&e, side, i, fd = sockets[i]] {
                if (i != connections) {
                    run_end(e, fd);
                } else if (side == 1) {
                    run_killed_writer(e, fd);
                } else {
                    run_survivor(e, shared->ends[2 * i + 1], fd);
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        (void)write(to, &byte, 1);
    }
    exit(0);
}

void print_end(const End& e) {
    fprintf(stderr,
            "# connection %u %s: pid %d, %s by %s%s%s, written %llu of %llu, read %llu of %llu, path %d, %llu steps\n",
            e.id, e.side == 0 ? "client" : "server", e.process.load(), action_names[e.action % actions],
            style_names[e.style % styles], e.doing.load() != nullptr ? ", asleep" : "", "",
            static_cast<unsigned long long>(e.out), static_cast<unsigned long long>(e.total_out),
            static_cast<unsigned long long>(e.in), static_cast<unsigned long long>(e.total_in), e.path.load(),
            static_cast<unsigned long long>(e.steps));
}

// Why nothing moves.
void print_active() {
    for (uint32_t i = 0; i < 2 * per_round(); ++i) {
        if (shared->ends[i].active) {
            print_end(shared->ends[i]);
        }
    }
}

struct Side {
    pid_t pid;
    int to;
    int from;
};

Side start_side(uint32_t side) {
    int orders[2];
    int answers[2];
    if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) {
        exit(2);
    }
    const pid_t pid = fork();
    if (pid == 0) {
        close(orders[1]);
        close(answers[0]);
        run_side(side, orders[0], answers[1]);
    }
    setpgid(pid, pid);
    close(orders[0]);
    close(answers[1]);
    return {pid, orders[1], answers[0]};
}

// False: a hang, or a failure.
bool watch_round(Side (&sides)[2]) {
    bool done[2] = {false, false};
    std::vector<uint64_t> steps(2 * per_round());
    std::vector<uint64_t> since(2 * per_round(), now_ms());
    while (!done[0] || !done[1]) {
        for (int i = 0; i < 2; ++i) {
            pollfd one{sides[i].from, POLLIN, 0};
            char byte = 0;
            if (!done[i] && poll(&one, 1, 100) > 0) {
                if (read(sides[i].from, &byte, 1) != 1) {
                    int status = 0;
                    waitpid(sides[i].pid, &status, WNOHANG);
                    printf("# the %s process ended with status 0x%x\n", i == 0 ? "client" : "server", status);
                    print_active();
                    return false;
                }
                done[i] = true;
            }
        }
        if (shared->failed) {
            usleep(20000);
            printf("# %s\n", shared->failure);
            print_active();
            return false;
        }
        for (uint32_t i = 0; i < 2 * per_round(); ++i) {
            const End& e = shared->ends[i];
            if (steps[i] != e.steps || !e.active) {
                steps[i] = e.steps;
                since[i] = now_ms();
            } else if (now_ms() - since[i] > static_cast<uint64_t>(patience_s) * 1000) {
                printf("# connection %u %s hangs\n", e.id, e.side == 0 ? "client" : "server");
                print_active();
                return false;
            }
        }
    }
    return true;
}

void end_sides(const Side (&sides)[2]) {
    for (const Side& side : sides) {
        kill(-side.pid, SIGKILL);
    }
}

int resume(char** argv) {
    shared_fd = atoi(argv[2]);
    shared = static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0));
    if (shared == MAP_FAILED) {
        return 3;
    }
    Random random(strtoull(argv[6], nullptr, 10));
    signal(SIGPIPE, SIG_IGN);
    drive(shared->ends[atoi(argv[3])], 0, strtoull(argv[4], nullptr, 10), static_cast<uint32_t>(atoi(argv[5])), random);
    return 0;
}

uint32_t parse_actions(const char* list) {
    uint32_t result = 1U << drive_action;
    for (uint32_t i = 0; i < actions; ++i) {
        result |= strstr(list, action_names[i]) != nullptr ? 1U << i : 0;
    }
    return result;
}

} // namespace

int main(int argc, char** argv) {
    path_of = reinterpret_cast<PathOf>(dlsym(RTLD_DEFAULT, "rspreload_path"));
    if (argc == 7 && strcmp(argv[1], "--resume") == 0) {
        return resume(argv);
    }
    shared_fd = memfd_create("torture", 0);
    if (shared_fd < 0 || ftruncate(shared_fd, sizeof(Shared)) != 0) {
        perror("memfd_create");
        return 2;
    }
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    shared = new (memory) Shared;
    shared->seed = static_cast<uint64_t>(time(nullptr)) ^ static_cast<uint64_t>(getpid()) << 32;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        if (option == "--keep") {
            keep_hang = true;
            continue;
        }
        if (option == "--bytes") {
            total_bytes = strtoull(value, nullptr, 10);
        } else if (option == "--seed") {
            shared->seed = strtoull(value, nullptr, 10);
        } else if (option == "--connections") {
            connections = static_cast<uint32_t>(std::min(std::max(atoi(value), 1), static_cast<int>(max_ends / 2 - 1)));
        } else if (option == "--rounds") {
            rounds = static_cast<uint32_t>(std::max(atoi(value), 1));
        } else if (option == "--seconds") {
            seconds = atoi(value);
        } else if (option == "--patience") {
            patience_s = atoi(value);
        } else if (option == "--actions") {
            allowed = parse_actions(value);
        } else {
            fprintf(stderr, "torture: what is %s? The file's header lists the options.\n", argv[i]);
            return 2;
        }
        ++i;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    printf("# seed %llu, %u connections, %u rounds%s\n", static_cast<unsigned long long>(shared->seed), connections,
           rounds, path_of != nullptr ? "" : ", without the library");
    const uint64_t began = now_ms();
    prepare_round(0);
    Side sides[2] = {start_side(0), start_side(1)};
    bool good = true;
    uint64_t seen[5] = {};
    for (uint32_t round = 0; good && round < rounds && now_ms() - began < static_cast<uint64_t>(seconds) * 1000;
         ++round) {
        prepare_round(round);
        for (const Side& side : sides) {
            good = good && write(side.to, "r", 1) == 1;
        }
        good = good && watch_round(sides);
        for (uint32_t i = 0; i < 2 * per_round(); ++i) {
            for (int path = 0; path < 5; ++path) {
                seen[path] += shared->ends[i].seen[path];
            }
        }
    }
    for (const Side& side : sides) {
        close(side.to);
    }
    if (good) {
        for (const Side& side : sides) {
            int status = 0;
            waitpid(side.pid, &status, 0);
            good = good && status == 0;
        }
    } else if (!keep_hang) {
        end_sides(sides);
    }
    printf("# %llu bytes verified in %.1f s;", static_cast<unsigned long long>(shared->verified),
           static_cast<double>(now_ms() - began) / 1000);
    for (uint32_t i = 0; i < actions; ++i) {
        printf(" %s %llu", action_names[i], static_cast<unsigned long long>(shared->done[i]));
    }
    printf("\n# calls by path: unknown %llu, kernel %llu, careful %llu, one way %llu, both ways %llu\n",
           static_cast<unsigned long long>(seen[0]), static_cast<unsigned long long>(seen[1]),
           static_cast<unsigned long long>(seen[2]), static_cast<unsigned long long>(seen[3]),
           static_cast<unsigned long long>(seen[4]));
    return good ? 0 : 1;
}
