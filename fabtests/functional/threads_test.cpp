// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Several threads on the same objects: one that sends beside one that receives, many that open connections, and many
// that read one event queue.
#include <atomic>
#include <map>
#include <mutex>

#include <netinet/in.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true; // each byte costs several times as much
#else
constexpr bool sanitized = false;
#endif

// A sender and a receiver thread at each end. A sender that is done keeps its end moving until all have all.
void four_threads(Wait mode, size_t buffers, uint64_t total, size_t piece) {
    Pair pair(core_name(), buffers, node_name());
    pair.client->mode = mode;
    pair.server->mode = mode;
    std::atomic<int> received{0};
    Threads threads;
    const auto sender = [&](Stream& s, uint64_t seed) {
        send_pattern(s, total, piece, seed);
        while (received < 2) {
            (void)peek_send(s);
            (void)s.wait(20);
        }
    };
    const auto receiver = [&](Stream& s, uint64_t seed) {
        try {
            recv_pattern(s, total, piece + 11, seed);
        } catch (...) {
            received = 2;
            throw;
        }
        ++received;
    };
    threads.start([&] { sender(*pair.client, 1); });
    threads.start([&] { sender(*pair.server, 2); });
    threads.start([&] { receiver(*pair.client, 2); });
    threads.start([&] { receiver(*pair.server, 1); });
    threads.join();
}

void test_one_thread_sends_while_another_receives_and_both_sleep() {
    four_threads(Wait::poll, 0, 20000003, 4099);
    four_threads(Wait::poll, 4096, 2000003, 61);
    four_threads(Wait::poll, 1 << 20, sanitized ? 20000003 : 100000007, 65537);
}

void test_one_thread_sends_while_another_receives_and_both_spin() {
    four_threads(Wait::spin, 0, 5000011, 4099);
    four_threads(Wait::spin, 4096, 300007, 61);
}

// It asks before the endpoint is enabled, too.
void test_one_thread_receives_before_another_has_connected() {
    Host host(here());
    Listener listener(host);
    Stream client(host);
    std::atomic<bool> asked{false};
    ssize_t received = 0;
    char byte = 0;
    Threads threads;
    threads.start([&] {
        do {
            received = fi_recv(client.get(), &byte, sizeof(byte), nullptr, 0, nullptr);
            asked = true;
        } while (received == -FI_ENOTCONN || received == -FI_EAGAIN);
    });
    while (!asked) {
        std::this_thread::yield();
    }
    client.connect(listener.name().data());
    const Info info(listener.request().info);
    Stream server(host, info.get());
    server.accept();
    host.next_event();
    host.next_event();
    server.send_all("x", 1);
    threads.join();
    EXPECT_RESULT(received, 1);
    EXPECT_EQ(byte, 'x');
}

void test_many_threads_open_connections_on_one_domain() {
    constexpr int workers = 4;
    constexpr int rounds = 15;
    Host host(here());
    const Listener listener(host);
    const auto where = listener.name();

    // One thread reads the queue, answers requests, and tells the clients.
    std::mutex mutex;
    std::map<const fid*, bool> connected; // a client's fid: whether its event has come
    std::vector<std::unique_ptr<Stream>> servers;
    std::atomic<bool> over{false};
    std::atomic<int> finished{0};
    Threads threads;
    threads.start([&] {
        while (finished < workers && !over) {
            Event event;
            try {
                event = host.next_event(20);
            } catch (const Error& none) {
                EXPECT_RESULT(none.code, -FI_ETIMEDOUT);
                continue;
            }
            EXPECT(!event.error);
            if (event.type == FI_CONNREQ) {
                const Info info(event.info);
                servers.push_back(std::make_unique<Stream>(host, info.get()));
                servers.back()->accept();
                continue;
            }
            const std::lock_guard lock(mutex);
            if (event.type == FI_CONNECTED) {
                connected[event.subject] = true;
            }
            for (auto& server : servers) {
                if (event.type == FI_CONNECTED && event.subject == &server->ep->fid) {
                    server->send_all("welcome", 7);
                    EXPECT_RESULT(fi_shutdown(server->get(), FI_RSTREAM_SHUT_WR), 0);
                }
            }
        }
    });
    for (int i = 0; i < workers; ++i) {
        threads.start([&] {
            try {
                for (int round = 0; round < rounds; ++round) {
                    Stream client(host);
                    {
                        const std::lock_guard lock(mutex);
                        connected[&client.ep->fid] = false;
                    }
                    client.connect(where.data());
                    const auto start = Clock::now();
                    for (;;) {
                        EXPECT(milliseconds_since(start) < patience(20000));
                        const std::lock_guard lock(mutex);
                        if (connected[&client.ep->fid]) {
                            break;
                        }
                    }
                    char text[8] = {};
                    EXPECT_EQ(client.recv_all(text, 8), 7U);
                    EXPECT_EQ(std::string(text), std::string("welcome"));
                }
            } catch (...) {
                over = true;
                throw;
            }
            ++finished;
        });
    }
    threads.join();
}

void test_many_threads_with_hosts_of_their_own() {
    Threads threads;
    for (int i = 0; i < 4; ++i) {
        threads.start([i] {
            for (int round = 0; round < 5; ++round) {
                Pair pair(core_name(), 0, node_name());
                exchange_bytes(*pair.client, *pair.server, 300007, 1009, static_cast<uint64_t>(i));
            }
        });
    }
    threads.join();
}

