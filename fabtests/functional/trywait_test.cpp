// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sleeping: what fi_trywait says in each case of the manual, and that a descriptor wakes whoever sleeps on it, no more
// often than there is something to do.
#include <atomic>
#include <cstring>

#include <poll.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

Pair connected(size_t buffers = 0) { return Pair(core_name(), buffers, node_name()); }

// Until fi_trywait says that there is something to do.
void await_not_idle(Pair& pair, Stream& s) {
    const auto start = Clock::now();
    while (try_wait(*pair.own_host, &s.ep->fid) == 0) {
        EXPECT(milliseconds_since(start) < patience(10000));
        (void)readable(wait_fd(&s.ep->fid), patience(1000));
    }
}

// That fi_trywait comes to 0. The peer's acknowledgements may still be under way.
void await_idle(Pair& pair, Stream& s) {
    const auto start = Clock::now();
    for (int calm = 0; calm < 3;) {
        EXPECT(milliseconds_since(start) < patience(10000));
        const int ready = try_wait(*pair.own_host, &s.ep->fid);
        EXPECT(ready == 0 || ready == -FI_EAGAIN);
        calm = ready == 0 && !readable(wait_fd(&s.ep->fid), 2) ? calm + 1 : 0;
    }
}

// Until the core has the bytes that the peer has sent.
void await_core(Pair& pair) { EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(10000))); }

fi_rstream_status status_of(Stream& s) {
    fi_rstream_status status{};
    size_t length = sizeof(status);
    check("fi_getopt", fi_getopt(&s.ep->fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_STATUS, &status, &length));
    return status;
}

void test_an_idle_endpoint_may_be_slept_on() {
    auto pair = connected();
    await_idle(pair, *pair.client);
    await_idle(pair, *pair.server);
    EXPECT(!readable(wait_fd(&pair.client->ep->fid), 100));
}

void test_trywait_says_no_while_bytes_were_neither_taken_nor_told_of() {
    auto pair = connected();
    pair.client->send_all("abcd", 4);
    await_not_idle(pair, *pair.server);
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN); // still
    EXPECT_RESULT(peek_recv(*pair.server), 4);
    await_idle(pair, *pair.server); // told
    char buffer[4];
    EXPECT_RESULT(recv(*pair.server, buffer, 1), 1);
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN); // what was left was not told of since
    EXPECT_RESULT(peek_recv(*pair.server), 3);
    await_idle(pair, *pair.server);
    EXPECT_RESULT(recv(*pair.server, buffer, 4), 3);
    await_idle(pair, *pair.server); // all was taken
}

void test_bytes_behind_those_told_of_wake_a_sleeper() {
    auto pair = connected();
    pair.client->send_all("ab", 2);
    EXPECT_EQ(await_readable(*pair.server, 2), 2);
    await_idle(pair, *pair.server);
    pair.client->send_all("c", 1);
    EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(10000)));
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN);
    EXPECT_RESULT(peek_recv(*pair.server), 3);
}

// Another thread, which reads the event queue, may take them from the core between fi_trywait's looks at the endpoint
// and at the core.
void test_bytes_behind_reported_ones_wake_though_taken_by_another() {
    auto pair = connected();
    std::atomic<bool> over{false};
    Threads threads;
    threads.start([&] {
        while (!over.load()) {
            uint32_t event = 0;
            (void)fi_eq_read(pair.own_host->eq.get(), &event, nullptr, 0, FI_PEEK);
        }
    });
    struct Over {
        std::atomic<bool>& flag;
        ~Over() { flag.store(true); }
    } const at_the_end{over};
    for (int round = 0; round < 3000; ++round) {
        pair.client->send_all("ab", 2);
        while (status_of(*pair.server).readable != 2) { // so that the first look finds them
        }
        EXPECT_RESULT(peek_recv(*pair.server), 2);
        pair.client->send_all("c", 1);
        while (peek_recv(*pair.server) != 3) {
            if (try_wait(*pair.own_host, &pair.server->ep->fid) == 0) {
                EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(5000)));
            }
        }
        char bytes[3];
        EXPECT_RESULT(recv(*pair.server, bytes, 3), 3);
    }
}

