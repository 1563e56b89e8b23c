// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Random calls on both ends of some connections, and a line for each that says what it returned. random_calls_test.sh
// runs it without and with the preload library, and compares.
//
// random_calls_test SEED CALLS
//
// Left out is what differs from run to run, or may differ (BUGS of rspreload-ofi(7)): partial writes, resets,
// splice(2), EPOLLET.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/test/pair.hpp"
#include "preload/test/torture_parts/random.hpp"

namespace {

using torture::Random;
using Bytes = std::vector<char>;

constexpr size_t connections = 2;
constexpr size_t max_fds = 4;         // of an end
constexpr uint64_t max_unread = 6000; // less than the smallest buffer of any path: each write is taken whole
constexpr int patience_ms = 20000;

[[noreturn]] void give_up(const char* what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(2);
}
#define MUST(condition) ((condition) ? (void)0 : give_up(#condition))

// Shared with children.
struct Counts {
    uint64_t sent = 0;
    uint64_t taken = 0;
    bool shut = false;
};

struct End {
    std::vector<int> fds;
    Counts* counts = nullptr;
    [[nodiscard]] bool closed() const { return fds.empty(); }
};

char pattern(size_t direction, uint64_t position) {
    return static_cast<char>(position * 7 + position / 251 + direction);
}

uint32_t hash_of(const Bytes& bytes, size_t length) {
    uint32_t hash = 5381;
    for (size_t i = 0; i < length; ++i) {
        hash = hash * 33 + static_cast<unsigned char>(bytes[i]);
    }
    return hash;
}

class Program {
  public:
    Program(uint64_t seed, Counts* counts) : random_(seed) {
        for (auto& ends : ends_) {
            for (End& end : ends) {
                end.counts = counts++;
            }
        }
        MUST((set_ = epoll_create1(EPOLL_CLOEXEC)) >= 0);
        for (size_t c = 0; c < connections; ++c) {
            connect_anew(c);
        }
    }
    void call(int number) {
        const size_t c = random_.below(connections);
        const size_t side = random_.below(2);
        printf("%d: %zu.%zu ", number, c, side);
        if (ends_[c][side].closed()) {
            printf("new");
            connect_anew(c);
        } else {
            any_call(c, side);
        }
        printf("\n");
        await_quiet(c);
    }

  private:
    End& peer_of(size_t c, size_t side) { return ends_[c][1 - side]; }
    uint64_t unread(size_t c, size_t side) { return peer_of(c, side).counts->sent - ends_[c][side].counts->taken; }
    int any_fd(const End& end) { return end.fds[random_.below(end.fds.size())]; }

    void connect_anew(size_t c) {
        for (End& end : ends_[c]) {
            for (const int fd : std::exchange(end.fds, {})) {
                close(fd);
            }
            *end.counts = Counts();
        }
        const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address);
        auto* generic = reinterpret_cast<sockaddr*>(&address);
        MUST(bind(listener, generic, length) == 0 && listen(listener, 1) == 0);
        MUST(getsockname(listener, generic, &length) == 0);
        const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        MUST(connect(client, generic, length) == 0);
        const int server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        MUST(server >= 0);
        close(listener);
        ends_[c][0].fds = {client};
        ends_[c][1].fds = {server};
    }

    void any_call(size_t c, size_t side) {
        End& end = ends_[c][side];
        const uint64_t kind = random_.below(100);
        if (kind < 26) {
            send_some(c, side);
        } else if (kind < 30) {
            send_corked(c, side);
        } else if (kind < 58) {
            receive_some(c, side);
        } else if (kind < 66) {
            poll_end(any_fd(end));
        } else if (kind < 71) {
            select_end(any_fd(end));
        } else if (kind < 80) {
            control_set(c, side);
        } else if (kind < 88) {
            wait_in_set();
        } else if (kind < 91) {
            query(any_fd(end));
        } else if (kind < 94) {
            change_fds(c, side);
        } else if (kind < 96) {
            in_child(c, side);
        } else if (kind < 98) {
            pass(end);
        } else {
            finish(c, side);
        }
    }

