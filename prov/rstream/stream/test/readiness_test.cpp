// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When a waiter is woken, and when a program may sleep: the calls that it made before, and a stream made by hand.
#include "prov/rstream/stream/readiness.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

struct Source {
    size_t bytes = 0;
    size_t sendable = 0;
    bool gone = false;
    bool end = false;
    bool answered = false;
    bool completed = false;
    bool closed = false;

    [[nodiscard]] size_t readable() const { return bytes; }
    [[nodiscard]] size_t space() const { return sendable; }
    [[nodiscard]] bool lost() const { return gone; }
    [[nodiscard]] bool ended() const { return end || gone; }
    [[nodiscard]] bool iomap_answered() const { return answered; }
    [[nodiscard]] bool all_completed() const { return completed; }
    [[nodiscard]] bool peer_closed() const { return closed; }
};

// What another thread, which has ended by then, finds.
template <class Call> bool elsewhere(const Call& call) {
    bool result = false;
    std::thread([&] { result = call(); }).join();
    return result;
}

// A program that has found nothing to receive.
void block_in_recv(Readiness& readiness) {
    readiness.begin_recv();
    readiness.on_poll();
    readiness.on_recv_blocked();
}

// One that has received all but `left`.
void receive(Readiness& readiness, size_t left) {
    readiness.begin_recv();
    readiness.on_poll();
    readiness.on_recv(left);
}

void test_a_program_that_has_not_read_is_woken_by_bytes(void**) {
    const Readiness readiness;
    assert_false(readiness.wakes(Source{}));
    assert_true(readiness.wakes(Source{.bytes = 1}));
    assert_true(readiness.wakes(Source{.end = true}));
    assert_true(readiness.ready(Source{.bytes = 1}));
    assert_false(readiness.ready(Source{}));
}

void test_a_blocked_recv_is_woken_by_bytes_an_end_or_a_loss(void**) {
    Readiness readiness;
    block_in_recv(readiness);
    assert_false(readiness.wakes(Source{.sendable = 100}));
    assert_true(readiness.wakes(Source{.bytes = 1}));
    assert_true(readiness.wakes(Source{.end = true}));
    assert_true(readiness.wakes(Source{.gone = true}));
}

void test_a_recv_is_woken_by_more_than_it_left(void**) {
    Readiness readiness;
    receive(readiness, 5);
    assert_false(readiness.wakes(Source{.bytes = 5}));
    assert_true(readiness.wakes(Source{.bytes = 6}));
    assert_true(readiness.wakes(Source{.bytes = 5, .end = true}));
}

void test_a_recv_that_got_bytes_is_not_blocked(void**) {
    Readiness readiness;
    block_in_recv(readiness);
    receive(readiness, 5);
    assert_false(readiness.wakes(Source{.bytes = 5}));
}

void test_a_peek_is_woken_by_more_than_it_was_shown(void**) {
    Readiness readiness;
    readiness.on_poll();
    assert_false(readiness.on_peek(5));
    assert_true(readiness.shows_bytes());
    assert_false(readiness.wakes(Source{.bytes = 5}));
    assert_false(readiness.ready(Source{.bytes = 5}));
    assert_true(readiness.wakes(Source{.bytes = 6}));
    assert_true(readiness.ready(Source{.bytes = 6}));
}

void test_a_second_peek_that_shows_the_same_needs_more(void**) {
    Readiness readiness;
    assert_false(readiness.on_peek(5));
    assert_true(readiness.on_peek(5));
    assert_false(readiness.on_peek(6));
    readiness.begin_recv();
    assert_false(readiness.shows_bytes());
    assert_false(readiness.on_peek(6));
}

void test_a_peek_after_a_recv_counts_from_what_it_shows(void**) {
    Readiness readiness;
    receive(readiness, 2);
    assert_false(readiness.on_peek(5));
    assert_false(readiness.wakes(Source{.bytes = 5}));
}

void test_an_end_wakes_until_it_was_reported(void**) {
    Readiness readiness;
    receive(readiness, 0);
    assert_true(readiness.ready(Source{.end = true}));
    readiness.on_end_reported();
    assert_false(readiness.wakes(Source{.end = true}));
    assert_false(readiness.ready(Source{.end = true}));
}

// As by a send, of a program that never receives.
void test_an_end_that_another_call_reported_does_not_wake(void**) {
    Readiness readiness;
    assert_true(readiness.wakes(Source{.gone = true}));
    readiness.on_end_reported();
    assert_false(readiness.wakes(Source{.gone = true}));
    assert_false(readiness.ready(Source{.gone = true}));
    assert_true(readiness.wakes(Source{.bytes = 1, .gone = true}));
}

