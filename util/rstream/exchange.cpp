// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rstream/exchange.hpp"

#include "util/common/failure.hpp"
#include "util/streaming/greeting.hpp"
#include "util/streaming/pattern.hpp"

namespace rstream {

using streaming::Greeting;
using streaming::Socket;
using streaming::Test;
using util::fail;

namespace {

class StreamExchange : public streaming::Exchange {
  public:
    explicit StreamExchange(const streaming::Options& options) : options_(options) {}

    void begin(Socket& socket, const Test& test) override {
        socket_ = &socket;
        test_ = test;
        buffer_.assign(test.size, std::byte{0});
        // Report a mismatch only after sending our own greeting: then the peer can report it too.
        Greeting theirs{};
        if (options_.is_client()) {
            greet();
            socket.receive(theirs);
        } else {
            socket.receive(theirs);
            greet();
        }
        check_greeting(theirs);
    }

    void send() override {
        for (uint64_t i = 0; i < test_.transfers; ++i) {
            if (options_.verify) {
                sent_.fill(buffer_);
            }
            socket_->send(buffer_);
        }
    }

    void receive() override {
        for (uint64_t i = 0; i < test_.transfers; ++i) {
            socket_->receive(buffer_);
            if (options_.verify) {
                check(buffer_, "a transfer");
            }
        }
    }

    void pass_over(const Test& test) override {
        const uint64_t bytes = sizeof(Greeting) + test.bytes() / 2;
        sent_.advance(bytes);
        received_.advance(bytes);
    }

  private:
    void greet() {
        Greeting ours = streaming::greet(test_);
        if (options_.verify) {
            sent_.fill(ours);
        }
        socket_->send(ours);
    }

    void check_greeting(const Greeting& theirs) {
        if (options_.verify) {
            check(theirs, "the first 16 bytes");
            return;
        }
        const std::string trouble = streaming::disagreement(theirs, test_);
        if (!trouble.empty()) {
            fail("{}: {}", socket_->peer(), trouble);
        }
        if (streaming::counts_up(theirs)) {
            fail("{}: the peer runs with -T v, this end without", socket_->peer());
        }
    }

    void check(std::span<const std::byte> data, const char* what) {
        const size_t at = received_.compare(data);
        if (at != data.size()) {
            fail("{}: wrong data in {}, at byte {}; was -T v given to both ends?", socket_->peer(), what, at);
        }
    }

    const streaming::Options& options_;
    Socket* socket_ = nullptr;
    Test test_;
    streaming::Pattern sent_;
    streaming::Pattern received_;
    std::vector<std::byte> buffer_;
};

} // namespace

std::unique_ptr<streaming::Exchange> make_exchange(const streaming::Options& options) {
    return std::make_unique<StreamExchange>(options);
}

} // namespace rstream
