// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Many connections: a thousand at once, and thousands one after the other, with nothing left behind.
#include <algorithm>
#include <cstdlib>
#include <map>

#include <sys/resource.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true; // keeps what was freed, and sees as much of fewer connections
#else
constexpr bool sanitized = false;
#endif

// Raises the limit of descriptors as far as it goes; skips if that is not enough.
void need_descriptors(size_t wanted) {
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < wanted) {
        throw Skip("needs " + std::to_string(wanted) + " descriptors, the hard limit is " +
                   std::to_string(limit.rlim_max));
    }
    limit.rlim_cur = limit.rlim_max;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

struct Crowd {
    explicit Crowd(Host& h) : host(h), listener(h) {}

    void add(size_t count) {
        const size_t wanted = clients.size() + count;
        const auto where = listener.name();
        for (size_t i = 0; i < count; ++i) {
            clients.push_back(std::make_unique<Stream>(host));
            clients.back()->connect(where.data(), std::to_string(clients.size() - 1));
        }
        servers.resize(wanted);
        for (size_t events = 0; events < 3 * count; ++events) {
            const Event event = host.next_event(patience(20000));
            if (event.error) {
                throw Error("event " + std::to_string(events), -event.err);
            }
            if (event.type == FI_CONNREQ) {
                const Info info(event.info);
                auto& server = servers.at(std::stoul(event.text()));
                EXPECT(server == nullptr);
                server = std::make_unique<Stream>(host, info.get());
                server->accept();
            } else {
                EXPECT_EQ(event.type, static_cast<uint32_t>(FI_CONNECTED));
            }
        }
    }

    Host& host;
    Listener listener;
    std::vector<std::unique_ptr<Stream>> clients;
    std::vector<std::unique_ptr<Stream>> servers;
};

void test_a_thousand_connections_at_once() {
    constexpr size_t count = sanitized ? 300 : 1000;
    need_descriptors(12 * count);
    Host host(here());
    Crowd crowd(host);
    for (size_t done = 0; done < count; done += 100) { // a backlog of the kernel's holds no thousand
        crowd.add(100);
    }
    // All have a message under way both ways before any is read.
    char bytes[5003];
    for (size_t i = 0; i < count; ++i) {
        Pattern there(i);
        there.fill(bytes, sizeof(bytes));
        EXPECT_RESULT(send(*crowd.clients[i], bytes, sizeof(bytes)), sizeof(bytes));
        Pattern back(i + count);
        back.fill(bytes, sizeof(bytes));
        EXPECT_RESULT(send(*crowd.servers[i], bytes, sizeof(bytes)), sizeof(bytes));
    }
    for (size_t i = 0; i < count; ++i) {
        Pattern there(i);
        EXPECT_EQ(crowd.servers[i]->recv_all(bytes, sizeof(bytes)), sizeof(bytes));
        there.check(bytes, sizeof(bytes));
        Pattern back(i + count);
        EXPECT_EQ(crowd.clients[i]->recv_all(bytes, sizeof(bytes)), sizeof(bytes));
        back.check(bytes, sizeof(bytes));
    }
    for (size_t i = 0; i < count; i += 97) {
        exchange_bytes(*crowd.clients[i], *crowd.servers[i], 300007);
    }
    // One of each pair leaves; every other is told.
    std::map<const fid*, int> left;
    for (size_t i = 0; i < count; ++i) {
        crowd.clients[i].reset();
        char byte = 0;
        EXPECT_RESULT(crowd.servers[i]->recv_some(&byte, 1), 0);
    }
    for (size_t i = 0; i < count; ++i) {
        const Event event = host.next_event(patience(10000));
        EXPECT_EQ(event.type, static_cast<uint32_t>(FI_SHUTDOWN));
        EXPECT_EQ(++left[event.subject], 1);
    }
}

void connect_and_close(Host& host, int times) {
    for (int i = 0; i < times; ++i) {
        Pair pair(host, 0);
        pair.client->send_all("abc", 3);
        char text[4] = {};
        EXPECT_EQ(pair.server->recv_all(text, 3), 3U);
        EXPECT_EQ(std::string(text), std::string("abc"));
        (i % 2 == 0 ? pair.client : pair.server).reset();
    }
}

// Until what was closed is gone.
void settle(Host& host, size_t fds) {
    const auto start = Clock::now();
    while (open_fds() > fds && milliseconds_since(start) < patience(10000)) {
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 20, 0), -FI_EAGAIN);
    }
}

// Pools and allocators grow in steps, by what they keep for later. What is lost with every connection shows in every
// round. verbs is emulated where it is tested by everyone, and connects ten times slower.
void test_thousands_of_connections_one_after_the_other_leave_nothing() {
    Host host(here());
    const int a_round = sanitized ? 20 : core_name() == "verbs" ? 200 : 500;
    const size_t fds = fds_at_rest(host);
    connect_and_close(host, sanitized ? 30 : 300);
    settle(host, fds);
    const size_t maps = mappings();
    size_t least_growth = ~size_t{0};
    for (int round = 0; round < 6; ++round) {
        const size_t before = resident_bytes();
        connect_and_close(host, a_round);
        settle(host, fds);
        const size_t after = resident_bytes();
        least_growth = std::min(least_growth, after - std::min(after, before));
    }
    EXPECT_EQ(open_fds(), fds);
    if (!sanitized) {
        EXPECT(least_growth < static_cast<size_t>(a_round) << 10); // a kilobyte of each
        EXPECT(mappings() <= maps + 10);
    }
}

void test_refused_connections_leave_nothing() {
    Host host(here());
    const Listener listener(host);
    const size_t fds = fds_at_rest(host);
    for (int i = 0; i < (sanitized ? 60 : 300); ++i) {
        Stream client(host);
        client.connect(listener.name().data());
        const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
        EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, "no", 2), 0);
        EXPECT(host.next_event().error);
    }
    settle(host, fds);
    EXPECT_EQ(open_fds(), fds);
}

} // namespace

int main() {
    // verbs keeps up to 1,024 registrations of memory that was freed, which is not what is looked for here.
    setenv("FI_MR_CACHE_MAX_COUNT", "0", 0);
    const CMUnitTest tests[] = {
        FABTEST(test_a_thousand_connections_at_once),
        FABTEST(test_thousands_of_connections_one_after_the_other_leave_nothing),
        FABTEST(test_refused_connections_leave_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
