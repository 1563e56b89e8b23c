// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The mode many: two processes with a number of connections, all of them in one epoll set at either end, few of them
// busy.
#include <array>
#include <cerrno>
#include <thread>

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "fabtests/programs/path/message.hpp"
#include "fabtests/programs/path/modes.hpp"

namespace path_bench {

namespace {

constexpr size_t message_size = 64;
constexpr size_t number_at = 16; // the stamps are in the first and last eight bytes
constexpr size_t max_busy = 10;
constexpr int max_events = 64;
// The server confirms so many connections at a time: its backlog cannot overflow, which would cost seconds.
constexpr uint64_t batch = 1000;
// So many are warmed at once, until each of them has had its exchanges.
constexpr size_t warm_group = 50;
// Beside the connections: sets, links, pipes, standard streams.
constexpr uint64_t other_fds = 32;

void raise_fd_limit(uint64_t connections) {
    rlimit limit{};
    checked("getrlimit", getrlimit(RLIMIT_NOFILE, &limit));
    const uint64_t needed = connections + other_fds;
    if (limit.rlim_max < needed) {
        util::fail("{} connections take {} descriptors in each process, and the hard limit (ulimit -Hn) is {}",
                   connections, needed, limit.rlim_max);
    }
    limit.rlim_cur = limit.rlim_max;
    checked("setrlimit", setrlimit(RLIMIT_NOFILE, &limit));
}

// One of many: the message that it is receiving. Its number is in each message, since all have the same sequences.
struct Connection {
    static constexpr uint64_t unknown = UINT64_MAX;

    Fd socket;
    uint64_t number = unknown; // the server's are known with the first message
    std::array<char, message_size> in{};
    size_t have = 0;
    uint64_t sequence = 0;

    // True with the last byte of a message, which is then verified.
    bool receive() {
        const ssize_t got = recv(socket.get(), in.data() + have, in.size() - have, 0);
        if (got < 0 && errno == EAGAIN) {
            return false;
        }
        if (checked("recv", got) == 0) {
            throw PeerLost("a connection was closed");
        }
        have += static_cast<size_t>(got);
        if (have < in.size()) {
            return false;
        }
        have = 0;
        verify(in, sequence);
        uint64_t found = 0;
        memcpy(&found, in.data() + number_at, sizeof(found));
        if (number != unknown && number != found) {
            util::fail("connection {} received a message of connection {}", number, found);
        }
        number = found;
        return true;
    }
    // No more than one message is on its way, so that there is space for all of it.
    void send(std::span<const char> message) const {
        const ssize_t sent = ::send(socket.get(), message.data(), message.size(), MSG_NOSIGNAL);
        if (static_cast<size_t>(checked("send", sent)) != message.size()) {
            util::fail("only {} of {} bytes were taken", sent, message.size());
        }
    }
    void send_next() {
        std::array<char, message_size> out{};
        stamp(out, sequence);
        memcpy(out.data() + number_at, &number, sizeof(number));
        send(out);
    }
};

class Set {
  public:
    explicit Set(std::vector<Connection>& connections)
        : connections_(connections), fd_(checked("epoll_create1", epoll_create1(EPOLL_CLOEXEC))) {
        for (uint32_t i = 0; i < connections.size(); ++i) {
            set_non_blocking(connections[i].socket);
            add_to(fd_, connections[i].socket.get(), EPOLLIN, i);
        }
    }
    // Waits, and calls the function for each connection that has received a message. False if what is no connection is
    // ready.
    template <class Take> bool dispatch(const Take& take) {
        std::array<epoll_event, max_events> events{};
        const int count = waited("epoll_wait", epoll_wait(fd_.get(), events.data(), max_events, -1));
        bool all = true;
        for (int i = 0; i < count; ++i) {
            const uint32_t index = events[static_cast<size_t>(i)].data.u32;
            if (index >= connections_.size()) {
                all = false;
            } else if (connections_[index].receive()) {
                take(connections_[index]);
            }
        }
        return all;
    }
    void add_other(int fd) { add_to(fd_, fd, EPOLLIN, static_cast<uint32_t>(connections_.size())); }

