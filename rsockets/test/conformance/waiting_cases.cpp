// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// poll and select.
#include "rsockets/test/conformance/conformance.hpp"

#include <algorithm>
#include <climits>
#include <fstream>

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace conformance;

namespace {

constexpr short all_events = POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLWRNORM | POLLRDHUP;

struct Pipe {
    explicit Pipe(Case& c) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            throw Failure("pipe");
        }
        out = ends[0];
        in = ends[1];
        (void)c;
    }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    ~Pipe() {
        ::close(out);
        ::close(in);
    }
    int out;
    int in;
};

// Which of two are in a set.
std::string members(const fd_set& set, int a, int b) {
    return std::string(FD_ISSET(a, &set) ? "first " : "") + (FD_ISSET(b, &set) ? "second" : "");
}

// A set with space for more numbers than an fd_set has.
class LargeSet {
  public:
    static constexpr int size = 65536;
    void add(int fd) { words_[word(fd)] |= bit(fd); }
    bool has(int fd) const { return (words_[word(fd)] & bit(fd)) != 0; }
    fd_set* get() { return reinterpret_cast<fd_set*>(words_.data()); }

  private:
    static constexpr size_t bits = 8 * sizeof(long);
    static size_t word(int fd) { return static_cast<size_t>(fd) / bits; }
    static unsigned long bit(int fd) { return 1UL << (static_cast<size_t>(fd) % bits); }
    std::vector<unsigned long> words_ = std::vector<unsigned long>(size / bits);
};

// How many numbers the kernel keeps a place for, beyond which select does not look.
int places() {
    std::ifstream file("/proc/self/status");
    std::string word;
    int count = 0;
    while (file >> word) {
        if (word == "FDSize:") {
            file >> count;
        }
    }
    return count;
}

// A number for a socket that no fd_set has a place for.
int make_far_number(Case& c, int fd) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 3100) {
        throw Skip("too few numbers for a process");
    }
    const int far = c.s.fcntl(fd, F_DUPFD, 3000);
    if (far < 3000) {
        throw Failure("F_DUPFD");
    }
    return c.track(far);
}

// Sends once this thread waits.
void send_when_asleep(Case& c, int fd) {
    const int id = thread_id();
    c.run([&c, id, fd] {
        await_sleep(id);
        c.send_all(fd, "x");
    });
}

} // namespace

CASE(poll_of_a_fresh_socket) { c.note_poll("fresh", c.make_socket(), all_events); }
CASE(poll_of_an_idle_listener) { c.note_poll("idle", c.make_listener(), all_events); }

CASE(poll_of_a_bound_socket) {
    const int fd = c.make_socket();
    const sockaddr_in any = loopback(0);
    c.s.bind(fd, generic(any), sizeof(any));
    c.note_poll("bound", fd, all_events);
}

CASE(poll_of_a_listener_with_a_connection) {
    const int listener = c.make_listener();
    c.make_connected_to(listener);
    c.await(listener, POLLIN);
    c.note_poll("waiting", listener, all_events);
    c.accept_from(listener);
    c.note_poll("accepted", listener, all_events);
}

CASE(poll_of_an_idle_connection) {
    const Pair pair = c.make_pair();
    c.note_poll("client", pair.client, all_events);
    c.note_poll("server", pair.server, all_events);
    c.note_poll("for reading", pair.server, POLLIN);
    c.note_poll("for nothing", pair.server, 0);
}

CASE(poll_gives_only_what_was_asked_for) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    c.note_poll("all", pair.server, all_events);
    c.note_poll("IN", pair.server, POLLIN);
    c.note_poll("RDNORM", pair.server, POLLRDNORM);
    c.note_poll("OUT", pair.server, POLLOUT);
    c.note_poll("WRNORM", pair.server, POLLWRNORM);
    c.note_poll("PRI", pair.server, POLLPRI);
}

CASE(poll_of_a_full_connection) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    c.note_poll("full", pair.client, all_events);
}

CASE(poll_waits_for_data) {
    const Pair pair = c.make_pair();
    c.run([&] { c.send_all(pair.client, "late"); });
    c.note_events("woken", static_cast<unsigned short>(c.await(pair.server, all_events & ~(POLLOUT | POLLWRNORM))));
    c.join();
}

CASE(poll_gives_up_in_time) {
    const Pair pair = c.make_pair();
    pollfd one{pair.server, POLLIN, -1};
    SAY(c.s.poll(&one, 1, 30));
    c.note_events("nothing", static_cast<unsigned short>(one.revents));
}

