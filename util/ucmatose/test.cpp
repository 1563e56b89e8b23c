// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/ucmatose/test.hpp"

#include <algorithm>

#include <sys/resource.h>
#include <unistd.h>

#include "util/common/choice.hpp"
#include "util/common/failure.hpp"
#include "util/common/json.hpp"

namespace ucmatose {

using util::Clock;
using util::Event;
using util::fail;

namespace {

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
double rate(double amount, Clock::duration time) { return time.count() > 0 ? amount / seconds(time) : 0; }

// Each connection takes some descriptors, and the default soft limit is often low.
void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

} // namespace

Test::Test(const Options& options) : options_(options) {
    check_memory();
    raise_descriptor_limit();
    if (options.is_client()) {
        remote_ = util::resolve_address("-s", options.server, options.port, options.format,
                                        util::server_family(options.server, options.bind));
        if (!options.bind.empty()) {
            local_ = util::resolve_address("-b", options.bind, 0, options.format, remote_->family());
        }
    } else {
        if (options.bind.empty() && options.format == util::AddressFormat::gid) {
            fail("-f gid: a server needs the GID to listen on, give it with -b");
        }
        const char* any = options.format == util::AddressFormat::ipv6 ? "::" : "0.0.0.0";
        local_ = util::resolve_address("-b", options.bind.empty() ? any : options.bind, options.port, options.format);
    }
    backend_ = util::open_backend(options.common, local_, remote_, options.path);
    first_events_ = backend_->open_events();
    events_ = first_events_.get();
    peers_.reserve(options.connections);
}

void Test::check_memory() const {
    const double wanted = 2.0 * static_cast<double>(options_.connections) * static_cast<double>(options_.size);
    const double present = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    if (options_.count != 0 && wanted > present / 2) {
        fail("-c {} -S {}: that needs {:.1f} GiB of memory, of {:.1f} here; try less of either", options_.connections,
             options_.size, wanted / (1 << 30), present / (1 << 30));
    }
}

void Test::say(const char* line) const {
    if (!options_.common.json) {
        fmt::print("{}\n", line);
    }
}

util::Bytes Test::hello() const {
    return util::encode_hello(magic, {static_cast<uint32_t>(options_.size), static_cast<uint32_t>(options_.count),
                                      static_cast<uint32_t>(options_.connections)});
}

size_t Test::established() const {
    return static_cast<size_t>(
        std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->established; }));
}

Peer& Test::peer_of(const util::Connection* connection) {
    const auto found =
        std::find_if(peers_.begin(), peers_.end(), [&](const auto& peer) { return &peer->connection() == connection; });
    if (found == peers_.end()) {
        fail("an event of a connection that is not there");
    }
    return **found;
}

std::string difference(const util::Hello& theirs, const Options& ours) {
    return fmt::format("the peer runs with -c {} -C {} -S {}, this end with -c {} -C {} -S {}; they must be the same",
                       theirs.connections, theirs.count, theirs.size, ours.connections, ours.count, ours.size);
}

void Test::take_request(Event event) {
    if (peers_.empty()) {
        first_request_ = Clock::now();
    }
    if (peers_.size() == options_.connections) {
        event.request->reject(hello());
        return;
    }
    const auto theirs = util::find_hello(magic, event.data);
    if (theirs && util::encode_hello(magic, *theirs) != hello()) {
        event.request->reject(hello());
        fail("{}: {}", event.request->peer(), difference(*theirs, options_));
    }
    auto peer = std::make_unique<Peer>(options_, std::move(event.request), peers_.size() + 1);
    peer->know_peer(theirs.has_value());
    peer->connection().accept(hello());
    peers_.push_back(std::move(peer));
}

void Test::take_events() {
    while (auto event = events_->next()) {
        if (event->type == Event::Type::request) {
            take_request(std::move(*event));
            continue;
        }
        Peer& peer = peer_of(event->connection);
        const auto theirs = util::find_hello(magic, event->data);
        switch (event->type) {
        case Event::Type::established:
            if (options_.is_client()) {
                peer.know_peer(theirs.has_value());
            }
            peer.establish();
            break;
        case Event::Type::disconnected:
            peer.progress(); // process messages that arrived before the end
            peer.disconnected = true;
            break;
        case Event::Type::failed:
            if (theirs && util::encode_hello(magic, *theirs) != hello()) {
                fail("{}: {}", remote_ ? remote_->text() : "", difference(*theirs, options_));
            }
            if (peer.established) {
                fail("{}: {}", peer.text(), event->reason);
            }
            fail("{}: {}; {} of {} connections were made{}", peer.connection().peer(), event->reason, established(),
                 options_.connections, util::refusal_hint(event->reason));
        case Event::Type::request:
            break;
        }
    }
}

void Test::step(Clock::time_point& deadline) {
    std::vector<util::Waitable*> things{events_};
    for (auto& peer : peers_) {
        things.push_back(&peer->connection());
    }
    switch (waiter_.wait(things, deadline)) {
    case util::Waiter::Outcome::timed_out:
        fail("nothing for {} s, with {} of {} connections made{}; --timeout sets how long to wait",
             options_.common.timeout, established(), options_.connections,
             peers_.empty() ? "" : "; " + (*std::find_if(peers_.begin(), peers_.end() - 1, [](const auto& p) {
                                              return !p->received_all();
                                          }))->text());
    case util::Waiter::Outcome::interrupted:
        fail("interrupted, with {} of {} connections made", established(), options_.connections);
    case util::Waiter::Outcome::ready:
        break;
    }
    take_events();
    for (auto& peer : peers_) {
        peer->progress();
        if (!ending_ && peer->lost()) {
            fail("{}: the peer has disconnected", peer->text());
        }
    }
    deadline = options_.common.deadline();
}

