// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Event queues by themselves: reading, writing, errors, waiting, and the descriptor.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include <pthread.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

Host host_with(fi_wait_obj wait = FI_WAIT_FD) { return Host(get_info(here()), wait); }

fi_eq_entry numbered(uint64_t data) {
    fi_eq_entry entry{};
    entry.data = data;
    return entry;
}

void write(Host& host, uint64_t data, uint32_t type = FI_NOTIFY) {
    const fi_eq_entry entry = numbered(data);
    EXPECT_RESULT(fi_eq_write(host.eq.get(), type, &entry, sizeof(entry), 0), sizeof(entry));
}

ssize_t read(Host& host, fi_eq_entry& entry, uint32_t& type, uint64_t flags = 0) {
    return fi_eq_read(host.eq.get(), &type, &entry, sizeof(entry), flags);
}

// A client whose request was rejected with these bytes; the error waits in the queue.
void make_error(Host& host, const std::string& why) {
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    check("fi_reject", fi_reject(listener.pep.get(), info->handle, why.data(), why.size()));
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), patience(10000), FI_PEEK), -FI_EAVAIL);
    // Its endpoint is still there while the error is read.
    fi_eq_err_entry error{};
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), &error, FI_PEEK), sizeof(error));
    EXPECT(error.fid == &client.ep->fid);
    char buffer[16] = {};
    error.err_data = buffer;
    error.err_data_size = sizeof(buffer);
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), &error, FI_PEEK), sizeof(error));
    EXPECT(error.err_data == buffer);
    EXPECT_EQ(error.err_data_size, std::min(why.size(), sizeof(buffer)));
    EXPECT(memcmp(buffer, why.data(), error.err_data_size) == 0);
    error = {};
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), &error, 0), sizeof(error));
    EXPECT_EQ(error.err, FI_ECONNREFUSED);
    EXPECT_EQ(error.err_data_size, why.size());
    EXPECT(why.empty() || memcmp(error.err_data, why.data(), why.size()) == 0);
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), &error, 0), -FI_EAGAIN);
    const char* text = fi_eq_strerror(host.eq.get(), error.prov_errno, error.err_data, nullptr, 0);
    EXPECT(text != nullptr && *text != '\0' && strcmp(text, strerror(0)) != 0);
}

void test_an_empty_queue_gives_eagain() {
    auto host = host_with();
    fi_eq_entry entry{};
    uint32_t type = 0;
    EXPECT_RESULT(read(host, entry, type), -FI_EAGAIN);
    EXPECT_RESULT(read(host, entry, type, FI_PEEK), -FI_EAGAIN);
    fi_eq_err_entry error{};
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), &error, 0), -FI_EAGAIN);
}

void test_what_is_written_is_read_in_order() {
    auto host = host_with();
    for (uint64_t i = 0; i < 500; ++i) {
        write(host, i, static_cast<uint32_t>(FI_NOTIFY + i % 3));
    }
    for (uint64_t i = 0; i < 500; ++i) {
        fi_eq_entry entry{};
        uint32_t type = 0;
        EXPECT_RESULT(read(host, entry, type), sizeof(entry));
        EXPECT_EQ(entry.data, i);
        EXPECT_EQ(type, FI_NOTIFY + i % 3);
    }
    fi_eq_entry entry{};
    uint32_t type = 0;
    EXPECT_RESULT(read(host, entry, type), -FI_EAGAIN);
}

void test_peek_leaves_the_event() {
    auto host = host_with();
    write(host, 7);
    for (const uint64_t flags : {uint64_t{FI_PEEK}, uint64_t{FI_PEEK}, uint64_t{0}}) {
        fi_eq_entry entry{};
        uint32_t type = 0;
        EXPECT_RESULT(read(host, entry, type, flags), sizeof(entry));
        EXPECT_EQ(entry.data, 7U);
        EXPECT_EQ(type, static_cast<uint32_t>(FI_NOTIFY));
    }
    fi_eq_entry entry{};
    uint32_t type = 0;
    EXPECT_RESULT(read(host, entry, type), -FI_EAGAIN);
    write(host, 8);
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 0, FI_PEEK), sizeof(entry));
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 0, 0), sizeof(entry));
}

