// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/test/hostile_calls.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/path/frame.hpp"
#include "preload/test/hostile_echo.hpp"

namespace hostile {

namespace {

using namespace preload;

constexpr uint64_t slow_ms = 50; // on a busy machine, a call that does not wait may take that, but not most of them

struct Measured {
    unsigned calls = 0;
    unsigned slow = 0;
    uint64_t slowest = 0;

    template <class Call> auto operator()(Call&& call) {
        const uint64_t begin = now_ms();
        const auto result = call();
        const uint64_t took = now_ms() - begin;
        ++calls;
        slow += took >= slow_ms ? 1 : 0;
        slowest = std::max(slowest, took);
        return result;
    }
};

// A wait must not report again and again what the call does not find.
unsigned refusals(int fd, Measured& measured) {
    constexpr uint64_t time_ms = 100;
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) {
        return 0;
    }
    unsigned refused = 0;
    for (const uint64_t end = now_ms() + time_ms; now_ms() < end;) {
        if (measured([&] { return splice(fd, nullptr, ends[1], nullptr, 10, SPLICE_F_NONBLOCK); }) >= 0) {
            break;
        }
        ++refused;
        pollfd one{fd, POLLIN, 0};
        (void)poll(&one, 1, static_cast<int>(time_ms));
    }
    close(ends[0]);
    close(ends[1]);
    return refused;
}

unsigned refused_shutdowns = 0;
Measured waited; // the calls that have to wait

// Answers until the connection ends, or the peer has named a call.
void serve(int fd, Measured& measured, unsigned& refused) {
    std::array<char, 64> bytes{};
    for (;;) {
        pollfd one{fd, POLLIN, 0};
        (void)poll(&one, 1, 5000);
        const ssize_t n = read(fd, bytes.data(), bytes.size());
        if (n <= 0) {
            break;
        }
        switch (static_cast<Holds>(bytes[static_cast<size_t>(n) - 1])) {
        case Holds::taken_shutdown:
            ++measured.calls; // this call may wait for a second
            (void)shutdown(fd, SHUT_WR);
            break;
        case Holds::shutdowns: {
            ++measured.calls;
            (void)shutdown(fd, SHUT_WR);
            usleep(20000); // until TCP has no space
            (void)shutdown(fd, SHUT_RDWR);
            pollfd kernel{fd, POLLRDHUP, 0};
            const timespec at_once{};
            if (syscall(SYS_ppoll, &kernel, 1, &at_once, nullptr, 0) != 1 || (kernel.revents & POLLRDHUP) == 0) {
                printf("# reading is not shut down\n");
                ++refused_shutdowns;
            }
            break;
        }
        case Holds::taken_splice:
            refused = std::max(refused, refusals(fd, measured));
            break;
        case Holds::waited_close:
        case Holds::late_close: {
            const linger wait{1, static_cast<Holds>(bytes[static_cast<size_t>(n) - 1]) == Holds::late_close ? 1 : 20};
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &wait, sizeof(wait));
            ++measured.calls;
            (void)waited([&] { return close(fd); });
            return;
        }
        case Holds::halted_close:
        case Holds::resent_close:
        case Holds::both_close:
        case Holds::frames_close:
            (void)measured([&] { return close(fd); });
            return;
        default:
            (void)!write(fd, "ok", 2);
            continue;
        }
        break;
    }
    (void)close(fd);
}

} // namespace

