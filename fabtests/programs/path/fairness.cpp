// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The mode fairness: an epoll loop that always has requests to serve, and how late it hears of what else is in its set:
// a timer, a pipe, and a UNIX socket.
#include <algorithm>
#include <array>
#include <cerrno>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "fabtests/programs/path/message.hpp"
#include "fabtests/programs/path/modes.hpp"

namespace path_bench {

namespace {

constexpr size_t connections = 4;
constexpr size_t message_size = 64;
constexpr size_t flood_batch = 64; // messages of one write: the reader takes one at a time, and stays behind
constexpr int max_events = 64;
constexpr uint64_t period_ns = 1000000;
constexpr uint64_t settle_ns = 50 * period_ns; // of the flood, before events count
constexpr uint64_t patience_ns = 10000 * period_ns;

enum Member : uint32_t { timer = connections, pipe_end, unix_socket, members };
constexpr std::array<const char*, 3> names = {"timer", "pipe", "socket"};

void sleep_until(uint64_t ns) {
    const timespec time{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
    }
}

// The third process: writes the time to the pipe and to the socket in each period.
Figures tick(const SharedBoard& board, const std::array<Fd, 2>& ends) {
    for (uint64_t next = now_ns(); !board->over; next += period_ns) {
        sleep_until(next);
        for (const Fd& end : ends) {
            const uint64_t now = now_ns();
            if (write(end.get(), &now, sizeof(now)) < 0 && !board->over) {
                fail_call("write");
            }
        }
    }
    return {};
}

// The peer: each connection gets as many bytes as it takes.
class Flood {
  public:
    explicit Flood(uint64_t port) {
        for (Stream& stream : streams_) {
            stream.socket = connect_to(port);
        }
    }
    void run(const SharedBoard& board, uint64_t warm) {
        for (Stream& stream : streams_) {
            Channel channel(std::move(stream.socket), Wait::block);
            Exchange(channel, message_size).repeat(warm);
            stream.socket = channel.release();
            set_non_blocking(stream.socket);
        }
        while (!board->over) {
            bool any = false;
            for (Stream& stream : streams_) {
                any |= stream.write();
            }
            if (!any) {
                wait();
            }
        }
        for (Stream& stream : streams_) { // so that the last message is whole
            while (stream.left() % message_size != 0) {
                if (!stream.write_until(stream.left() / message_size * message_size)) {
                    wait();
                }
            }
        }
    }

  private:
    struct Stream {
        Fd socket;
        std::vector<char> batch = std::vector<char>(flood_batch * message_size);
        size_t sent = flood_batch * message_size;
        uint64_t sequence = 0;

        [[nodiscard]] size_t left() const { return batch.size() - sent; }
        bool write() {
            if (left() == 0) {
                for (sent = 0; sent < batch.size(); sent += message_size) {
                    stamp(std::span(batch).subspan(sent, message_size), sequence++);
                }
                sent = 0;
            }
            return write_until(0);
        }
        // Writes what is in front of the last bytes; false if nothing could be written.
        bool write_until(size_t kept) {
            const ssize_t n = ::send(socket.get(), batch.data() + sent, left() - kept, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) {
                return false;
            }
            sent += static_cast<size_t>(checked("send", n));
            return true;
        }
    };
    void wait() {
        constexpr int some_ms = 10; // then it looks whether all is over
        std::array<pollfd, connections> entries{};
        for (size_t i = 0; i < connections; ++i) {
            entries[i] = {streams_[i].socket.get(), POLLOUT, 0};
        }
        waited("poll", poll(entries.data(), entries.size(), some_ms));
    }
    std::array<Stream, connections> streams_;
};

// The process that is measured.
class Loop {
  public:
    Loop(const Listener& listener, const std::array<Fd, 2>& ends, uint64_t warm)
        : set_(checked("epoll_create1", epoll_create1(EPOLL_CLOEXEC))),
          timer_(checked("timerfd_create", timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC))), ends_(ends) {
        for (Request& request : requests_) {
            request.socket = listener.accept();
        }
        for (Request& request : requests_) {
            Channel channel(std::move(request.socket), Wait::block);
            echo(channel, message_size, warm);
            request.socket = channel.release();
            set_non_blocking(request.socket);
        }
        for (uint32_t i = 0; i < connections; ++i) {
            add_to(set_, requests_[i].socket.get(), EPOLLIN, i);
        }
        add_to(set_, timer_.get(), EPOLLIN, timer);
        add_to(set_, ends[0].get(), EPOLLIN, pipe_end);
        add_to(set_, ends[1].get(), EPOLLIN, unix_socket);
    }

