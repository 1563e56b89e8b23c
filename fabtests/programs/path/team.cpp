// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/programs/path/team.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

namespace path_bench {

using util::fail;

namespace {

// How a process ends that has no figures.
constexpr int failed = 1;
constexpr int lost_its_peer = 2;

sigset_t child_signal() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    return set;
}

void write_all(const Fd& fd, const void* bytes, size_t size) {
    const auto* at = static_cast<const char*>(bytes);
    while (size > 0) {
        const ssize_t written = write(fd.get(), at, size);
        if (written <= 0) {
            return; // nobody is left to read it
        }
        at += written;
        size -= static_cast<size_t>(written);
    }
}

std::string read_all(const Fd& fd) {
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t got; (got = read(fd.get(), part.data(), part.size())) > 0;) {
        text.append(part.data(), static_cast<size_t>(got));
    }
    return text;
}

} // namespace

uint64_t now_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

Team::Team(unsigned limit_seconds)
    : limit_(limit_seconds), deadline_(Clock::now() + std::chrono::seconds(limit_seconds)) {
    const sigset_t set = child_signal();
    sigprocmask(SIG_BLOCK, &set, nullptr); // sigtimedwait() takes it
}

Team::~Team() { end_all(); }

void Team::start(const std::string& name, const std::function<Figures()>& body) {
    std::array<int, 2> ends{};
    checked("pipe2", pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK));
    Fd read_end(ends[0]);
    const Fd write_end(ends[1]);
    const pid_t parent = getpid();
    const pid_t pid = checked("fork", fork());
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(failed);
        }
        become(body, write_end);
    }
    members_.push_back({name, pid, std::move(read_end)});
}

void Team::become(const std::function<Figures()>& body, const Fd& report) {
    const sigset_t set = child_signal();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    const auto end = [&](int status, const char* text) {
        write_all(report, text, strlen(text));
        _exit(status);
    };
    try {
        const Figures figures = body(); // its sockets are closed when it returns
        write_all(report, figures.data(), figures.size() * sizeof(figures[0]));
        _exit(0);
    } catch (const PeerLost& lost) {
        end(lost_its_peer, lost.what());
    } catch (const std::bad_alloc&) {
        end(failed, "not enough memory");
    } catch (const std::exception& error) {
        end(failed, error.what());
    }
    _exit(failed);
}

std::vector<Figures> Team::finish() {
    if (!wait_until(deadline_, true)) {
        const auto late = std::find_if(members_.begin(), members_.end(), [](const Member& m) { return m.running; });
        fail("the {} did not end within {} s (--limit)", late->name, limit_);
    }
    if (std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.running || m.status != 0; })) {
        fail_for_members();
    }
    std::vector<Figures> all;
    for (const Member& member : members_) {
        const std::string bytes = read_all(member.report);
        Figures& figures = all.emplace_back(bytes.size() / sizeof(double));
        if (!figures.empty()) {
            memcpy(figures.data(), bytes.data(), figures.size() * sizeof(double));
        }
    }
    return all;
}

// False if the time is over.
bool Team::wait_until(Clock::time_point deadline, bool stop_at_failure) {
    const sigset_t set = child_signal();
    for (;;) {
        bool running = false;
        bool bad = false;
        for (Member& member : members_) {
            if (member.running && waitpid(member.pid, &member.status, WNOHANG) == member.pid) {
                member.running = false;
            }
            running |= member.running;
            bad |= member.status != 0;
        }
        if (!running || (bad && stop_at_failure)) {
            return true;
        }
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
        if (left <= 0) {
            return false;
        }
        // A signal that came before is pending, or its process was found above.
        const timespec time{left / 1000000000, left % 1000000000};
        sigtimedwait(&set, nullptr, &time);
    }
}

void Team::end_all() {
    for (Member& member : members_) {
        if (member.running) {
            kill(member.pid, SIGKILL);
            waitpid(member.pid, &member.status, 0);
            member.running = false;
        }
    }
}

// The first to end need not be the one to blame: its peer may be about to say what is wrong.
void Team::fail_for_members() {
    wait_until(std::min(deadline_, Clock::now() + std::chrono::milliseconds(500)), false);
    const auto badness = [](const Member& member) {
        if (member.running || member.status == 0) {
            return 0;
        }
        if (WIFSIGNALED(member.status)) {
            return 3;
        }
        return WEXITSTATUS(member.status) == lost_its_peer ? 1 : 2;
    };
    const auto worst = std::max_element(members_.begin(), members_.end(),
                                        [&](const Member& a, const Member& b) { return badness(a) < badness(b); });
    if (WIFSIGNALED(worst->status)) {
        fail("the {} was ended by signal {}", worst->name, WTERMSIG(worst->status));
    }
    const std::string text = read_all(worst->report);
    fail("the {}: {}", worst->name, text.empty() ? "it ended without a word" : text);
}

Link::Link() {
    std::array<int, 2> ends{};
    checked("socketpair", socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()));
    ends_[0] = Fd(ends[0]);
    ends_[1] = Fd(ends[1]);
}

void Link::keep(size_t end) {
    kept_ = end;
    ends_[1 - end].reset();
}

void Link::tell(uint64_t value) const {
    checked("send", ::send(ends_[kept_].get(), &value, sizeof(value), MSG_NOSIGNAL));
}

uint64_t Link::hear() const {
    uint64_t value = 0;
    if (checked("recv", ::recv(ends_[kept_].get(), &value, sizeof(value), 0)) != sizeof(value)) {
        throw PeerLost("the other process ended");
    }
    return value;
}

SharedBoard::SharedBoard() {
    void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail_call("mmap");
    }
    board_ = new (memory) Board;
}

SharedBoard::~SharedBoard() { munmap(board_, sizeof(Board)); }

} // namespace path_bench
