// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that dies: its process is killed, at rest and at any moment of a transfer. The survivor must be told, soon,
// and in the words of the manual.
#include <random>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

constexpr int soon_ms = 1000;

// ---- The one that dies: connects to the address, says so, and does one thing until it is killed.
// Arguments: address, what to do.
void victim(const std::vector<std::string>& arguments) {
    Host host(here());
    Stream stream(host);
    stream.connect(from_text(arguments.at(0)).data());
    host.expect(FI_CONNECTED, &stream.ep->fid, patience(20000));
    const std::string& task = arguments.at(1);
    if (task == "send some") {
        send_pattern(stream, 5000, 1000, 1);
    }
    if (task == "send some and end") {
        send_pattern(stream, 5000, 1000, 1);
        EXPECT_RESULT(fi_shutdown(stream.get(), FI_RSTREAM_SHUT_WR), 0);
        EXPECT_RESULT(peek_recv(stream), -FI_EAGAIN);
    }
    if (task == "send some" || task == "send some and end" || task == "idle") {
        say("ready");
        (void)listen_to_parent(patience(60000));
        return;
    }
    say("ready");
    if (task == "send") {
        send_pattern(stream, 1ULL << 40, 4099, 1);
    } else if (task == "receive") {
        recv_pattern(stream, 1ULL << 40, 4099, 1);
    } else { // both
        Threads threads;
        threads.start([&] { send_pattern(stream, 1ULL << 40, 4099, 1); });
        threads.start([&] { recv_pattern(stream, 1ULL << 40, 4099, 1); });
        threads.join();
    }
}

// A connection to a victim.
struct Survivor {
    explicit Survivor(const std::string& task) : host(here()), listener(host) {
        child = std::make_unique<Child>("victim", std::vector{to_text(listener.name()), task});
        const Event request = host.expect(FI_CONNREQ, &listener.pep->fid, patience(20000));
        const Info info(request.info);
        stream = std::make_unique<Stream>(host, info.get());
        stream->accept();
        host.expect(FI_CONNECTED, &stream->ep->fid, patience(20000));
        EXPECT_EQ(child->hear(), std::string("ready"));
    }
    void kill() {
        child->kill();
        died = Clock::now();
    }
    void expect_soon() const { EXPECT(milliseconds_since(died) <= patience(soon_ms)); }
    // Receives and checks all there is; the end, or why there is no more.
    ssize_t receive_rest(Pattern& expected) {
        char buffer[4099];
        ssize_t got = 0;
        while ((got = stream->recv_some(buffer, sizeof(buffer))) > 0) {
            expected.check(buffer, static_cast<size_t>(got));
        }
        return got;
    }
    // What a lost connection looks like once its loss was told.
    void expect_lost() {
        char byte = 0;
        EXPECT_RESULT(send(*stream, "x", 1), -FI_EPIPE);
        EXPECT_RESULT(peek_send(*stream), -FI_EPIPE);
        EXPECT_RESULT(recv(*stream, &byte, 1), -FI_ECONNRESET);
        EXPECT_RESULT(peek_recv(*stream), -FI_ECONNRESET);
        host.expect(FI_SHUTDOWN, &stream->ep->fid, patience(soon_ms));
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
    }

    Host host;
    Listener listener;
    std::unique_ptr<Child> child;
    std::unique_ptr<Stream> stream;
    Clock::time_point died;
};

void test_the_death_of_an_idle_peer_resets_the_stream() {
    Survivor survivor("idle");
    survivor.kill();
    Pattern nothing(1);
    EXPECT_RESULT(survivor.receive_rest(nothing), -FI_ECONNRESET);
    survivor.expect_soon();
    EXPECT_EQ(nothing.position(), 0U);
    survivor.expect_lost();
}

void test_the_death_of_the_peer_wakes_who_sleeps_on_the_endpoint() {
    Survivor survivor("idle");
    fid* one = &survivor.stream->ep->fid;
    while (try_wait(survivor.host, one) != 0 || readable(wait_fd(one), 20)) {
        EXPECT_RESULT(peek_recv(*survivor.stream), -FI_EAGAIN);
    }
    survivor.kill();
    EXPECT(readable(wait_fd(one), patience(soon_ms)));
    EXPECT_RESULT(try_wait(survivor.host, one), -FI_EAGAIN);
    char byte = 0;
    EXPECT_RESULT(recv(*survivor.stream, &byte, 1), -FI_ECONNRESET);
}