// As one does who is woken by edges: a receive that took all there was is known to be the last one.
void test_bytes_behind_a_receive_of_all_wake_though_taken_by_another() {
    auto pair = connected();
    await_idle(pair, *pair.server);
    pair.client->send_all("ab", 2);
    EXPECT_EQ(await_readable(*pair.server, 2), 2);
    for (int round = 0; round < 100; ++round) {
        EXPECT_RESULT(peek_recv(*pair.server), 2);
        await_idle(pair, *pair.server);
        char bytes[10];
        EXPECT_RESULT(recv(*pair.server, bytes, sizeof(bytes)), 2);
        pair.client->send_all("cd", 2);
        const auto start = Clock::now();
        while (status_of(*pair.server).readable != 2) { // the queue's reader moves it in
            EXPECT(milliseconds_since(start) < patience(10000));
            uint32_t event = 0;
            (void)fi_eq_read(pair.own_host->eq.get(), &event, nullptr, 0, FI_PEEK);
        }
        EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(1000)));
    }
}

// Another thread may sleep for them: it was not woken when this call moved them in.
void test_bytes_that_a_receive_leaves_wake_a_sleeper() {
    auto pair = connected();
    for (int round = 0; round < 50; ++round) {
        await_idle(pair, *pair.server);
        pair.client->send_all("abcd", 4);
        await_core(pair);
        char bytes[4];
        EXPECT_RESULT(recv(*pair.server, bytes, 1), 1);
        EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(1000)));
        EXPECT_RESULT(recv(*pair.server, bytes, 4), 3);
    }
}

// Nobody has received or peeked at all. What waits to be sent makes the reader of the queue ready the endpoint for a
// sleep of its own, which quiets the core.
void test_the_first_bytes_wake_a_sleeper_although_another_call_took_them() {
    auto pair = connected();
    Pattern pattern(1);
    fill_up(*pair.server, pattern);
    await_idle(pair, *pair.server);
    pair.client->send_all("ab", 2);
    const auto start = Clock::now();
    for (int ready = -FI_EAGAIN; ready != 0 || status_of(*pair.server).readable != 2;) {
        EXPECT(milliseconds_since(start) < patience(10000));
        uint32_t event = 0;
        (void)fi_eq_read(pair.own_host->eq.get(), &event, nullptr, 0, FI_PEEK);
        ready = try_wait(*pair.own_host, &pair.own_host->eq->fid);
    }
    EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(20000)));
    EXPECT_RESULT(peek_recv(*pair.server), 2);
    await_idle(pair, *pair.server);
}

// The end moves in as the bytes do: nobody asked for it in vain, since the last receive took all there was.
void test_the_end_behind_a_receive_of_all_wakes_though_taken_by_another() {
    for (const uint64_t how : {uint64_t{0}, uint64_t{FI_RSTREAM_SHUT_WR}, uint64_t{FI_RSTREAM_ABORT}}) {
        auto pair = connected();
        Pattern pattern(1);
        fill_up(*pair.server, pattern);
        pair.client->send_all("ab", 2);
        const auto start = Clock::now();
        while (status_of(*pair.server).readable != 2) {
            EXPECT(milliseconds_since(start) < patience(10000));
            uint32_t event = 0;
            (void)fi_eq_read(pair.own_host->eq.get(), &event, nullptr, 0, FI_PEEK);
        }
        char bytes[10];
        EXPECT_RESULT(recv(*pair.server, bytes, sizeof(bytes)), 2);
        await_idle(pair, *pair.server);
        EXPECT_RESULT(fi_shutdown(pair.client->get(), how), 0);
        fi_eq_cm_entry entry{};
        do { // the queue is that of both ends
            EXPECT(milliseconds_since(start) < patience(10000));
            uint32_t event = 0;
            const ssize_t got = fi_eq_read(pair.own_host->eq.get(), &event, &entry, sizeof(entry), 0);
            EXPECT(got == -FI_EAGAIN || (got == sizeof(entry) && event == FI_SHUTDOWN));
        } while (entry.fid != &pair.server->ep->fid);
        for (int ready = -FI_EAGAIN; ready != 0;) {
            EXPECT(milliseconds_since(start) < patience(10000));
            fi_eq_cm_entry other{};
            uint32_t event = 0;
            (void)fi_eq_read(pair.own_host->eq.get(), &event, &other, sizeof(other), 0);
            ready = try_wait(*pair.own_host, &pair.own_host->eq->fid);
        }
        EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(20000)));
        EXPECT_RESULT(recv(*pair.server, bytes, sizeof(bytes)), how == FI_RSTREAM_ABORT ? -FI_ECONNRESET : 0);
    }
}

