// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When a waiter is woken, and when a program may sleep: the calls that it made before, and a stream made by hand.
#include "prov/rstream/stream/readiness.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

struct Source {
    size_t bytes = 0;
    size_t room = 0;
    bool gone = false;
    bool end = false;
    bool answered = false;
    bool completed = false;
    bool closed = false;

    [[nodiscard]] size_t readable() const { return bytes; }
    [[nodiscard]] size_t space() const { return room; }
    [[nodiscard]] bool lost() const { return gone; }
    [[nodiscard]] bool ended() const { return end || gone; }
    [[nodiscard]] bool iomap_answered() const { return answered; }
    [[nodiscard]] bool all_completed() const { return completed; }
    [[nodiscard]] bool peer_closed() const { return closed; }
};

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
    assert_false(readiness.wakes(Source{.room = 100}));
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
    std::thread([&] { block_in_recv(readiness); }).join();
    block_in_recv(readiness);
    readiness.on_poll();
    assert_false(readiness.on_peek(5));
    assert_true(readiness.wakes(Source{.bytes = 5}));
    readiness.on_end_reported();
    assert_true(readiness.wakes(Source{.bytes = 5, .end = true}));
}

void test_many_threads_are_woken_though_one_was_told(void**) {
    constexpr int many = 10;
    Readiness readiness;
    std::vector<std::thread> threads;
    std::atomic<int> blocked{0};
    std::atomic<bool> over{false};
    for (int i = 0; i < many; ++i) {
        threads.emplace_back([&] {
            block_in_recv(readiness);
            ++blocked;
            over.wait(false);
        });
    }
    while (blocked != many) {
        std::this_thread::yield();
    }
    readiness.on_poll();
    (void)readiness.on_peek(5);
    assert_true(readiness.wakes(Source{.bytes = 5}));
    over = true;
    over.notify_all();
    for (std::thread& thread : threads) {
        thread.join();
    }
}

void test_a_blocked_send_is_woken_by_space_or_a_loss(void**) {
    Readiness readiness;
    readiness.on_poll();
    assert_false(readiness.wakes(Source{.room = 1}));
    readiness.on_send(true);
    assert_false(readiness.wakes(Source{}));
    assert_true(readiness.wakes(Source{.room = 1}));
    assert_true(readiness.wakes(Source{.gone = true}));
    assert_true(readiness.ready(Source{.room = 1}));
    readiness.on_send(false);
    assert_false(readiness.wakes(Source{.room = 1}));
    assert_false(readiness.ready(Source{.room = 1}));
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
    readiness.on_send(true);
    readiness.on_close();
    assert_false(readiness.wakes(Source{.bytes = 1, .room = 1, .end = true, .completed = true}));
    readiness.await_completion(true);
    assert_false(readiness.wakes(Source{.bytes = 1}));
    assert_true(readiness.wakes(Source{.completed = true}));
    readiness.await_completion(false);
    assert_false(readiness.wakes(Source{.completed = true}));
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
        cmocka_unit_test(test_a_program_that_was_told_is_not_woken_again),
        cmocka_unit_test(test_a_thread_is_woken_though_another_one_was_told),
        cmocka_unit_test(test_many_threads_are_woken_though_one_was_told),
        cmocka_unit_test(test_a_blocked_send_is_woken_by_space_or_a_loss),
        cmocka_unit_test(test_an_answered_unmap_wakes),
        cmocka_unit_test(test_a_close_is_woken_by_completion_alone),
        cmocka_unit_test(test_a_close_is_woken_by_the_end_of_what_it_waits_for),
        cmocka_unit_test(test_a_close_of_what_was_never_read_is_not_woken_by_bytes),
    };
    return RUN_TAP(tests);
}