void test_the_death_of_the_peer_wakes_who_sleeps_on_the_event_queue() {
    Survivor survivor("idle");
    survivor.kill();
    survivor.host.expect(FI_SHUTDOWN, &survivor.stream->ep->fid, patience(soon_ms));
    survivor.expect_soon();
}

void test_what_had_arrived_is_received_before_the_reset() {
    Survivor survivor("send some");
    EXPECT_EQ(await_readable(*survivor.stream, 5000), 5000);
    survivor.kill();
    Pattern expected(1);
    EXPECT_RESULT(survivor.receive_rest(expected), -FI_ECONNRESET);
    EXPECT_EQ(expected.position(), 5000U);
    survivor.expect_soon();
    survivor.expect_lost();
}

// What had arrived is still in the kernel when the sends fail.
void test_what_had_arrived_comes_before_the_reset_although_sends_failed() {
    Survivor survivor("send some");
    survivor.kill();
    const std::vector<char> piece(4099);
    for (int i = 0; i < 3; ++i) {
        const ssize_t sent = send(*survivor.stream, piece.data(), piece.size());
        EXPECT(sent > 0 || sent == -FI_ECONNRESET || sent == -FI_EPIPE);
    }
    Pattern expected(1);
    EXPECT_RESULT(survivor.receive_rest(expected), -FI_ECONNRESET);
    EXPECT_EQ(expected.position(), 5000U);
    survivor.expect_soon();
}

void test_a_stream_that_had_ended_ends_in_order_although_the_peer_died() {
    Survivor survivor("send some and end");
    survivor.kill();
    Pattern expected(1);
    EXPECT_RESULT(survivor.receive_rest(expected), 0);
    EXPECT_EQ(expected.position(), 5000U);
    survivor.expect_soon();
    survivor.host.expect(FI_SHUTDOWN, &survivor.stream->ep->fid, patience(soon_ms));
    const auto start = Clock::now();
    ssize_t sent = 0;
    while ((sent = send(*survivor.stream, "x", 1)) >= 0 || sent == -FI_EAGAIN) {
        EXPECT(milliseconds_since(start) < patience(soon_ms));
        (void)survivor.stream->wait(10);
    }
    EXPECT(sent == -FI_ECONNRESET || sent == -FI_EPIPE);
    EXPECT_RESULT(send(*survivor.stream, "x", 1), -FI_EPIPE);
}

void test_send_tells_of_the_death_of_the_peer() {
    Survivor survivor("receive");
    Pattern pattern(1);
    std::vector<char> piece(4099);
    pattern.fill(piece.data(), piece.size());
    survivor.stream->send_all(piece.data(), piece.size());
    survivor.kill();
    ssize_t sent = 0;
    while ((sent = send(*survivor.stream, piece.data(), piece.size())) >= 0 || sent == -FI_EAGAIN) {
        EXPECT(milliseconds_since(survivor.died) < patience(10000));
        if (sent == -FI_EAGAIN) {
            EXPECT(survivor.stream->wait(patience(soon_ms)));
        }
    }
    EXPECT_RESULT(sent, -FI_ECONNRESET);
    survivor.expect_soon();
    survivor.expect_lost();
}

// The survivor does its part of the task for a while, kills, and goes on until it is told.
void kill_during(const std::string& task, uint64_t bytes_before) {
    Survivor survivor(task);
    Pattern sending(1);
    Pattern expected(1);
    std::vector<char> piece(4099);
    std::vector<char> buffer(4099);
    size_t at = piece.size();
    uint64_t sent = 0;
    bool killed = false;
    bool told_sender = false;
    bool told_receiver = false;
    const auto start = Clock::now();
    while (!told_sender && !told_receiver) {
        EXPECT(milliseconds_since(start) < patience(30000));
        if (!killed && sent + expected.position() >= bytes_before) {
            survivor.kill();
            killed = true;
        }
        bool moved = false;
        if (task != "send") {
            if (at == piece.size()) {
                sending.fill(piece.data(), piece.size());
                at = 0;
            }
            const ssize_t n = send(*survivor.stream, &piece[at], piece.size() - at);
            if (n > 0) {
                at += static_cast<size_t>(n);
                sent += static_cast<uint64_t>(n);
                moved = true;
            } else if (n != -FI_EAGAIN) {
                EXPECT(killed);
                EXPECT_RESULT(n, -FI_ECONNRESET);
                told_sender = true;
            }
        }
        const ssize_t n = recv(*survivor.stream, buffer.data(), buffer.size());
        if (n > 0) {
            expected.check(buffer.data(), static_cast<size_t>(n));
            moved = true;
        } else if (n != -FI_EAGAIN) {
            EXPECT(killed);
            EXPECT_RESULT(n, -FI_ECONNRESET);
            told_receiver = true;
        }
        if (!moved && !told_sender && !told_receiver) {
            EXPECT(survivor.stream->wait(patience(10000)));
        }
    }
    survivor.expect_soon();
    if (!told_receiver) { // what had arrived is still there
        EXPECT_RESULT(survivor.receive_rest(expected), -FI_ECONNRESET);
    }
    survivor.expect_lost();
}

