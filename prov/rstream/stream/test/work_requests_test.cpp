// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Work requests: which ask for a completion, what a completion gives back, and what is left after one that the core
// did not take.
#include "prov/rstream/stream/work_requests.hpp"

#include <memory>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr size_t queue_size = 4;
constexpr size_t reserve = 2;

int set_up(void** state) {
    auto requests = std::make_unique<WorkRequests>();
    requests->open(queue_size, reserve, false, false);
    *state = requests.release();
    return 0;
}

int set_up_contexts(void** state) {
    auto requests = std::make_unique<WorkRequests>();
    requests->open(queue_size, reserve, true, false);
    *state = requests.release();
    return 0;
}

int tear_down(void** state) {
    const std::unique_ptr<WorkRequests> requests(static_cast<WorkRequests*>(*state));
    return 0;
}

WorkRequests& of(void** state) { return *static_cast<WorkRequests*>(*state); }

// The staging bytes that a completion gives back; -1 if there is none.
int completed(WorkRequests& requests, const void* context) {
    const auto completion = requests.complete(context);
    return completion ? static_cast<int>(completion->staged) : -1;
}

void test_staged_bytes_ask_for_a_completion(void** state) {
    WorkRequests& requests = of(state);
    assert_true(requests.signal_due(1));
    assert_false(requests.signal_due(0));
}

void test_of_the_rest_one_in_half_a_queue_asks(void** state) {
    WorkRequests& requests = of(state);
    assert_false(requests.signal_due(0));
    assert_null(requests.begin(0, false));
    assert_true(requests.signal_due(0));
    assert_non_null(requests.begin(0, true));
    assert_false(requests.signal_due(0));
}

void test_a_completion_stands_for_all_before_it(void** state) {
    WorkRequests& requests = of(state);
    assert_true(requests.all_completed());
    assert_null(requests.begin(100, false));
    const void* context = requests.begin(50, true);
    assert_false(requests.all_completed());
    assert_int_equal(completed(requests, context), 150);
    assert_true(requests.all_completed());
}

void test_the_queue_is_full_until_a_completion(void** state) {
    WorkRequests& requests = of(state);
    for (size_t i = 0; i + 1 < queue_size; ++i) {
        assert_null(requests.begin(0, false));
        assert_false(requests.full());
    }
    const void* context = requests.begin(0, true);
    assert_true(requests.full());
    assert_int_equal(completed(requests, context), 0);
    assert_false(requests.full());
}

void test_completions_come_in_order(void** state) {
    WorkRequests& requests = of(state);
    for (int round = 0; round < 20; ++round) { // the queue's places are used again and again
        const void* first = requests.begin(1, true);
        const void* second = requests.begin(2, true);
        assert_ptr_not_equal(first, second);
        assert_int_equal(completed(requests, second), -1);
        assert_int_equal(completed(requests, first), 1);
        assert_int_equal(completed(requests, second), 2);
    }
    assert_false(requests.full());
}

void test_a_completion_that_was_not_asked_for_is_ignored(void** state) {
    WorkRequests& requests = of(state);
    assert_int_equal(completed(requests, nullptr), -1);
    const void* context = requests.begin(7, true);
    assert_int_equal(completed(requests, nullptr), -1);
    assert_false(requests.all_completed());
    assert_int_equal(completed(requests, context), 7);
    assert_int_equal(completed(requests, context), -1);
}

void test_undo_leaves_what_was_before(void** state) {
    WorkRequests& requests = of(state);
    assert_null(requests.begin(10, false));
    requests.begin(5, true);
    requests.undo(5, true);
    assert_true(requests.all_completed());
    assert_true(requests.signal_due(0)); // the first still counts
    const void* context = requests.begin(6, true);
    assert_int_equal(completed(requests, context), 16);
    requests.begin(3, false);
    requests.undo(3, false);
    assert_false(requests.skipped());
    for (size_t i = 0; i < queue_size; ++i) {
        assert_false(requests.full());
        requests.begin(0, false);
    }
    assert_true(requests.full());
}

void test_skipped_bytes_are_free_at_once_if_nothing_is_under_way(void** state) {
    WorkRequests& requests = of(state);
    requests.add_skipped(20);
    assert_true(requests.skipped());
    assert_int_equal(requests.take_skipped(), 20);
    assert_false(requests.skipped());
    assert_int_equal(requests.take_skipped(), 0);
}

void test_skipped_bytes_behind_a_work_request_wait_for_it(void** state) {
    WorkRequests& requests = of(state);
    const void* context = requests.begin(10, true);
    requests.add_skipped(20);
    assert_int_equal(requests.take_skipped(), 0);
    assert_true(requests.skipped());
    assert_int_equal(completed(requests, context), 10);
    assert_int_equal(requests.take_skipped(), 20);
}

void test_skipped_bytes_are_free_with_what_follows(void** state) {
    WorkRequests& requests = of(state);
    requests.begin(10, true);
    requests.add_skipped(20);
    const void* context = requests.begin(5, true);
    assert_false(requests.skipped());
    assert_int_equal(completed(requests, context), -1); // the first is still under way
}

void test_a_core_that_needs_contexts_gets_one_each(void** state) {
    WorkRequests& requests = of(state);
    const void* contexts[queue_size + reserve];
    for (auto& context : contexts) {
        context = requests.begin(1, false);
        assert_non_null(context);
        for (const auto* before = contexts; before != &context; ++before) {
            assert_ptr_not_equal(*before, context);
        }
    }
    const void* context = requests.begin(1, true);
    assert_int_equal(completed(requests, contexts[0]), -1);
    assert_int_equal(completed(requests, context), queue_size + reserve + 1);
}

void test_a_timed_completion_tells_when_it_was_posted(void**) {
    auto requests = std::make_unique<WorkRequests>();
    requests->open(queue_size, reserve, false, true);
    const auto before = std::chrono::steady_clock::now();
    const auto completion = requests->complete(requests->begin(1, true));
    const bool between =
        completion && completion->posted >= before && completion->posted <= std::chrono::steady_clock::now();
    requests.reset();
    assert_true(between);
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_staged_bytes_ask_for_a_completion),
        test(test_of_the_rest_one_in_half_a_queue_asks),
        test(test_a_completion_stands_for_all_before_it),
        test(test_the_queue_is_full_until_a_completion),
        test(test_completions_come_in_order),
        test(test_a_completion_that_was_not_asked_for_is_ignored),
        test(test_undo_leaves_what_was_before),
        test(test_skipped_bytes_are_free_at_once_if_nothing_is_under_way),
        test(test_skipped_bytes_behind_a_work_request_wait_for_it),
        test(test_skipped_bytes_are_free_with_what_follows),
        cmocka_unit_test_setup_teardown(test_a_core_that_needs_contexts_gets_one_each, set_up_contexts, tear_down),
        cmocka_unit_test(test_a_timed_completion_tells_when_it_was_posted),
    };
    return RUN_TAP(tests);
}
