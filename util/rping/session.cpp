// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rping/session.hpp"

#include "util/common/failure.hpp"

namespace rping {

using util::Access;
using util::Clock;
using util::fail;
using util::Operation;

namespace {
// The time for the peer to disconnect too.
constexpr std::chrono::seconds closing_time{5};
} // namespace

Session::Session(const Options& options, std::unique_ptr<util::Connection> connection, const util::Event& request)
    : options_(options), connection_(std::move(connection)), peer_(connection_->peer()),
      deadline_(options.common.deadline()) {
    const auto theirs = util::find_hello(magic, request.data);
    const auto ours = util::encode_hello(magic, {static_cast<uint32_t>(options.size), 0, 1});
    client_is_ours_ = theirs.has_value();
    tally_.size = options.size;
    if (theirs && theirs->size != options.size) {
        connection_->reject(ours);
        fail("{}: the client's messages have {} bytes and ours {}; give both the same -S", peer_, theirs->size,
             options.size);
    }
    if (options.size > connection_->max_message()) {
        fail("-S {}: the largest message of this device is {}", options.size, connection_->max_message());
    }
    connection_->make_queues({.sends = 16, .receives = 2, .own = options.own_queues});
    message_ = connection_->allocate(message_size, Access::local);
    answer_ = connection_->allocate(Advertisement::length, Access::local);
    connection_->receive(*message_, message_size);
    connection_->accept(ours);
    debug(fmt::format("accepted {}", client_is_ours_ ? "our client" : "a client not of ours"));
}

void Session::debug(const std::string& line) const {
    if (options_.debug) {
        fmt::print(stderr, "debug: {}: {}\n", peer_, line);
    }
}

void Session::established() {
    if (state_ == State::connecting) {
        state_ = State::awaiting_ping;
        deadline_ = options_.common.deadline();
        debug("connected");
    }
}

void Session::progress() {
    while (!ended()) {
        const auto completion = connection_->completion();
        if (!completion) {
            return;
        }
        take(*completion);
    }
}

void Session::take(const util::Completion& completion) {
    if (completion.failed) {
        lost(completion.reason);
        return;
    }
    if (state_ == State::closing) {
        return;
    }
    established(); // data may arrive before the event
    deadline_ = options_.common.deadline();
    switch (completion.operation) {
    case Operation::receive:
        take_message(completion.length);
        break;
    case Operation::read:
        take_ping();
        break;
    case Operation::write:
        debug("written the echo");
        ++tally_.pings;
        tally_.bytes += 2 * tally_.size;
        tally_.time = Clock::now() - first_;
        go_ahead(State::awaiting_ping);
        break;
    case Operation::send:
        break;
    }
}

void Session::take_message(size_t length) {
    if (length == farewell_length && client_is_ours_ && state_ == State::awaiting_ping) {
        debug("the client is done");
        close();
        return;
    }
    if (length != Advertisement::length) {
        fail("{}: a message of {} bytes where an advertisement has {}; is it an rping?", peer_, length,
             Advertisement::length);
    }
    if (state_ != State::awaiting_ping && state_ != State::awaiting_sink) {
        fail("{}: an advertisement before the last one was answered; is it an rping?", peer_);
    }
    if (options_.count != 0 && tally_.pings == options_.count) {
        fail("{}: more than {} pings; give the client no more than the server's -C", peer_, options_.count);
    }
    const util::RemoteBuffer buffer = take_advertisement();
    connection_->receive(*message_, message_size);
    if (state_ == State::awaiting_ping) {
        if (tally_.pings == 0) {
            first_ = Clock::now();
        }
        state_ = State::reading;
        connection_->read(*data_, tally_.size, buffer);
    } else {
        state_ = State::writing;
        connection_->write(*data_, tally_.size, buffer);
    }
}

util::RemoteBuffer Session::take_advertisement() {
    const auto advertised = Advertisement::decode(message_->bytes().first<Advertisement::length>());
    debug(
        fmt::format("advertised: address {:x} key {:x} size {}", advertised.address, advertised.key, advertised.size));
    if (!data_ && !client_is_ours_ && !options_.size_given && advertised.size >= 1 && advertised.size <= max_size &&
        advertised.size <= connection_->max_message()) {
        tally_.size = advertised.size; // no -S was given here, and an rdma-core client sends no size when it connects
    }
    if (advertised.size != tally_.size) {
        fail("{}: the client's messages have {} bytes and ours {}; give both the same -S", peer_, advertised.size,
             tally_.size);
    }
    if (!data_) {
        data_ = connection_->allocate(tally_.size, Access::remote);
    }
    return {advertised.address, advertised.key};
}

void Session::take_ping() {
    const std::span<const std::byte> data = data_->bytes();
    if (options_.verbose) {
        fmt::print(options_.common.json ? stderr : stdout, "server ping data: {}\n", ping_text(data));
    }
    if (options_.validate) {
        if (const size_t at = first_difference(data, tally_.pings); at != data.size()) {
            fail("{}: data mismatch in ping {}: byte {} is 0x{:02x}, which is not what rping sends", peer_,
                 tally_.pings, at, static_cast<unsigned>(data[at]));
        }
    }
    debug("read the ping");
    go_ahead(State::awaiting_sink);
}

void Session::go_ahead(State next) {
    state_ = next;
    connection_->send(*answer_, Advertisement::length);
}

void Session::lost(const std::string& reason) {
    const State before = state_;
    state_ = State::ended;
    connection_->disconnect();
    if (before == State::closing || before == State::ended) {
        return;
    }
    const std::string how = reason.empty() ? std::string("the client has vanished") : reason;
    if (before == State::connecting) {
        fail("{}: {} before the connection was made", peer_, how);
    }
    // An rdma-core client just disconnects when it has finished; a client of this package sends a farewell first.
    if (before != State::awaiting_ping || client_is_ours_ || tally_.pings == 0) {
        fail("{}: {} in mid-run, after {} pings", peer_, how, tally_.pings);
    }
    if (options_.count != 0 && tally_.pings != options_.count) {
        fail("{}: the client has left after {} of {} pings", peer_, tally_.pings, options_.count);
    }
    debug("disconnected");
}

void Session::close() {
    if (state_ == State::closing || state_ == State::ended) {
        return;
    }
    state_ = State::closing;
    deadline_ = Clock::now() + closing_time;
    connection_->disconnect();
}

} // namespace rping
