// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// riomap, riounmap and riowrite: what riomap(3) says of them. Both ends are in this process; the peer of a call is
// often a program that calls nothing.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

constexpr size_t failed_write = SIZE_MAX;

#define EXPECT_ERRNO(call, failure, code)                                                                              \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        EXPECT((call) == (failure));                                                                                   \
        EXPECT_EQ(errno, code);                                                                                        \
    } while (0)

void set_int(int fd, int level, int name, int value) {
    EXPECT_EQ(rsetsockopt(fd, level, name, &value, sizeof(value)), 0);
}
int get_int(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    EXPECT_EQ(rgetsockopt(fd, level, name, &value, &length), 0);
    return value;
}

// Two ends that each know so many maps of the other's.
Ends connected_with(int maps, int buffer = 0) {
    const Number from = listener();
    Number client(rsocket(AF_INET, SOCK_STREAM, 0));
    for (const int fd : {static_cast<int>(from), static_cast<int>(client)}) {
        set_int(fd, SOL_RDMA, RDMA_IOMAPSIZE, maps);
        if (buffer != 0) {
            set_int(fd, SOL_SOCKET, SO_SNDBUF, buffer);
            set_int(fd, SOL_SOCKET, SO_RCVBUF, buffer);
        }
    }
    const sockaddr_in to = loopback(port_of(from));
    EXPECT_EQ(rconnect(client, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return {std::move(client), Number(raccept(from, nullptr, nullptr))};
}

// What is known at one end now is known at the other.
void pass_a_byte(int from, int to) {
    send_all(from, "b");
    EXPECT_EQ(received(to, 1), "b");
}

off_t mapped(int fd, std::string& memory, off_t offset = -1) {
    const off_t at = riomap(fd, memory.data(), memory.size(), PROT_WRITE, 0, offset);
    EXPECT(at >= 0 && (offset == -1 || at == offset));
    return at;
}

std::string text_of(size_t length, unsigned seed) {
    std::string text(length, '\0');
    Pattern(seed).fill(text.data(), length);
    return text;
}

// Ends what threads do until then, on every way out.
struct Until {
    ~Until() { over = true; }
    std::atomic<bool>& over;
};

// ---- what is written

void test_what_was_written_is_there_with_the_next_byte() {
    const Ends ends = connected_with(1);
    std::string memory(300000, '\0');
    const off_t at = mapped(ends.server, memory);
    pass_a_byte(ends.server, ends.client);
    for (unsigned round = 1; round < 300; ++round) {
        const size_t length = 1 + (size_t{round} * 7919) % (round % 5 == 0 ? memory.size() : 3000);
        const size_t skip = (size_t{round} * 104729) % (memory.size() - length + 1);
        const std::string data = text_of(length, round);
        std::string copy = data;
        EXPECT_EQ(riowrite(ends.client, copy.data(), length, at + static_cast<off_t>(skip), 0), length);
        std::fill(copy.begin(), copy.end(), '?'); // the caller's again
        pass_a_byte(ends.client, ends.server);
        EXPECT(memory.compare(skip, length, data) == 0);
    }
}

void test_a_write_larger_than_all_buffers_is_taken_whole() {
    const Ends ends = connected_with(1, 16384);
    std::string memory(1000000, '\0');
    const off_t at = mapped(ends.server, memory, 0);
    pass_a_byte(ends.server, ends.client);
    const std::string data = text_of(memory.size(), 5);
    EXPECT_EQ(riowrite(ends.client, data.data(), data.size(), at, 0), data.size()); // blocking
    pass_a_byte(ends.client, ends.server);
    EXPECT(memory == data);
}

void test_a_write_waits_behind_a_stream_that_is_full_unless_told_not_to() {
    const Ends ends = connected_with(1, 8192);
    std::string memory(100000, '\0');
    const off_t at = mapped(ends.server, memory);
    pass_a_byte(ends.server, ends.client);
    std::string sent;
    const std::string data = text_of(100000, 1);
    ssize_t n = 0;
    const auto start = Clock::now(); // until nothing is taken any more, though the peer's end had time to take it
    for (int refused = 0; refused < 20;) {
        n = rsend(ends.client, data.data() + sent.size(), 1000, MSG_DONTWAIT);
        if (n > 0) {
            sent.append(data, sent.size(), static_cast<size_t>(n));
            refused = 0;
        } else {
            EXPECT_EQ(errno, EAGAIN);
            pollfd writable{ends.client, POLLOUT, 0};
            refused = rpoll(&writable, 1, 5) == 0 ? refused + 1 : 0;
        }
        EXPECT(milliseconds_since(start) < patience(10000));
    }
    EXPECT_ERRNO(riowrite(ends.client, data.data(), 10, at, MSG_DONTWAIT), failed_write, EAGAIN);
    EXPECT_EQ(rfcntl(ends.client, F_SETFL, O_NONBLOCK), 0);
    EXPECT_ERRNO(riowrite(ends.client, data.data(), 10, at, 0), failed_write, EAGAIN);
    EXPECT_EQ(rfcntl(ends.client, F_SETFL, 0), 0);
    const timeval brief{0, 50000};
    EXPECT_EQ(rsetsockopt(ends.client, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof(brief)), 0);
    EXPECT_ERRNO(riowrite(ends.client, data.data(), 10, at, 0), failed_write, EAGAIN);
    const timeval never{0, 0};
    EXPECT_EQ(rsetsockopt(ends.client, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof(never)), 0);
    Threads threads;
    threads.start([&] { EXPECT_EQ(riowrite(ends.client, data.data(), 50000, at, 0), 50000U); });
    EXPECT(received(ends.server, sent.size()) == sent);
    threads.join();
    pass_a_byte(ends.client, ends.server);
    EXPECT(memory.compare(0, 50000, data, 0, 50000) == 0);
    EXPECT_EQ(memory[50000], '\0');
}

void test_room_for_a_write_shows_in_poll() {
    const Ends ends = connected_with(1, 8192);
    std::string memory(400000, '\0');
    const off_t at = mapped(ends.server, memory);
    pass_a_byte(ends.server, ends.client);
    const std::string data = text_of(memory.size(), 3);
    EXPECT_EQ(rfcntl(ends.client, F_SETFL, O_NONBLOCK), 0);
    for (size_t written = 0; written < data.size();) {
        const size_t n =
            riowrite(ends.client, data.data() + written, data.size() - written, at + static_cast<off_t>(written), 0);
        if (n != failed_write) {
            written += n;
            continue;
        }
        EXPECT_EQ(errno, EAGAIN);
        pollfd writable{ends.client, POLLOUT, 0};
        EXPECT_EQ(rpoll(&writable, 1, patience(10000)), 1);
    }
    pass_a_byte(ends.client, ends.server);
    EXPECT(memory == data);
}

void test_a_writer_that_never_calls_again_is_served() {
    const Ends ends = connected_with(1, 8192);
    std::string memory(4000, '\0');
    const off_t at = mapped(ends.server, memory);
    pass_a_byte(ends.server, ends.client);
    const std::string stream = text_of(12000, 1);
    const std::string data = text_of(1000, 2);
    EXPECT_EQ(rsend(ends.client, stream.data(), stream.size(), 0), 12000); // more than the peer's buffer
    EXPECT_EQ(riowrite(ends.client, data.data(), data.size(), at, 0), data.size());
    EXPECT_EQ(rsend(ends.client, "m", 1, 0), 1);
    EXPECT(received(ends.server, stream.size()) == stream);
    EXPECT_EQ(received(ends.server, 1), "m");
    EXPECT(memory.compare(0, data.size(), data) == 0);
}

// A program that has spun on its connection, so that the library left it alone, goes on to look at nothing but its
// memory.
void test_a_reader_that_looks_at_nothing_but_its_memory_is_served() {
#ifdef __SANITIZE_THREAD__
    throw Skip("ThreadSanitizer knows of nothing that orders a peer's write and a look at the memory");
#endif
    const Ends ends = connected_with(1);
    std::string memory(64, '\0');
    const off_t at = mapped(ends.server, memory);
    pass_a_byte(ends.server, ends.client);
    const std::atomic_ref<char> last(memory.back());
    for (char round = 1; round <= 50; ++round) {
        char byte = 0;
        for (int look = 0; look < 3000; ++look) {
            EXPECT(rrecv(ends.server, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        }
        const std::string data(memory.size(), round);
        EXPECT_EQ(riowrite(ends.client, data.data(), data.size(), at, 0), data.size());
        for (const auto start = Clock::now(); last.load(std::memory_order_acquire) != round;) {
            EXPECT(milliseconds_since(start) < patience(10000));
            std::this_thread::yield();
        }
        EXPECT_EQ(memory, data);
    }
}

// ---- errors

void test_a_write_outside_of_a_map_or_after_it_fails_at_the_writer_alone() {
    const Ends ends = connected_with(2);
    std::string memory(3000, 'u');
    EXPECT_EQ(riomap(ends.server, memory.data() + 1000, 1000, PROT_WRITE, 0, 5000), 5000);
    const std::string data(4000, 'x');
    pass_a_byte(ends.server, ends.client);
    for (const off_t offset : {off_t{0}, off_t{4999}, off_t{6000}, off_t{5999}, off_t{-1}, off_t{INT64_MAX}}) {
        EXPECT_ERRNO(riowrite(ends.client, data.data(), 2, offset, 0), failed_write, EINVAL);
    }
    EXPECT_ERRNO(riowrite(ends.client, data.data(), 1001, 5000, 0), failed_write, EINVAL);
    EXPECT_ERRNO(riowrite(ends.server, data.data(), 1, 5000, 0), failed_write, EINVAL);
    EXPECT_EQ(riowrite(ends.client, data.data(), 0, 5000, 0), 0U);
    pass_a_byte(ends.client, ends.server);
    EXPECT(memory == std::string(3000, 'u'));
    EXPECT_EQ(riounmap(ends.server, memory.data() + 1000, 1000), 0);
    EXPECT_ERRNO(riowrite(ends.client, data.data(), 1, 5000, 0), failed_write, EINVAL);
    pass_a_byte(ends.client, ends.server);
    pass_a_byte(ends.server, ends.client);
    EXPECT(memory == std::string(3000, 'u'));
    EXPECT_ERRNO(riounmap(ends.server, memory.data() + 1000, 1000), -1, EINVAL);
}

void test_arguments_that_make_no_sense_are_refused() {
    const Ends ends = connected_with(2);
    std::string memory(100, '\0');
    char* const at = memory.data();
    EXPECT_ERRNO(riomap(ends.server, at, 100, PROT_READ, 0, -1), -1, EINVAL);
    EXPECT_ERRNO(riomap(ends.server, at, 100, PROT_WRITE | PROT_EXEC, 0, -1), -1, EINVAL);
    EXPECT_ERRNO(riomap(ends.server, at, 100, PROT_WRITE, 0, -2), -1, EINVAL);
    EXPECT_ERRNO(riomap(ends.server, at, 100, PROT_WRITE, 0, INT64_MAX), -1, EINVAL);
    EXPECT_ERRNO(riomap(ends.server, at, 0, PROT_WRITE, 0, -1), -1, EINVAL);
    EXPECT_ERRNO(riomap(ends.server, nullptr, 100, PROT_WRITE, 0, -1), -1, EINVAL);
    EXPECT_ERRNO(riounmap(ends.server, at, 100), -1, EINVAL);
    EXPECT_EQ(mapped(ends.server, memory, 0), 0);
    EXPECT_ERRNO(riomap(ends.server, at, 100, PROT_WRITE, 0, 99), -1, EADDRINUSE);
    EXPECT_ERRNO(riounmap(ends.server, at, 99), -1, EINVAL);
    EXPECT_ERRNO(riowrite(ends.client, nullptr, 1, 0, 0), failed_write, EFAULT);
    EXPECT_ERRNO(riowrite(ends.client, "x", 1, 0, MSG_OOB), failed_write, EOPNOTSUPP);
    EXPECT_ERRNO(riomap(-1, at, 100, PROT_WRITE, 0, -1), -1, EBADF);
    EXPECT_ERRNO(riounmap(-1, at, 100), -1, EBADF);
    EXPECT_ERRNO(riowrite(-1, at, 100, 0, 0), failed_write, EBADF);
    const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT_ERRNO(riomap(file, at, 100, PROT_WRITE, 0, -1), -1, ENOTSOCK);
    close(file);
}

void test_a_socket_that_is_not_connected_maps_nothing() {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    char memory[100] = {};
    EXPECT_ERRNO(riomap(fd, memory, 100, PROT_WRITE, 0, -1), -1, ENOTCONN);
    EXPECT_ERRNO(riounmap(fd, memory, 100), -1, ENOTCONN);
    EXPECT_ERRNO(riowrite(fd, memory, 100, 0, MSG_NOSIGNAL), failed_write, EPIPE); // as a send
}

void test_memory_can_be_registered_for_local_use_alone() {
    const Ends ends = connected_with(0);
    std::string memory(1000, '\0');
    EXPECT_EQ(riomap(ends.server, memory.data(), memory.size(), PROT_NONE, 0, 700), 700);
    pass_a_byte(ends.server, ends.client);
    EXPECT_ERRNO(riowrite(ends.client, "x", 1, 700, 0), failed_write, EINVAL);
    EXPECT_EQ(riounmap(ends.server, memory.data(), memory.size()), 0);
}

// ---- the number of maps

void test_the_peer_s_option_says_how_many_maps_there_may_be() {
    std::string memory(300, '\0');
    {
        const Ends none = connected();
        EXPECT_EQ(get_int(none.server, SOL_RDMA, RDMA_IOMAPSIZE), 0);
        EXPECT_ERRNO(riomap(none.server, memory.data(), 100, PROT_WRITE, 0, -1), -1, ENOMEM);
    }
    const Ends ends = connected_with(2);
    EXPECT_EQ(get_int(ends.server, SOL_RDMA, RDMA_IOMAPSIZE), 2);
    EXPECT(riomap(ends.server, memory.data(), 100, PROT_WRITE, 0, -1) >= 0);
    EXPECT(riomap(ends.server, memory.data() + 100, 100, PROT_WRITE, 0, -1) >= 0);
    EXPECT_ERRNO(riomap(ends.server, memory.data() + 200, 100, PROT_WRITE, 0, -1), -1, ENOMEM);
    EXPECT_EQ(riounmap(ends.server, memory.data(), 100), 0);
    EXPECT(riomap(ends.server, memory.data() + 200, 100, PROT_WRITE, 0, -1) >= 0);
}

void test_the_option_reads_back_and_is_bounded() {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(get_int(fd, SOL_RDMA, RDMA_IOMAPSIZE), 0);
    set_int(fd, SOL_RDMA, RDMA_IOMAPSIZE, 12);
    EXPECT_EQ(get_int(fd, SOL_RDMA, RDMA_IOMAPSIZE), 12);
    set_int(fd, SOL_RDMA, RDMA_IOMAPSIZE, 1000000);
    EXPECT_EQ(get_int(fd, SOL_RDMA, RDMA_IOMAPSIZE), 4096);
    const int negative = -1;
    EXPECT_ERRNO(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &negative, sizeof(negative)), -1, EINVAL);
}

void role_tells_default(const std::vector<std::string>&) {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    say(std::to_string(get_int(fd, SOL_RDMA, RDMA_IOMAPSIZE)));
}

void test_the_default_comes_from_the_environment() {
    Child child("tells_default", {}, {"RS_IOMAP_SIZE=33"});
    EXPECT_EQ(child.hear(), "33");
    child.finish();
}

// ---- giving memory back

void test_unmap_needs_no_call_of_the_peer_s_program() {
    const Ends ends = connected_with(4);
    std::string memory(50000, '\0');
    const std::string data = text_of(memory.size(), 1);
    for (int round = 0; round < 100; ++round) {
        const off_t at = mapped(ends.server, memory);
        pass_a_byte(ends.server, ends.client);
        EXPECT_EQ(riowrite(ends.client, data.data(), data.size(), at, 0), data.size());
        EXPECT_EQ(rfcntl(ends.server, F_SETFL, round % 2 == 0 ? 0 : O_NONBLOCK), 0); // which changes nothing here
        EXPECT_EQ(riounmap(ends.server, memory.data(), memory.size()), 0);
        EXPECT_EQ(rfcntl(ends.server, F_SETFL, 0), 0);
        EXPECT(memory == data);
        std::fill(memory.begin(), memory.end(), '-');
        pass_a_byte(ends.client, ends.server);
        EXPECT(memory == std::string(memory.size(), '-'));
    }
}

// A peer that is stopped answers nothing: its end of the connection is in another process.
void role_is_stopped(const std::vector<std::string>& arguments) {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    set_int(fd, SOL_RDMA, RDMA_IOMAPSIZE, 4);
    const sockaddr_in to = loopback(static_cast<uint16_t>(std::stoi(arguments.at(0))));
    EXPECT_EQ(rconnect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(received(fd, 1), "b");
    say("ready");
    EXPECT_EQ(listen_to_parent(), "go on");
    EXPECT_EQ(rsend(fd, "on", 2, 0), 2);
    (void)listen_to_parent();
}

struct StoppedPeer {
    StoppedPeer() : from(listener()), child("is_stopped", {std::to_string(port_of(from))}) {
        fd = Number(raccept(from, nullptr, nullptr));
        (void)mapped(fd, memory);
        send_all(fd, "b");
        EXPECT_EQ(child.hear(), "ready");
        child.stop();
    }
    StoppedPeer(const StoppedPeer&) = delete;
    StoppedPeer& operator=(const StoppedPeer&) = delete;
    int unmap() { return riounmap(fd, memory.data(), memory.size()); }

    std::string memory = std::string(1000, '\0');
    Number from;
    Child child;
    Number fd;
};

void test_unmap_waits_for_the_time_that_sends_wait() {
    StoppedPeer peer;
    const timeval brief{0, 50000};
    EXPECT_EQ(rsetsockopt(peer.fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof(brief)), 0);
    EXPECT_ERRNO(peer.unmap(), -1, EAGAIN);
    EXPECT_ERRNO(peer.unmap(), -1, EAGAIN);
    peer.child.interrupt(SIGCONT);
    const auto start = Clock::now();
    while (peer.unmap() != 0) {
        EXPECT_EQ(errno, EAGAIN);
        EXPECT(milliseconds_since(start) < patience(10000));
    }
    peer.child.tell("go on");
    EXPECT_EQ(received(peer.fd, 2), "on");
    peer.child.tell("done");
    peer.child.finish();
}

void test_unmap_is_interrupted_by_a_signal() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    struct sigaction before {};
    sigaction(SIGUSR1, &action, &before);
    {
        StoppedPeer peer;
        std::atomic<bool> done{false};
        std::atomic<pthread_t> waiter{};
        Threads threads;
        threads.start([&] {
            waiter = pthread_self();
            errno = 0;
            const int ret = peer.unmap();
            const int error = errno;
            done = true;
            EXPECT_EQ(ret, -1);
            EXPECT_EQ(error, EINTR);
        });
        while (!done) { // a signal may come before it sleeps
            usleep(1000);
            if (waiter != pthread_t{} && !done) {
                pthread_kill(waiter, SIGUSR1);
            }
        }
        threads.join();
        peer.child.interrupt(SIGCONT);
        EXPECT_EQ(peer.unmap(), 0);
        peer.child.tell("go on");
        EXPECT_EQ(received(peer.fd, 2), "on");
        peer.child.tell("done");
        peer.child.finish();
    }
    sigaction(SIGUSR1, &before, nullptr);
}

void test_a_dead_peer_gives_everything_back() {
    StoppedPeer peer;
    Threads threads;
    threads.start([&] { EXPECT_EQ(peer.unmap(), 0); });
    peer.child.kill();
    threads.join();
    char byte = 0;
    EXPECT(rrecv(peer.fd, &byte, 1, 0) <= 0);
}

void test_memory_is_the_program_s_again_after_close() {
    for (int round = 0; round < 20; ++round) {
        Ends ends = connected_with(2);
        auto memory = std::make_unique<std::string>(200000, '\0');
        const off_t at = mapped(ends.server, *memory);
        pass_a_byte(ends.server, ends.client);
        send_all(ends.server, "delivered");
        std::atomic<bool> stop{false};
        Threads threads;
        threads.start([&] {
            const std::string data(50000, 'x');
            while (!stop) {
                (void)riowrite(ends.client, data.data(), data.size(), at, MSG_NOSIGNAL | MSG_DONTWAIT);
            }
        });
        const Until end{stop};
        const auto start = Clock::now();
        ends.server.close();
        EXPECT(milliseconds_since(start) < patience(2500)); // with the peer's consent, not for want of it
        std::fill(memory->begin(), memory->end(), '-');
        stop = true;
        threads.join();
        EXPECT_EQ(received(ends.client, 9), "delivered");
        EXPECT(*memory == std::string(memory->size(), '-'));
    }
}

void test_a_write_after_the_end_of_sending_is_a_broken_pipe() {
    const Ends ends = connected_with(2);
    std::string memory(100, '\0');
    const off_t at = mapped(ends.server, memory);
    pass_a_byte(ends.server, ends.client);
    EXPECT_EQ(riowrite(ends.client, "last", 4, at, 0), 4U);
    EXPECT_EQ(rshutdown(ends.client, SHUT_WR), 0);
    EXPECT_ERRNO(riowrite(ends.client, "x", 1, at, MSG_NOSIGNAL), failed_write, EPIPE);
    EXPECT_EQ(received(ends.server, 1), "");
    EXPECT_EQ(memory.compare(0, 4, "last"), 0);
    EXPECT_EQ(riounmap(ends.server, memory.data(), memory.size()), 0);
}

// ---- threads

void test_threads_write_to_maps_of_one_socket() {
    const Ends ends = connected_with(8);
    constexpr size_t writers = 4;
    std::vector<std::string> memory(writers, std::string(100000, '\0'));
    std::vector<off_t> offsets;
    offsets.reserve(writers);
    for (std::string& one : memory) {
        offsets.push_back(mapped(ends.server, one));
    }
    pass_a_byte(ends.server, ends.client);
    Threads threads;
    for (size_t i = 0; i < writers; ++i) {
        threads.start([&, i] {
            for (unsigned round = 1; round <= 30; ++round) {
                const std::string data = text_of(memory[i].size(), round);
                EXPECT_EQ(riowrite(ends.client, data.data(), data.size(), offsets[i], 0), data.size());
            }
        });
    }
    threads.join();
    pass_a_byte(ends.client, ends.server);
    for (std::string& one : memory) {
        EXPECT(one == text_of(one.size(), 30));
        EXPECT_EQ(riounmap(ends.server, one.data(), one.size()), 0);
    }
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    const Role roles[] = {{"tells_default", role_tells_default}, {"is_stopped", role_is_stopped}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_what_was_written_is_there_with_the_next_byte),
        FABTEST(test_a_write_larger_than_all_buffers_is_taken_whole),
        FABTEST(test_a_write_waits_behind_a_stream_that_is_full_unless_told_not_to),
        FABTEST(test_room_for_a_write_shows_in_poll),
        FABTEST(test_a_writer_that_never_calls_again_is_served),
        FABTEST(test_a_reader_that_looks_at_nothing_but_its_memory_is_served),
        FABTEST(test_a_write_outside_of_a_map_or_after_it_fails_at_the_writer_alone),
        FABTEST(test_arguments_that_make_no_sense_are_refused),
        FABTEST(test_a_socket_that_is_not_connected_maps_nothing),
        FABTEST(test_memory_can_be_registered_for_local_use_alone),
        FABTEST(test_the_peer_s_option_says_how_many_maps_there_may_be),
        FABTEST(test_the_option_reads_back_and_is_bounded),
        FABTEST(test_the_default_comes_from_the_environment),
        FABTEST(test_unmap_needs_no_call_of_the_peer_s_program),
        FABTEST(test_unmap_waits_for_the_time_that_sends_wait),
        FABTEST(test_unmap_is_interrupted_by_a_signal),
        FABTEST(test_a_dead_peer_gives_everything_back),
        FABTEST(test_memory_is_the_program_s_again_after_close),
        FABTEST(test_a_write_after_the_end_of_sending_is_a_broken_pipe),
        FABTEST(test_threads_write_to_maps_of_one_socket),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