    // Runs until an event of each kind is heard of that came behind the end: whatever was late is in the delays then.
    void run(uint64_t duration_ns) {
        const uint64_t begun = now_ns();
        start_ = begun + settle_ns;
        end_ = start_ + duration_ns;
        next_expiry_ = begun + period_ns;
        itimerspec times{};
        times.it_interval.tv_nsec = period_ns;
        times.it_value.tv_sec = static_cast<time_t>(next_expiry_ / 1000000000);
        times.it_value.tv_nsec = static_cast<long>(next_expiry_ % 1000000000);
        checked("timerfd_settime", timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &times, nullptr));
        while (!std::all_of(kinds_.begin(), kinds_.end(), [](const Kind& kind) { return kind.finished; })) {
            dispatch();
            const uint64_t now = now_ns();
            served_at_end_ = now < end_ ? served_ : served_at_end_;
            served_at_start_ = now < start_ ? served_ : served_at_start_;
            if (now > end_ + patience_ns) {
                const auto starved =
                    std::find_if(kinds_.begin(), kinds_.end(), [](const Kind& kind) { return !kind.finished; });
                util::fail("no event of the {} was heard of for {} s", name_of_kind(*starved),
                           patience_ns / 1000000000);
            }
        }
    }

    // What the peer has still sent, up to its end.
    void drain() {
        std::vector<char> buffer(65536);
        for (Request& request : requests_) {
            Channel channel(std::move(request.socket), Wait::poll);
            for (size_t got; (got = channel.receive(buffer)) != 0;) {
                request.take(std::span(buffer).first(got));
            }
            if (request.have != 0) {
                util::fail("the stream ended within a message");
            }
        }
    }

    Figures figures() {
        Figures all = {static_cast<double>(served_at_end_ - served_at_start_)};
        for (Kind& kind : kinds_) {
            if (kind.delays_us.empty()) {
                util::fail("there was no event of the {}; try a longer --duration", name_of_kind(kind));
            }
            const Figures found = distribution(kind.delays_us);
            all.push_back(static_cast<double>(kind.delays_us.size()));
            all.insert(all.end(), found.begin(), found.begin() + 3);
        }
        return all;
    }

  private:
    struct Request {
        Fd socket;
        std::array<char, message_size> in{};
        size_t have = 0;
        uint64_t sequence = 0;

        // How many messages they complete, each of which is verified.
        uint64_t take(std::span<const char> bytes) {
            const uint64_t before = sequence;
            while (!bytes.empty()) {
                const size_t length = std::min(in.size() - have, bytes.size());
                memcpy(in.data() + have, bytes.data(), length);
                bytes = bytes.subspan(length);
                have += length;
                if (have == in.size()) {
                    verify(in, sequence++);
                    have = 0;
                }
            }
            return sequence - before;
        }
    };
    struct Kind {
        std::vector<double> delays_us;
        uint64_t last = 0;
        bool finished = false;
    };

    void dispatch() {
        std::array<epoll_event, max_events> events{};
        const int count = waited("epoll_wait", epoll_wait(set_.get(), events.data(), max_events, -1));
        for (int i = 0; i < count; ++i) {
            const uint32_t member = events[static_cast<size_t>(i)].data.u32;
            if (member == timer) {
                take_expirations();
            } else if (member > timer) {
                take_times(member);
            } else {
                take_request(requests_[member]);
            }
        }
    }