void test_too_small_a_buffer_loses_nothing() {
    auto host = host_with();
    write(host, 9);
    unsigned char buffer[sizeof(fi_eq_entry)] = {};
    uint32_t type = 0;
    for (const size_t size : {size_t{0}, size_t{8}, size_t{16}, sizeof(buffer) - 1}) {
        EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, buffer, size, 0), -FI_ETOOSMALL);
    }
    EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, buffer, sizeof(buffer), 0), sizeof(buffer));
}

void test_too_small_a_buffer_loses_no_connection_request() {
    auto host = host_with();
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data(), "private");
    uint32_t type = 0;
    union {
        fi_eq_cm_entry entry;
        char bytes[sizeof(fi_eq_cm_entry) + 16];
    } buffer{};
    const char* data = buffer.bytes + sizeof(fi_eq_cm_entry);
    constexpr size_t whole = sizeof(fi_eq_cm_entry) + 7;
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &buffer, sizeof(void*), patience(10000), 0), -FI_ETOOSMALL);
    // As much private data as there is space for.
    EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, &buffer, whole - 3, FI_PEEK), whole - 3);
    EXPECT(memcmp(data, "priv", 5) == 0);
    EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, &buffer, sizeof(buffer), 0), whole);
    EXPECT(memcmp(data, "private", 8) == 0);
    const Info info(buffer.entry.info);
    EXPECT(buffer.entry.fid == &listener.pep->fid);
}

void test_bad_arguments_give_einval() {
    auto host = host_with();
    write(host, 1);
    fi_eq_entry entry{};
    uint32_t type = 0;
    EXPECT_RESULT(read(host, entry, type, 1ULL << 62), -FI_EINVAL);
    EXPECT_RESULT(fi_eq_read(host.eq.get(), nullptr, &entry, sizeof(entry), 0), -FI_EINVAL);
    EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, nullptr, sizeof(entry), 0), -FI_EINVAL);
    EXPECT_RESULT(fi_eq_write(host.eq.get(), FI_NOTIFY, nullptr, 8, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), nullptr, 0), -FI_EINVAL);
    EXPECT_RESULT(read(host, entry, type), sizeof(entry));
}

void test_errors_come_by_readerr_with_their_data() {
    auto host = host_with();
    make_error(host, "");
    make_error(host, "no");
    const size_t most = Stream(host).get_option(FI_OPT_CM_DATA_SIZE);
    make_error(host, std::string(most, 'n'));
}

// fi_eq(3): a program of an API before 1.5 need not set the members for a buffer.
void test_an_old_program_gets_error_data_in_a_buffer_of_the_queue() {
    Info info = get_info(here());
    info->fabric_attr->api_version = FI_VERSION(1, 4);
    Host host(std::move(info));
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Info request(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    EXPECT_RESULT(fi_reject(listener.pep.get(), request->handle, "why", 3), 0);
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), patience(10000), 0), -FI_EAVAIL);
    char never[4] = "old";
    fi_eq_err_entry error{};
    error.err_data = never;
    error.err_data_size = sizeof(never);
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), &error, 0), sizeof(error));
    EXPECT(std::string(never) == "old");
    EXPECT_EQ(error.err_data_size, size_t{3});
    EXPECT(memcmp(error.err_data, "why", 3) == 0);
}