void test_trywait_says_no_until_the_end_was_told() {
    auto pair = connected();
    await_idle(pair, *pair.server);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(10000)));
    await_not_idle(pair, *pair.server);
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN);
    char byte = 0;
    EXPECT_RESULT(recv(*pair.server, &byte, 1), 0);
    await_idle(pair, *pair.server);
}

void test_trywait_says_no_until_the_end_behind_bytes_told_of_was_told() {
    auto pair = connected();
    pair.client->send_all("ab", 2);
    EXPECT_EQ(await_readable(*pair.server, 2), 2);
    await_idle(pair, *pair.server);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    await_not_idle(pair, *pair.server);
    char buffer[2];
    EXPECT_RESULT(recv(*pair.server, buffer, 2), 2);
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN);
    EXPECT_RESULT(recv(*pair.server, buffer, 2), 0);
    await_idle(pair, *pair.server);
}

void test_trywait_says_no_until_the_loss_was_told() {
    auto pair = connected();
    await_idle(pair, *pair.server);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_ABORT), 0);
    EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(10000)));
    await_not_idle(pair, *pair.server);
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN);
    EXPECT_RESULT(send(*pair.server, "x", 1), -FI_ECONNRESET); // told by a send as well
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), 0);
    EXPECT(!readable(wait_fd(&pair.server->ep->fid))); // although it has never received
}

void test_trywait_says_no_once_there_is_room_again() {
    for (const bool by_peek : {false, true}) {
        auto pair = connected();
        Pattern pattern(1);
        const uint64_t accepted = fill_up(*pair.client, pattern);
        if (by_peek) {
            EXPECT_RESULT(peek_send(*pair.client), -FI_EAGAIN);
        }
        await_idle(pair, *pair.client); // nobody reads: no space
        std::vector<char> buffer(accepted);
        Pattern expected(1);
        ssize_t got = 0;
        EXPECT((got = recv(*pair.server, buffer.data(), buffer.size())) > 0);
        expected.check(buffer.data(), static_cast<size_t>(got));
        EXPECT(readable(wait_fd(&pair.client->ep->fid), patience(10000)));
        await_not_idle(pair, *pair.client);
        EXPECT_RESULT(try_wait(*pair.own_host, &pair.client->ep->fid), -FI_EAGAIN);
        EXPECT(peek_send(*pair.client) > 0);
        drain_checked(*pair.client, *pair.server, expected, accepted - static_cast<uint64_t>(got));
        await_idle(pair, *pair.client); // the program was told
    }
}

// Blocks the client's sends, then lets the server receive: there will be space.
void block_and_make_space(Pair& pair) {
    Pattern pattern(1);
    std::vector<char> bytes(fill_up(*pair.client, pattern));
    EXPECT_RESULT(send(*pair.client, "x", 1), -FI_EAGAIN);
    EXPECT(recv(*pair.server, bytes.data(), bytes.size()) > 0);
}

// Another thread was told of the space meanwhile.
void test_trywait_says_no_once_there_is_room_although_another_thread_sends() {
    for (const bool peek : {false, true}) {
        auto pair = connected();
        block_and_make_space(pair);
        Threads threads;
        threads.start([&] {
            const auto start = Clock::now();
            while ((peek ? peek_send(*pair.client) : send(*pair.client, "x", 1)) <= 0) {
                EXPECT(milliseconds_since(start) < patience(10000));
            }
        });
        threads.join();
        EXPECT_RESULT(try_wait(*pair.own_host, &pair.client->ep->fid), -FI_EAGAIN);
        EXPECT(peek_send(*pair.client) > 0);
        await_idle(pair, *pair.client);
    }
}

void test_trywait_says_no_once_there_is_room_although_a_call_sent_nothing() {
    auto pair = connected();
    block_and_make_space(pair);
    EXPECT_RESULT(send(*pair.client, nullptr, 0), 0);
    const auto start = Clock::now();
    while (status_of(*pair.client).writable == 0) {
        EXPECT(milliseconds_since(start) < patience(10000));
        (void)try_wait(*pair.own_host, &pair.client->ep->fid);
    }
    for (int i = 0; i < 5; ++i) { // not only for activity of the core
        EXPECT_RESULT(try_wait(*pair.own_host, &pair.client->ep->fid), -FI_EAGAIN);
    }
    EXPECT(peek_send(*pair.client) > 0);
    await_idle(pair, *pair.client);
}