    // As a server does that handles one request for each event.
    void take_request(Request& request) {
        std::array<char, message_size> bytes{};
        const ssize_t got = recv(request.socket.get(), bytes.data(), bytes.size(), 0);
        if (got < 0 && errno == EAGAIN) {
            return;
        }
        if (checked("recv", got) == 0) {
            throw PeerLost("a connection was closed");
        }
        served_ += request.take(std::span(bytes).first(static_cast<size_t>(got)));
    }

    void take_expirations() {
        uint64_t number = 0;
        if (read(timer_.get(), &number, sizeof(number)) != sizeof(number)) {
            return;
        }
        const uint64_t now = now_ns();
        for (; number > 0; --number, next_expiry_ += period_ns) {
            heard(kinds_[0], next_expiry_, now);
        }
    }

    void take_times(uint32_t member) {
        std::array<uint64_t, 64> sent{};
        const ssize_t got = checked("read", read(ends_[member - pipe_end].get(), sent.data(), sizeof(sent)));
        const uint64_t now = now_ns();
        if (got == 0 || static_cast<size_t>(got) % sizeof(uint64_t) != 0) {
            throw PeerLost("the clock's process ended");
        }
        for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uint64_t); ++i) {
            heard(kinds_[member - timer], sent[i], now);
        }
    }

    [[nodiscard]] const char* name_of_kind(const Kind& kind) const {
        return names[static_cast<size_t>(&kind - kinds_.data())];
    }

    void heard(Kind& kind, uint64_t event, uint64_t now) {
        if (event < kind.last || event > now) {
            util::fail("the {} told of a wrong time", name_of_kind(kind));
        }
        kind.last = event;
        if (event >= end_) {
            kind.finished = true;
        } else if (event >= start_) {
            kind.delays_us.push_back(static_cast<double>(now - event) / 1000);
        }
    }

    Fd set_;
    Fd timer_;
    const std::array<Fd, 2>& ends_;
    std::array<Request, connections> requests_;
    std::array<Kind, names.size()> kinds_;
    uint64_t start_ = 0;
    uint64_t end_ = 0;
    uint64_t next_expiry_ = 0;
    uint64_t served_ = 0;
    uint64_t served_at_start_ = 0;
    uint64_t served_at_end_ = 0;
};

Figures run_loop(Link& link, const SharedBoard& board, const std::array<Fd, 2>& ends, const Options& options) {
    link.keep(0);
    const Listener listener;
    link.tell(listener.port);
    Loop loop(listener, ends, options.warm);
    loop.run(options.duration_ms * 1000000);
    board->over = true;
    loop.drain();
    return loop.figures();
}

} // namespace

util::Json fairness(const Options& options) {
    Team team(options.limit);
    const SharedBoard board;
    Link link;
    // The loop has the reading ends of a pipe and of a socket pair, the clock's process the others.
    std::array<int, 2> pipe_ends{};
    std::array<int, 2> pair_ends{};
    checked("pipe2", pipe2(pipe_ends.data(), O_CLOEXEC));
    checked("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_ends.data()));
    const std::array<Fd, 2> reading = {Fd(pipe_ends[0]), Fd(pair_ends[0])};
    const std::array<Fd, 2> writing = {Fd(pipe_ends[1]), Fd(pair_ends[1])};
    team.start("loop", [&] { return run_loop(link, board, reading, options); });
    team.start("clock", [&] { return tick(board, writing); });
    team.start("flooding client", [&] {
        link.keep(1);
        Flood(link.hear()).run(board, options.warm);
        return Figures();
    });
    const Figures found = team.finish().front();
    util::Json json = {{"mode", options.mode},
                       {"connections", connections},
                       {"duration_ms", options.duration_ms},
                       {"requests_per_s", found.at(0) * 1000 / static_cast<double>(options.duration_ms)}};
    for (size_t i = 0; i < names.size(); ++i) {
        const double* const of = &found.at(1 + 4 * i);
        json[names[i]] = {
            {"events", static_cast<uint64_t>(of[0])}, {"median_us", of[1]}, {"p99_us", of[2]}, {"max_us", of[3]}};
    }
    return json;
}

} // namespace path_bench
