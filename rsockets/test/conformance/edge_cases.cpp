// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Programs that are told of each arrival once (EPOLLET), and do not read until EAGAIN: they stop at a short read, or
// where FIONREAD has said that there is no more (nginx does, where EPOLLRDHUP tells of the end). Each arrival behind
// what they were told of has to be told of anew.
#include "rsockets/test/conformance/conformance.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <sys/ioctl.h>

using namespace conformance;

namespace {

constexpr size_t block = 4096;
constexpr int in_time = 20000;
constexpr int rounds = 150;

// Records of an answer, as a server sends them: some at once, the last one a moment later.
constexpr std::array<size_t, 5> records{8192, 8192, 3643, 16, 1};
constexpr size_t answer_size = 8192 + 8192 + 3643 + 16 + 1;

class Reader {
  public:
    enum class Stops : uint8_t { at_short_reads, by_count };
    Reader(Case& c, int set, int fd, Stops stops) : c_(c), set_(set), fd_(fd), stops_(stops) {}

    // False: it was not told of all.
    bool read_answer(std::chrono::microseconds pause) {
        log_.clear();
        for (size_t got = 0; got < answer_size;) {
            epoll_event event{};
            if (c_.s.epoll_wait(set_, &event, 1, in_time) != 1) {
                c_.note("was told of " + std::to_string(got) + " bytes of " + std::to_string(answer_size) +
                        ", and read " + log_);
                return false;
            }
            log_ += " | " + std::to_string(event.events) + ":";
            got += read_on(pause);
        }
        return true;
    }

  private:
    size_t read_on(std::chrono::microseconds pause) {
        size_t total = 0;
        long left = -1; // not known
        while (left != 0) {
            const ssize_t n = c_.s.recv(fd_, buffer_.data(), buffer_.size(), 0);
            total += n > 0 ? static_cast<size_t>(n) : 0;
            log_ += " " + std::to_string(n);
            if (n < static_cast<ssize_t>(buffer_.size())) {
                break;
            }
            if (stops_ == Stops::by_count) {
                left = left < 0 ? count() : std::max(left - static_cast<long>(n), 0L);
                log_ += " (" + std::to_string(left) + ")";
            }
            std::this_thread::sleep_for(pause);
        }
        return total;
    }
    long count() {
        int there = 0;
        return c_.s.ioctl(fd_, FIONREAD, &there) == 0 ? there : 0;
    }

    Case& c_;
    const int set_;
    const int fd_;
    const Stops stops_;
    std::array<char, block> buffer_{};
    std::string log_;
};

void answers(Case& c, Reader::Stops stops, std::chrono::microseconds pause) {
    const Pair pair = c.make_pair();
    const int set = c.track(c.s.epoll_create(0));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    SAY(c.s.epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    std::atomic<bool> sent{true};
    std::thread server([&] {
        std::array<char, 8192> bytes{};
        for (int round = 0; round < rounds; ++round) {
            if (c.s.recv(pair.server, bytes.data(), 1, 0) != 1) {
                return;
            }
            for (const size_t size : records) {
                sent = sent && c.s.send(pair.server, bytes.data(), size, 0) == static_cast<ssize_t>(size);
            }
        }
    });
    Reader reader(c, set, pair.client, stops);
    int done = 0;
    while (done < rounds && c.s.send(pair.client, "x", 1, 0) == 1 && reader.read_answer(pause)) {
        ++done;
    }
    c.s.shutdown(pair.client, SHUT_RDWR); // if it was not told of all
    server.join();
    c.note(std::to_string(done) + " answers");
    c.note(sent ? "sent" : "not sent");
}

} // namespace

CASE(epoll_of_edges_suffices_for_who_stops_at_short_reads) {
    answers(c, Reader::Stops::at_short_reads, std::chrono::microseconds(0));
}

CASE(epoll_of_edges_suffices_for_who_stops_where_fionread_said) {
    answers(c, Reader::Stops::by_count, std::chrono::microseconds(0));
}

CASE(epoll_of_edges_suffices_for_who_takes_time_between_reads) {
    answers(c, Reader::Stops::by_count, std::chrono::microseconds(200));
}