// A receiver may sleep before its first receive. What a send of another thread tells does not reach it.
void test_a_thread_that_has_not_received_is_woken_though_another_one_was_told(void**) {
    Readiness readiness;
    assert_true(elsewhere([&] { return readiness.may_sleep(Source{}); }));
    readiness.on_end_reported();
    assert_true(readiness.may_sleep(Source{.gone = true}));
    assert_true(readiness.wakes(Source{.gone = true}));
    // The one that was told sleeps alone.
    Readiness other;
    assert_true(other.may_sleep(Source{}));
    other.on_end_reported();
    assert_true(other.may_sleep(Source{.gone = true}));
    assert_false(other.wakes(Source{.gone = true}));
}

// A program that waits for something else then, behind an end or with bytes left unread, sleeps.
void test_a_program_that_was_told_is_not_woken_again(void**) {
    Readiness readiness;
    block_in_recv(readiness);
    readiness.on_poll();
    readiness.on_end_reported();
    assert_false(readiness.wakes(Source{.end = true}));
    Readiness other;
    block_in_recv(other);
    other.on_poll();
    assert_false(other.on_peek(5));
    assert_false(other.wakes(Source{.bytes = 5}));
    assert_true(other.wakes(Source{.bytes = 6}));
}

// Two threads receive. What one of them is told does not reach the other, which sleeps.
void test_a_thread_is_woken_though_another_one_was_told(void**) {
    Readiness readiness;
    assert_true(elsewhere([&] {
        block_in_recv(readiness);
        return readiness.may_sleep(Source{});
    }));
    block_in_recv(readiness);
    readiness.on_poll();
    assert_false(readiness.on_peek(5));
    assert_true(readiness.wakes(Source{.bytes = 5}));
    readiness.on_end_reported();
    assert_true(readiness.wakes(Source{.bytes = 5, .end = true}));
}

void test_a_thread_is_woken_though_another_one_received(void**) {
    Readiness readiness;
    assert_true(elsewhere([&] {
        block_in_recv(readiness);
        return readiness.may_sleep(Source{});
    }));
    receive(readiness, 5);
    assert_true(readiness.wakes(Source{.bytes = 5})); // it may want what is left
    receive(readiness, 0);
    assert_false(readiness.wakes(Source{}));
    readiness.on_end_reported();
    assert_true(readiness.wakes(Source{.end = true}));
}

// The other one was told between this one's receive and its fi_trywait.
void test_a_thread_does_not_sleep_though_another_one_was_told(void**) {
    Readiness readiness;
    block_in_recv(readiness);
    assert_true(elsewhere([&] {
        receive(readiness, 0);
        readiness.on_end_reported();
        return readiness.may_sleep(Source{.end = true});
    }));
    assert_false(readiness.may_sleep(Source{.end = true}));
    // Once: it may want something else by now.
    assert_true(readiness.may_sleep(Source{.end = true}));
    assert_false(readiness.wakes(Source{.end = true}));
}

// A thread that found nothing once, and serves other connections since.
void test_a_thread_that_does_not_sleep_is_not_woken(void**) {
    Readiness readiness;
    std::vector<std::thread> threads;
    std::atomic<bool> over{false};
    for (size_t i = 0; i < 2 * BlockedThreads::max_known; ++i) {
        std::atomic<bool> blocked{false};
        threads.emplace_back([&] {
            block_in_recv(readiness);
            readiness.on_send(-FI_EAGAIN);
            blocked = true;
            blocked.notify_all();
            over.wait(false);
        });
        blocked.wait(false);
    }
    readiness.on_poll();
    readiness.on_end_reported();
    readiness.on_send(1);
    const bool wakes = readiness.wakes(Source{.sendable = 1, .end = true});
    const bool may_sleep = readiness.may_sleep(Source{.sendable = 1, .end = true});
    over = true;
    over.notify_all();
    for (std::thread& thread : threads) {
        thread.join();
    }
    assert_false(wakes);
    assert_true(may_sleep);
}

// A thread that slept, and uses the endpoint for something else now.
void test_a_thread_that_is_awake_again_is_not_woken(void**) {
    Readiness readiness;
    readiness.on_poll();
    assert_true(elsewhere([&] {
        block_in_recv(readiness);
        const bool sleeps = readiness.may_sleep(Source{});
        std::thread([&] { readiness.on_end_reported(); }).join();
        const bool wakes = readiness.wakes(Source{.end = true});
        readiness.on_send(-FI_EAGAIN);
        return sleeps && wakes;
    }));
    assert_true(readiness.may_sleep(Source{.end = true}));
    assert_false(readiness.wakes(Source{.end = true}));
}

