// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Settings: fi_setopt and fi_getopt in every width, their limits, and the environment's defaults.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

constexpr int buffers[] = {FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE};
constexpr int queues[] = {FI_OPT_TX_SIZE, FI_OPT_RX_SIZE};
constexpr int all[] = {FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE, FI_OPT_TX_SIZE, FI_OPT_RX_SIZE};

template <class T> int set(Stream& s, int option, T value) {
    return fi_setopt(&s.ep->fid, FI_OPT_ENDPOINT, option, &value, sizeof(value));
}

template <class T> T get(Stream& s, int option) {
    T value{};
    size_t length = sizeof(value);
    check("fi_getopt", fi_getopt(&s.ep->fid, FI_OPT_ENDPOINT, option, &value, &length));
    EXPECT_EQ(length, sizeof(value));
    return value;
}

void test_settings_have_the_defaults_of_the_manual() {
    Host host(here());
    Stream s(host);
    EXPECT_EQ(get<size_t>(s, FI_OPT_SEND_BUF_SIZE), 32768U);
    EXPECT_EQ(get<size_t>(s, FI_OPT_RECV_BUF_SIZE), 32768U);
    EXPECT_EQ(get<size_t>(s, FI_OPT_TX_SIZE), 384U);
    EXPECT_EQ(get<size_t>(s, FI_OPT_RX_SIZE), 384U);
    EXPECT(get<size_t>(s, FI_OPT_CM_DATA_SIZE) > 0);
}

void test_buffer_sizes_are_taken_as_size_t_and_uint32_t() {
    Host host(here());
    Stream s(host);
    for (const int option : buffers) {
        EXPECT_RESULT(set<size_t>(s, option, 65536), 0);
        EXPECT_EQ(get<size_t>(s, option), 65536U);
        EXPECT_EQ(get<uint32_t>(s, option), 65536U);
        EXPECT_RESULT(set<uint32_t>(s, option, 9999), 0);
        EXPECT_EQ(get<size_t>(s, option), 9999U);
        EXPECT_EQ(get<uint32_t>(s, option), 9999U);
        EXPECT_RESULT(set<uint16_t>(s, option, 8192), -FI_EINVAL);
        EXPECT_EQ(get<size_t>(s, option), 9999U);
    }
}

void test_queue_sizes_are_taken_as_size_t_and_uint16_t() {
    Host host(here());
    Stream s(host);
    for (const int option : queues) {
        EXPECT_RESULT(set<size_t>(s, option, 100), 0);
        EXPECT_EQ(get<size_t>(s, option), 100U);
        EXPECT_EQ(get<uint16_t>(s, option), 100U);
        EXPECT_RESULT(set<uint16_t>(s, option, 64), 0);
        EXPECT_EQ(get<size_t>(s, option), 64U);
        EXPECT_RESULT(set<uint32_t>(s, option, 32), -FI_EINVAL);
        EXPECT_EQ(get<size_t>(s, option), 64U);
    }
}

void test_one_setting_leaves_the_others_alone() {
    Host host(here());
    Stream s(host);
    size_t value = 5000;
    for (const int option : all) {
        EXPECT_RESULT(set<size_t>(s, option, value++), 0);
    }
    value = 5000;
    for (const int option : all) {
        EXPECT_EQ(get<size_t>(s, option), value++);
    }
}

void test_small_buffers_count_as_4096() {
    Host host(here());
    Stream s(host);
    for (const int option : buffers) {
        for (const size_t small : {size_t{1}, size_t{4095}, size_t{4096}}) {
            EXPECT_RESULT(set(s, option, small), 0);
            EXPECT_EQ(get<size_t>(s, option), 4096U);
        }
    }
}

void test_what_is_out_of_range_is_refused_and_changes_nothing() {
    Host host(here());
    Stream s(host);
    constexpr size_t most = size_t{1} << 30;
    for (const int option : buffers) {
        EXPECT_RESULT(set<size_t>(s, option, 20000), 0);
        for (const size_t bad : {size_t{0}, most + 1, size_t{1} << 32, (size_t{1} << 32) + 8192, ~size_t{0}}) {
            EXPECT_RESULT(set(s, option, bad), -FI_EINVAL);
        }
        EXPECT_RESULT(set<uint32_t>(s, option, 0), -FI_EINVAL);
        EXPECT_RESULT(set<uint32_t>(s, option, most + 1), -FI_EINVAL);
        EXPECT_RESULT(set<uint32_t>(s, option, ~0U), -FI_EINVAL);
        EXPECT_EQ(get<size_t>(s, option), 20000U);
        EXPECT_RESULT(set(s, option, most), 0);
        EXPECT_EQ(get<size_t>(s, option), most);
    }
    for (const int option : queues) {
        EXPECT_RESULT(set<size_t>(s, option, 20), 0);
        EXPECT_RESULT(set<size_t>(s, option, 0), -FI_EINVAL);
        EXPECT_EQ(get<size_t>(s, option), 20U);
    }
}

