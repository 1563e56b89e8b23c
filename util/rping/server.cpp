// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rping/server.hpp"

#include <algorithm>
#include <cerrno>

#include "util/common/choice.hpp"
#include "util/common/failure.hpp"
#include "util/common/waiter.hpp"
#include "util/rping/session.hpp"

namespace rping {

using util::Clock;
using util::Event;
using util::fail;

namespace {

constexpr int backlog = 128;

class Server {
  public:
    explicit Server(const Options& options);
    int run();

  private:
    void announce() const;
    bool wait();
    void take_events();
    void admit(Event event);
    template <class Step> void guarded(Session& session, Step step);
    void check_time(Session& session);
    void retire_ended();
    void close_all();
    void complain(const std::string& what);
    void report(const Session& session) const;
    void summarize() const;
    Session* session_of(const util::Connection* connection);

    const Options& options_;
    util::Waiter waiter_;
    std::unique_ptr<util::Backend> backend_;
    std::unique_ptr<util::EventQueue> events_;
    std::unique_ptr<util::Listener> listener_;
    std::vector<std::unique_ptr<Session>> sessions_;
    Clock::time_point deadline_ = util::forever; // for the first client
    uint64_t clients_ = 0;
    uint64_t failed_ = 0;
    Tally total_;
};

Server::Server(const Options& options) : options_(options) {
    const auto local = util::resolve_address("-a", options.address.empty() ? "0.0.0.0" : options.address, options.port);
    backend_ = util::open_backend(options.common, local, std::nullopt);
    events_ = backend_->open_events();
    listener_ = backend_->listen(*events_, local, backlog);
    if (options.common.timeout_given && !options.persistent) {
        deadline_ = options.common.deadline();
    }
    total_.size = options.size;
}

void Server::announce() const {
    if (options_.debug) {
        fmt::print(stderr, "debug: listening on {} by {} ({})\n", listener_->local().text(), backend_->name(),
                   backend_->device());
    }
    if (options_.port == 0) {
        const uint16_t port = listener_->local().port();
        if (options_.common.json) {
            fmt::print("{}\n", util::json_text({{"event", "listening"}, {"port", port}}));
        } else {
            fmt::print("listening on port {}\n", port);
        }
    }
}

Session* Server::session_of(const util::Connection* connection) {
    const auto found = std::find_if(sessions_.begin(), sessions_.end(),
                                    [&](const auto& session) { return &session->connection() == connection; });
    return found == sessions_.end() ? nullptr : found->get();
}

// The failure of a client ends the server only if the server has just one client.
void Server::complain(const std::string& what) {
    ++failed_;
    if (!options_.persistent) {
        throw util::Failure(what);
    }
    fmt::print(stderr, "{}: {}\n", program_invocation_short_name, what);
}

template <class Step> void Server::guarded(Session& session, Step step) {
    try {
        step();
    } catch (const util::Failure& failure) {
        session.close();
        complain(failure.what());
    }
}

void Server::admit(Event event) {
    if (!options_.persistent && clients_ > 0) {
        event.request->reject({});
        return;
    }
    ++clients_;
    try {
        auto connection = std::move(event.request);
        sessions_.push_back(std::make_unique<Session>(options_, std::move(connection), event));
    } catch (const util::Failure& failure) {
        complain(failure.what());
    }
}

void Server::take_events() {
    while (auto event = events_->next()) {
        if (event->type == Event::Type::request) {
            admit(std::move(*event));
            continue;
        }
        Session* session = session_of(event->connection);
        if (session == nullptr) {
            continue;
        }
        guarded(*session, [&] {
            if (event->type == Event::Type::established) {
                session->established();
                return;
            }
            session->progress(); // process messages that arrived before the end
            session->lost(event->reason);
        });
    }
}

void Server::check_time(Session& session) {
    if (Clock::now() < session.deadline() || session.ended()) {
        return;
    }
    guarded(session, [&] {
        // A peer that does not confirm the disconnection is not an error.
        const bool closing = session.closing();
        session.lost(closing ? "" : fmt::format("nothing from the client for {} s", options_.common.timeout));
    });
}

bool Server::wait() {
    std::vector<util::Waitable*> things{events_.get()};
    auto deadline = clients_ == 0 ? deadline_ : util::forever;
    for (auto& session : sessions_) {
        things.push_back(&session->connection());
        deadline = std::min(deadline, session->deadline());
    }
    const auto outcome = waiter_.wait(things, deadline);
    if (outcome == util::Waiter::Outcome::timed_out && clients_ == 0) {
        fail("no client within {} s; --timeout sets how long to wait", options_.common.timeout);
    }
    return outcome != util::Waiter::Outcome::interrupted;
}

void Server::report(const Session& session) const {
    if (options_.common.json) {
        util::Json line = {{"event", "client"}, {"peer", session.peer()}};
        line.update(json_of(session.tally()));
        fmt::print("{}\n", util::json_text(line));
    } else {
        fmt::print("{}: {}\n", session.peer(), tally_line(session.tally()));
    }
}

void Server::retire_ended() {
    for (auto& session : sessions_) {
        if (!session->ended()) {
            continue;
        }
        const Tally& tally = session->tally();
        total_.pings += tally.pings;
        total_.bytes += tally.bytes;
        total_.time += tally.time;
        total_.size = tally.size;
        if (options_.persistent) {
            report(*session);
        }
        session.reset();
    }
    std::erase(sessions_, nullptr);
}

void Server::close_all() {
    for (auto& session : sessions_) {
        session->close();
    }
    while (!sessions_.empty() && waiter_.interrupted()) {
        wait();
        take_events();
        for (auto& session : sessions_) {
            guarded(*session, [&] { session->progress(); });
            check_time(*session);
        }
        retire_ended();
    }
}

void Server::summarize() const {
    if (options_.common.json) {
        util::Json summary = {{"program", "rping"},
                              {"role", "server"},
                              {"backend", backend_->name()},
                              {"device", backend_->device()},
                              {"status", waiter_.interrupted() ? "interrupted" : "complete"},
                              {"clients", clients_},
                              {"failed", failed_}};
        summary.update(json_of(total_));
        fmt::print("{}\n", util::json_text(summary));
        return;
    }
    if (!options_.persistent) {
        fmt::print("{}\n", tally_line(total_));
        return;
    }
    fmt::print("{} clients, {} of them failed, {} pings, {} bytes in all\n", clients_, failed_, total_.pings,
               total_.bytes);
}

int Server::run() {
    announce();
    while (!waiter_.interrupted() && (options_.persistent || clients_ == 0 || !sessions_.empty())) {
        wait();
        take_events();
        for (auto& session : sessions_) {
            guarded(*session, [&] { session->progress(); });
            check_time(*session);
        }
        retire_ended();
    }
    close_all();
    summarize();
    return 0;
}

} // namespace

int run_server(const Options& options) { return Server(options).run(); }

} // namespace rping