int calls(const char* file, unsigned connections) {
    constexpr unsigned max_refusals = 20;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 16) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
        return 2;
    }
    FILE* out = fopen(file, "w");
    fprintf(out, "%u\n", ntohs(address.sin_port));
    fclose(out);
    Measured measured;
    unsigned refused = 0;
    for (unsigned i = 0; i < connections; ++i) {
        const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        serve(fd, measured, refused);
    }
    close(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)); // the peer has seen the end of all
    printf("# calls: %u, %u of them took %llu ms or more, the slowest %llu ms; at most %u refused in a row\n",
           measured.calls, measured.slow, static_cast<unsigned long long>(slow_ms),
           static_cast<unsigned long long>(measured.slowest), refused);
    printf("# %u of %u calls that have to wait did, the longest for %llu ms\n", waited.slow, waited.calls,
           static_cast<unsigned long long>(waited.slowest));
    return measured.calls == 0 || 2 * measured.slow > measured.calls || refused > max_refusals ||
                   refused_shutdowns != 0 || (waited.calls != 0 && waited.slow == 0)
               ? 1
               : 0;
}

namespace {

// Until EOF; -1: it was reset.
ssize_t rest_of(int tcp) {
    std::array<char, 65536> bytes{};
    ssize_t total = 0;
    ssize_t n = 0;
    while ((n = recv(tcp, bytes.data(), bytes.size(), 0)) > 0) {
        total += n;
    }
    return n < 0 ? -1 : total;
}

} // namespace

bool hold(Holds how, int tcp, path::Segment& segment, uint64_t sent) {
    constexpr unsigned exchanges = 200;
    constexpr uint32_t counted = 5;
    const auto asked = static_cast<ssize_t>(path::give_back_bytes); // more than TCP takes
    path::Direction& in = segment.direction[0];
    path::Direction& out = segment.direction[1];
    const auto count_frames = [&] { // and switch, with the letter in the ring
        out.wake.consent = path::used;
        out.writer.switch_at = sent;
        out.writer.epoch = 1;
        *path::ring_memory(&segment, 1) = static_cast<uint8_t>(how);
        out.writer.frames = counted;
        out.writer.head = 1;
    };
    const auto say = [&](char byte) { sent += send(tcp, &byte, 1, MSG_NOSIGNAL) == 1 ? 1 : 0; };
    in.wake.consent = path::given;
    for (unsigned i = 0; i < exchanges && (in.writer.epoch & 1) == 0; ++i) {
        say('x');
        usleep(5000);
    }
    usleep(20000); // for the answer to the last byte
    const uint32_t epoch = in.writer.epoch;
    if ((epoch & 1) == 0) {
        printf("# hold: the victim does not switch\n");
    }
    segment.service[1] = segment.service[0].load(); // somebody takes the messages: the victim itself
    in.reader.tail = in.writer.head.load();
    switch (how) {
    case Holds::taken_shutdown:
    case Holds::taken_splice:
        in.reader.given_back = 8;
        break;
    case Holds::halted_close: // once it has returned to the kernel
        in.reader.request = path::request_of(epoch, path::return_to_kernel);
        say('x');
        usleep(20000);
        in.wake.consent = path::given;
        in.reader.epoch = epoch + 1;
        in.reader.request = path::request_of(epoch + 1, path::halt);
        break;
    case Holds::both_close:
        count_frames();
        [[fallthrough]];
    case Holds::resent_close:
    case Holds::waited_close:
    case Holds::late_close:
    case Holds::shutdowns:
        in.reader.given_back = asked;
        in.reader.request = path::request_of(epoch, path::resend);
        break;
    case Holds::frames_close:
        count_frames();
        break;
    }
    const bool has_frames = how == Holds::both_close || how == Holds::frames_close;
    say(has_frames ? static_cast<char>(path::Frame::wake) : static_cast<char>(how));
    usleep(how == Holds::late_close ? 1500000 : 300000); // as long as the victim's call could wait
    for (uint32_t i = 1; has_frames && i < counted; ++i) {
        say(static_cast<char>(path::Frame::wake));
    }
    switch (how) {
    case Holds::resent_close:
    case Holds::waited_close:
    case Holds::late_close:
    case Holds::both_close:
    case Holds::shutdowns:
        return rest_of(tcp) > asked;
    case Holds::frames_close:
        usleep(50000); // for a reset
        return rest_of(tcp) >= 0;
    default:
        return true;
    }
}

} // namespace hostile
