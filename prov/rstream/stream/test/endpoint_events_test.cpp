// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a program reads of one connection from its event queue. On libfabric's tcp, without any connection.
#include "prov/rstream/stream/endpoint_events.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

#include "prov/rstream/fabric.hpp"
#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

constexpr std::array<std::byte, 3> data{std::byte{1}, std::byte{2}, std::byte{3}};

struct Scene {
    Owned<fid_fabric> fabric;
    Owned<fid_eq> queue;
    AnyFid endpoint{};
    int context = 0;
    std::unique_ptr<EndpointEvents> events;
};

int set_up(void** state) {
    auto scene = std::make_unique<Scene>();
    char name[] = "tcp@";
    fi_fabric_attr attr{};
    attr.name = name;
    fid_fabric* fabric = nullptr;
    if (Fabric::open(attr, nullptr, &fabric) != 0) {
        return -1;
    }
    scene->fabric.reset(fabric);
    fi_eq_attr queue_attr{};
    fid_eq* queue = nullptr;
    if (fi_eq_open(fabric, &queue_attr, &queue, nullptr) != 0) {
        return -1;
    }
    scene->queue.reset(queue);
    scene->endpoint.context = &scene->context;
    scene->events = std::make_unique<EndpointEvents>(*object_of<EventQueue>(queue), &scene->endpoint);
    *state = scene.release();
    return 0;
}

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    scene->events.reset();
    return 0;
}

Scene& of(void** state) { return *static_cast<Scene*>(*state); }

struct Read {
    ssize_t result;
    uint32_t event;
    const AnyFid* fid;
    std::array<std::byte, 16> data;
};

Read read(Scene& scene) {
    std::array<std::byte, sizeof(fi_eq_cm_entry) + 16> bytes{};
    Read got{};
    got.result = fi_eq_read(scene.queue.get(), &got.event, bytes.data(), bytes.size(), 0);
    const auto* entry = reinterpret_cast<const fi_eq_cm_entry*>(bytes.data());
    got.fid = entry->fid;
    std::copy_n(bytes.begin() + offsetof(fi_eq_cm_entry, data), got.data.size(), got.data.begin());
    return got;
}

void test_connected_carries_the_peers_data(void** state) {
    Scene& scene = of(state);
    scene.events->connected(data);
    const Read got = read(scene);
    assert_int_equal(got.result, sizeof(fi_eq_cm_entry) + data.size());
    assert_int_equal(got.event, FI_CONNECTED);
    assert_ptr_equal(got.fid, &scene.endpoint);
    assert_memory_equal(got.data.data(), data.data(), data.size());
    assert_int_equal(read(scene).result, -FI_EAGAIN);
}

void test_refused_is_an_error_with_the_peers_data(void** state) {
    Scene& scene = of(state);
    scene.events->refused(FI_ECONNREFUSED, 42, data);
    assert_int_equal(read(scene).result, -FI_EAVAIL);
    fi_eq_err_entry error{};
    assert_true(fi_eq_readerr(scene.queue.get(), &error, 0) > 0);
    assert_ptr_equal(error.fid, &scene.endpoint);
    assert_ptr_equal(error.context, &scene.context);
    assert_int_equal(error.err, FI_ECONNREFUSED);
    assert_int_equal(error.prov_errno, 42);
    assert_int_equal(error.err_data_size, data.size());
}

void test_ended_is_a_shutdown(void** state) {
    Scene& scene = of(state);
    scene.events->ended();
    const Read got = read(scene);
    assert_int_equal(got.event, FI_SHUTDOWN);
    assert_ptr_equal(got.fid, &scene.endpoint);
}

void test_a_closed_endpoint_is_heard_of_no_more(void** state) {
    Scene& scene = of(state);
    scene.events->connected(data); // and not read
    scene.events->close();
    assert_int_equal(read(scene).result, -FI_EAGAIN);
    scene.events->ended();
    scene.events->refused(FI_ECONNREFUSED, 0, {});
    assert_int_equal(read(scene).result, -FI_EAGAIN);
    scene.events->close();
}

void test_the_dispatcher_outlives_the_queue(void** state) {
    Scene& scene = of(state);
    scene.events->close();
    scene.queue.reset();
    scene.events->dispatcher().clear_deadline(nullptr);
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_connected_carries_the_peers_data),
        test(test_refused_is_an_error_with_the_peers_data),
        test(test_ended_is_a_shutdown),
        test(test_a_closed_endpoint_is_heard_of_no_more),
        test(test_the_dispatcher_outlives_the_queue),
    };
    return RUN_TAP(tests);
}
