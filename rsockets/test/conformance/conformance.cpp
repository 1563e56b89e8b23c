// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/test/conformance/conformance.hpp"
#include "rsockets/test/asleep.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace conformance {

namespace {

size_t upgraded_pairs = 0; // for a debugger

struct Entry {
    const char* name;
    void (*body)(Case&);
};
std::vector<Entry>& entries() {
    static std::vector<Entry> all;
    return all;
}

// FABTESTS_PATIENCE: how much slower than others this machine, or this build, is.
unsigned patience() {
    const char* factor = getenv("FABTESTS_PATIENCE");
    return static_cast<unsigned>(std::max(1, factor != nullptr ? atoi(factor) : 1));
}

constexpr unsigned longest_case = 30; // seconds

const Api kernel_api = {
    "kernel",      ::socket,     ::bind,       ::listen,        ::accept,    ::accept4,    ::connect,
    ::shutdown,    ::close,      ::recv,       ::recvfrom,      ::recvmsg,   ::send,       ::sendto,
    ::sendmsg,     ::read,       ::readv,      ::write,         ::writev,    ::sendfile,   ::poll,
    ::ppoll,       ::select,     ::pselect,    ::epoll_create1, ::epoll_ctl, ::epoll_wait, ::getpeername,
    ::getsockname, ::setsockopt, ::getsockopt, ::fcntl,         ::ioctl,     ::dup,        ::dup2,
};

const Api rsocket_api = {
    "rsocket",      ::rsocket,     ::rbind,       ::rlisten,       ::raccept,    ::raccept4,    ::rconnect,
    ::rshutdown,    ::rclose,      ::rrecv,       ::rrecvfrom,     ::rrecvmsg,   ::rsend,       ::rsendto,
    ::rsendmsg,     ::rread,       ::rreadv,      ::rwrite,        ::rwritev,    ::rsendfile,   ::rpoll,
    ::rppoll,       ::rselect,     ::rpselect,    ::repoll_create, ::repoll_ctl, ::repoll_wait, ::rgetpeername,
    ::rgetsockname, ::rsetsockopt, ::rgetsockopt, ::rfcntl,        ::rioctl,     ::rdup,        ::rdup2,
};

struct Bit {
    unsigned bit;
    const char* name;
};
constexpr Bit bits[] = {
    {POLLIN, "IN"},     {POLLPRI, "PRI"},       {POLLOUT, "OUT"},       {POLLERR, "ERR"},     {POLLHUP, "HUP"},
    {POLLNVAL, "NVAL"}, {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}, {POLLRDHUP, "RDHUP"},
};

[[noreturn]] void fail(const std::string& what) { throw Failure(what + ": " + strerror(errno)); }

// What a case that hangs leaves to be said and done: all of it is made before the alarm comes.
struct Hang {
    char text[512];
    char number[24];
    const char* argv[5];
};
Hang hang;

void prepare_hang(const Entry& entry, size_t number, const char* only) {
    snprintf(hang.text, sizeof(hang.text), "not ok %zu - %s\n# it hangs\n", number, entry.name);
    snprintf(hang.number, sizeof(hang.number), "%zu", number);
    const char* const argv[] = {"/proc/self/exe", "--after", hang.number, only, nullptr};
    std::copy(std::begin(argv), std::end(argv), hang.argv);
}

// Called by one thread at a time; an alarm meanwhile may print a part of it.
void add_cause_of_hang(const std::string& cause) {
    const size_t length = strlen(hang.text);
    snprintf(hang.text + length, sizeof(hang.text) - length, "# %s\n", cause.c_str());
}

// The rest runs in this program started anew.
void on_alarm(int) {
    (void)!::write(STDOUT_FILENO, hang.text, strlen(hang.text));
    execv(hang.argv[0], const_cast<char**>(hang.argv));
    _exit(1);
}

std::vector<std::string> run_on(const Api& api, const Entry& entry) {
    alarm(longest_case * patience());
    std::vector<std::string> lines;
    {
        Case c(api);
        try {
            entry.body(c);
            c.join();
        } catch (const Skip&) {
            alarm(0);
            throw;
        } catch (const std::exception& failure) {
            c.note(std::string("failed with ") + api.name + ": " + failure.what());
        }
        lines = c.lines;
    }
    alarm(0);
    return lines;
}

// CONFORMANCE_WITHOUT: words, with commas between them; cases whose names hold one are left out.
bool left_out(const std::string& name) {
    const char* words = getenv("CONFORMANCE_WITHOUT");
    std::string rest = words != nullptr ? words : "";
    while (!rest.empty()) {
        const size_t end = std::min(rest.find(','), rest.size());
        if (end != 0 && name.find(rest.substr(0, end)) != std::string::npos) {
            return true;
        }
        rest.erase(0, end + 1);
    }
    return false;
}

bool run(const Entry& entry, size_t number, const char* only) {
    if (left_out(entry.name)) {
        printf("ok %zu - %s # SKIP left out by CONFORMANCE_WITHOUT\n", number, entry.name);
        fflush(stdout);
        return true;
    }
    prepare_hang(entry, number, only);
    static const bool preloaded = getenv("CONFORMANCE_PRELOADED") != nullptr;
    std::vector<std::string> expected;
    try {
        expected = run_on(preloaded ? system_calls : kernel_api, entry);
    } catch (const Skip& reason) {
        printf("ok %zu - %s # SKIP %s\n", number, entry.name, reason.what());
        fflush(stdout);
        return true;
    }
    const auto got = run_on(preloaded ? kernel_api : rsocket_api, entry);
    const bool failed = std::any_of(expected.begin(), expected.end(),
                                    [](const std::string& line) { return line.rfind("failed with", 0) == 0; });
    const bool same = expected == got && !failed;
    printf("%s %zu - %s\n", same ? "ok" : "not ok", number, entry.name);
    for (size_t i = 0; !same && i < std::max(expected.size(), got.size()); ++i) {
        const std::string one = i < expected.size() ? expected[i] : "(nothing)";
        const std::string other = i < got.size() ? got[i] : "(nothing)";
        printf("#   %s\n", one.c_str());
        if (one != other) {
            printf("# ! %s\n", other.c_str());
        }
    }
    fflush(stdout);
    return same;
}

} // namespace