void test_bad_arguments_are_refused() {
    Host host(here());
    Stream s(host);
    fid* f = &s.ep->fid;
    size_t value = 8192;
    size_t length = sizeof(value);
    for (const int option : all) {
        EXPECT_RESULT(fi_setopt(f, FI_OPT_ENDPOINT, option, nullptr, sizeof(value)), -FI_EINVAL);
        EXPECT_RESULT(fi_setopt(f, FI_OPT_ENDPOINT, option, &value, 0), -FI_EINVAL);
        EXPECT_RESULT(fi_setopt(f, FI_OPT_ENDPOINT, option, &value, 3), -FI_EINVAL);
        EXPECT_RESULT(fi_getopt(f, FI_OPT_ENDPOINT, option, nullptr, &length), -FI_EINVAL);
        EXPECT_RESULT(fi_getopt(f, FI_OPT_ENDPOINT, option, &value, nullptr), -FI_EINVAL);
        size_t short_length = 1;
        EXPECT_RESULT(fi_getopt(f, FI_OPT_ENDPOINT, option, &value, &short_length), -FI_ETOOSMALL);
    }
    EXPECT_RESULT(fi_setopt(f, FI_OPT_ENDPOINT, 9999, &value, sizeof(value)), -FI_ENOPROTOOPT);
    EXPECT_RESULT(fi_getopt(f, FI_OPT_ENDPOINT, 9999, &value, &length), -FI_ENOPROTOOPT);
    EXPECT_RESULT(fi_setopt(f, 99, FI_OPT_SEND_BUF_SIZE, &value, sizeof(value)), -FI_ENOPROTOOPT);
    EXPECT_ERROR(fi_setopt(f, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, sizeof(value))); // get only
}

void test_settings_are_fixed_once_the_endpoint_is_enabled() {
    Host host(here());
    Stream s(host);
    EXPECT_RESULT(set<size_t>(s, FI_OPT_SEND_BUF_SIZE, 5000), 0);
    EXPECT_RESULT(fi_enable(s.get()), 0);
    for (const int option : all) {
        const auto before = get<size_t>(s, option);
        EXPECT_RESULT(set<size_t>(s, option, 8192), -FI_EOPBADSTATE);
        EXPECT_EQ(get<size_t>(s, option), before);
    }
    EXPECT_EQ(get<size_t>(s, FI_OPT_SEND_BUF_SIZE), 5000U);
}

void test_after_enabling_getopt_gives_what_the_core_left() {
    Host host(here());
    Stream s(host);
    EXPECT_RESULT(set<size_t>(s, FI_OPT_TX_SIZE, 30000), 0);
    EXPECT_RESULT(set<size_t>(s, FI_OPT_RX_SIZE, 30000), 0);
    EXPECT_EQ(get<size_t>(s, FI_OPT_TX_SIZE), 30000U);
    EXPECT_RESULT(fi_enable(s.get()), 0);
    EXPECT_EQ(get<size_t>(s, FI_OPT_SEND_BUF_SIZE), 32768U);
    EXPECT_EQ(get<size_t>(s, FI_OPT_RECV_BUF_SIZE), 32768U);
    if (core_name() == "tcp") {
        EXPECT_EQ(get<size_t>(s, FI_OPT_TX_SIZE), 256U);
    }
    EXPECT(get<size_t>(s, FI_OPT_TX_SIZE) <= 30000);
    EXPECT(get<size_t>(s, FI_OPT_RX_SIZE) <= 30000 && get<size_t>(s, FI_OPT_RX_SIZE) >= 4);
}