    // ---- bytes

    void send_some(size_t c, size_t side) {
        End& end = ends_[c][side];
        const uint64_t most = max_unread - std::min(max_unread, unread(c, 1 - side));
        if (end.counts->shut || peer_of(c, side).closed() || most == 0) {
            printf("no send");
            return;
        }
        const size_t length = std::min(most, 1 + random_.below(random_.below(6) != 0 ? 40 : 3000));
        Bytes bytes(length);
        for (size_t i = 0; i < length; ++i) {
            bytes[i] = pattern(side, end.counts->sent + i);
        }
        const uint64_t kind = random_.below(6);
        const ssize_t n = send_by(kind, any_fd(end), bytes);
        printf("send/%d %zu = %zd", static_cast<int>(kind), length, n);
        MUST(n > 0);
        end.counts->sent += static_cast<uint64_t>(n);
    }

    // What is held back keeps its place, whatever happens to the connection meanwhile; the program lets it go, or time
    // does. Whether the peer sees it by then depends on time: it does not look.
    void send_corked(size_t c, size_t side) {
        End& end = ends_[c][side];
        cork(any_fd(end), 1);
        for (uint64_t left = 1 + random_.below(3); left > 0; --left) {
            send_some(c, side);
            printf(" ");
        }
        const uint64_t kind = random_.below(8);
        if (kind == 0) {
            change_fds(c, side);
        } else if (kind == 1) {
            in_child(c, side);
        } else if (kind == 2) {
            pass(end);
        } else if (kind == 3) {
            query(any_fd(end));
        }
        printf(" uncorked");
        if (random_.below(3) == 0) {
            await_quiet(c);
        }
        cork(any_fd(end), 0);
    }

