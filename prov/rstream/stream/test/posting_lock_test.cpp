// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The lock of the posting side: a request never waits, and is never forgotten.
#include "prov/rstream/stream/posting_lock.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

// The lock and what is done with it held. Not checked by clang: the tests lock by hand.
struct Scene {
    PostingLock lock;
    int done = 0;
    void request() {
        lock.request([this] { ++done; });
    }
    void enter() BASE_UNCHECKED { lock.lock(); }
    void leave() BASE_UNCHECKED {
        lock.unlock([this] { ++done; });
    }
};

void test_a_request_is_done_at_once_if_nobody_posts(void**) {
    Scene scene;
    scene.request();
    assert_int_equal(scene.done, 1);
    scene.request();
    assert_int_equal(scene.done, 2);
}

void test_a_request_does_not_wait(void**) {
    Scene scene;
    scene.enter();
    {
        std::thread other([&] { scene.request(); });
        other.join(); // for ever, if it waited
    }
    assert_int_equal(scene.done, 0);
    scene.leave();
    assert_int_equal(scene.done, 1);
}

void test_several_requests_are_done_at_once(void**) {
    Scene scene;
    scene.enter();
    {
        std::vector<std::thread> others;
        others.reserve(4);
        for (int i = 0; i < 4; ++i) {
            others.emplace_back([&] { scene.request(); });
        }
        for (std::thread& other : others) {
            other.join();
        }
    }
    scene.leave();
    assert_int_equal(scene.done, 1);
}

void test_leaving_does_nothing_that_was_not_requested(void**) {
    Scene scene;
    scene.enter();
    scene.leave();
    assert_int_equal(scene.done, 0);
    scene.request();
    scene.enter();
    scene.leave();
    assert_int_equal(scene.done, 1);
}

// What is left to be done when a thread requests it is done when the last of them is gone.
void test_no_request_is_forgotten(void**) {
    struct {
        PostingLock lock;
        std::atomic<int> left{0};
        int seen = 0;
    } scene;
    {
        std::vector<std::thread> threads;
        threads.reserve(4);
        for (int i = 0; i < 4; ++i) {
            threads.emplace_back([&] {
                for (int n = 0; n < 2000; ++n) {
                    scene.left.fetch_add(1);
                    scene.lock.request([&] { scene.seen += scene.left.exchange(0); });
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }
    assert_int_equal(scene.left.load(), 0);
    assert_int_equal(scene.seen, 8000);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_is_done_at_once_if_nobody_posts),
        cmocka_unit_test(test_a_request_does_not_wait),
        cmocka_unit_test(test_several_requests_are_done_at_once),
        cmocka_unit_test(test_leaving_does_nothing_that_was_not_requested),
        cmocka_unit_test(test_no_request_is_forgotten),
    };
    return RUN_TAP(tests);
}