// Connects two ends with settings of their own, and sends both ways.
void transfer_with(size_t client_send, size_t client_recv, size_t server_send, size_t server_recv, uint64_t total,
                   size_t queue = 0) {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    client.set_option(FI_OPT_SEND_BUF_SIZE, client_send);
    client.set_option(FI_OPT_RECV_BUF_SIZE, client_recv);
    if (queue != 0) {
        client.set_option(FI_OPT_TX_SIZE, queue);
        client.set_option(FI_OPT_RX_SIZE, queue);
    }
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    server.set_option(FI_OPT_SEND_BUF_SIZE, server_send);
    server.set_option(FI_OPT_RECV_BUF_SIZE, server_recv);
    server.accept();
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(host.next_event().type, static_cast<uint32_t>(FI_CONNECTED));
    }
    EXPECT_EQ(client.get_option(FI_OPT_SEND_BUF_SIZE), client_send);
    EXPECT_EQ(server.get_option(FI_OPT_RECV_BUF_SIZE), server_recv);
    exchange_bytes(client, server, total, 10007);
    exchange_bytes(client, server, 20000, 61);
}

void test_buffers_of_every_size_carry_data() {
    for (const size_t size : {4096, 5000, 32768, 1 << 20}) {
        transfer_with(size, size, size, size, 3000017);
    }
}

void test_the_ends_may_have_different_buffers() {
    transfer_with(4096, 1 << 20, 5000, 65537, 3000017);
    transfer_with(1 << 20, 4096, 1 << 20, 4096, 3000017);
    transfer_with(4096, 1 << 20, 4096, 1 << 20, 3000017);
}

// A gigabyte; or less where that would have to be pinned in a memory that is not much larger.
void test_very_large_buffers_carry_data() {
    constexpr size_t gigabyte = size_t{1} << 30;
    const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t size = core_name() == "tcp" ? gigabyte : std::min(gigabyte, memory / 16);
    transfer_with(size, 65536, 65536, size, 32000029);
}

void test_queues_of_every_size_carry_data() {
    for (const size_t size : {1, 4, 5, 17, 256, 32768}) {
        transfer_with(32768, 32768, 32768, 32768, 300007, size);
    }
}

// ---- By the environment

// Arguments: an option's number and the value it must have by default, in pairs.
void defaults(const std::vector<std::string>& arguments) {
    Host host(here());
    Stream s(host);
    for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
        EXPECT_EQ(s.get_option(std::stoi(arguments[i])), std::stoul(arguments[i + 1]));
    }
    Pair pair(core_name(), 0, node_name());
    exchange_bytes(*pair.client, *pair.server, 300007, 1009);
}

void expect_default(const std::string& variable, const std::string& value, int option, size_t wanted) {
    run_in_child("defaults", {variable + "=" + value}, {std::to_string(option), std::to_string(wanted)});
}

void test_the_environment_sets_the_defaults() {
    expect_default("FI_RSTREAM_SEND_BUF_SIZE", "5000", FI_OPT_SEND_BUF_SIZE, 5000);
    expect_default("FI_RSTREAM_RECV_BUF_SIZE", "1048576", FI_OPT_RECV_BUF_SIZE, 1048576);
    expect_default("FI_RSTREAM_TX_SIZE", "32", FI_OPT_TX_SIZE, 32);
    expect_default("FI_RSTREAM_RX_SIZE", "48", FI_OPT_RX_SIZE, 48);
}

void test_a_setting_of_the_environment_that_is_out_of_range_is_ignored() {
    expect_default("FI_RSTREAM_SEND_BUF_SIZE", "0", FI_OPT_SEND_BUF_SIZE, 32768);
    expect_default("FI_RSTREAM_RECV_BUF_SIZE", "1073741825", FI_OPT_RECV_BUF_SIZE, 32768);
    expect_default("FI_RSTREAM_TX_SIZE", "1000000", FI_OPT_TX_SIZE, 384);
}

void test_without_immediates_the_stream_is_the_same() {
    run_in_child("defaults", {"FI_RSTREAM_IMMEDIATES=0"});
    run_in_child("defaults", {"FI_RSTREAM_IMMEDIATES=1"});
}

void short_linger(const std::vector<std::string>& /*arguments*/) {
    Pair pair(core_name(), 0, node_name());
    Pattern pattern(1);
    fill_up(*pair.client, pattern);
    const auto start = Clock::now();
    pair.client.reset();
    EXPECT(milliseconds_since(start) >= 100);
    EXPECT(milliseconds_since(start) < 2000);
}