Registered::Registered(const char* name, void (*body)(Case&)) { entries().push_back({name, body}); }

Case::~Case() {
    for (const int fd : made_) {
        s.close(fd);
    }
    for (auto& thread : threads_) {
        if (thread.joinable()) {
            thread.join();
        }
    }
}

long long Case::say(const char* call, const std::function<long long()>& body) {
    errno = 0;
    const long long ret = body();
    const int error = errno;
    note(std::string(call) + " = " + std::to_string(ret) + (ret < 0 ? std::string(" ") + strerrorname_np(error) : ""));
    return ret;
}

int Case::say_made(const char* call, const std::function<int()>& body) {
    const int fd = body();
    const int error = errno;
    note(std::string(call) + (fd >= 0 ? " = a descriptor" : std::string(" = -1 ") + strerrorname_np(error)));
    return fd >= 0 ? track(fd) : fd;
}

void Case::note_bytes(const char* what, long long length) {
    note(std::string(what) + ": \"" + std::string(buffer, length > 0 ? static_cast<size_t>(length) : 0) + "\"");
}

void Case::note_error(int fd) {
    int error = -1;
    socklen_t length = sizeof(error);
    s.getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    note(std::string("SO_ERROR ") + (error == 0 ? "0" : strerrorname_np(error)));
}

void Case::note_events(const char* what, unsigned events) {
    std::string text = std::string(what) + ":";
    for (const Bit& bit : bits) {
        if ((events & bit.bit) != 0) {
            text += std::string(" ") + bit.name;
        }
    }
    note(text);
}

int Case::track(int fd) {
    made_.push_back(fd);
    return fd;
}

void Case::forget(int fd) { std::erase(made_, fd); }

int Case::make_socket(int family, int flags) {
    const int fd = s.socket(family, SOCK_STREAM | flags, 0);
    if (fd < 0) {
        fail("socket");
    }
    return track(fd);
}

int Case::make_listener(int backlog, int family) {
    const int fd = make_socket(family);
    const sockaddr_in four = loopback(0);
    const sockaddr_in6 six = loopback6(0);
    if ((family == AF_INET ? s.bind(fd, generic(four), sizeof(four)) : s.bind(fd, generic(six), sizeof(six))) != 0) {
        fail("bind");
    }
    if (s.listen(fd, backlog) != 0) {
        fail("listen");
    }
    return fd;
}

sockaddr_storage Case::address_of(int fd) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (s.getsockname(fd, generic(address), &length) != 0) {
        fail("getsockname");
    }
    return address;
}

int Case::make_connected_to(int listener) {
    const sockaddr_storage to = address_of(listener);
    const int fd = make_socket(to.ss_family);
    // CONFORMANCE_OWN_PORTS: connect may give a port that another socket has, towards another peer, or had until a
    // minute ago; bind does not. The fabric path over the tcp core needs it, to listen there.
    static const bool own_ports = getenv("CONFORMANCE_OWN_PORTS") != nullptr;
    sockaddr_storage from = to;
    (to.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(from).sin_port
                             : reinterpret_cast<sockaddr_in6&>(from).sin6_port) = 0;
    if (own_ports && s.bind(fd, generic(from), length_of(from)) != 0) {
        fail("bind");
    }
    if (s.connect(fd, generic(to), length_of(to)) != 0) {
        fail("connect");
    }
    return fd;
}