void test_trywait_says_no_for_an_end_that_only_another_thread_was_told_of() {
    auto pair = connected();
    char byte = 0;
    EXPECT_RESULT(recv(*pair.server, &byte, 1), -FI_EAGAIN);
    pair.client->send_all("x", 1);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    Threads threads;
    threads.start([&] {
        char other = 0;
        EXPECT_RESULT(pair.server->recv_some(&other, 1), 1);
        EXPECT_RESULT(pair.server->recv_some(&other, 1), 0);
    });
    threads.join();
    EXPECT_RESULT(try_wait(*pair.own_host, &pair.server->ep->fid), -FI_EAGAIN);
    EXPECT_RESULT(recv(*pair.server, &byte, 1), 0);
    await_idle(pair, *pair.server);
}

// It found nothing to receive once, and serves other connections since.
void test_a_thread_that_moved_on_keeps_nobody_awake() {
    auto pair = connected();
    Threads threads;
    threads.start([&] {
        char byte = 0;
        EXPECT_RESULT(recv(*pair.server, &byte, 1), -FI_EAGAIN);
    });
    threads.join();
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    char byte = 0;
    EXPECT_RESULT(pair.server->recv_some(&byte, 1), 0);
    Pattern pattern(1);
    fill_up(*pair.server, pattern);
    const auto start = Clock::now();
    for (int wakes = 0; milliseconds_since(start) < 500; ++wakes) {
        EXPECT(wakes < 20);
        if (try_wait(*pair.own_host, &pair.server->ep->fid) == 0) {
            (void)readable(wait_fd(&pair.server->ep->fid), 100);
        }
    }
}

