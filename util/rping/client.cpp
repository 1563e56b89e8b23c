// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rping/client.hpp"

#include <cstring>

#include "util/common/choice.hpp"
#include "util/common/failure.hpp"
#include "util/common/waiter.hpp"
#include "util/rping/tally.hpp"
#include "util/rping/wire.hpp"

namespace rping {

using util::Access;
using util::Clock;
using util::Event;
using util::fail;
using util::Operation;

namespace {

class Client {
  public:
    explicit Client(const Options& options);
    int run();

  private:
    void connect();
    void prepare_memory();
    void ping(uint64_t n);
    void send(util::Memory& message, size_t length);
    void await_go_ahead(const char* what);
    void take(util::Completion completion);
    void take_events();
    void finish();
    void summarize() const;
    bool wait(Clock::time_point deadline);
    [[nodiscard]] std::string so_far() const;
    void debug(const std::string& line) const;

    const Options& options_;
    util::Waiter waiter_;
    util::Address remote_;
    std::optional<util::Address> local_;
    std::unique_ptr<util::Backend> backend_;
    std::unique_ptr<util::EventQueue> events_;
    std::unique_ptr<util::Memory> start_; // the server reads it
    std::unique_ptr<util::Memory> sink_;  // the server writes the echo to it
    std::unique_ptr<util::Memory> start_message_;
    std::unique_ptr<util::Memory> sink_message_;
    std::unique_ptr<util::Memory> farewell_;
    std::unique_ptr<util::Memory> answer_;
    std::unique_ptr<util::Connection> connection_; // destroyed before its memory
    bool established_ = false;
    bool disconnected_ = false;
    bool server_is_ours_ = false;
    unsigned go_aheads_ = 0;
    Tally tally_;
};

Client::Client(const Options& options) : options_(options) {
    remote_ = util::resolve_address("-a", options.address, options.port, util::AddressFormat::any,
                                    util::server_family(options.address, options.source));
    if (!options.source.empty()) {
        local_ = util::resolve_address("-I", options.source, 0, util::AddressFormat::any, remote_.family());
    }
    tally_.size = options.size;
    backend_ = util::open_backend(options.common, local_, remote_);
    events_ = backend_->open_events();
}

void Client::debug(const std::string& line) const {
    if (options_.debug) {
        fmt::print(stderr, "debug: {}\n", line);
    }
}

std::string Client::so_far() const {
    return options_.count == 0 ? fmt::format("after {} pings", tally_.pings)
                               : fmt::format("after {} of {} pings", tally_.pings, options_.count);
}

// False once the user has interrupted: the remaining time is then short.
bool Client::wait(Clock::time_point deadline) {
    util::Waitable* things[] = {events_.get(), connection_.get()};
    switch (waiter_.wait(things, deadline)) {
    case util::Waiter::Outcome::timed_out:
        fail("{}: nothing from the server for {} s {}; --timeout sets how long to wait", remote_.text(),
             options_.common.timeout, so_far());
    case util::Waiter::Outcome::interrupted:
        return false;
    case util::Waiter::Outcome::ready:
        break;
    }
    return true;
}

void Client::connect() {
    connection_ = backend_->open(*events_, local_, remote_);
    if (options_.size > connection_->max_message()) {
        fail("-S {}: the largest message over {} is {}", options_.size, backend_->device(), connection_->max_message());
    }
    connection_->make_queues({.sends = 16, .receives = 2, .own = options_.own_queues});
    prepare_memory();
    connection_->receive(*answer_, message_size);
    debug(fmt::format("connecting to {} by {} ({})", remote_.text(), backend_->name(), backend_->device()));
    connection_->connect(
        util::encode_hello(magic, {static_cast<uint32_t>(options_.size), static_cast<uint32_t>(options_.count), 1}));
    const auto deadline = options_.common.deadline();
    while (!established_) {
        if (!wait(deadline)) {
            fail("interrupted before the connection was made");
        }
        take_events();
    }
    if (!server_is_ours_ && !options_.size_given) {
        tally_.size = default_size_of_others;
    }
    debug(fmt::format("connected to {}, messages of {} bytes", server_is_ours_ ? "our server" : "a server not of ours",
                      tally_.size));
}

void Client::prepare_memory() {
    start_ = connection_->allocate(options_.size, Access::remote);
    sink_ = connection_->allocate(options_.size, Access::remote);
    start_message_ = connection_->allocate(Advertisement::length, Access::local);
    sink_message_ = connection_->allocate(Advertisement::length, Access::local);
    farewell_ = connection_->allocate(farewell_length, Access::local);
    answer_ = connection_->allocate(message_size, Access::local);
    if (start_->remote_key() > UINT32_MAX || sink_->remote_key() > UINT32_MAX) {
        fail("{}: its memory keys have more than 32 bits, and an advertisement has no space for them; try another "
             "--provider",
             backend_->device());
    }
}

void advertise(const util::Memory& memory, size_t size, util::Memory& message) {
    const auto bytes =
        Advertisement{memory.remote_address(), static_cast<uint32_t>(memory.remote_key()), static_cast<uint32_t>(size)}
            .encode();
    memcpy(message.bytes().data(), bytes.data(), bytes.size());
}

void Client::take_events() {
    while (auto event = events_->next()) {
        if (event->connection != connection_.get()) {
            continue;
        }
        const auto hello = util::find_hello(magic, event->data);
        switch (event->type) {
        case Event::Type::established:
            established_ = true;
            server_is_ours_ = hello.has_value();
            break;
        case Event::Type::disconnected:
            disconnected_ = true;
            break;
        case Event::Type::failed:
            if (hello && hello->size != options_.size) {
                fail("{}: the server's messages have {} bytes and ours {}; give both the same -S", remote_.text(),
                     hello->size, options_.size);
            }
            fail("{}: {}{}", remote_.text(), event->reason,
                 established_ ? " " + so_far() : util::refusal_hint(event->reason));
        case Event::Type::request:
            break;
        }
    }
}

void Client::take(util::Completion completion) {
    if (completion.failed) {
        if (completion.reason.empty()) {
            disconnected_ = true;
            return;
        }
        fail("{}: {} {}", remote_.text(), completion.reason, so_far());
    }
    if (completion.operation == Operation::receive) {
        if (completion.length != Advertisement::length) {
            fail("{}: the server's answer has {} bytes instead of {}; is it an rping?", remote_.text(),
                 completion.length, Advertisement::length);
        }
        connection_->receive(*answer_, message_size);
        ++go_aheads_;
    }
}

void Client::await_go_ahead(const char* what) {
    auto deadline = options_.common.deadline();
    for (;;) {
        while (auto completion = connection_->completion()) {
            take(std::move(*completion));
        }
        if (go_aheads_ > 0) {
            --go_aheads_;
            debug(fmt::format("the server has {}", what));
            return;
        }
        take_events();
        if (disconnected_) {
            fail("{}: the server has disconnected {}{}", remote_.text(), so_far(),
                 !server_is_ours_ && tally_.pings == 0 ? "; has it the same -S?" : "");
        }
        if (!wait(deadline)) {
            // Let the ping in progress finish, so that the disconnection is clean.
            deadline = std::min(deadline, Clock::now() + std::chrono::seconds(5));
        }
    }
}

void Client::ping(uint64_t n) {
    const auto start = start_->bytes().first(tally_.size);
    const auto sink = sink_->bytes().first(tally_.size);
    fill_ping(start, n);
    const auto begin = Clock::now();
    connection_->send(*start_message_, Advertisement::length);
    await_go_ahead("read the ping");
    connection_->send(*sink_message_, Advertisement::length);
    await_go_ahead("written the echo");
    const auto time = Clock::now() - begin;
    tally_.round_trips.record(static_cast<uint64_t>(std::chrono::nanoseconds(time).count()));
    if (options_.validate) {
        if (const size_t at = first_difference(sink, n); at != sink.size()) {
            fail("{}: data mismatch in ping {}: byte {} is 0x{:02x} instead of 0x{:02x}", remote_.text(), n, at,
                 static_cast<unsigned>(sink[at]), static_cast<unsigned>(start[at]));
        }
    }
    if (options_.verbose) {
        fmt::print(options_.common.json ? stderr : stdout, "ping data: {}\n", ping_text(sink));
    }
    ++tally_.pings;
    tally_.bytes += 2 * tally_.size;
}

// Between two ends of this package, the server disconnects when it has read the farewell, which marks a normal end.
void Client::finish() {
    if (server_is_ours_) {
        connection_->send(*farewell_, farewell_length);
        const auto deadline = Clock::now() + std::chrono::seconds(5);
        while (!disconnected_) {
            while (auto completion = connection_->completion()) {
                disconnected_ = disconnected_ || completion->failed;
            }
            take_events();
            util::Waitable* things[] = {events_.get(), connection_.get()};
            if (!disconnected_ && waiter_.wait(things, deadline) == util::Waiter::Outcome::timed_out) {
                break;
            }
        }
    }
    connection_->disconnect();
    debug("disconnected");
}

void Client::summarize() const {
    const bool complete = options_.count == 0 || tally_.pings == options_.count;
    if (options_.common.json) {
        util::Json summary = {{"program", "rping"},
                              {"role", "client"},
                              {"backend", backend_->name()},
                              {"device", backend_->device()},
                              {"status", complete ? "complete" : "interrupted"}};
        summary.update(json_of(tally_));
        fmt::print("{}\n", util::json_text(summary));
        return;
    }
    fmt::print("{}{}\n", complete ? "" : "interrupted: ", tally_line(tally_));
    if (tally_.pings != 0) {
        fmt::print("{}\n", round_trip_line(tally_.round_trips));
    }
}

int Client::run() {
    connect();
    advertise(*start_, tally_.size, *start_message_);
    advertise(*sink_, tally_.size, *sink_message_);
    const auto begin = Clock::now();
    while (!waiter_.interrupted() && (options_.count == 0 || tally_.pings < options_.count)) {
        ping(tally_.pings);
        tally_.time = Clock::now() - begin;
    }
    finish();
    summarize();
    return options_.count == 0 || tally_.pings == options_.count ? 0 : 1;
}

} // namespace

int run_client(const Options& options) { return Client(options).run(); }

} // namespace rping