CASE(poll_of_nothing) {
    SAY(c.s.poll(nullptr, 0, 0));
    SAY(c.s.poll(nullptr, 0, 10));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which look at all that the call is said to get
CASE(poll_of_too_many) {
    pollfd one{c.make_socket(), POLLIN, 0};
    SAY(c.s.poll(&one, 1U << 30, 0));
}
#endif

CASE(poll_of_negative_and_closed_numbers) {
    const int closed = c.make_socket();
    c.forget(closed);
    c.s.close(closed);
    pollfd fds[] = {{-1, POLLIN, -1}, {closed, POLLIN, 0}, {c.make_socket(), POLLIN, 0}};
    SAY(c.s.poll(fds, 3, 0));
    for (const pollfd& one : fds) {
        c.note_events("events", static_cast<unsigned short>(one.revents));
    }
}

CASE(poll_of_one_socket_twice) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    pollfd fds[] = {{pair.server, POLLIN, 0}, {pair.server, POLLOUT, 0}};
    SAY(c.s.poll(fds, 2, -1));
    c.note_events("first", static_cast<unsigned short>(fds[0].revents));
    c.note_events("second", static_cast<unsigned short>(fds[1].revents));
}

CASE(poll_of_a_socket_and_a_pipe) {
    const Pair pair = c.make_pair();
    const Pipe pipe(c);
    pollfd fds[] = {{pair.server, POLLIN, 0}, {pipe.out, POLLIN, 0}};
    c.run([&] { (void)!::write(pipe.in, "x", 1); });
    SAY(c.s.poll(fds, 2, -1));
    c.note_events("socket", static_cast<unsigned short>(fds[0].revents));
    c.note_events("pipe", static_cast<unsigned short>(fds[1].revents));
    c.join();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    SAY(c.s.poll(fds, 2, -1));
    c.note_events("socket", static_cast<unsigned short>(fds[0].revents));
}

CASE(poll_wakes_up_for_a_connection) {
    const int listener = c.make_listener();
    c.run([&] { c.make_connected_to(listener); });
    c.note_events("listener", static_cast<unsigned short>(c.await(listener, all_events)));
    c.join();
}

CASE(poll_wakes_up_for_the_end) {
    const Pair pair = c.make_pair();
    c.run([&] { c.s.shutdown(pair.client, SHUT_WR); });
    c.note_events("end", static_cast<unsigned short>(c.await(pair.server, POLLRDHUP)));
    c.join();
}

CASE(poll_wakes_up_for_ones_own_shutdown) {
    const Pair pair = c.make_pair();
    const int id = thread_id();
    c.run([&] {
        await_sleep(id);
        c.s.shutdown(pair.server, SHUT_RD);
    });
    c.note_events("shut", static_cast<unsigned short>(c.await(pair.server, POLLIN)));
    c.join();
}

CASE(poll_for_writing_does_not_wake_up_for_data) {
    const Pair pair = c.make_pair();
    c.fill(pair.server);
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    c.fill(pair.server); // where the byte has made it go by the kernel, which has space
    pollfd one{pair.server, POLLOUT, 0};
    SAY(c.s.poll(&one, 1, 50));
}

CASE(ppoll_with_a_time) {
    const Pair pair = c.make_pair();
    pollfd one{pair.server, POLLIN, 0};
    const timespec time{0, 20000000};
    SAY(c.s.ppoll(&one, 1, &time, nullptr));
    const timespec bad{0, 1000000000};
    SAY(c.s.ppoll(&one, 1, &bad, nullptr));
    const timespec negative{-1, 0};
    SAY(c.s.ppoll(&one, 1, &negative, nullptr));
    c.send_all(pair.client, "x");
    SAY(c.s.ppoll(&one, 1, nullptr, nullptr));
}

CASE(select_for_reading) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.client, &set);
    FD_SET(pair.server, &set);
    SAY(c.s.select(std::max(pair.client, pair.server) + 1, &set, nullptr, nullptr, nullptr));
    c.note(members(set, pair.client, pair.server));
}

CASE(select_for_writing) {
    const Pair pair = c.make_pair();
    c.fill(pair.client);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.client, &set);
    FD_SET(pair.server, &set);
    SAY(c.s.select(std::max(pair.client, pair.server) + 1, nullptr, &set, nullptr, nullptr));
    c.note(members(set, pair.client, pair.server));
}

