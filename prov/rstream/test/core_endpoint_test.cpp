// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core's endpoint below a stream, on libfabric's tcp and without a peer: what it owns, that it can be made again,
// and the event queue of its own where the completion queue does not show an end.
#include "prov/rstream/core/endpoint.hpp"

#include <memory>
#include <utility>

#include <poll.h>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

struct Scene {
    Info info;
    Owned<fid_fabric> fabric;
    Owned<fid_eq> events;
    CoreDomains domains;
    std::unique_ptr<CoreEndpoint> endpoint;
};

int set_up_with(void** state, bool queue_shows_end) {
    auto scene = std::make_unique<Scene>();
    Info hints = core_hints();
    fid_fabric* fabric = nullptr;
    fid_eq* events = nullptr;
    if (!hints || core_getinfo("tcp", "127.0.0.1", nullptr, 0, std::move(hints), scene->info) != 0 ||
        fi_fabric(scene->info->fabric_attr, &fabric, nullptr) != 0) {
        return -1;
    }
    scene->fabric.reset(fabric);
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    if (fi_eq_open(fabric, &attr, &events, nullptr) != 0) {
        return -1;
    }
    scene->events.reset(events);
    CoreProperties properties;
    properties.queue_shows_end = queue_shows_end;
    scene->endpoint = std::make_unique<CoreEndpoint>(fabric, CoreTraits(*scene->info, true), properties);
    *state = scene.get();
    Scene& made = *scene.release(); // until tear_down
    const int ret = made.domains.open(fabric, *made.info);
    return ret != 0 ? ret : made.endpoint->open_queue(made.domains, *made.info, 64);
}
int set_up(void** state) { return set_up_with(state, true); }
int set_up_own_events(void** state) { return set_up_with(state, false); }

int tear_down(void** state) {
    const std::unique_ptr<Scene> scene(static_cast<Scene*>(*state));
    scene->endpoint.reset();
    return 0;
}

Scene& of(void** state) { return *static_cast<Scene*>(*state); }

void test_the_queue_is_there_before_the_endpoint(void** state) {
    CoreEndpoint& endpoint = *of(state).endpoint;
    assert_non_null(endpoint.completions());
    assert_true(endpoint.completions_fd() >= 0);
    assert_null(endpoint.get());
    assert_false(endpoint.request_used());
    assert_int_equal(endpoint.try_wait(true), 0);
    assert_int_equal(endpoint.try_wait(false), 0);
}

void test_an_endpoint_can_be_closed_and_made_again(void** state) {
    CoreEndpoint& endpoint = *of(state).endpoint;
    for (int i = 0; i < 2; ++i) {
        assert_int_equal(endpoint.open(of(state).events.get(), nullptr), 0);
        assert_non_null(endpoint.get());
        assert_null(endpoint.events());
        assert_int_equal(endpoint.events_fd(), -1);
        assert_int_equal(endpoint.enable(), 0);
        endpoint.close();
        assert_null(endpoint.get());
        assert_non_null(endpoint.completions());
    }
}

void test_where_the_queue_shows_no_end_the_events_are_its_own(void** state) {
    CoreEndpoint& endpoint = *of(state).endpoint;
    assert_int_equal(endpoint.open(of(state).events.get(), nullptr), 0);
    assert_non_null(endpoint.events());
    assert_ptr_not_equal(endpoint.events(), of(state).events.get());
    assert_true(endpoint.events_fd() >= 0);
    assert_int_equal(endpoint.try_wait(true), 0);
    endpoint.close();
    assert_null(endpoint.events());
    assert_int_equal(endpoint.events_fd(), -1);
}

void test_the_event_queue_serves_the_next_endpoint(void** state) {
    CoreEndpoint& endpoint = *of(state).endpoint;
    assert_int_equal(endpoint.open(of(state).events.get(), nullptr), 0);
    const fid_eq* events = endpoint.events();
    const int fd = endpoint.events_fd();
    endpoint.close();
    assert_int_equal(endpoint.open(of(state).events.get(), nullptr), 0);
    assert_ptr_equal(endpoint.events(), events);
    assert_int_equal(endpoint.events_fd(), fd);
    assert_int_equal(endpoint.try_wait(true), 0);
}

// A queue that takes events from the program, so that the test can put some there.
IdleQueues::Queue queue_of(const Scene& scene) {
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    attr.flags = FI_WRITE;
    fid_eq* eq = nullptr;
    assert_int_equal(fi_eq_open(scene.fabric.get(), &attr, &eq, nullptr), 0);
    IdleQueues::Queue queue{Owned<fid_eq>(eq), -1};
    assert_int_equal(fi_control(&eq->fid, FI_GETWAIT, &queue.fd), 0);
    return queue;
}

void test_an_idle_queue_has_no_events_of_the_last_endpoint(void** state) {
    IdleQueues queues;
    assert_null(queues.take().queue.get());
    IdleQueues::Queue queue = queue_of(of(state));
    const fi_eq_entry event{&of(state).fabric->fid, nullptr, 0};
    for (int i = 0; i < 3; ++i) {
        assert_int_equal(fi_eq_write(queue.queue.get(), FI_NOTIFY, &event, sizeof(event), 0), sizeof(event));
    }
    queues.give(of(state).fabric.get(), std::move(queue));
    queue = queues.take();
    assert_non_null(queue.queue.get());
    fi_eq_entry entry{};
    uint32_t kind = 0;
    assert_int_equal(fi_eq_read(queue.queue.get(), &kind, &entry, sizeof(entry), 0), -FI_EAGAIN);
    pollfd one{queue.fd, POLLIN, 0};
    assert_int_equal(poll(&one, 1, 0), 0);
}

void test_few_queues_are_idle(void** state) {
    IdleQueues queues;
    for (size_t i = 0; i < IdleQueues::limit + 2; ++i) {
        queues.give(of(state).fabric.get(), queue_of(of(state)));
    }
    size_t count = 0;
    while (queues.take().queue) {
        ++count;
    }
    assert_int_equal(count, IdleQueues::limit);
}

void test_memory_is_registered_under_keys_of_its_own(void** state) {
    CoreEndpoint& endpoint = *of(state).endpoint;
    assert_int_equal(endpoint.open(of(state).events.get(), nullptr), 0);
    static std::byte memory[2][4096];
    uint64_t keys[2] = {};
    int results[2] = {};
    {
        Owned<fid_mr> regions[2];
        for (int i = 0; i < 2; ++i) {
            results[i] = endpoint.register_memory(memory[i], sizeof(memory[i]), FI_REMOTE_WRITE, regions[i]);
            keys[i] = regions[i] ? fi_mr_key(regions[i].get()) : 0;
        }
    }
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], 0);
    assert_true(keys[0] != keys[1]);
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_the_queue_is_there_before_the_endpoint),
        test(test_an_endpoint_can_be_closed_and_made_again),
        cmocka_unit_test_setup_teardown(test_where_the_queue_shows_no_end_the_events_are_its_own, set_up_own_events,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_the_event_queue_serves_the_next_endpoint, set_up_own_events, tear_down),
        test(test_an_idle_queue_has_no_events_of_the_last_endpoint),
        test(test_few_queues_are_idle),
        test(test_memory_is_registered_under_keys_of_its_own),
    };
    return RUN_TAP(tests);
}
