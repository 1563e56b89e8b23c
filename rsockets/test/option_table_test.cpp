// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The table of options, and what follows from its rows. Needs no network.
#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "fabtests/common/test.hpp"
#include "rsockets/cached_options.hpp"
#include "rsockets/kernel_options.hpp"
#include "rsockets/option_sizes.hpp"
#include "rsockets/option_table.hpp"

namespace {

using namespace fabtests;
using namespace rsockets;
using Place = Option::Place;
using Effect = Option::Effect;

// Runs `body` on each row, and says at which one it failed.
template <class Body> void for_each_row(const Body& body) {
    for (const Option& option : option_table) {
        if (!body(option)) {
            failed(__FILE__, __LINE__, std::string("the row of ") + option.text);
        }
    }
}

int set(KernelOptions& options, int level, int name, int value) {
    return options.set(level, name, &value, sizeof(value));
}

void test_an_option_has_one_row() {
    std::set<std::pair<int, int>> seen;
    for_each_row([&](const Option& option) { return seen.emplace(option.level, option.name).second; });
    for_each_row([](const Option& option) { return find_option(option.level, option.name) == &option; });
    EXPECT(find_option(SOL_SOCKET, 9999) == nullptr);
    EXPECT(find_option(9999, SO_REUSEADDR) == nullptr);
}

void test_a_size_has_a_member_and_bounds_and_no_other_option_has() {
    std::set<Option::Size> seen;
    for_each_row([&](const Option& option) {
        return option.place == Place::size
                   ? seen.insert(option.size).second && configured(option) != nullptr && option.min < option.max
                   : option.size == Option::Size::none && configured(option) == nullptr;
    });
    EXPECT_EQ(seen.size(), 6U);
    Config config;
    config.*configured(*find_option(SOL_SOCKET, SO_RCVBUF)) = 12345;
    EXPECT_EQ(config.recv_buffer, 12345U);
    EXPECT(left_by_core(*find_option(SOL_RDMA, RDMA_IOMAPSIZE)) == &Sizes::maps);
    EXPECT(left_by_core(*find_option(SOL_RDMA, RDMA_INLINE)) == nullptr);
}

void test_only_what_the_kernel_judges_has_an_effect() {
    for_each_row([](const Option& option) { return option.effect == Effect::none || option.place == Place::kernel; });
    for_each_row([](const Option& option) { return option.place != Place::state || option.of_state; });
}

void test_the_kernel_has_what_is_left_to_it() {
    for_each_row([](const Option& option) {
        const KernelOptions options(option.level == IPPROTO_IPV6 ? AF_INET6 : AF_INET);
        char value[256];
        socklen_t length = sizeof(value);
        const bool kept = option.place == Place::kernel;
        const int error = options.get(option.level, option.name, value, &length);
        return KernelOptions::known(option.level, option.name) == kept && (kept || error != 0);
    });
}

void test_what_is_in_no_row_or_nowhere_is_refused_however_valid_it_is() {
    KernelOptions options(AF_INET);
    EXPECT_EQ(set(options, SOL_SOCKET, SO_TIMESTAMPING, 0), ENOPROTOOPT);
    EXPECT_EQ(set(options, SOL_SOCKET, SO_TIMESTAMP, 1), ENOPROTOOPT);
    EXPECT_EQ(set(options, SOL_SOCKET, SO_TIMESTAMPNS, 1), ENOPROTOOPT);
    EXPECT(!options.was_set(SOL_SOCKET, SO_TIMESTAMPNS));
    for (const int name : {SO_BINDTODEVICE, SO_ATTACH_FILTER, SO_ZEROCOPY}) {
        EXPECT(!KernelOptions::known(SOL_SOCKET, name));
        EXPECT(find_option(SOL_SOCKET, name)->place == Place::nowhere);
    }
}

void test_an_accepted_socket_inherits_what_its_row_says() {
    KernelOptions listener(AF_INET);
    EXPECT_EQ(set(listener, IPPROTO_TCP, TCP_KEEPIDLE, 77), 0);
    EXPECT_EQ(set(listener, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
    KernelOptions accepted(AF_INET);
    accepted.inherit(listener);
    EXPECT(accepted.was_set(SOL_SOCKET, SO_KEEPALIVE));
    EXPECT_EQ(accepted.value<int>(IPPROTO_TCP, TCP_KEEPIDLE), 77);
    EXPECT(!accepted.was_set(IPPROTO_TCP, TCP_KEEPCNT));
    for_each_row([](const Option& option) { return option.inherited || option.place == Place::bytes; });
}

void test_cached_options_are_read_and_inherited() {
    KernelOptions options(AF_INET);
    const timeval time{2, 500000};
    const linger closing{1, 7};
    EXPECT_EQ(options.set(SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)), 0);
    EXPECT_EQ(options.set(SOL_SOCKET, SO_LINGER, &closing, sizeof(closing)), 0);
    EXPECT_EQ(set(options, SOL_SOCKET, SO_RCVLOWAT, 100), 0);
    EXPECT_EQ(set(options, IPPROTO_TCP, TCP_CORK, 1), 0);
    CachedOptions listener;
    listener.read(options);
    CachedOptions accepted;
    accepted.inherit(listener);
    for (const CachedOptions* one : {&listener, &accepted}) {
        EXPECT_EQ(one->receive_timeout.load(), int64_t{2500000000});
        EXPECT_EQ(one->send_timeout.load(), 0);
        EXPECT_EQ(one->low_water.load(), 100U);
        EXPECT(one->corked.load());
        EXPECT_EQ(one->closing.load().l_linger, 7);
    }
    for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVLOWAT, SO_LINGER}) {
        EXPECT(find_option(SOL_SOCKET, name)->effect == Effect::cached);
    }
    EXPECT(find_option(IPPROTO_TCP, TCP_CORK)->effect == Effect::cached);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_option_has_one_row),
        FABTEST(test_a_size_has_a_member_and_bounds_and_no_other_option_has),
        FABTEST(test_only_what_the_kernel_judges_has_an_effect),
        FABTEST(test_the_kernel_has_what_is_left_to_it),
        FABTEST(test_what_is_in_no_row_or_nowhere_is_refused_however_valid_it_is),
        FABTEST(test_an_accepted_socket_inherits_what_its_row_says),
        FABTEST(test_cached_options_are_read_and_inherited),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