  private:
    std::vector<Connection>& connections_;
    Fd fd_;
};

Figures serve(Link& link, const Options& options) {
    link.keep(0);
    std::vector<Connection> connections(options.connections);
    {
        const Listener listener;
        link.tell(listener.port);
        for (uint64_t i = 0; i < options.connections; ++i) {
            connections[i].socket = listener.accept();
            if ((i + 1) % batch == 0 || i + 1 == options.connections) {
                link.tell(i + 1);
            }
        }
    }
    Set set(connections);
    set.add_other(link.get()); // the client tells when it has finished
    while (set.dispatch([](Connection& connection) {
        connection.send(connection.in);
        ++connection.sequence;
    })) {
    }
    link.tell(link.hear());
    return {};
}

// Exchanges on some of the connections, each of which sends anew when it has its answer, until it has had so many or
// the time is over. How many there were.
uint64_t exchange(Set& set, std::span<Connection*> busy, uint64_t of_each, uint64_t until_ns) {
    uint64_t under_way = 0;
    bool over = false;
    const auto send_next = [&](Connection& connection) {
        if (!over && connection.sequence < of_each) {
            connection.send_next();
            ++under_way;
        }
    };
    for (Connection* connection : busy) {
        send_next(*connection);
    }
    uint64_t done = 0;
    while (under_way > 0) {
        set.dispatch([&](Connection& connection) {
            ++connection.sequence;
            ++done;
            --under_way;
            send_next(connection);
        });
        over = over || now_ns() >= until_ns;
    }
    return done;
}

Figures request(Link& link, const Options& options) {
    link.keep(1);
    const uint64_t port = link.hear();
    std::vector<Connection> connections(options.connections);
    const uint64_t opening = now_ns();
    for (uint64_t i = 0; i < options.connections; ++i) {
        connections[i].socket = connect_to(port);
        connections[i].number = i;
        if ((i + 1) % batch == 0 || i + 1 == options.connections) {
            static_cast<void>(link.hear());
        }
    }
    const double open_ms = static_cast<double>(now_ns() - opening) * 1e-6;

    Set set(connections);
    std::vector<Connection*> some;
    for (size_t i = 0; i < connections.size(); ++i) {
        some.push_back(&connections[i]);
        if (some.size() == warm_group || i + 1 == connections.size()) {
            static_cast<void>(exchange(set, some, options.warm, UINT64_MAX));
            some.clear();
        }
    }
    // Whatever the exchanges have started in the background ends before the measurement begins.
    std::this_thread::sleep_for(std::chrono::milliseconds(options.settle_ms));
    // Spread over all of them.
    const size_t busy = std::min(connections.size(), max_busy);
    for (size_t i = 0; i < busy; ++i) {
        some.push_back(&connections[i * connections.size() / busy]);
    }
    const uint64_t start = now_ns();
    const uint64_t done = exchange(set, some, UINT64_MAX, start + options.duration_ms * 1000000);
    const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
    link.tell(0);
    static_cast<void>(link.hear()); // now the server expects nothing more
    return {open_ms, seconds, static_cast<double>(busy), static_cast<double>(done)};
}

} // namespace

util::Json many(const Options& options) {
    raise_fd_limit(options.connections);
    Team team(options.limit);
    Link link;
    team.start("server", [&] { return serve(link, options); });
    team.start("client", [&] { return request(link, options); });
    const Figures found = team.finish().back();
    return {{"mode", options.mode},
            {"connections", options.connections},
            {"busy", static_cast<uint64_t>(found.at(2))},
            {"requests", static_cast<uint64_t>(found.at(3))},
            {"open_ms", found.at(0)},
            {"requests_per_s", found.at(3) / found.at(1)}};
}

} // namespace path_bench