// What waits for the peer's credit goes on behind a program that did not wait for it.
void test_closing_without_linger_returns_at_once_and_delivers() {
    auto pair = Pair(core_name(), 0, node_name());
    EXPECT_EQ(get<size_t>(*pair.client, FI_OPT_RSTREAM_LINGER), 3000U);
    Pattern out(1);
    Pattern in(1);
    const uint64_t total = fill_up(*pair.client, out);
    EXPECT_RESULT(set<size_t>(*pair.client, FI_OPT_RSTREAM_LINGER, 3600001), -FI_EINVAL);
    EXPECT_RESULT(set<uint32_t>(*pair.client, FI_OPT_RSTREAM_LINGER, 1), -FI_EINVAL);
    EXPECT_RESULT(set<size_t>(*pair.client, FI_OPT_RSTREAM_LINGER, 0), 0);
    EXPECT_EQ(get<size_t>(*pair.client, FI_OPT_RSTREAM_LINGER), 0U);
    const auto start = Clock::now();
    pair.client.reset();
    EXPECT(milliseconds_since(start) < patience(1000));
    std::vector<char> buffer(4096);
    for (uint64_t got = 0;;) {
        const ssize_t n = recv(*pair.server, buffer.data(), buffer.size());
        if (n == -FI_EAGAIN) { // the event queue moves on what was left behind
            uint32_t event = 0;
            (void)fi_eq_read(pair.own_host->eq.get(), &event, nullptr, 0, FI_PEEK);
            continue;
        }
        EXPECT(n >= 0);
        if (n == 0) {
            EXPECT_EQ(got, total);
            return;
        }
        in.check(buffer.data(), static_cast<size_t>(n));
        got += static_cast<uint64_t>(n);
    }
}

fi_rstream_status status_of(Stream& s) { return get<fi_rstream_status>(s, FI_OPT_RSTREAM_STATUS); }
// But for the one that tells what the core is like.
uint64_t flags_of(Stream& s) { return status_of(s).flags & ~(FI_RSTREAM_MANUAL | FI_RSTREAM_KERNEL_PORTS); }

// A program that was built when `arrived` was not there yet, and a pattern behind what it has.
constexpr size_t first_status = offsetof(fi_rstream_status, arrived);
fi_rstream_status earlier_status_of(fid* fid) {
    fi_rstream_status status{};
    status.arrived = 77;
    size_t length = first_status - 1;
    EXPECT_RESULT(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_STATUS, &status, &length), -FI_ETOOSMALL);
    length = first_status;
    EXPECT_RESULT(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_STATUS, &status, &length), 0);
    EXPECT_EQ(length, first_status);
    EXPECT_EQ(status.arrived, 77U);
    return status;
}

void test_the_status_of_a_listener_has_the_flags_of_its_core() {
    Host host(here());
    const Listener listener(host);
    fi_rstream_status status{};
    size_t length = sizeof(status);
    EXPECT_RESULT(fi_getopt(&listener.pep->fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_STATUS, &status, &length), 0);
    EXPECT_EQ(length, sizeof(status));
    EXPECT_EQ(status.flags & ~(FI_RSTREAM_MANUAL | FI_RSTREAM_KERNEL_PORTS), 0U);
    EXPECT_EQ(earlier_status_of(&listener.pep->fid).flags, status.flags);
}

void test_the_status_tells_of_an_end_that_bytes_are_in_front_of() {
    auto pair = Pair(core_name(), 0, node_name());
    EXPECT_EQ(flags_of(*pair.server), 0U);
    EXPECT_EQ(status_of(*pair.server).readable, 0U);
    EXPECT_EQ(status_of(*pair.server).writable, 32768U);
    EXPECT_EQ(status_of(*pair.server).unsent, 0U);
    pair.client->send_all("abc", 3);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_SHUT_WR), 0);
    EXPECT_EQ(await_readable(*pair.server, 3), 3);
    while (flags_of(*pair.server) == 0) {
        (void)peek_recv(*pair.server);
    }
    EXPECT_EQ(flags_of(*pair.server), FI_RSTREAM_PEER_FINISHED);
    EXPECT_EQ(status_of(*pair.server).readable, 3U);
    EXPECT_EQ(status_of(*pair.server).arrived, 3U);
    char byte = 0;
    EXPECT_EQ(fi_recv(pair.server->get(), &byte, 1, nullptr, 0, nullptr), 1);
    EXPECT_EQ(status_of(*pair.server).readable, 2U);
    EXPECT_EQ(status_of(*pair.server).arrived, 3U);
    EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
    while ((status_of(*pair.server).flags & FI_RSTREAM_PEER_CLOSED) == 0) {
        (void)peek_recv(*pair.server);
    }
    EXPECT_RESULT(set<size_t>(*pair.client, FI_OPT_RSTREAM_STATUS, 0), -FI_ENOPROTOOPT);
    EXPECT_EQ(earlier_status_of(&pair.server->ep->fid).readable, 2U);
}