int Case::accept_from(int listener) {
    const int fd = s.accept(listener, nullptr, nullptr);
    if (fd < 0) {
        fail("accept");
    }
    return track(fd);
}

Pair Case::make_pair(int family) {
    const int listener = make_listener(16, family);
    Pair pair{};
    pair.client = make_connected_to(listener);
    pair.server = accept_from(listener);
    s.close(listener);
    forget(listener);
    exchange(pair);
    return pair;
}

// CONFORMANCE_EXCHANGE: a pair has moved bytes each way before the case begins: so many times, or, where the preloaded
// library upgrades it, 0: until both directions are in memory, or "returned": until they are so again after they went
// back to the kernel, some times.
void Case::exchange(const Pair& pair) {
    static const char* const wanted = getenv("CONFORMANCE_EXCHANGE");
    if (wanted == nullptr) {
        return;
    }
    using PathOf = int (*)(int);
    static const auto path_of = reinterpret_cast<PathOf>(dlsym(RTLD_DEFAULT, "rspreload_path"));
    constexpr int both_directions = 3;
    constexpr int max_exchanges = 100000; // some 20 s: a worker may have to load libfabric
    const bool returns = strcmp(wanted, "returned") == 0;
    const int times = std::max(1, atoi(wanted));
    const bool upgrades = path_of != nullptr && &s != &system_calls && (returns || atoi(wanted) == 0);
    constexpr int enough_returns = 2;
    bool was_in_memory = false;
    int returned = 0;
    for (int i = 0; i < max_exchanges && (upgrades || i < times); ++i) {
        for (const auto& [from, to] : {std::pair{pair.client, pair.server}, std::pair{pair.server, pair.client}}) {
            send_all(from, "x");
            if (s.recv(to, buffer, 1, 0) != 1) {
                fail("recv of the exchange");
            }
        }
        if (!upgrades) {
            continue;
        }
        const bool in_memory = path_of(pair.client) == both_directions && path_of(pair.server) == both_directions;
        if (in_memory && (!returns || returned >= enough_returns)) {
            ++upgraded_pairs;
            return;
        }
        returned += was_in_memory && !in_memory ? 1 : 0;
        was_in_memory = in_memory;
        if (!in_memory) {
            constexpr timespec pause{0, 200000};
            nanosleep(&pause, nullptr); // the service's thread has to come about
        }
    }
    if (upgrades) {
        throw Failure(returned != 0 ? "the pair was not upgraded again"
                                    : "the pair was not upgraded, or did not return");
    }
}

void Case::send_all(int fd, const std::string& text) {
    for (size_t at = 0; at < text.size();) {
        const ssize_t n = s.send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
        if (n < 0) {
            fail("send");
        }
        at += static_cast<size_t>(n);
    }
}

short Case::await(int fd, short events, int timeout_ms) {
    pollfd one{fd, events, 0};
    const int ret = s.poll(&one, 1, timeout_ms);
    if (ret < 0) {
        fail("poll");
    }
    if (ret == 0) {
        throw Failure("nothing happens");
    }
    return one.revents;
}

constexpr int a_second = 1000; // of milliseconds

void Case::note_poll(const char* what, int fd, short events) {
    pollfd one{fd, events, 0};
    int ret = s.poll(&one, 1, 0);
    // On the way back from the fabric, nothing can be sent until the far end knows of it: a send would say EAGAIN.
    static const bool space_comes_later = getenv("CONFORMANCE_SPACE_LATER") != nullptr;
    for (int i = 0; space_comes_later && i < a_second && (events & ~one.revents & POLLOUT) != 0; ++i) {
        usleep(1000);
        ret = s.poll(&one, 1, 0);
    }
    note_events((std::string(what) + " poll = " + std::to_string(ret)).c_str(),
                static_cast<unsigned short>(one.revents));
}

// Milliseconds in which a peer's kernel takes what it is going to take.
int a_while() { return 30 * static_cast<int>(patience()); }