void test_many_threads_read_one_queue_and_each_event_comes_once() {
    constexpr size_t count = 40;
    Host host(here());
    const Listener listener(host);
    std::vector<std::unique_ptr<Stream>> clients;
    std::mutex mutex;
    std::vector<std::unique_ptr<Stream>> servers;
    std::map<const fid*, int> connected;
    std::atomic<size_t> events{0};
    Threads threads;
    for (int i = 0; i < 3; ++i) {
        threads.start([&] {
            const auto start = Clock::now();
            while (events < 3 * count) {
                EXPECT(milliseconds_since(start) < patience(20000));
                union {
                    fi_eq_cm_entry entry;
                    char bytes[512];
                } buffer;
                uint32_t type = 0;
                const ssize_t got = fi_eq_sread(host.eq.get(), &type, &buffer, sizeof(buffer), 20, 0);
                if (got == -FI_EAGAIN) {
                    continue;
                }
                EXPECT_RESULT(got, sizeof(fi_eq_cm_entry));
                if (type == FI_CONNREQ) {
                    const Info info(buffer.entry.info);
                    auto server = std::make_unique<Stream>(host, info.get());
                    server->accept();
                    const std::lock_guard lock(mutex);
                    servers.push_back(std::move(server));
                } else {
                    EXPECT_EQ(type, static_cast<uint32_t>(FI_CONNECTED));
                    const std::lock_guard lock(mutex);
                    ++connected[buffer.entry.fid];
                }
                ++events;
            }
        });
    }
    for (size_t i = 0; i < count; ++i) {
        clients.push_back(std::make_unique<Stream>(host));
        clients.back()->connect(listener.name().data());
    }
    threads.join();
    EXPECT_EQ(connected.size(), 2 * count);
    for (const auto& client : clients) {
        EXPECT_EQ(connected.count(&client->ep->fid), 1U);
    }
}

void test_a_reader_of_the_queue_does_not_disturb_the_streams() {
    Pair pair(core_name(), 0, node_name());
    std::atomic<bool> over{false};
    Threads threads;
    threads.start([&] {
        while (!over) {
            uint32_t type = 0;
            fi_eq_cm_entry entry{};
            EXPECT_RESULT(fi_eq_read(pair.own_host->eq.get(), &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
        }
    });
    threads.start([&] {
        while (!over) {
            (void)peek_send(*pair.client);
            (void)peek_recv(*pair.server);
        }
    });
    try {
        exchange_bytes(*pair.client, *pair.server, 5000011, 1009);
    } catch (...) {
        over = true;
        throw;
    }
    over = true;
    threads.join();
}

void test_shutdown_and_abort_by_another_thread() {
    for (int round = 0; round < 20; ++round) {
        Pair pair(core_name(), 0, node_name());
        std::atomic<bool> over{false};
        Threads threads;
        threads.start([&] {
            char buffer[1000];
            ssize_t got = 1;
            try {
                while (got > 0) {
                    got = pair.server->recv_some(buffer, sizeof(buffer));
                }
            } catch (...) {
                over = true;
                throw;
            }
            over = true;
            EXPECT(got == 0 || got == -FI_ECONNRESET);
        });
        threads.start([&] {
            const std::vector<char> bytes(1000);
            for (ssize_t sent = 0; sent >= 0 || sent == -FI_EAGAIN;) {
                sent = send(*pair.client, bytes.data(), bytes.size());
                EXPECT(sent > 0 || sent == -FI_EAGAIN || sent == -FI_EPIPE || sent == -FI_ECONNABORTED);
            }
        });
        threads.start([&] {
            for (int i = 0; i < 100 * round; ++i) {
                (void)peek_send(*pair.client);
            }
            EXPECT_RESULT(fi_shutdown(pair.client->get(), round % 2 == 0 ? 0 : FI_RSTREAM_ABORT), 0);
            while (!over) { // what is still staged goes out by calls
                (void)try_wait(*pair.own_host, &pair.client->ep->fid);
            }
        });
        threads.join();
    }
}

// The core's endpoint of a connect that fails at once is closed: the next connect makes another one.
void test_names_can_be_queried_while_connects_fail() {
    Host host(here());
    const Stream stream(host);
    check("fi_enable", fi_enable(stream.get()));
    sockaddr_in nowhere{};
    nowhere.sin_family = AF_INET;
    nowhere.sin_port = htons(1);
    nowhere.sin_addr.s_addr = htonl(INADDR_ALLHOSTS_GROUP);
    if (fi_connect(stream.get(), &nowhere, nullptr, 0) == 0) {
        throw Skip("the core reports that by an event");
    }
    std::atomic<bool> over{false};
    std::atomic<int> queries{0};
    Threads threads;
    threads.start([&] {
        while (!over) {
            sockaddr_storage name{};
            size_t length = sizeof(name);
            const int ret = fi_getname(&stream.ep->fid, &name, &length);
            EXPECT(ret == 0 || ret == -FI_EBADF); // tcp closes the socket of its endpoint first
            length = sizeof(name);
            EXPECT_ERROR(fi_getpeer(stream.get(), &name, &length));
            ++queries;
        }
    });
    for (int i = 0; i < 500 || queries < 500; ++i) {
        EXPECT_ERROR(fi_connect(stream.get(), &nowhere, nullptr, 0));
    }
    over = true;
    threads.join();
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_one_thread_sends_while_another_receives_and_both_sleep),
        FABTEST(test_one_thread_sends_while_another_receives_and_both_spin),
        FABTEST(test_one_thread_receives_before_another_has_connected),
        FABTEST(test_many_threads_open_connections_on_one_domain),
        FABTEST(test_many_threads_with_hosts_of_their_own),
        FABTEST(test_many_threads_read_one_queue_and_each_event_comes_once),
        FABTEST(test_a_reader_of_the_queue_does_not_disturb_the_streams),
        FABTEST(test_shutdown_and_abort_by_another_thread),
        FABTEST(test_names_can_be_queried_while_connects_fail),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
