// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Keepalive over a wire that is cut: both ends must be told in the time that was asked for, whatever they do meanwhile.
// Both are in this process, on two devices; FABTESTS_NODE and FABTESTS_CLIENT are their addresses, and FABTESTS_WIRE is
// what the lab's command `wire` calls the wire between them.
#include <array>
#include <cstdlib>

#include <poll.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

std::string need(const char* name) {
    const char* value = getenv(name);
    if (value == nullptr || *value == '\0') {
        throw Skip(std::string(name) + " is not set: this test needs a wire that it can cut");
    }
    return value;
}

class Wire {
  public:
    Wire() : name_(need("FABTESTS_WIRE")) { order("heal"); }
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;
    ~Wire() { (void)give("heal"); }
    void order(const std::string& what) {
        if (give(what) != 0) {
            throw Failure("wire " + what + " " + name_ + " fails");
        }
    }

  private:
    [[nodiscard]] int give(const std::string& what) const noexcept {
        return system(("wire " + what + " " + name_ + " >/dev/null").c_str());
    }
    std::string name_;
};

// The kernel's TCP counts in seconds.
struct Times {
    size_t idle;
    size_t interval;
    size_t count;
    [[nodiscard]] int total() const { return static_cast<int>(idle + interval * count); }
};
Times times() { return core_name() == "tcp" ? Times{1000, 1000, 2} : Times{1000, 250, 4}; }
// For what the emulated machine adds: the wire's own command, and programs that get little of a processor.
int slack() { return patience(1000); }

Request client_request() {
    Request request = here();
    request.node = need("FABTESTS_CLIENT");
    return request;
}

void keep_alive(Stream& s, const Times& t = times()) {
    const auto set = [&](int option, size_t value) {
        EXPECT_RESULT(fi_setopt(&s.ep->fid, FI_OPT_ENDPOINT, option, &value, sizeof(value)), 0);
    };
    set(FI_OPT_RSTREAM_KEEPALIVE_INTERVAL, t.interval);
    set(FI_OPT_RSTREAM_KEEPALIVE_COUNT, t.count);
    set(FI_OPT_RSTREAM_KEEPALIVE_IDLE, t.idle);
}

// Two ends across the wire, each on its own device.
struct Ends {
    Ends() {
        client.connect(listener.name().data());
        int connected = 0;
        const auto start = Clock::now();
        while (connected < 2) {
            EXPECT(milliseconds_since(start) < patience(20000));
            for (Host* host : {&there, &near}) {
                uint32_t type = 0;
                fi_eq_cm_entry entry{};
                if (fi_eq_sread(host->eq.get(), &type, &entry, sizeof(entry), 5, 0) < 0) {
                    continue;
                }
                if (type == FI_CONNREQ) {
                    const Info info(entry.info);
                    server = std::make_unique<Stream>(there, info.get());
                    server->accept();
                } else {
                    EXPECT_EQ(type, static_cast<uint32_t>(FI_CONNECTED));
                    ++connected;
                }
            }
        }
        keep_alive(client);
        keep_alive(*server);
    }
    std::array<Stream*, 2> both() { return {&client, server.get()}; }

    Wire wire;
    Host there{here()};
    Host near{client_request()};
    Listener listener{there};
    Stream client{near};
    std::unique_ptr<Stream> server;
};

bool is_loss(ssize_t result) { return result == -FI_ETIMEDOUT || result == -FI_ECONNRESET; }

struct Timer {
    Clock::time_point start = Clock::now();
    void check() const {
        if (milliseconds_since(start) > times().total() + slack()) {
            throw Failure("not told after " + std::to_string(milliseconds_since(start)) + " ms, of " +
                          std::to_string(times().total()) + " asked for");
        }
    }
};

void test_ends_that_spin_are_told() {
    Ends ends;
    ends.wire.order("cut");
    const Timer timer;
    std::array<bool, 2> told{};
    while (!told[0] || !told[1]) {
        timer.check();
        for (size_t i = 0; i < 2; ++i) {
            char byte = 0;
            const ssize_t got = told[i] ? -FI_EAGAIN : recv(*ends.both()[i], &byte, 1);
            told[i] = told[i] || is_loss(got);
            EXPECT(got == -FI_EAGAIN || told[i]);
        }
    }
}