void test_an_event_behind_an_error_waits_for_it() {
    auto host = host_with();
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    check("fi_reject", fi_reject(listener.pep.get(), info->handle, nullptr, 0));
    uint32_t type = 0;
    fi_eq_entry entry{};
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), patience(10000), 0), -FI_EAVAIL);
    write(host, 3);
    EXPECT_RESULT(read(host, entry, type), -FI_EAVAIL);
    fi_eq_err_entry error{};
    EXPECT_RESULT(fi_eq_readerr(host.eq.get(), &error, 0), sizeof(error));
    EXPECT_RESULT(read(host, entry, type), sizeof(entry));
    EXPECT_EQ(entry.data, 3U);
}

void test_sread_waits_at_least_as_long_as_it_is_told() {
    auto host = host_with();
    fi_eq_entry entry{};
    uint32_t type = 0;
    for (const int timeout : {0, 1, 50, 200}) {
        const auto start = Clock::now();
        EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), timeout, 0), -FI_EAGAIN);
        EXPECT(Clock::now() - start >= std::chrono::milliseconds(timeout));
        EXPECT(milliseconds_since(start) < patience(10000));
    }
}

void test_sread_is_woken_by_a_write_of_another_thread() {
    for (const auto wait : {FI_WAIT_FD, FI_WAIT_UNSPEC}) {
        auto host = host_with(wait);
        for (uint64_t i = 0; i < 100; ++i) {
            Threads threads;
            threads.start([&] { write(host, i); });
            fi_eq_entry entry{};
            uint32_t type = 0;
            EXPECT_RESULT(
                fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), i % 2 == 0 ? patience(10000) : -1, 0),
                sizeof(entry));
            EXPECT_EQ(entry.data, i);
            threads.join();
        }
    }
}

void test_sread_returns_when_a_signal_arrives() {
    auto host = host_with();
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = [](int) {};
    sigaction(SIGUSR1, &action, &before);
    std::atomic<bool> done{false};
    Threads threads;
    threads.start([&done, reader = pthread_self()] {
        while (!done) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            pthread_kill(reader, SIGUSR1);
        }
    });
    fi_eq_entry entry{};
    uint32_t type = 0;
    const ssize_t got = fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), patience(3000), 0);
    done = true;
    threads.join();
    sigaction(SIGUSR1, &before, nullptr);
    EXPECT_RESULT(got, -FI_EINTR);
}

void test_each_event_goes_to_one_of_many_readers() {
    auto host = host_with();
    constexpr uint64_t events = 3000;
    std::vector<std::atomic<int>> seen(events);
    std::atomic<uint64_t> taken{0};
    Threads threads;
    for (int i = 0; i < 3; ++i) {
        threads.start([&] {
            while (taken < events) {
                fi_eq_entry entry{};
                uint32_t type = 0;
                const ssize_t got = fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 20, 0);
                if (got == -FI_EAGAIN) {
                    continue;
                }
                EXPECT_RESULT(got, sizeof(entry));
                ++seen.at(entry.data);
                ++taken;
            }
        });
    }
    threads.start([&] {
        for (uint64_t i = 0; i < events; ++i) {
            write(host, i);
        }
    });
    threads.join();
    for (const auto& one : seen) {
        EXPECT_EQ(one.load(), 1);
    }
}

void test_the_descriptor_is_readable_while_there_is_an_event() {
    for (const auto wait : {FI_WAIT_FD, FI_WAIT_UNSPEC}) {
        auto host = host_with(wait);
        const int fd = wait_fd(&host.eq->fid);
        EXPECT_RESULT(try_wait(host, &host.eq->fid), 0);
        EXPECT(!readable(fd));
        Threads threads;
        threads.start([&] { write(host, 1), write(host, 2); });
        EXPECT(readable(fd, patience(10000)));
        threads.join();
        EXPECT_RESULT(try_wait(host, &host.eq->fid), -FI_EAGAIN);
        fi_eq_entry entry{};
        uint32_t type = 0;
        EXPECT_RESULT(read(host, entry, type), sizeof(entry));
        EXPECT(readable(fd));
        EXPECT_RESULT(read(host, entry, type), sizeof(entry));
        EXPECT(!readable(fd));
        EXPECT_RESULT(try_wait(host, &host.eq->fid), 0);
    }
}

