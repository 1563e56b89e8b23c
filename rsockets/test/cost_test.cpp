// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a connection costs a server in system calls: those of ours, beyond what the core itself does. The client is
// another process, so that all that is counted is the server's. COST_SHOW=1 writes each turn's calls by name.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/fabric.h>

#include "fabtests/common/child.hpp"
#include "rsockets/test/call_counter.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

// The cheapest one counts: the library's thread wakes up by the clock too, and more often on a busy machine.
constexpr int turns = 30;
constexpr int max_turns = 1000;

void role_client(const std::vector<std::string>& arguments) {
    const auto port = static_cast<uint16_t>(std::stoi(arguments.at(0)));
    std::vector<Number> open;
    say("ready");
    for (;;) {
        const std::string wanted = listen_to_parent();
        if (wanted == "connect") {
            open.push_back(connected_to(port));
        } else if (wanted == "close") {
            open.pop_back();
        } else if (wanted == "exchange") {
            char byte = 'x';
            EXPECT_EQ(rsend(open.back(), &byte, 1, 0), 1);
            EXPECT_EQ(rrecv(open.back(), &byte, 1, 0), 1);
        } else {
            return;
        }
        say("done");
    }
}

void set(int fd, int level, int name, int value) { EXPECT_EQ(rsetsockopt(fd, level, name, &value, sizeof(value)), 0); }

// As redis does with a connection.
void set_up(int fd) {
    EXPECT_EQ(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 300);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 100);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// ThreadSanitizer has wrappers of libc's calls too, and sees no order between threads without them.
void need_own_wrappers() {
#ifdef __SANITIZE_THREAD__
    throw Skip("ThreadSanitizer needs the wrappers that count");
#endif
}

class Server {
  public:
    Server() : listener_(listener()), client_("client", {std::to_string(port_of(listener_))}) {
        EXPECT_EQ(client_.hear(), "ready");
        (void)accept_one(); // what is needed once in a process is there by now
        start_counting_calls();
    }
    ~Server() { client_.tell("end"); }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    void more(size_t number) {
        while (open_.size() < number) {
            open_.push_back(accept_one());
        }
    }
    // One more connection, from its request to its last call: the least of some turns, since two processes that answer
    // each other wake up more or less often. Of more turns while it is above what is enough.
    CallCount cost(int enough = INT_MAX) {
        CallCount least{INT_MAX, INT_MAX};
        for (int turn = 0; turn < turns || (turn < max_turns && least.ours > enough); ++turn) {
            forget_counted_calls();
            Number accepted = accept_one();
            set_up(accepted);
            client_.tell("close");
            pollfd end{accepted, POLLIN, 0};
            EXPECT_EQ(rpoll(&end, 1, patience(10000)), 1);
            char byte = 0;
            EXPECT_EQ(rrecv(accepted, &byte, 1, 0), 0);
            accepted.close();
            EXPECT_EQ(client_.hear(), "done");
            const CallCount now = counted_calls();
            if (getenv("COST_SHOW") != nullptr) {
                fprintf(stderr, "# %zu open: %d+%d: %s\n", open_.size(), now.ours, now.core,
                        counted_calls_by_name().c_str());
            }
            least.ours = std::min(least.ours, now.ours);
            least.core = std::min(least.core, now.core);
        }
        return least;
    }

    // An answer to a request of one byte by a program that sleeps on a set's descriptor, and receives at once when it
    // wakes up.
    CallCount exchange(int enough) {
        Number accepted = accept_one();
        EXPECT_EQ(rfcntl(accepted, F_SETFL, O_NONBLOCK), 0);
        const Number set(repoll_create(0));
        epoll_event event{};
        event.events = EPOLLIN;
        EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, accepted, &event), 0);
        const auto sleep = [&](int limit) {
            pollfd one{set, POLLIN, 0};
            const int found = repoll_wait(set, &event, 1, 0);
            return found != 0 ? found : poll(&one, 1, limit);
        };
        CallCount least{INT_MAX, INT_MAX};
        for (int turn = 0; turn < turns || (turn < max_turns && least.ours > enough); ++turn) {
            while (sleep(5) != 0) { // until the acknowledgements of the last one are over
            }
            forget_counted_calls();
            client_.tell("exchange");
            char byte = 0;
            ssize_t got = -1;
            while (got < 0) {
                sleep(patience(10000));
                got = rrecv(accepted, &byte, 1, 0);
                EXPECT(got == 1 || errno == EAGAIN);
            }
            EXPECT_EQ(rsend(accepted, &byte, 1, 0), 1);
            EXPECT_EQ(client_.hear(), "done");
            const CallCount now = counted_calls();
            if (getenv("COST_SHOW") != nullptr) {
                fprintf(stderr, "# an exchange: %d+%d: %s\n", now.ours, now.core, counted_calls_by_name().c_str());
            }
            least.ours = std::min(least.ours, now.ours);
            least.core = std::min(least.core, now.core);
        }
        return least;
    }

  private:
    Number accept_one() {
        client_.tell("connect");
        Number accepted(raccept(listener_, nullptr, nullptr));
        EXPECT(accepted >= 0);
        EXPECT_EQ(client_.hear(), "done");
        return accepted;
    }

    Number listener_;
    Child client_;
    std::vector<Number> open_;
};

// There, all sockets of a group of connections (core/domains.hpp) are members of one set, and are polled.
bool shares_sets() { return core_name() == "tcp" && FI_VERSION_GE(fi_version(), FI_VERSION(1, 19)); }

void test_a_connection_costs_few_system_calls_beyond_those_of_the_core() {
    need_own_wrappers();
    Server server;
    const int allowed = shares_sets() ? 120 : patience(1) > 1 ? 70 : 60; // a slow machine wakes up more often
    const CallCount cost = server.cost(allowed);
    EXPECT(cost.ours > 0); // it counts
    EXPECT(cost.core > 0);
    EXPECT(cost.ours <= allowed);
}

// Some more, as the library's thread may wake up once more: less than one for each of the connections.
void test_a_connection_costs_the_same_however_many_there_are() {
    constexpr int connections = 120;
    constexpr int allowed = connections / 2;
    need_own_wrappers();
    Server server;
    server.more(2);
    const CallCount few = server.cost();
    server.more(connections);
    const CallCount many = server.cost();
    EXPECT(many.ours <= few.ours + allowed);
    EXPECT(many.core < few.core + connections);
}

// The one that sleeps is the one that receives: nothing has to be told to anybody by an eventfd.
void test_an_answer_costs_few_system_calls() {
    need_own_wrappers();
    Server server;
    const int allowed = shares_sets() ? 3 : 1; // the look at the set
    EXPECT(server.exchange(allowed).ours <= allowed);
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"client", role_client}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    setenv("RS_POLLING_TIME", "0", 1); // how often a thread looks before it sleeps is a matter of luck
    const CMUnitTest tests[] = {
        FABTEST(test_a_connection_costs_few_system_calls_beyond_those_of_the_core),
        FABTEST(test_a_connection_costs_the_same_however_many_there_are),
        FABTEST(test_an_answer_costs_few_system_calls),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