void test_the_peer_may_die_at_any_moment() {
    std::mt19937 random(20261121); // NOLINT: the same each time
    const char* tasks[] = {"send", "receive", "both"};
    for (int round = 0; round < 20; ++round) {
        const uint64_t bytes = std::uniform_int_distribution<uint64_t>(0, 3000000)(random);
        try {
            kill_during(tasks[round % 3], bytes);
        } catch (const std::exception& error) {
            throw Failure("round " + std::to_string(round) + ", " + tasks[round % 3] + ", after " +
                          std::to_string(bytes) + " bytes: " + error.what());
        }
    }
}

void test_the_death_of_one_peer_leaves_the_others_alone() {
    Host host(here());
    const Listener listener(host);
    Pair pair(host, 0);
    Child child("victim", {to_text(listener.name()), "idle"});
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid, patience(20000)).info);
    Stream doomed(host, info.get());
    doomed.accept();
    host.expect(FI_CONNECTED, &doomed.ep->fid);
    EXPECT_EQ(child.hear(), std::string("ready"));
    child.kill();
    exchange_bytes(*pair.client, *pair.server, 300007);
    char byte = 0;
    EXPECT_RESULT(doomed.recv_some(&byte, 1), -FI_ECONNRESET);
    exchange_bytes(*pair.client, *pair.server, 300007);
    host.expect(FI_SHUTDOWN, &doomed.ep->fid);
}

void test_a_client_that_dies_before_it_is_accepted_does_no_harm() {
    Host host(here());
    const Listener listener(host);
    for (const bool accept : {true, false}) {
        Child child("asker", {to_text(listener.name())});
        const Info info(host.expect(FI_CONNREQ, &listener.pep->fid, patience(20000)).info);
        child.kill();
        if (accept) {
            Stream server(host, info.get());
            // An error at once, or as an event, or a connection that ends; but something, and about this endpoint.
            if (fi_accept(server.get(), nullptr, 0) != 0) {
                continue;
            }
            const Event event = host.next_event(patience(10000));
            EXPECT(event.subject == &server.ep->fid);
            if (!event.error && event.type == FI_CONNECTED) {
                char byte = 0;
                EXPECT_RESULT(server.recv_some(&byte, 1), -FI_ECONNRESET);
            }
        } else {
            (void)fi_reject(listener.pep.get(), info->handle, nullptr, 0);
        }
    }
    Pair pair(host, 0);
    exchange_bytes(*pair.client, *pair.server, 1000);
}

void asker(const std::vector<std::string>& arguments) {
    Host host(here());
    Stream stream(host);
    stream.connect(from_text(arguments.at(0)).data());
    (void)host.next_event(patience(60000));
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"victim", victim}, {"asker", asker}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_the_death_of_an_idle_peer_resets_the_stream),
        FABTEST(test_the_death_of_the_peer_wakes_who_sleeps_on_the_endpoint),
        FABTEST(test_the_death_of_the_peer_wakes_who_sleeps_on_the_event_queue),
        FABTEST(test_what_had_arrived_is_received_before_the_reset),
        FABTEST(test_what_had_arrived_comes_before_the_reset_although_sends_failed),
        FABTEST(test_a_stream_that_had_ended_ends_in_order_although_the_peer_died),
        FABTEST(test_send_tells_of_the_death_of_the_peer),
        FABTEST(test_the_peer_may_die_at_any_moment),
        FABTEST(test_the_death_of_one_peer_leaves_the_others_alone),
        FABTEST(test_a_client_that_dies_before_it_is_accepted_does_no_harm),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