void test_ends_that_sleep_on_their_descriptors_are_told() {
    Ends ends;
    ends.wire.order("cut");
    const Timer timer;
    std::array<bool, 2> told{};
    int wakes = 0;
    while (!told[0] || !told[1]) {
        timer.check();
        std::vector<pollfd> fds;
        for (size_t i = 0; i < 2; ++i) {
            Stream& s = *ends.both()[i];
            fid* one = &s.ep->fid;
            if (told[i]) {
                continue;
            }
            if (try_wait(s.host, one) == 0) { // the only call, but for receiving when it says that there is something
                fds.push_back({wait_fd(one), POLLIN, 0});
                continue;
            }
            char byte = 0;
            told[i] = is_loss(recv(s, &byte, 1));
        }
        if (!fds.empty()) {
            ++wakes;
            poll(fds.data(), fds.size(), times().total() + slack());
        }
    }
    EXPECT(wakes < 200);
}

void test_ends_that_sleep_on_their_queues_are_told() {
    Ends ends;
    ends.wire.order("cut");
    const Timer timer;
    ends.near.expect(FI_SHUTDOWN, &ends.client.ep->fid, times().total() + slack());
    ends.there.expect(FI_SHUTDOWN, &ends.server->ep->fid, times().total() + slack());
    timer.check();
}

// What one end does until it is told: sends all the time, or receives.
void test_ends_in_the_middle_of_a_transfer_are_told() {
    Ends ends;
    std::vector<char> data(4096, 'x');
    std::array<bool, 2> told{};
    const auto step = [&](bool expect_loss) {
        const ssize_t sent = told[0] ? -FI_EAGAIN : send(ends.client, data.data(), data.size());
        const ssize_t got = told[1] ? -FI_EAGAIN : recv(*ends.server, data.data(), data.size());
        told[0] = told[0] || is_loss(sent);
        told[1] = told[1] || is_loss(got);
        EXPECT(expect_loss || (!told[0] && !told[1]));
        if (sent == -FI_EAGAIN && !told[0]) {
            (void)ends.client.wait(5);
        }
    };
    for (int i = 0; i < 500; ++i) {
        step(false);
    }
    ends.wire.order("cut");
    const Timer timer;
    while (!told[0] || !told[1]) {
        timer.check();
        step(true);
    }
}

void test_a_cut_that_is_healed_in_time_harms_nobody() {
    Ends ends;
    for (Stream* s : ends.both()) {
        keep_alive(*s, {1000, 1000, 10}); // time for what a transport below sends again, later each time
    }
    ends.wire.order("cut");
    const auto start = Clock::now();
    while (milliseconds_since(start) < 1500) { // the first question goes into the cut
        EXPECT_RESULT(peek_recv(ends.client), -FI_EAGAIN);
        EXPECT_RESULT(peek_recv(*ends.server), -FI_EAGAIN);
        (void)ends.client.wait(20);
    }
    ends.wire.order("heal");
    move_bytes(ends.client, *ends.server, 100000);
    move_bytes(*ends.server, ends.client, 100000);
}

// Without it nobody is told, as with TCP: what arrives after a long cut is as if nothing had been.
void test_without_keepalive_an_idle_connection_survives_a_long_cut() {
    Ends ends;
    for (Stream* s : ends.both()) {
        const size_t off = 0;
        EXPECT_RESULT(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_RSTREAM_KEEPALIVE_IDLE, &off, sizeof(off)), 0);
    }
    ends.wire.order("cut");
    const auto start = Clock::now();
    while (milliseconds_since(start) < 2 * times().total()) {
        EXPECT_RESULT(peek_recv(ends.client), -FI_EAGAIN);
        EXPECT_RESULT(peek_recv(*ends.server), -FI_EAGAIN);
        (void)ends.client.wait(100);
    }
    ends.wire.order("heal");
    move_bytes(ends.client, *ends.server, 100000);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_ends_that_spin_are_told),
        FABTEST(test_ends_that_sleep_on_their_descriptors_are_told),
        FABTEST(test_ends_that_sleep_on_their_queues_are_told),
        FABTEST(test_ends_in_the_middle_of_a_transfer_are_told),
        FABTEST(test_a_cut_that_is_healed_in_time_harms_nobody),
        FABTEST(test_without_keepalive_an_idle_connection_survives_a_long_cut),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
