// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core's domains below one of ours: when there are more of them, and when they go. On libfabric's tcp.
#include "prov/rstream/core/domains.hpp"

#include <array>
#include <optional>

#include "prov/rstream/core.hpp"
#include "prov/rstream/test/wire_test.hpp"

namespace {

using namespace rstream;

struct Core {
    Info info;
    Owned<fid_fabric> fabric;
    std::optional<CoreDomains> domains;
    std::array<std::optional<CoreDomains::Place>, 8> places;
};

int open_core(void** state) {
    auto core = std::make_unique<Core>();
    fid_fabric* fabric = nullptr;
    if (core_domain_info("tcp", "", nullptr, FI_FORMAT_UNSPEC, core->info) != 0 ||
        fi_fabric(core->info->fabric_attr, &fabric, nullptr) != 0) {
        return -1;
    }
    core->fabric.reset(fabric);
    core->domains.emplace();
    *state = core.get();
    const int ret = core->domains->open(fabric, *core->info);
    (void)core.release(); // until close_core
    return ret;
}

int close_core(void** state) {
    const std::unique_ptr<Core> core(static_cast<Core*>(*state));
    for (auto& place : core->places) {
        place.reset();
    }
    core->domains.reset();
    return 0;
}

fid_domain* take(Core& core, size_t place, size_t max) {
    core.places[place].emplace();
    return core.domains->take(max, *core.places[place]) == 0 ? core.places[place]->get() : nullptr;
}

void test_without_a_limit_all_share_the_first_domain(void** state) {
    auto& core = *static_cast<Core*>(*state);
    for (size_t i = 0; i < core.places.size(); ++i) {
        assert_ptr_equal(take(core, i, 0), core.domains->first());
    }
    assert_int_equal(core.domains->count(), 1);
}

void test_a_full_domain_is_followed_by_another(void** state) {
    auto& core = *static_cast<Core*>(*state);
    assert_ptr_equal(take(core, 0, 2), core.domains->first());
    assert_ptr_equal(take(core, 1, 2), core.domains->first());
    const fid_domain* const second = take(core, 2, 2);
    assert_ptr_not_equal(second, nullptr);
    assert_ptr_not_equal(second, core.domains->first());
    assert_ptr_equal(take(core, 3, 2), second);
    assert_int_equal(core.domains->count(), 2);
}

void test_a_place_that_is_free_again_is_taken_first(void** state) {
    auto& core = *static_cast<Core*>(*state);
    for (size_t i = 0; i < 3; ++i) {
        (void)take(core, i, 2);
    }
    core.places[0].reset();
    assert_ptr_equal(take(core, 3, 2), core.domains->first());
    assert_int_equal(core.domains->count(), 2);
}

void test_a_domain_goes_with_its_last_connection_and_the_first_stays(void** state) {
    auto& core = *static_cast<Core*>(*state);
    const fid_domain* const first = core.domains->first();
    for (size_t i = 0; i < 4; ++i) {
        (void)take(core, i, 2);
    }
    core.places[2].reset();
    assert_int_equal(core.domains->count(), 2);
    core.places[3].reset();
    assert_int_equal(core.domains->count(), 1);
    core.places[0].reset();
    core.places[1].reset();
    assert_int_equal(core.domains->count(), 1);
    assert_ptr_equal(core.domains->first(), first);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without_a_limit_all_share_the_first_domain, open_core, close_core),
        cmocka_unit_test_setup_teardown(test_a_full_domain_is_followed_by_another, open_core, close_core),
        cmocka_unit_test_setup_teardown(test_a_place_that_is_free_again_is_taken_first, open_core, close_core),
        cmocka_unit_test_setup_teardown(test_a_domain_goes_with_its_last_connection_and_the_first_stays, open_core,
                                        close_core),
    };
    return RUN_TAP(tests);
}