void test_many_threads_are_woken_though_one_was_told(void**) {
    Readiness readiness;
    std::vector<std::thread> threads;
    std::atomic<size_t> blocked{0};
    std::atomic<bool> over{false};
    for (size_t i = 0; i < 2 * BlockedThreads::max_known; ++i) {
        threads.emplace_back([&] {
            block_in_recv(readiness);
            (void)readiness.may_sleep(Source{});
            ++blocked;
            over.wait(false);
        });
    }
    while (blocked != threads.size()) {
        std::this_thread::yield();
    }
    readiness.on_poll();
    (void)readiness.on_peek(5);
    const bool wakes = readiness.wakes(Source{.bytes = 5});
    over = true;
    over.notify_all();
    for (std::thread& thread : threads) {
        thread.join();
    }
    assert_true(wakes);
}

// Two threads send.
void test_a_sender_is_woken_though_another_one_has_sent(void**) {
    Readiness readiness;
    readiness.on_poll();
    assert_true(elsewhere([&] {
        readiness.on_send(-FI_EAGAIN);
        return readiness.may_sleep(Source{});
    }));
    readiness.on_send(1);
    assert_true(readiness.wakes(Source{.sendable = 1}));
    assert_true(readiness.may_sleep(Source{.sendable = 1})); // it knows
    assert_true(readiness.wakes(Source{.sendable = 1}));
}

void test_a_sender_does_not_sleep_though_another_one_has_sent(void**) {
    Readiness readiness;
    readiness.on_send(-FI_EAGAIN);
    std::thread([&] { readiness.on_send(1); }).join();
    assert_false(readiness.may_sleep(Source{.sendable = 1}));
    readiness.on_send(-FI_EAGAIN);
    std::thread([&] { readiness.on_send(1); }).join();
    assert_true(readiness.may_sleep(Source{})); // and now there is none again
    assert_true(readiness.wakes(Source{.sendable = 1}));
}

void test_a_send_that_does_nothing_leaves_a_blocked_one_blocked(void**) {
    Readiness readiness;
    readiness.on_poll();
    for (const ssize_t nothing : {0, -FI_EINVAL}) {
        readiness.on_send(-FI_EAGAIN);
        readiness.on_send(nothing);
        assert_true(readiness.wakes(Source{.sendable = 1}));
        assert_true(readiness.ready(Source{.sendable = 1}));
        readiness.on_send(-FI_ECONNRESET);
        assert_false(readiness.ready(Source{.sendable = 1}));
    }
}

void test_a_blocked_send_is_woken_by_space_or_a_loss(void**) {
    Readiness readiness;
    readiness.on_poll();
    assert_false(readiness.wakes(Source{.sendable = 1}));
    readiness.on_send(-FI_EAGAIN);
    assert_false(readiness.wakes(Source{}));
    assert_true(readiness.wakes(Source{.sendable = 1}));
    assert_true(readiness.wakes(Source{.gone = true}));
    assert_true(readiness.ready(Source{.sendable = 1}));
    readiness.on_send(1);
    assert_false(readiness.wakes(Source{.sendable = 1}));
    assert_false(readiness.ready(Source{.sendable = 1}));
}

void test_an_answered_unmap_wakes(void**) {
    Readiness readiness;
    readiness.on_poll();
    assert_true(readiness.wakes(Source{.answered = true}));
    assert_true(readiness.ready(Source{.answered = true}));
}

void test_a_close_is_woken_by_completion_alone(void**) {
    Readiness readiness;
    receive(readiness, 0);
    readiness.on_send(-FI_EAGAIN);
    readiness.on_close();
    assert_false(readiness.wakes(Source{.bytes = 1, .sendable = 1, .end = true, .completed = true}));
    readiness.await_completion(true);
    assert_false(readiness.wakes(Source{.bytes = 1}));
    assert_true(readiness.wakes(Source{.completed = true}));
    readiness.await_completion(false);
    assert_false(readiness.wakes(Source{.completed = true}));
}

// The other thread is told while this one, on its way to sleep, has found nothing.
void test_a_thread_on_its_way_to_sleep_keeps_its_signal(void**) {
    BlockedCalls calls;
    calls.on_blocked();
    const bool may = calls.may_sleep([&] {
        std::thread([&] { calls.on_notified(); }).join();
        return false;
    });
    assert_true(may);
    assert_true(calls.unsettled());
}