void test_the_status_tells_whether_the_core_needs_calls() {
    auto pair = Pair(core_name(), 0, node_name());
    const bool manual = (status_of(*pair.client).flags & FI_RSTREAM_MANUAL) != 0;
    EXPECT_EQ(manual, std::string(core_name()) == "tcp");
}

void test_the_status_tells_what_goes_on_within_calls_only() {
    auto pair = Pair(core_name(), 0, node_name());
    EXPECT_EQ(status_of(*pair.client).flags & FI_RSTREAM_WAITING, 0U);
    uint64_t sent = 0;
    std::vector<char> bytes(100000);
    for (;;) { // more than the peer has space for
        const ssize_t n = fi_send(pair.client->get(), bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        if (n == -FI_EAGAIN) {
            break;
        }
        EXPECT(n > 0);
        sent += static_cast<uint64_t>(n);
    }
    EXPECT_EQ(status_of(*pair.client).flags & FI_RSTREAM_WAITING, FI_RSTREAM_WAITING);
    for (uint64_t got = 0; got < sent;) { // its end is looked at by nothing but what makes progress
        const ssize_t n = fi_recv(pair.server->get(), bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        got += n > 0 ? static_cast<uint64_t>(n) : 0;
        (void)peek_recv(*pair.client);
    }
    while ((status_of(*pair.client).flags & FI_RSTREAM_WAITING) != 0) {
        (void)peek_recv(*pair.client);
    }
}

void test_the_status_tells_of_a_reset() {
    auto pair = Pair(core_name(), 0, node_name());
    EXPECT_RESULT(fi_shutdown(pair.client->get(), FI_RSTREAM_ABORT), 0);
    EXPECT_EQ(status_of(*pair.client).flags & FI_RSTREAM_LOST, FI_RSTREAM_LOST);
    while ((status_of(*pair.server).flags & FI_RSTREAM_PEER_RESET) == 0) {
        (void)peek_recv(*pair.server);
    }
}

void test_the_environment_sets_the_linger_time() { run_in_child("short_linger", {"FI_RSTREAM_LINGER=100"}); }

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"defaults", defaults}, {"short_linger", short_linger}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_settings_have_the_defaults_of_the_manual),
        FABTEST(test_buffer_sizes_are_taken_as_size_t_and_uint32_t),
        FABTEST(test_queue_sizes_are_taken_as_size_t_and_uint16_t),
        FABTEST(test_one_setting_leaves_the_others_alone),
        FABTEST(test_small_buffers_count_as_4096),
        FABTEST(test_what_is_out_of_range_is_refused_and_changes_nothing),
        FABTEST(test_bad_arguments_are_refused),
        FABTEST(test_settings_are_fixed_once_the_endpoint_is_enabled),
        FABTEST(test_after_enabling_getopt_gives_what_the_core_left),
        FABTEST(test_buffers_of_every_size_carry_data),
        FABTEST(test_the_ends_may_have_different_buffers),
        FABTEST(test_very_large_buffers_carry_data),
        FABTEST(test_queues_of_every_size_carry_data),
        FABTEST(test_the_environment_sets_the_defaults),
        FABTEST(test_a_setting_of_the_environment_that_is_out_of_range_is_ignored),
        FABTEST(test_without_immediates_the_stream_is_the_same),
        FABTEST(test_closing_without_linger_returns_at_once_and_delivers),
        FABTEST(test_the_status_of_a_listener_has_the_flags_of_its_core),
        FABTEST(test_the_status_tells_of_an_end_that_bytes_are_in_front_of),
        FABTEST(test_the_status_tells_whether_the_core_needs_calls),
        FABTEST(test_the_status_tells_what_goes_on_within_calls_only),
        FABTEST(test_the_status_tells_of_a_reset),
        FABTEST(test_the_environment_sets_the_linger_time),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
