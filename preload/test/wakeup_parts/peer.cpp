// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/test/wakeup_parts/peer.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace wakeup_test {

using preload_test::path_of;

struct Peer::Command {
    Do what;
    int connection;
    long value;
};

namespace {

struct Poller {
    std::atomic<pid_t> tid{0};
    std::atomic<bool> done{false};
};

// Threads of the peer that wait for a byte each.
class Pollers {
  public:
    long start(const std::vector<int>& fds) {
        for (const int fd : fds) {
            auto* one = all_.emplace_back(std::make_unique<Poller>()).get();
            std::thread([one, fd] {
                one->tid = static_cast<pid_t>(syscall(SYS_gettid));
                pollfd wanted{fd, POLLIN, 0};
                char byte = 0;
                if (poll(&wanted, 1, -1) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) == 1) {
                    one->done = true;
                }
            }).detach();
        }
        return eventually([&] {
            return std::all_of(all_.begin(), all_.end(), [](const auto& one) { return is_thread_asleep(one->tid); });
        })
                   ? 0
                   : -1;
    }
    long await() {
        const auto is_done = [](const auto& one) { return one->done.load(); };
        const bool all = eventually([&] { return std::all_of(all_.begin(), all_.end(), is_done); });
        const long missing = static_cast<long>(all_.size()) - std::count_if(all_.begin(), all_.end(), is_done);
        if (all) {
            all_.clear();
        }
        return missing;
    }

  private:
    std::vector<std::unique_ptr<Poller>> all_;
};

// Sends at most so many, and returns as send(2).
ssize_t send_next(int fd, size_t count, int flags) {
    static long position = 0;
    std::array<char, 65536> bytes{};
    count = std::min(bytes.size(), count);
    for (size_t i = 0; i < count; ++i) {
        bytes[i] = sent_byte(position + static_cast<long>(i));
    }
    const ssize_t n = send(fd, bytes.data(), count, flags | MSG_NOSIGNAL);
    position += std::max(n, ssize_t{0});
    return n;
}

long move_bytes(int fd, long count, bool out) {
    std::array<char, 65536> bytes{};
    long done = 0;
    while (done < count) {
        const size_t now = std::min(bytes.size(), static_cast<size_t>(count - done));
        const ssize_t n = out ? send_next(fd, now, 0) : recv(fd, bytes.data(), now, 0);
        if (n <= 0) {
            return -1;
        }
        done += n;
    }
    return done;
}

long echo(int fd, long count) {
    for (long i = 0; i < count; ++i) {
        char byte = 0;
        if (recv(fd, &byte, 1, 0) != 1 || send(fd, &byte, 1, MSG_NOSIGNAL) != 1) {
            return i;
        }
    }
    return count;
}

// Until there is nothing, or as many as wanted.
long move_now(int fd, bool out, long count = LONG_MAX) {
    std::array<char, 65536> bytes{};
    long done = 0;
    while (done < count) {
        const size_t now = std::min(bytes.size(), static_cast<size_t>(count - done));
        const ssize_t n = out ? send_next(fd, now, MSG_DONTWAIT) : recv(fd, bytes.data(), now, MSG_DONTWAIT);
        if (n <= 0) {
            break;
        }
        done += n;
    }
    return done;
}

[[noreturn]] void close_and_end(int fd, long how) {
    ::close(fd);
    if (how == by_exit) {
        exit(0);
    }
    if (how == by_another_program) {
        execl("/bin/true", "true", nullptr);
    }
    if (how == by_filter) {
        sock_filter allow_all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        const sock_fprog program{1, &allow_all};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
        pause();
    }
    _exit(0);
}

long connect_to(long port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? fd : -1;
}

} // namespace

void Peer::serve(int control) {
    std::vector<int> fds;
    Pollers pollers;
    Command command{};
    while (recv(control, &command, sizeof(command), 0) == sizeof(command)) {
        const int fd = fds.empty() ? -1 : fds[static_cast<size_t>(command.connection)];
        long result = 0;
        switch (command.what) {
        case Do::connect:
            result = connect_to(command.value);
            fds.push_back(static_cast<int>(result));
            break;
        case Do::path:
            result = path_of(fd);
            break;
        case Do::send:
            result = move_bytes(fd, command.value, true);
            break;
        case Do::receive:
            result = move_bytes(fd, command.value, false);
            break;
        case Do::echo:
            result = echo(fd, command.value);
            break;
        case Do::drain:
            result = move_now(fd, false);
            break;
        case Do::block:
            result = move_now(fd, true, command.value);
            break;
        case Do::shut:
            result = shutdown(fd, SHUT_WR);
            break;
        case Do::close:
            result = ::close(fd);
            break;
        case Do::narrow: {
            constexpr int little = 32768;
            result = setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
            break;
        }
        case Do::end:
            close_and_end(fd, command.value);
        case Do::wait:
            result = eventually([] { return are_all_threads_stopped(getppid()); }) ? 0 : -1;
            break;
        case Do::die:
            raise(SIGKILL);
            break;
        case Do::sleep_all:
            result = pollers.start(fds);
            break;
        case Do::await_all:
            result = pollers.await();
            break;
        }
        if (::send(control, &result, sizeof(result), MSG_NOSIGNAL) < 0) {
            break;
        }
    }
    _exit(0);
}

Peer::Peer(int connections) {
    std::array<int, 2> control{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control.data()), 0);
    const timeval limit{patience_ms() * 3 / 1000, 0};
    setsockopt(control[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    pid_ = fork();
    EXPECT(pid_ >= 0);
    if (pid_ == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::close(control[0]);
        alarm(0);
        serve(control[1]);
    }
    ::close(control[1]);
    control_ = control[0];
    const preload_test::Listener listener(8);
    for (int i = 0; i < connections; ++i) {
        EXPECT(ask(Do::connect, listener.port()) >= 0);
        fds_.push_back(listener.accept());
        upgrade(static_cast<size_t>(i));
    }
}

Peer::~Peer() {
    for (const int fd : fds_) {
        if (fd >= 0) {
            ::close(fd);
        }
    }
    ::close(control_);
    ::kill(pid_, SIGKILL);
    ::kill(pid_, SIGCONT);
    waitpid(pid_, nullptr, 0);
}

void Peer::close_own(size_t i) {
    ::close(fds_[i]);
    fds_[i] = -1;
}

void Peer::tell(Do what, long value, int connection) const {
    const Command command{what, connection, value};
    EXPECT_EQ(::send(control_, &command, sizeof(command), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(command)));
}

long Peer::answer() const {
    long result = 0;
    EXPECT_EQ(recv(control_, &result, sizeof(result), 0), static_cast<ssize_t>(sizeof(result)));
    return result;
}

void Peer::kill(int signal) const { EXPECT_EQ(::kill(pid_, signal), 0); }

void Peer::stop() const {
    kill(SIGSTOP);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT(WIFSTOPPED(status));
}

void Peer::ping_pong(size_t i) const {
    char byte = 'p';
    tell(Do::echo, 1, static_cast<int>(i));
    EXPECT_EQ(::send(fds_[i], &byte, 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(recv(fds_[i], &byte, 1, 0), 1);
    EXPECT_EQ(byte, 'p');
    EXPECT_EQ(answer(), 1);
}

void Peer::upgrade(size_t i) const {
    EXPECT(eventually([&] {
        ping_pong(i);
        return path_of(fds_[i]) == 3 && ask(Do::path, 0, static_cast<int>(i)) == 3;
    }));
}

} // namespace wakeup_test