void test_trywait_takes_a_mix_of_endpoints_and_queues() {
    auto pair = connected();
    await_idle(pair, *pair.client);
    await_idle(pair, *pair.server);
    fid* fids[] = {&pair.client->ep->fid, &pair.own_host->eq->fid, &pair.server->ep->fid};
    EXPECT_RESULT(fi_trywait(pair.own_host->fabric.get(), fids, 3), 0);
    EXPECT_RESULT(fi_trywait(pair.own_host->fabric.get(), fids, 0), 0);
    fi_eq_entry entry{};
    EXPECT_RESULT(fi_eq_write(pair.own_host->eq.get(), FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
    EXPECT_RESULT(fi_trywait(pair.own_host->fabric.get(), fids, 3), -FI_EAGAIN);
    uint32_t type = 0;
    EXPECT_RESULT(fi_eq_read(pair.own_host->eq.get(), &type, &entry, sizeof(entry), 0), sizeof(entry));
    EXPECT_RESULT(fi_trywait(pair.own_host->fabric.get(), fids, 3), 0);
    pair.client->send_all("x", 1);
    EXPECT(readable(wait_fd(&pair.server->ep->fid), patience(10000)));
    EXPECT_RESULT(fi_trywait(pair.own_host->fabric.get(), fids, 3), -FI_EAGAIN);
}

void test_trywait_refuses_what_cannot_be_waited_for() {
    auto pair = connected();
    fid* fids[] = {&pair.own_host->domain->fid, nullptr};
    EXPECT_RESULT(fi_trywait(pair.own_host->fabric.get(), fids, 1), -FI_EINVAL);
    EXPECT_RESULT(fi_trywait(pair.own_host->fabric.get(), fids + 1, 1), -FI_EINVAL);
    Stream fresh(*pair.own_host);
    EXPECT_ERROR(try_wait(*pair.own_host, &fresh.ep->fid));
    int fd = -1;
    EXPECT_ERROR(fi_control(&fresh.ep->fid, FI_GETWAIT, &fd));
    EXPECT_RESULT(fi_control(&pair.client->ep->fid, FI_GETWAIT, nullptr), -FI_EINVAL);
}

void test_an_enabled_endpoint_has_a_descriptor_of_its_own() {
    auto pair = connected();
    fi_wait_obj object = FI_WAIT_NONE;
    EXPECT_RESULT(fi_control(&pair.client->ep->fid, FI_GETWAITOBJ, &object), 0);
    EXPECT_EQ(object, FI_WAIT_FD);
    const int a = wait_fd(&pair.client->ep->fid);
    EXPECT_EQ(wait_fd(&pair.client->ep->fid), a);
    EXPECT(wait_fd(&pair.server->ep->fid) != a);
}

// ---- Ping-pong

struct Counts {
    uint64_t sleeps = 0;
    uint64_t refusals = 0; // of fi_trywait
};

// Receives so many bytes, sleeping only by the rules.
void recv_sleeping(Stream& s, char* to, size_t length, Counts& counts) {
    for (size_t got = 0; got < length;) {
        const ssize_t n = recv(s, to + got, length - got);
        if (n != -FI_EAGAIN) {
            EXPECT(n != 0);
            got += static_cast<size_t>(check("fi_recv", n));
            continue;
        }
        if (try_wait(s.host, &s.ep->fid) != 0) {
            ++counts.refusals;
            continue;
        }
        ++counts.sleeps;
        EXPECT(readable(wait_fd(&s.ep->fid), patience(20000)));
    }
}

void test_ping_pong_sleeps_and_does_not_spin() {
    for (const size_t size : {size_t{1}, size_t{64}, size_t{4096}, size_t{20011}}) {
        auto pair = connected();
        constexpr uint64_t rounds = 1000;
        Counts ping;
        Counts pong;
        Threads threads;
        threads.start([&] {
            std::vector<char> out(size, 'i');
            std::vector<char> in(size);
            for (uint64_t i = 0; i < rounds; ++i) {
                memset(out.data(), static_cast<int>(i), size);
                pair.client->send_all(out.data(), size);
                recv_sleeping(*pair.client, in.data(), size, ping);
                EXPECT(in == out);
            }
        });
        threads.start([&] {
            std::vector<char> in(size);
            for (uint64_t i = 0; i < rounds; ++i) {
                recv_sleeping(*pair.server, in.data(), size, pong);
                pair.server->send_all(in.data(), size);
            }
        });
        threads.join();
        const uint64_t limit = rounds * 6;
        EXPECT(ping.sleeps + ping.refusals < limit);
        EXPECT(pong.sleeps + pong.refusals < limit);
    }
}

void test_a_sleeper_that_nobody_writes_to_is_left_alone() {
    auto pair = connected();
    exchange_bytes(*pair.client, *pair.server, 1000003);
    int wakes = 0;
    const auto start = Clock::now();
    while (milliseconds_since(start) < 300) {
        EXPECT(++wakes < 20);
        char byte = 0;
        EXPECT_RESULT(recv(*pair.client, &byte, 1), -FI_EAGAIN);
        if (try_wait(*pair.own_host, &pair.client->ep->fid) == 0) {
            (void)readable(wait_fd(&pair.client->ep->fid), 300);
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_idle_endpoint_may_be_slept_on),
        FABTEST(test_trywait_says_no_while_bytes_were_neither_taken_nor_told_of),
        FABTEST(test_bytes_behind_those_told_of_wake_a_sleeper),
        FABTEST(test_bytes_behind_reported_ones_wake_though_taken_by_another),
        FABTEST(test_bytes_behind_a_receive_of_all_wake_though_taken_by_another),
        FABTEST(test_bytes_that_a_receive_leaves_wake_a_sleeper),
        FABTEST(test_the_first_bytes_wake_a_sleeper_although_another_call_took_them),
        FABTEST(test_the_end_behind_a_receive_of_all_wakes_though_taken_by_another),
        FABTEST(test_trywait_says_no_until_the_end_was_told),
        FABTEST(test_trywait_says_no_until_the_end_behind_bytes_told_of_was_told),
        FABTEST(test_trywait_says_no_until_the_loss_was_told),
        FABTEST(test_trywait_says_no_once_there_is_room_again),
        FABTEST(test_trywait_says_no_once_there_is_room_although_another_thread_sends),
        FABTEST(test_trywait_says_no_once_there_is_room_although_a_call_sent_nothing),
        FABTEST(test_trywait_says_no_for_an_end_that_only_another_thread_was_told_of),
        FABTEST(test_a_thread_that_moved_on_keeps_nobody_awake),
        FABTEST(test_trywait_takes_a_mix_of_endpoints_and_queues),
        FABTEST(test_trywait_refuses_what_cannot_be_waited_for),
        FABTEST(test_an_enabled_endpoint_has_a_descriptor_of_its_own),
        FABTEST(test_ping_pong_sleeps_and_does_not_spin),
        FABTEST(test_a_sleeper_that_nobody_writes_to_is_left_alone),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
