// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The staging ring of the sending half, which grows while the stream is busy, and shrinks when it is empty.
#include <algorithm>

#include "prov/rstream/stream/test/transmit_scene.hpp"

using namespace rstream;

namespace {

int set_up(void** state) { return make_scene(state, {}); }
int set_up_growing(void** state) { return make_scene(state, {}, 4 * PartsScene::staging_size); }

void grow(TransmitScene& scene) {
    for (int i = 0; i < 1000 && !scene.left.resize; ++i) {
        scene.send(PartsScene::staging_size + 1);
        scene.complete_all();
        scene.acknowledge_all();
    }
    assert_true(scene.left.resize);
    assert_null(scene.broken);
    scene.transmit.resize();
    assert_int_equal(scene.link.staging_size(), 4 * PartsScene::staging_size);
    assert_true(scene.link.staging_moves());
}

void test_a_busy_stream_gets_a_larger_staging_ring(void** state) {
    TransmitScene& scene = scene_of(state);
    grow(scene);
    scene.complete_all(); // of the ring before it
    scene.transmit.resize();
    assert_false(scene.link.staging_moves());
    scene.acknowledge_all();
    assert_int_equal(scene.send(4 * PartsScene::staging_size), 4 * PartsScene::staging_size);
    const auto& last = scene.core.last().bytes;
    assert_int_equal(std::count(last.begin(), last.end(), 'x'), last.size());
    assert_true(last.size() > chunk);
}

void test_an_empty_staging_ring_shrinks(void** state) {
    TransmitScene& scene = scene_of(state);
    grow(scene);
    assert_int_equal(scene.send(100), 100);
    scene.transmit.shrink(PartsScene::staging_size); // some of what was sent is under way
    assert_int_equal(scene.link.staging_size(), 4 * PartsScene::staging_size);
    scene.complete_all();
    scene.acknowledge_all();
    scene.transmit.shrink(PartsScene::staging_size);
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
    assert_false(scene.link.staging_moves());
    assert_int_equal(scene.send(PartsScene::staging_size + 1), PartsScene::staging_size);
    assert_null(scene.broken);
}

// The core is done with all of it, and the peer reads nothing.
size_t fill_both(TransmitScene& scene) {
    size_t filled = 0;
    for (ssize_t sent = 0; (sent = scene.send(1000)) > 0;) {
        filled += static_cast<size_t>(sent);
        scene.complete_all();
    }
    return filled;
}

void test_a_staging_ring_grows_once_the_peers_ring_is_full_too(void** state) {
    TransmitScene& scene = scene_of(state);
    assert_int_equal(scene.send(PartsScene::staging_size), PartsScene::staging_size);
    assert_false(scene.transmit.enlarge_full()); // it waits for the core
    scene.complete_all();
    assert_int_equal(fill_both(scene), PartsScene::ring_size);
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
    assert_true(scene.transmit.enlarge_full());
    assert_int_equal(scene.link.staging_size(), 4 * PartsScene::staging_size);
    assert_false(scene.transmit.enlarge_full());
    assert_int_equal(fill_both(scene), 3 * PartsScene::staging_size);
    assert_false(scene.transmit.enlarge_full()); // the limit
    assert_int_equal(scene.send(1), -FI_EAGAIN);
    assert_null(scene.broken);
}

void test_a_staging_ring_of_a_size_that_was_asked_for_stays(void** state) {
    TransmitScene& scene = scene_of(state);
    for (int i = 0; i < 100; ++i) {
        scene.send(PartsScene::staging_size + 1);
        scene.complete_all();
        scene.acknowledge_all();
    }
    assert_false(scene.left.resize);
    scene.transmit.resize();
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
    fill_both(scene);
    assert_false(scene.transmit.enlarge_full());
    assert_int_equal(scene.link.staging_size(), PartsScene::staging_size);
}

} // namespace

int main() {
#define test(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down_scene)
    const CMUnitTest tests[] = {
        test(test_a_busy_stream_gets_a_larger_staging_ring, set_up_growing),
        test(test_an_empty_staging_ring_shrinks, set_up_growing),
        test(test_a_staging_ring_grows_once_the_peers_ring_is_full_too, set_up_growing),
        test(test_a_staging_ring_of_a_size_that_was_asked_for_stays, set_up),
    };
    return RUN_TAP(tests);
}