CASE(select_counts_bits) {
    const Pair pair = c.make_pair();
    c.send_all(pair.client, "x");
    c.await(pair.server, POLLIN);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(pair.server, &in);
    fd_set out = in;
    fd_set except = in;
    SAY(c.s.select(pair.server + 1, &in, &out, &except, nullptr));
    c.note(std::string(FD_ISSET(pair.server, &in) ? "in " : "") + (FD_ISSET(pair.server, &out) ? "out " : "") +
           (FD_ISSET(pair.server, &except) ? "except" : ""));
}

CASE(select_gives_up_in_time) {
    const Pair pair = c.make_pair();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    timeval time{0, 30000};
    SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, &time));
    c.note(members(set, pair.client, pair.server));
    c.note(std::to_string(time.tv_sec) + " " + std::to_string(time.tv_usec));
}

CASE(select_with_bad_arguments) {
    const int closed = c.make_socket();
    c.forget(closed);
    c.s.close(closed);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(closed, &set);
    SAY(c.s.select(closed + 1, &set, nullptr, nullptr, nullptr));
    SAY(c.s.select(-1, &set, nullptr, nullptr, nullptr));
    timeval negative{-1, 0};
    SAY(c.s.select(0, nullptr, nullptr, nullptr, &negative));
}

CASE(select_of_a_socket_and_an_eventfd) {
    const Pair pair = c.make_pair();
    const int event = eventfd(1, EFD_CLOEXEC);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    FD_SET(event, &set);
    SAY(c.s.select(std::max(event, pair.server) + 1, &set, nullptr, nullptr, nullptr));
    c.note(members(set, pair.server, event));
    ::close(event);
}

CASE(select_sees_the_end) {
    const Pair pair = c.make_pair();
    c.forget(pair.client);
    c.s.close(pair.client);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, nullptr));
    c.note(members(set, pair.server, pair.client));
}

CASE(pselect_with_a_time) {
    const Pair pair = c.make_pair();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    const timespec time{0, 20000000};
    SAY(c.s.pselect(pair.server + 1, &set, nullptr, nullptr, &time, nullptr));
}

CASE(select_does_not_look_beyond_all_numbers) {
    constexpr int beyond = 60000;
    if (places() > beyond) {
        throw Skip("more numbers than a case can go beyond");
    }
    const Pair pair = c.make_pair();
    LargeSet set;
    set.add(beyond);
    timeval now{};
    SAY(c.s.select(LargeSet::size, set.get(), nullptr, nullptr, &now));
    c.note(set.has(beyond) ? "left alone" : "taken out");
    set.add(pair.server);
    SAY(c.s.select(LargeSet::size, set.get(), nullptr, nullptr, &now));
    c.note(set.has(pair.server) ? "in" : "out");
    c.send_all(pair.client, "x");
    set.add(pair.server);
    SAY(c.s.select(LargeSet::size, set.get(), nullptr, nullptr, nullptr));
    c.note(std::string(set.has(pair.server) ? "in" : "out") + (set.has(beyond) ? ", left alone" : ", taken out"));
    LargeSet out;
    out.add(beyond);
    out.add(pair.server);
    LargeSet except = out;
    SAY(c.s.pselect(LargeSet::size, nullptr, out.get(), except.get(), nullptr, nullptr));
    c.note(std::string(out.has(pair.server) ? "in" : "out") + (except.has(pair.server) ? " in" : " out"));
}

CASE(select_of_numbers_that_no_fd_set_has_room_for) {
    const Pair pair = c.make_pair();
    const int far = make_far_number(c, pair.server);
    LargeSet set;
    set.add(far);
    timeval now{};
    SAY(c.s.select(far + 1, set.get(), nullptr, nullptr, &now));
    c.note(set.has(far) ? "in" : "out");
    set.add(far);
    send_when_asleep(c, pair.client);
    SAY(c.s.select(far + 1, set.get(), nullptr, nullptr, nullptr));
    c.note(set.has(far) ? "in" : "out");
    c.join();
    SAY(c.s.select(far, set.get(), nullptr, nullptr, &now)); // just short of it
    c.note(set.has(far) ? "in" : "out");
    c.forget(far);
    c.s.close(far);
    set.add(far);
    SAY(c.s.select(far + 1, set.get(), nullptr, nullptr, &now));
}