size_t Case::fill(int fd) {
    size_t total = 0;
    // What the kernel takes grows for a moment: until it has taken nothing for a while.
    for (int idle = 0; idle < 3;) {
        const ssize_t n = s.send(fd, buffer, sizeof(buffer), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            total += static_cast<size_t>(n);
            idle = 0;
        } else if (errno == EAGAIN) {
            pollfd one{fd, POLLOUT, 0};
            idle = s.poll(&one, 1, a_while()) == 0 ? 3 : idle + 1;
        } else {
            fail("send");
        }
    }
    // poll wants a good piece of space before it tells of any; send does not. There may be megabytes, where the stream
    // has gone back to the kernel just now: not byte by byte.
    while (s.send(fd, buffer, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {
        ++total;
        for (ssize_t n = 0; (n = s.send(fd, buffer, sizeof(buffer), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0;) {
            total += static_cast<size_t>(n);
        }
    }
    return total;
}

ssize_t Case::send_that_waits(int fd, int flags, size_t* filled) {
    size_t more = 0;
    ssize_t n = 0;
    while ((n = s.send(fd, "x", 1, flags)) == 1) {
        ++more;
        // Without a sleep, which another thread may wait for.
        for (const size_t piece : {sizeof(buffer), size_t{1}}) {
            for (ssize_t taken = 0; (taken = s.send(fd, buffer, piece, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0;) {
                more += static_cast<size_t>(taken);
            }
        }
    }
    if (filled != nullptr) {
        *filled += more;
    }
    return n;
}

void Case::drain(int fd, size_t length) {
    std::vector<char> sink(65536);
    while (length != 0) {
        const ssize_t n = s.recv(fd, sink.data(), std::min(sink.size(), length), 0);
        if (n <= 0) {
            fail("recv");
        }
        length -= static_cast<size_t>(n);
    }
}

void Case::set(int fd, int level, int name, int value) {
    if (s.setsockopt(fd, level, name, &value, sizeof(value)) != 0) {
        fail("setsockopt");
    }
}

void Case::run(std::function<void()> body) {
    threads_.emplace_back([this, body = std::move(body)] {
        try {
            body();
        } catch (const std::exception& failure) {
            const std::scoped_lock lock(failures_mutex_);
            failures_ += std::string(failures_.empty() ? "" : "; ") + "in a thread: " + failure.what();
            // The others may now wait for ever for what this thread would have sent.
            add_cause_of_hang(failures_);
        }
    });
}

void Case::join() {
    for (auto& thread : threads_) {
        thread.join();
    }
    threads_.clear();
    if (!failures_.empty()) {
        throw Failure(std::exchange(failures_, {}));
    }
}

std::string node() {
    const char* named = getenv("FABTESTS_NODE");
    return named != nullptr ? named : "127.0.0.1";
}

void need_loopback() {
    if (node() != "127.0.0.1") {
        throw Skip("for the loopback address only");
    }
}

sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (inet_pton(AF_INET, node().c_str(), &address.sin_addr) != 1) {
        throw Failure("FABTESTS_NODE is not an address of IPv4: " + node());
    }
    return address;
}

sockaddr_in6 loopback6(uint16_t port) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    const char* named = getenv("FABTESTS_NODE6");
    if (inet_pton(AF_INET6, named != nullptr ? named : "::1", &address.sin6_addr) != 1) {
        throw Failure("FABTESTS_NODE6 is not an address of IPv6");
    }
    return address;
}

socklen_t length_of(const sockaddr_storage& address) {
    return address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

uint16_t port_of(const sockaddr_storage& address) {
    sockaddr_in four;
    memcpy(&four, &address, sizeof(four));
    return ntohs(four.sin_port);
}

std::string text_of(const sockaddr_storage& address, bool with_port) {
    char text[INET6_ADDRSTRLEN] = "?";
    const size_t at =
        address.ss_family == AF_INET ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
    inet_ntop(address.ss_family, reinterpret_cast<const char*>(&address) + at, text, sizeof(text));
    const uint16_t port = port_of(address);
    return std::string(text) + (with_port ? ":" + std::to_string(port) : port != 0 ? ":a port" : ":no port");
}

uint16_t closed_port() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in any = loopback(0);
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (::bind(fd, generic(any), sizeof(any)) != 0 || ::getsockname(fd, generic(address), &length) != 0) {
        fail("bind");
    }
    ::close(fd);
    return port_of(address);
}

int thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

void await_sleep(int id) { await_thread_asleep(id); }

} // namespace conformance

int main(int argc, char** argv) {
    using namespace conformance;
    signal(SIGALRM, on_alarm);
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarms, nullptr); // it is blocked after a hang
    const bool anew = argc > 2 && strcmp(argv[1], "--after") == 0;
    const size_t done = anew ? strtoul(argv[2], nullptr, 10) : 0;
    const int first = anew ? 3 : 1;
    const char* only = argc > first ? argv[first] : getenv("CONFORMANCE_ONLY");
    size_t total = 0;
    for (const Entry& entry : entries()) {
        total += only == nullptr || strstr(entry.name, only) != nullptr ? 1 : 0;
    }
    if (!anew) {
        printf("1..%zu\n", total);
        fflush(stdout);
    }
    size_t number = 0;
    size_t failures = anew ? 1 : 0;
    for (const Entry& entry : entries()) {
        if ((only == nullptr || strstr(entry.name, only) != nullptr) && ++number > done) {
            failures += run(entry, number, only) ? 0 : 1;
        }
    }
    return failures != 0 ? 1 : 0;
}