// Sleeps on the queue by the rules until there is an event.
void sleep_for_event(Host& host) {
    while (try_wait(host, &host.eq->fid) == 0) {
        EXPECT(readable(wait_fd(&host.eq->fid), patience(10000)));
    }
}

void test_the_descriptor_wakes_for_requests_and_connections() {
    auto host = host_with();
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    sleep_for_event(host);
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid, 0).info);
    Stream server(host, info.get());
    server.accept();
    for (int i = 0; i < 2; ++i) {
        sleep_for_event(host);
        EXPECT_EQ(host.next_event(0).type, static_cast<uint32_t>(FI_CONNECTED));
    }
    EXPECT_RESULT(try_wait(host, &host.eq->fid), 0);
}

void test_the_descriptor_wakes_for_a_refusal() {
    need_core("tcp");
    auto host = host_with();
    Stream client(host);
    client.connect(closed_port().data());
    sleep_for_event(host);
    EXPECT(host.next_event(0).error);
}

void test_the_descriptor_wakes_for_a_shutdown_by_the_peer() {
    for (const bool close : {false, true}) {
        Pair pair(core_name(), 0, node_name());
        if (close) {
            pair.client.reset();
        } else {
            EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
        }
        sleep_for_event(*pair.own_host);
        pair.own_host->expect(FI_SHUTDOWN, &pair.server->ep->fid, 0);
    }
}

// What one thread reads is not lost to another that has made sure that it may sleep.
void test_a_sleeper_hears_of_the_end_although_another_reads_the_queue() {
    Pair pair(core_name(), 0, node_name());
    Host& host = *pair.own_host;
    const int fd = wait_fd(&host.eq->fid);
    fi_eq_entry entry{};
    uint32_t type = 0;
    while (try_wait(host, &host.eq->fid) != 0) {
        EXPECT_RESULT(read(host, entry, type), -FI_EAGAIN);
    }
    pair.client->send_all("x", 1);
    EXPECT(readable(fd, patience(10000)));
    EXPECT_RESULT(read(host, entry, type), -FI_EAGAIN); // the other one: there is only data
    pair.client.reset();
    EXPECT(readable(fd, patience(10000)));
    sleep_for_event(host);
    host.expect(FI_SHUTDOWN, &pair.server->ep->fid, 0);
}

// The other one meant to sleep, found an event of another kind, and goes away with that.
void test_a_sleeper_hears_of_the_end_although_another_does_not_sleep() {
    for (const bool read_before : {false, true}) {
        Pair pair(core_name(), 0, node_name());
        Host& host = *pair.own_host;
        const int fd = wait_fd(&host.eq->fid);
        fi_eq_entry entry{};
        uint32_t type = 0;
        while (try_wait(host, &host.eq->fid) != 0) {
            EXPECT_RESULT(read(host, entry, type), -FI_EAGAIN);
        }
        pair.client->send_all("x", 1);
        EXPECT(readable(fd, patience(10000)));
        if (read_before) {
            EXPECT_RESULT(read(host, entry, type), -FI_EAGAIN);
        }
        write(host, 1);
        EXPECT_RESULT(try_wait(host, &host.eq->fid), -FI_EAGAIN);
        EXPECT_RESULT(read(host, entry, type), sizeof(entry));
        pair.client.reset();
        EXPECT(readable(fd, patience(10000)));
        sleep_for_event(host);
        host.expect(FI_SHUTDOWN, &pair.server->ep->fid, 0);
    }
}

void test_a_reader_that_never_sleeps_hears_of_the_end() {
    Pair pair(core_name(), 0, node_name());
    pair.client.reset();
    fi_eq_cm_entry entry{};
    uint32_t type = 0;
    ssize_t got = -FI_EAGAIN;
    for (const auto start = Clock::now(); got == -FI_EAGAIN && milliseconds_since(start) < patience(10000);) {
        got = fi_eq_read(pair.own_host->eq.get(), &type, &entry, sizeof(entry), 0);
    }
    EXPECT_RESULT(got, sizeof(entry));
    EXPECT_EQ(type, static_cast<uint32_t>(FI_SHUTDOWN));
    EXPECT(entry.fid == &pair.server->ep->fid);
}

