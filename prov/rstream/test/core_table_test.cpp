// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which row of the table of cores counts.
#include "prov/rstream/core/properties.hpp"

#include <rdma/fabric.h>

#include "include/rdma/fi_ext_rstream.h"
#include "prov/rstream/test/wire_test.hpp"

namespace {

using namespace rstream;

void test_default_cores_are_named_once_in_order_of_preference(void**) {
    const bool as_documented = default_cores() == std::vector<std::string>{"verbs", "tcp"}; // fi_rstream(7)
    assert_true(as_documented);
}

void test_the_protocol_chooses_between_rows_of_one_core(void**) {
    assert_true(core_properties("verbs", FI_PROTO_RDMA_CM_IB_RC, fi_version()).loses_frames);
    assert_false(core_properties("verbs", FI_PROTO_IWARP, fi_version()).loses_frames);
}

void test_the_version_chooses_between_rows_of_one_core(void**) {
    assert_int_equal(core_properties("tcp", FI_PROTO_SOCK_TCP, FI_VERSION(1, 17)).max_domain_connections, 0);
    assert_int_equal(core_properties("tcp", FI_PROTO_SOCK_TCP, FI_VERSION(1, 19)).max_domain_connections, 16);
    assert_int_equal(core_properties("tcp", FI_PROTO_SOCK_TCP, FI_VERSION(2, 6)).max_domain_connections, 16);
}

void test_an_unknown_core_or_protocol_has_the_defaults(void**) {
    for (const CoreProperties& properties : {core_properties("unheard-of", FI_PROTO_SOCK_TCP, fi_version()),
                                             core_properties("tcp", FI_PROTO_IWARP, fi_version())}) {
        assert_true(properties.manual_progress);
        assert_true(properties.guarded_listeners);
        assert_false(properties.queue_shows_end);
        assert_false(properties.kernel_sockets);
        assert_false(properties.answers_empty_reads);
    }
}

void test_status_flags_tell_of_progress_and_ports(void**) {
    assert_int_equal(core_status_flags(core_properties("tcp", FI_PROTO_SOCK_TCP, fi_version())),
                     FI_RSTREAM_MANUAL | FI_RSTREAM_KERNEL_PORTS);
    assert_int_equal(core_status_flags(core_properties("verbs", FI_PROTO_IWARP, fi_version())), 0);
    assert_int_equal(core_status_flags(CoreProperties{}), FI_RSTREAM_MANUAL);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_default_cores_are_named_once_in_order_of_preference),
        cmocka_unit_test(test_the_protocol_chooses_between_rows_of_one_core),
        cmocka_unit_test(test_the_version_chooses_between_rows_of_one_core),
        cmocka_unit_test(test_an_unknown_core_or_protocol_has_the_defaults),
        cmocka_unit_test(test_status_flags_tell_of_progress_and_ports),
    };
    return RUN_TAP(tests);
}