CASE(poll_of_numbers_that_no_fd_set_has_room_for) {
    const Pair pair = c.make_pair();
    const int far = make_far_number(c, pair.server);
    send_when_asleep(c, pair.client);
    c.note_events("data", static_cast<unsigned short>(c.await(far, POLLIN)));
    c.join();
}

CASE(select_for_ever_is_not_too_long) {
    const Pair pair = c.make_pair();
    send_when_asleep(c, pair.client);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    timeval time{LONG_MAX, 0};
    SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, &time));
    c.join();
    time = {LONG_MAX, 999999};
    SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, &time));
    c.note(members(set, pair.client, pair.server));
}

CASE(pselect_for_ever_is_not_too_long) {
    const Pair pair = c.make_pair();
    send_when_asleep(c, pair.client);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    timespec time{LONG_MAX, 0};
    SAY(c.s.pselect(pair.server + 1, &set, nullptr, nullptr, &time, nullptr));
    c.join();
    time = {LONG_MAX, 999999999};
    SAY(c.s.pselect(pair.server + 1, &set, nullptr, nullptr, &time, nullptr));
    c.note(members(set, pair.client, pair.server));
}

CASE(ppoll_for_ever_is_not_too_long) {
    const Pair pair = c.make_pair();
    send_when_asleep(c, pair.client);
    pollfd one{pair.server, POLLIN, 0};
    timespec time{LONG_MAX, 0};
    SAY(c.s.ppoll(&one, 1, &time, nullptr));
    c.join();
    time = {LONG_MAX, 999999999};
    SAY(c.s.ppoll(&one, 1, &time, nullptr));
}

CASE(large_times_are_not_too_long) {
    const Pair pair = c.make_pair();
    for (const long seconds : {long{INT_MAX} / 1000 + 1, long{INT_MAX}, long{INT_MAX} + 1, 1L << 32, LONG_MAX / 1000,
                               LONG_MAX / 1000 + 1, LONG_MAX / 1000000000 + 1}) {
        c.note(std::to_string(seconds));
        send_when_asleep(c, pair.client);
        pollfd one{pair.server, POLLIN, 0};
        const timespec time{seconds, 0};
        SAY(c.s.ppoll(&one, 1, &time, nullptr));
        c.join();
        c.drain(pair.server, 1);
        send_when_asleep(c, pair.client);
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair.server, &set);
        timeval span{seconds, 0};
        SAY(c.s.select(pair.server + 1, &set, nullptr, nullptr, &span));
        c.join();
        c.drain(pair.server, 1);
    }
    send_when_asleep(c, pair.client);
    pollfd one{pair.server, POLLIN, 0};
    SAY(c.s.poll(&one, 1, INT_MAX));
    c.join();
}

// Arrays of getdtablesize() entries, of which most are unused.
CASE(poll_of_as_many_as_there_may_be) {
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const Pair pair = c.make_pair();
    rlimit low = before;
    low.rlim_cur = static_cast<rlim_t>(std::max(pair.client, pair.server)) + 50;
    std::vector<pollfd> fds(low.rlim_cur, pollfd{-1, POLLIN, 0});
    fds[7] = {pair.server, POLLIN, 0};
    setrlimit(RLIMIT_NOFILE, &low);
    SAY(c.s.poll(fds.data(), fds.size(), 10));
    c.send_all(pair.client, "x");
    SAY(c.s.poll(fds.data(), fds.size(), 20000));
    setrlimit(RLIMIT_NOFILE, &before);
}

CASE(select_for_exceptions_does_not_hear_of_the_end) {
    const Pair pair = c.make_pair();
    const auto select_for = [&](int fd, int milliseconds) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        timeval time{0, milliseconds * 1000};
        timespec before{};
        timespec after{};
        clock_gettime(CLOCK_MONOTONIC, &before);
        SAY(c.s.select(fd + 1, nullptr, nullptr, &set, &time));
        clock_gettime(CLOCK_MONOTONIC, &after);
        const long long took = (after.tv_sec - before.tv_sec) * 1000LL + (after.tv_nsec - before.tv_nsec) / 1000000;
        c.note(took >= milliseconds - 1 ? "when the time is over" : "before the time");
    };
    select_for(c.make_socket(), 60);
    c.s.shutdown(pair.client, SHUT_RDWR);
    c.s.shutdown(pair.server, SHUT_RDWR);
    c.await(pair.server, POLLHUP);
    select_for(pair.server, 60);
}