void test_a_queue_without_a_wait_object_can_only_be_read() {
    auto host = host_with(FI_WAIT_NONE);
    int fd = -1;
    EXPECT_ERROR(fi_control(&host.eq->fid, FI_GETWAIT, &fd));
    fi_eq_entry entry{};
    uint32_t type = 0;
    EXPECT_ERROR(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 10, 0));
    write(host, 5);
    EXPECT_RESULT(read(host, entry, type), sizeof(entry));
    EXPECT_EQ(entry.data, 5U);
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const auto start = Clock::now();
    fi_eq_cm_entry request{};
    while (fi_eq_read(host.eq.get(), &type, &request, sizeof(request), 0) == -FI_EAGAIN) {
        EXPECT(milliseconds_since(start) < patience(10000));
    }
    const Info info(request.info);
    EXPECT_EQ(type, static_cast<uint32_t>(FI_CONNREQ));
}

void test_other_wait_objects_are_refused() {
    auto host = host_with();
    for (const auto wait : {FI_WAIT_SET, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_POLLFD}) {
        fi_eq_attr attr{};
        attr.wait_obj = wait;
        fid_eq* eq = nullptr;
        EXPECT_ERROR(fi_eq_open(host.fabric.get(), &attr, &eq, nullptr));
    }
}

void test_the_context_and_the_wait_object_are_what_was_asked_for() {
    auto host = host_with();
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_eq* eq = nullptr;
    int context = 0;
    EXPECT_RESULT(fi_eq_open(host.fabric.get(), &attr, &eq, &context), 0);
    const Owned<fid_eq> owned(eq);
    EXPECT(eq->fid.context == &context);
    fi_wait_obj object = FI_WAIT_NONE;
    EXPECT_RESULT(fi_control(&eq->fid, FI_GETWAITOBJ, &object), 0);
    EXPECT_EQ(object, FI_WAIT_FD);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_empty_queue_gives_eagain),
        FABTEST(test_what_is_written_is_read_in_order),
        FABTEST(test_peek_leaves_the_event),
        FABTEST(test_too_small_a_buffer_loses_nothing),
        FABTEST(test_too_small_a_buffer_loses_no_connection_request),
        FABTEST(test_bad_arguments_give_einval),
        FABTEST(test_errors_come_by_readerr_with_their_data),
        FABTEST(test_an_old_program_gets_error_data_in_a_buffer_of_the_queue),
        FABTEST(test_an_event_behind_an_error_waits_for_it),
        FABTEST(test_sread_waits_at_least_as_long_as_it_is_told),
        FABTEST(test_sread_is_woken_by_a_write_of_another_thread),
        FABTEST(test_sread_returns_when_a_signal_arrives),
        FABTEST(test_each_event_goes_to_one_of_many_readers),
        FABTEST(test_the_descriptor_is_readable_while_there_is_an_event),
        FABTEST(test_the_descriptor_wakes_for_requests_and_connections),
        FABTEST(test_the_descriptor_wakes_for_a_refusal),
        FABTEST(test_the_descriptor_wakes_for_a_shutdown_by_the_peer),
        FABTEST(test_a_sleeper_hears_of_the_end_although_another_reads_the_queue),
        FABTEST(test_a_sleeper_hears_of_the_end_although_another_does_not_sleep),
        FABTEST(test_a_reader_that_never_sleeps_hears_of_the_end),
        FABTEST(test_a_queue_without_a_wait_object_can_only_be_read),
        FABTEST(test_other_wait_objects_are_refused),
        FABTEST(test_the_context_and_the_wait_object_are_what_was_asked_for),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
