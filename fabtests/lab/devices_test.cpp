// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Streams over RoCE, over iWARP and over tcp in one process at once: what was learnt of one core or device is never
// used for another. FABTESTS_ROCE and FABTESTS_IWARP are addresses of a device of each kind.
#include <array>
#include <cstdlib>
#include <cstring>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

Request on_verbs(const char* variable) {
    const char* node = getenv(variable);
    if (node == nullptr || *node == '\0') {
        throw Skip(std::string(variable) + " is not set: this test needs devices of both kinds");
    }
    Request request;
    request.core = "verbs";
    request.node = node;
    request.source = true;
    return request;
}

Request on_tcp() {
    Request request;
    request.core = "tcp";
    request.node = "127.0.0.1";
    request.source = true;
    return request;
}

constexpr size_t kinds = 3;

// A connected pair of each kind, made one between the other: no kind is set up as a whole before the next begins.
struct Pairs {
    explicit Pairs(size_t buffers = 0) {
        for (size_t i = 0; i < kinds; ++i) {
            pairs[i] = std::make_unique<Pair>(hosts[i], buffers);
        }
    }
    std::array<Host, kinds> hosts{Host(on_verbs("FABTESTS_ROCE")), Host(on_verbs("FABTESTS_IWARP")), Host(on_tcp())};
    std::array<std::unique_ptr<Pair>, kinds> pairs;
};

void test_each_kind_is_a_fabric_of_its_own() {
    const Pairs all;
    for (size_t i = 0; i < kinds; ++i) {
        EXPECT_EQ(all.hosts[i].info->ep_attr->protocol, static_cast<uint32_t>(FI_PROTO_RSTREAM));
        for (size_t k = i + 1; k < kinds; ++k) {
            EXPECT(strcmp(all.hosts[i].info->fabric_attr->name, all.hosts[k].info->fabric_attr->name) != 0);
            EXPECT(strcmp(all.hosts[i].info->domain_attr->name, all.hosts[k].info->domain_attr->name) != 0);
        }
    }
}

void test_one_thread_moves_bytes_over_all_kinds_in_turns() {
    const Pairs all;
    std::vector<Flow> flows;
    for (size_t i = 0; i < kinds; ++i) {
        flows.emplace_back(*all.pairs[i]->client, *all.pairs[i]->server, 300007, 4099, i + 1);
        flows.emplace_back(*all.pairs[i]->server, *all.pairs[i]->client, 300007, 16384, i + 10);
    }
    for (;;) {
        bool moved = false;
        bool done = true;
        for (Flow& flow : flows) {
            moved = (!flow.done() && flow.step()) || moved;
            done = done && flow.done();
        }
        if (done) {
            return;
        }
        if (!moved) { // what an end could not send yet goes at the next call on it
            for (Flow& flow : flows) {
                if (!flow.done()) {
                    (void)flow.from.wait(1);
                    (void)flow.to.wait(1);
                }
            }
        }
    }
}

void test_threads_move_bytes_over_all_kinds_at_once() {
    const Pairs all(65536);
    Threads threads;
    for (size_t i = 0; i < kinds; ++i) {
        threads.start([&all, i] { exchange_bytes(*all.pairs[i]->client, *all.pairs[i]->server, 500009, 8192, i); });
    }
    threads.join();
}

void test_the_end_of_one_kind_leaves_the_others() {
    for (size_t gone = 0; gone < kinds; ++gone) {
        Pairs all;
        all.pairs[gone]->client.reset();
        char byte = 0;
        EXPECT_EQ(all.pairs[gone]->server->recv_some(&byte, 1), 0);
        all.pairs[gone].reset();
        for (size_t i = 0; i < kinds; ++i) {
            if (i != gone) {
                exchange_bytes(*all.pairs[i]->client, *all.pairs[i]->server, 30011);
            }
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_each_kind_is_a_fabric_of_its_own),
        FABTEST(test_one_thread_moves_bytes_over_all_kinds_in_turns),
        FABTEST(test_threads_move_bytes_over_all_kinds_at_once),
        FABTEST(test_the_end_of_one_kind_leaves_the_others),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
