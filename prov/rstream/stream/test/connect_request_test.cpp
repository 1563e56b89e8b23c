// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A request to connect: what the peer is sent, and how often it is tried.
#include "prov/rstream/stream/connect_request.hpp"

#include <memory>

#include "prov/rstream/test/wire_test.hpp"

using namespace rstream;

namespace {

int set_up(void** state) {
    *state = std::make_unique<ConnectRequest>(0x1234).release();
    return 0;
}

int tear_down(void** state) {
    const std::unique_ptr<ConnectRequest> request(static_cast<ConnectRequest*>(*state));
    return 0;
}

ConnectRequest& of(void** state) { return *static_cast<ConnectRequest*>(*state); }

void test_the_peer_is_sent_a_hello_and_the_programs_data(void** state) {
    ConnectRequest& request = of(state);
    const std::byte data[] = {std::byte{1}, std::byte{2}, std::byte{3}};
    request.set_data(data);
    request.set_hello(wire::peer_hello(65536));
    assert_int_equal(request.bytes().size(), wire::Hello::size + 3);
    wire::Hello sent;
    assert_true(wire::Hello::parse(request.bytes(), sent) == wire::Hello::Error::none);
    assert_int_equal(sent.ring_size, 65536);
    assert_int_equal(sent.user_length, 3);
    assert_int_equal(sent.session, 0x1234);
    assert_memory_equal(request.bytes().data() + wire::Hello::size, data, 3);
}

void test_a_new_hello_keeps_the_data(void** state) {
    ConnectRequest& request = of(state);
    const std::byte data[] = {std::byte{7}};
    request.set_data(data);
    request.set_hello(wire::peer_hello(65536));
    request.set_hello(wire::peer_hello(131072));
    wire::Hello sent;
    assert_true(wire::Hello::parse(request.bytes(), sent) == wire::Hello::Error::none);
    assert_int_equal(sent.ring_size, 131072);
    assert_int_equal(sent.user_length, 1);
    assert_memory_equal(request.bytes().data() + wire::Hello::size, data, 1);
}

void test_so_many_local_ports_are_tried(void** state) {
    ConnectRequest& request = of(state);
    request.begin();
    for (int i = 1; i < ConnectRequest::max_connects; ++i) {
        assert_false(request.take_retry());
        assert_true(request.port_in_use());
        assert_true(request.take_retry());
        assert_false(request.take_retry());
    }
    assert_false(request.port_in_use());
    assert_false(request.take_retry());
}

void test_an_accept_is_not_tried_again(void** state) { assert_false(of(state).port_in_use()); }

void test_nothing_is_tried_after_the_end(void** state) {
    ConnectRequest& request = of(state);
    request.begin();
    request.end();
    assert_false(request.port_in_use());
}

void test_a_deadline_is_kept_for_the_next_try(void** state) {
    ConnectRequest& request = of(state);
    assert_false(request.has_deadline());
    const ConnectRequest::Time deadline(std::chrono::seconds(5));
    request.set_deadline(deadline);
    assert_true(request.has_deadline());
    assert_true(request.deadline() == deadline);
}

} // namespace

int main() {
#define test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const CMUnitTest tests[] = {
        test(test_the_peer_is_sent_a_hello_and_the_programs_data),
        test(test_a_new_hello_keeps_the_data),
        test(test_so_many_local_ports_are_tried),
        test(test_an_accept_is_not_tried_again),
        test(test_nothing_is_tried_after_the_end),
        test(test_a_deadline_is_kept_for_the_next_try),
    };
    return RUN_TAP(tests);
}
