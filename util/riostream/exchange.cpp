// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/riostream/exchange.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <rdma/rsocket.h>
#include <sched.h>

#include "util/common/failure.hpp"
#include "util/streaming/greeting.hpp"
#include "util/streaming/pattern.hpp"

namespace riostream {

using streaming::Greeting;
using streaming::Socket;
using streaming::Test;
using util::fail;

namespace {

constexpr off_t mapping_offset = 0; // the peer's program writes to this offset

// After this many polls of the socket, some tens of microseconds, yield the processor to other threads, which may
// include the peer. If none are runnable, a yield costs no more than a poll.
constexpr unsigned polls_alone = 64;

// Local memory that the peer may write to, from here to unmap().
class Mapping {
  public:
    Mapping(Socket& socket, size_t size) : socket_(socket), memory_(size) {}

    [[nodiscard]] std::span<std::byte> bytes() { return memory_; }

    void map() {
        if (riomap(socket_.fd(), memory_.data(), memory_.size(), PROT_WRITE, 0, mapping_offset) != mapping_offset) {
            fail("{}: cannot map {} bytes: {}", socket_.peer(), memory_.size(), strerror(errno));
        }
    }
    void unmap() {
        if (riounmap(socket_.fd(), memory_.data(), memory_.size()) != 0) {
            fail("{}: cannot unmap {} bytes: {}", socket_.peer(), memory_.size(), strerror(errno));
        }
    }

  private:
    Socket& socket_;
    std::vector<std::byte> memory_;
};

class MappedExchange : public streaming::Exchange {
  public:
    explicit MappedExchange(const streaming::Options& options) : options_(options) {}

    void prepare(Socket& socket) override { socket.set_mappings(1); }

    void begin(Socket& socket, const Test& test) override {
        socket_ = &socket;
        test_ = test;
        turn_ = 0;
        calls_per_poll_ = static_cast<unsigned>(std::clamp<size_t>(test.size / 16, 64, 256));
        source_.assign(test.size, std::byte{0});
        mapping_ = std::make_unique<Mapping>(socket, test.size);
        target_ = mapping_->bytes();
        target_.back() = mark_before(0);
        mapping_->map();
        // Report a mismatch only after sending our own greeting: then the peer can report it too.
        Greeting theirs{};
        if (options_.is_client()) {
            socket.send(streaming::greet(test));
            socket.receive(theirs);
        } else {
            socket.receive(theirs);
            socket.send(streaming::greet(test));
        }
        const std::string trouble = streaming::disagreement(theirs, test);
        if (!trouble.empty()) {
            fail("{}: {}", socket.peer(), trouble);
        }
    }

    void send() override {
        source_.back() = mark_before(turn_);
        for (uint64_t i = 1; i < test_.transfers; ++i) {
            write();
        }
        if (options_.verify) {
            sent_.fill(std::span(source_).first(test_.size - 1));
        }
        source_.back() = mark_of(turn_++);
        write();
    }

    void receive() override {
        await_mark(mark_of(turn_++));
        if (options_.verify) {
            const size_t at = received_.compare(target_.first(test_.size - 1));
            if (at != test_.size - 1) {
                fail("{}: wrong data in a transfer, at byte {}; was -T v given to both ends?", socket_->peer(), at);
            }
        }
    }

    void end() override {
        mapping_->unmap();
        mapping_.reset();
    }

    // The peer may continue to write, and may never confirm an unmap: the memory stays until the process ends.
    void abandon() override {
        static std::atomic<const Mapping*> kept; // keeps it reachable, so that it is not reported as a leak
        kept.store(mapping_.release());
    }

  private:
    static std::byte mark_of(uint64_t turn) { return static_cast<std::byte>(turn); }
    static std::byte mark_before(uint64_t turn) { return static_cast<std::byte>(turn - 1); }

    void write() {
        socket_->send_by(source_.size(), "writing", [&](size_t done, int flags) {
            return static_cast<ssize_t>(riowrite(socket_->fd(), &source_[done], source_.size() - done,
                                                 mapping_offset + static_cast<off_t>(done), flags));
        });
    }

    // No call reports a write of the peer: poll the memory. If a processor moves the bytes, as over tcp, polling the
    // socket in between makes progress; polling it too often makes it receive the bytes in small pieces.
    void await_mark(std::byte mark) {
        const std::atomic_ref<std::byte> last(target_.back());
        streaming::Wait wait(options_);
        unsigned polls = 0;
        while (last.load(std::memory_order_acquire) != mark) {
            if (++calls_ % calls_per_poll_ == 0) {
                if (socket_->ended() && last.load(std::memory_order_acquire) != mark) {
                    fail("{}: waiting for a write: the peer has closed the connection", socket_->peer());
                }
                if (++polls > polls_alone) {
                    sched_yield();
                }
            }
            if (wait.over()) {
                socket_->give_up("waiting for a write");
            }
        }
    }

    const streaming::Options& options_;
    Socket* socket_ = nullptr;
    Test test_;
    uint64_t turn_ = 0; // number of the next direction
    unsigned calls_ = 0;
    unsigned calls_per_poll_ = 1;
    std::vector<std::byte> source_;
    std::unique_ptr<Mapping> mapping_;
    std::span<std::byte> target_; // the mapped memory
    streaming::Pattern sent_;
    streaming::Pattern received_;
};

} // namespace

std::unique_ptr<streaming::Exchange> make_exchange(const streaming::Options& options) {
    return std::make_unique<MappedExchange>(options);
}

} // namespace riostream
