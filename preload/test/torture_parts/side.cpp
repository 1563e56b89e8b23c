// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Runs the rounds of one side, with a thread for each end.
#include "preload/test/torture_parts/side.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/test/torture_parts/end.hpp"
#include "preload/test/torture_parts/helpers.hpp"
#include "preload/test/torture_parts/killed.hpp"
#include "preload/test/torture_parts/round.hpp"
#include "preload/test/torture_parts/state.hpp"

namespace torture {

namespace {

int connected(const sockaddr_in& address, End& e) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // A number that connect(2) chooses may be that of other tests' connections in TIME_WAIT, too: then the tcp core,
    // which has the kernel's ports, cannot listen there.
    sockaddr_in own{};
    own.sin_family = AF_INET;
    socklen_t length = sizeof(own);
    if (bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0 ||
        connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
        fail("connecting: %s", strerror(errno));
    }
    e.port = own.sin_port;
    return fd;
}

// And which of the round's connections it is: across a wire, they may come in another order than they were made in.
std::pair<int, uint32_t> accepted(int listener, uint32_t count) {
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC);
    if (fd < 0) {
        fail("accepting: %s", strerror(errno));
    }
    for (;;) {
        for (uint32_t i = 0; i < count; ++i) {
            if (shared->ends[size_t{2} * i].port == peer.sin_port) {
                return {fd, i};
            }
        }
        usleep(1000); // until the other side has said so
    }
}

[[noreturn]] void run_side(const Options& options, uint32_t side, int from, int to) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_IGN);
    // Only for actions that pass descriptors.
    const Helpers helpers(options.allows(pass_action) || options.allows(keep_action) ? options.connections : 0);
    int listener = -1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr = options.listen;
    socklen_t length = sizeof(address);
    if (side == 1) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 64) != 0 ||
            getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
            fail("listening: %s", strerror(errno));
        }
        shared->port = address.sin_port;
    }
    char byte = 0;
    while (read(from, &byte, 1) == 1) {
        std::vector<std::thread> threads;
        Round round{options, helpers};
        while (shared->port == 0) {
            usleep(1000);
        }
        address.sin_port = static_cast<in_port_t>(shared->port);
        std::vector<int> sockets(options.per_round(), -1);
        for (uint32_t i = 0; i < options.per_round(); ++i) {
            if (side == 0) {
                sockets[i] = connected(address, shared->ends[2 * i + side]);
            } else {
                const auto [fd, which] = accepted(listener, options.per_round());
                sockets[which] = fd;
            }
        }
        for (uint32_t i = 0; i < options.per_round(); ++i) {
            End& e = shared->ends[2 * i + side];
            threads.emplace_back([&round, &e, side, i, fd = sockets[i]] {
                if (i < round.options.connections) {
                    run_end(round, e, fd);
                } else if (side == 1) {
                    run_killed_writer(round, e, fd);
                } else {
                    run_survivor(round, e, fd);
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        (void)write(to, &byte, 1);
    }
    exit(0);
}

} // namespace

Side start_side(const Options& options, uint32_t side) {
    int orders[2];
    int answers[2];
    if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) {
        exit(2);
    }
    const pid_t pid = fork();
    if (pid == 0) {
        close(orders[1]);
        close(answers[0]);
        run_side(options, side, orders[0], answers[1]);
    }
    setpgid(pid, pid);
    close(orders[0]);
    close(answers[1]);
    return {pid, orders[1], answers[0]};
}

} // namespace torture