void Test::connect_all() {
    say("cmatose: connecting");
    const auto start = Clock::now();
    auto deadline = options_.common.deadline();
    for (size_t i = 1; i <= options_.connections; ++i) {
        try {
            auto peer = std::make_unique<Peer>(options_, backend_->open(*events_, local_, *remote_), i);
            peer->connection().connect(hello());
            peers_.push_back(std::move(peer));
        } catch (const util::Failure& failure) {
            if (i == 1) {
                throw;
            }
            fail("connection {} of {}: {}", i, options_.connections, failure.what());
        }
        if (waiter_.interrupted()) {
            break;
        }
        take_events(); // detects a refusal before all have been tried
    }
    while (established() != options_.connections) {
        step(deadline);
    }
    connect_time_ = Clock::now() - start;
}

void Test::accept_all() {
    listener_ = backend_->listen(*events_, *local_, static_cast<int>(options_.connections));
    if (options_.port == 0) {
        const uint16_t port = listener_->local().port();
        fmt::print("{}\n", options_.common.json ? util::json_text({{"event", "listening"}, {"port", port}})
                                                : fmt::format("listening on port {}", port));
    }
    // By default, a server waits for its client without limit.
    auto deadline = options_.common.timeout_given ? options_.common.deadline() : util::forever;
    while (established() != options_.connections) {
        step(deadline);
    }
    connect_time_ = Clock::now() - first_request_;
    await_all(&Peer::ready);
    if (std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->needs_time(); })) {
        let_pass(std::chrono::milliseconds(300));
    }
}

// Nothing reports when these clients are ready to receive. See opening_length.
void Test::let_pass(Clock::duration time) {
    const auto end = Clock::now() + time;
    while (Clock::now() < end && waiter_.wait({}, end) == util::Waiter::Outcome::ready) {
    }
}

void Test::await_all(bool (Peer::*done)() const) {
    auto deadline = options_.common.deadline();
    while (!std::all_of(peers_.begin(), peers_.end(), [&](const auto& peer) { return ((*peer).*done)(); })) {
        step(deadline);
    }
}

void Test::send_all() {
    for (auto& peer : peers_) {
        peer->start_sending();
    }
    await_all(&Peer::sent_all);
}

void Test::receive_all() { await_all(&Peer::received_all); }

void Test::migrate() {
    say("migrating to new event channel");
    second_events_ = backend_->open_events();
    if (listener_) {
        second_events_->adopt(*listener_);
    }
    for (auto& peer : peers_) {
        second_events_->adopt(peer->connection());
    }
    take_events(); // events that arrived before; the old queue is not read again
    events_ = second_events_.get();
}

void Test::await_disconnections() {
    ending_ = true;
    auto deadline = options_.common.deadline();
    while (!std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->disconnected; })) {
        step(deadline);
    }
    for (auto& peer : peers_) {
        peer->connection().disconnect();
    }
}

void Test::run_server() {
    say("cmatose: starting server");
    accept_all();
    const auto start = Clock::now();
    if (options_.count != 0) {
        say("initiating data transfers");
        send_all();
        say("receiving data transfers");
        receive_all();
        say("data transfers complete");
    }
    transfer_time_ = Clock::now() - start;
    if (options_.migrate) {
        migrate();
    }
    say("cmatose: disconnecting");
    for (auto& peer : peers_) {
        peer->connection().disconnect();
    }
    await_disconnections();
    say("disconnected");
}

void Test::run_client() {
    say("cmatose: starting client");
    connect_all();
    const auto start = Clock::now();
    if (options_.count != 0) {
        say("receiving data transfers");
        receive_all();
        say("sending replies");
        send_all();
        say("data transfers complete");
    }
    transfer_time_ = Clock::now() - start;
    if (options_.migrate) {
        migrate();
    }
    await_disconnections();
    say("disconnected");
}

void Test::summarize() const {
    const size_t messages = 2 * options_.connections * options_.count;
    const size_t bytes = messages * options_.size;
    const double connections_rate = rate(static_cast<double>(options_.connections), connect_time_);
    const double messages_rate = rate(static_cast<double>(messages), transfer_time_);
    const double bytes_rate = rate(static_cast<double>(bytes), transfer_time_);
    if (options_.common.json) {
        const util::Json summary = {{"program", "ucmatose"},
                                    {"role", options_.is_client() ? "client" : "server"},
                                    {"backend", backend_->name()},
                                    {"device", backend_->device()},
                                    {"status", "complete"},
                                    {"connections", options_.connections},
                                    {"connect_seconds", seconds(connect_time_)},
                                    {"connections_per_second", connections_rate},
                                    {"size", options_.size},
                                    {"messages", messages},
                                    {"bytes", bytes},
                                    {"transfer_seconds", seconds(transfer_time_)},
                                    {"messages_per_second", messages_rate},
                                    {"bytes_per_second", bytes_rate}};
        fmt::print("{}\n", util::json_text(summary));
        return;
    }
    fmt::print("test complete\n");
    fmt::print("{} connections in {:.3f} s: {:.0f} connections/s\n", options_.connections, seconds(connect_time_),
               connections_rate);
    if (messages != 0) {
        fmt::print("{} messages of {} bytes, half each way, in {:.3f} s: {:.0f} messages/s, {:.3f} MB/s\n", messages,
                   options_.size, seconds(transfer_time_), messages_rate, bytes_rate / 1e6);
    }
    fmt::print("return status 0\n");
}

int Test::run() {
    if (options_.is_client()) {
        run_client();
    } else {
        run_server();
    }
    summarize();
    return 0;
}

} // namespace ucmatose