// More than can be told apart, of which none ever comes back.
void test_threads_that_never_come_back_do_not_signal_for_good(void**) {
    BlockedCalls calls;
    std::vector<std::thread> threads;
    std::atomic<size_t> asleep{0};
    std::atomic<bool> over{false};
    const size_t many = BlockedThreads::max_known + 1;
    for (size_t i = 0; i < many; ++i) {
        threads.emplace_back([&] {
            calls.on_blocked();
            (void)calls.may_sleep([] { return false; });
            ++asleep;
            over.wait(false);
        });
    }
    while (asleep != many) {
        std::this_thread::yield();
    }
    calls.on_notified();
    assert_true(calls.unsettled());
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (calls.unsettled() && std::chrono::steady_clock::now() < until) {
        (void)calls.may_sleep([] { return false; });
        std::this_thread::yield();
    }
    assert_false(calls.unsettled());
    over = true;
    over.notify_all();
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// Or it sleeps to the end of the linger time, if another thread has taken that from the core.
void test_a_close_is_woken_by_the_end_of_what_it_waits_for(void**) {
    Readiness readiness;
    readiness.on_close();
    assert_false(readiness.wakes(Source{.gone = true, .closed = true}));
    readiness.await_completion(true);
    assert_true(readiness.wakes(Source{.gone = true}));
    assert_false(readiness.wakes(Source{.closed = true})); // known already
    readiness.await_peer_close(true);
    assert_true(readiness.wakes(Source{.closed = true}));
    readiness.await_completion(false);
    assert_true(readiness.wakes(Source{.gone = true}));
    assert_true(readiness.wakes(Source{.closed = true}));
    readiness.await_peer_close(false);
    assert_false(readiness.wakes(Source{.gone = true, .closed = true}));
}

void test_a_close_of_what_was_never_read_is_not_woken_by_bytes(void**) {
    Readiness readiness;
    readiness.on_close();
    assert_false(readiness.wakes(Source{.bytes = 1}));
    assert_false(readiness.wakes(Source{.end = true}));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_program_that_has_not_read_is_woken_by_bytes),
        cmocka_unit_test(test_a_blocked_recv_is_woken_by_bytes_an_end_or_a_loss),
        cmocka_unit_test(test_a_recv_is_woken_by_more_than_it_left),
        cmocka_unit_test(test_a_recv_that_got_bytes_is_not_blocked),
        cmocka_unit_test(test_a_peek_is_woken_by_more_than_it_was_shown),
        cmocka_unit_test(test_a_second_peek_that_shows_the_same_needs_more),
        cmocka_unit_test(test_a_peek_after_a_recv_counts_from_what_it_shows),
        cmocka_unit_test(test_an_end_wakes_until_it_was_reported),
        cmocka_unit_test(test_an_end_that_another_call_reported_does_not_wake),
        cmocka_unit_test(test_a_thread_that_has_not_received_is_woken_though_another_one_was_told),
        cmocka_unit_test(test_a_program_that_was_told_is_not_woken_again),
        cmocka_unit_test(test_a_thread_is_woken_though_another_one_was_told),
        cmocka_unit_test(test_a_thread_is_woken_though_another_one_received),
        cmocka_unit_test(test_a_thread_does_not_sleep_though_another_one_was_told),
        cmocka_unit_test(test_a_thread_that_does_not_sleep_is_not_woken),
        cmocka_unit_test(test_a_thread_that_is_awake_again_is_not_woken),
        cmocka_unit_test(test_many_threads_are_woken_though_one_was_told),
        cmocka_unit_test(test_a_thread_on_its_way_to_sleep_keeps_its_signal),
        cmocka_unit_test(test_threads_that_never_come_back_do_not_signal_for_good),
        cmocka_unit_test(test_a_blocked_send_is_woken_by_space_or_a_loss),
        cmocka_unit_test(test_a_sender_is_woken_though_another_one_has_sent),
        cmocka_unit_test(test_a_sender_does_not_sleep_though_another_one_has_sent),
        cmocka_unit_test(test_a_send_that_does_nothing_leaves_a_blocked_one_blocked),
        cmocka_unit_test(test_an_answered_unmap_wakes),
        cmocka_unit_test(test_a_close_is_woken_by_completion_alone),
        cmocka_unit_test(test_a_close_is_woken_by_the_end_of_what_it_waits_for),
        cmocka_unit_test(test_a_close_of_what_was_never_read_is_not_woken_by_bytes),
    };
    return RUN_TAP(tests);
}