    static void cork(int fd, int on) { MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0); }

    static ssize_t send_by(uint64_t kind, int fd, Bytes& bytes) {
        const size_t half = bytes.size() / 2;
        std::array<iovec, 3> parts{
            {{bytes.data(), half}, {bytes.data(), 0}, {bytes.data() + half, bytes.size() - half}}};
        switch (kind) {
        case 0:
            return write(fd, bytes.data(), bytes.size());
        case 1:
            return writev(fd, parts.data(), parts.size());
        case 2: {
            msghdr message{};
            message.msg_iov = parts.data();
            message.msg_iovlen = parts.size();
            return sendmsg(fd, &message, MSG_NOSIGNAL);
        }
        case 3: {
            std::array<mmsghdr, 2> messages{};
            messages[0].msg_hdr.msg_iov = parts.data();
            messages[0].msg_hdr.msg_iovlen = 1;
            messages[1].msg_hdr.msg_iov = &parts[2];
            messages[1].msg_hdr.msg_iovlen = 1;
            const int sent = sendmmsg(fd, messages.data(), messages.size(), 0);
            return sent < 0 ? -1 : messages[0].msg_len + (sent > 1 ? messages[1].msg_len : 0);
        }
        case 4: {
            const int file = memfd_create("random_calls", MFD_CLOEXEC);
            MUST(file >= 0 && write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
            off_t offset = 0;
            const ssize_t n = sendfile(fd, file, &offset, bytes.size());
            close(file);
            return n;
        }
        default:
            return send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | (bytes.size() % 8 == 0 ? MSG_MORE : 0));
        }
    }

    void receive_some(size_t c, size_t side) {
        constexpr std::array<int, 8> flags{0, 0, 0, MSG_PEEK, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_WAITALL, MSG_PEEK};
        Bytes bytes(1 + random_.below(random_.below(4) != 0 ? 60 : 8000));
        const int by = flags[random_.below(flags.size())] | MSG_DONTWAIT;
        const uint64_t kind = random_.below(4);
        const int fd = any_fd(ends_[c][side]);
        const auto [n, error] = receive_by(kind, fd, bytes, by);
        const size_t there = (by & MSG_TRUNC) != 0 ? 0 : static_cast<size_t>(std::max<ssize_t>(n, 0));
        const bool peeks = (by & MSG_PEEK) != 0;
        printf("receive/%d %zu 0x%x = %zd %s %08x", static_cast<int>(kind), bytes.size(), static_cast<unsigned>(by),
               peeks ? std::min<ssize_t>(n, 1) : n, n < 0 ? strerrorname_np(error) : "",
               hash_of(bytes, peeks ? 0 : there));
        for (size_t i = 0; i < there; ++i) {
            if (bytes[i] != pattern(1 - side, ends_[c][side].counts->taken + i)) {
                printf(" wrong at %zu", i);
                break;
            }
        }
        if (n > 0 && !peeks) {
            ends_[c][side].counts->taken += static_cast<uint64_t>(n);
        }
    }

    static std::pair<ssize_t, int> receive_by(uint64_t kind, int fd, Bytes& bytes, int flags) {
        const size_t half = bytes.size() / 2;
        std::array<iovec, 3> parts{
            {{bytes.data(), half}, {bytes.data(), 0}, {bytes.data() + half, bytes.size() - half}}};
        ssize_t n = 0;
        if (kind == 0) {
            msghdr message{};
            message.msg_iov = parts.data();
            message.msg_iovlen = parts.size();
            n = recvmsg(fd, &message, flags);
        } else if (kind == 1) {
            sockaddr_storage from{};
            socklen_t length = sizeof(from);
            n = recvfrom(fd, bytes.data(), bytes.size(), flags, reinterpret_cast<sockaddr*>(&from), &length);
        } else {
            n = recv(fd, bytes.data(), bytes.size(), flags);
        }
        return {n, errno};
    }

    // ---- waiting

    void poll_end(int fd) {
        constexpr std::array<short, 6> all{
            POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP, 0, POLLRDNORM | POLLWRNORM | POLLPRI};
        pollfd one{fd, all[random_.below(all.size())], 0};
        const int n = poll(&one, 1, 0);
        printf("poll 0x%x = %d 0x%x", static_cast<unsigned>(one.events), n, static_cast<unsigned>(one.revents));
    }

    void select_end(int fd) {
        std::array<fd_set, 3> sets;
        for (fd_set& set : sets) {
            FD_ZERO(&set);
            if (random_.below(3) != 0) {
                FD_SET(fd, &set);
            }
        }
        timeval none{};
        const int n = select(fd + 1, &sets[0], &sets[1], &sets[2], &none);
        printf("select = %d", n);
        for (fd_set& set : sets) {
            printf(" %d", FD_ISSET(fd, &set) ? 1 : 0);
        }
    }

    // Of the first fd of an end: what becomes of a closed one is a matter of its duplicates.
    void control_set(size_t c, size_t side) {
        constexpr std::array<uint32_t, 6> all{EPOLLIN,
                                              EPOLLOUT,
                                              EPOLLIN | EPOLLOUT,
                                              EPOLLIN | EPOLLRDHUP,
                                              EPOLLIN | EPOLLONESHOT,
                                              EPOLLOUT | EPOLLRDHUP | EPOLLONESHOT};
        constexpr std::array<int, 4> operations{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
        epoll_event event{};
        event.events = all[random_.below(all.size())];
        event.data.u64 = 2 * c + side;
        const int operation = operations[random_.below(operations.size())];
        const int result = epoll_ctl(set_, operation, ends_[c][side].fds[0], &event);
        printf("epoll_ctl %d 0x%x = %d %s", operation, event.events, result, result < 0 ? strerrorname_np(errno) : "");
    }

    void wait_in_set() {
        std::array<epoll_event, 2 * max_fds * connections> events{};
        const int n = epoll_wait(set_, events.data(), static_cast<int>(events.size()), 0);
        std::vector<std::string> all;
        for (int i = 0; i < n; ++i) {
            const epoll_event& event = events[static_cast<size_t>(i)];
            all.push_back(std::to_string(event.data.u64) + ":" + std::to_string(event.events));
        }
        std::sort(all.begin(), all.end());
        printf("epoll_wait = %d", n);
        for (const std::string& one : all) {
            printf(" %s", one.c_str());
        }
    }

    static void query(int fd) {
        int unread = -1;
        int mark = -1;
        int error = -1;
        socklen_t length = sizeof(error);
        const int first = ioctl(fd, FIONREAD, &unread);
        const int second = ioctl(fd, SIOCATMARK, &mark);
        const int third = getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
        printf("query = %d %d, %d %d, %d %d", first, unread, second, mark, third, error);
    }

    // ---- descriptors

    void change_fds(size_t c, size_t side) {
        End& end = ends_[c][side];
        const int fd = any_fd(end);
        switch (random_.below(3)) {
        case 0:
            if (end.fds.size() < max_fds) {
                end.fds.push_back(random_.below(2) != 0 ? dup(fd) : fcntl(fd, F_DUPFD_CLOEXEC, 50));
            }
            printf("dup");
            break;
        case 1: {
            const int flags = fcntl(fd, F_GETFL);
            printf("flags 0%o = %d", static_cast<unsigned>(flags), fcntl(fd, F_SETFL, flags ^ O_NONBLOCK));
            break;
        }
        default:
            if (end.fds.size() > 1) {
                printf("close = %d", close(end.fds.back()));
                end.fds.pop_back();
            }
        }
    }

    void in_child(size_t c, size_t side) {
        printf("in a child: ");
        fflush(stdout);
        const uint64_t seed = random_.next();
        const pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            random_ = Random(seed);
            random_.below(2) != 0 ? send_some(c, side) : receive_some(c, side);
            fflush(stdout);
            _exit(0);
        }
        int status = -1;
        MUST(waitpid(child, &status, 0) == child);
        printf(" status %d", status);
    }

    // To this process itself. The fd that was passed stays open, or does not.
    void pass(End& end) {
        if (end.fds.size() == max_fds) {
            printf("no pass");
            return;
        }
        const int fd = end.fds.back();
        const int again = preload_test::passed(fd);
        if (end.fds.size() > 1 && random_.below(2) != 0) {
            close(fd);
            end.fds.pop_back();
        }
        end.fds.push_back(again);
        printf("pass");
    }

    // A close with bytes unread resets the connection.
    void finish(size_t c, size_t side) {
        End& end = ends_[c][side];
        if (!end.counts->shut) {
            printf("shutdown = %d", shutdown(any_fd(end), SHUT_WR));
            end.counts->shut = true;
        } else if (unread(c, side) == 0 && peer_of(c, side).counts->shut) {
            printf("close all");
            for (const int fd : std::exchange(end.fds, {})) {
                close(fd);
            }
        }
    }

    // Until everything that was sent is there.
    void await_quiet(size_t c) {
        for (const size_t side : {size_t{0}, size_t{1}}) {
            const End& end = ends_[c][side];
            if (end.closed()) {
                continue;
            }
            const uint64_t wanted = unread(c, side);
            int there = 0;
            for (int i = 0; i < patience_ms; ++i) {
                MUST(ioctl(end.fds[0], FIONREAD, &there) == 0);
                if (static_cast<uint64_t>(there) == wanted) {
                    break;
                }
                usleep(1000);
            }
            if (static_cast<uint64_t>(there) != wanted) {
                printf("%zu.%zu: %d bytes are there, not %ju\n", c, side, there, static_cast<uintmax_t>(wanted));
                exit(1);
            }
            if (peer_of(c, side).counts->shut) {
                pollfd one{end.fds[0], POLLRDHUP, 0};
                MUST(poll(&one, 1, patience_ms) == 1);
            }
        }
    }

    Random random_;
    std::array<std::array<End, 2>, connections> ends_;
    int set_ = -1;
};

} // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1;
    const int calls = argc > 2 ? static_cast<int>(strtol(argv[2], nullptr, 10)) : 200;
    signal(SIGPIPE, SIG_IGN);
    void* shared =
        mmap(nullptr, 2 * connections * sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    Program program(seed, static_cast<Counts*>(shared));
    for (int i = 0; i < calls; ++i) {
        program.call(i);
    }
    return 0;
}
