// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A process that pretends to be the worker at the other end of connections that are not its own. It knows the protocol
// (doc/fabric-protocol.md) and all addresses, but sees nothing of the TCP connections. Until SIGTERM
//
//     impostor ADDRESS
//
// connects to the fabric's port of each TCP connection of this host whose peer has ADDRESS (IPv4), from ADDRESS. Prints
// one line when it begins, one when it has ended, and exits with 1 if it got anything but the messages that precede a
// proof.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <poll.h>

#include <rdma/rsocket.h>

#include "preload/fabric/fabric_socket.hpp"
#include "preload/fabric/message.hpp"

namespace {

using namespace preload::fabric;
using preload::rendezvous::Address;
using preload::rendezvous::Ends;

volatile std::sig_atomic_t stopped = 0;

struct Seen {
    size_t streams = 0;
    size_t hellos = 0;
    size_t careful = 0;
    size_t others = 0; // what only a worker that is proved may get
};

Address address_of(in_addr ip, uint16_t port) {
    sockaddr_storage socket{};
    auto& v4 = reinterpret_cast<sockaddr_in&>(socket);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v4.sin_addr = ip;
    return Address::from(socket).value_or(Address());
}

// One stream with a worker, in which this end says all that it can say without the TCP connection.
class Conversation {
  public:
    // ends: of this end, as it pretends.
    Conversation(FabricSocket socket, const Ends& ends) : socket_(std::move(socket)), ends_(ends) {}
    [[nodiscard]] int fd() const { return socket_.fd(); }
    [[nodiscard]] short events() const { return is_connecting_ ? POLLOUT : POLLIN; }
    [[nodiscard]] const Ends& ends() const { return ends_; }

    // False: it is over.
    bool proceed(Seen& seen) {
        if (is_connecting_) {
            if (socket_.connected() != 0) {
                return false;
            }
            is_connecting_ = false;
            ++seen.streams;
            hello();
            return true;
        }
        std::vector<uint8_t> some(65536);
        const ssize_t n = socket_.receive(some.data(), some.size());
        if (n <= 0) {
            return n == -EAGAIN;
        }
        in_.insert(in_.end(), some.begin(), some.begin() + n);
        for (Header header; in_.size() >= sizeof(header);) {
            memcpy(&header, in_.data(), sizeof(header));
            const size_t size = sizeof(header) + header.bytes;
            if (in_.size() < size) {
                break;
            }
            take(header, seen);
            in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(size));
        }
        return true;
    }

  private:
    void take(const Header& header, Seen& seen) {
        if (header.kind == Kind::hello && header.bytes == sizeof(Hello)) {
            ++seen.hellos;
            send(Kind::careful, nullptr, 0);
        } else if (header.kind == Kind::careful) {
            ++seen.careful;
            lie(seen.careful % 4);
        } else if (header.kind == Kind::closed && header.bytes == sizeof(ClosedEarly)) {
            // Its program has ended, or stays with TCP.
        } else {
            ++seen.others;
            printf("# got a message of kind %u with %u bytes\n", static_cast<unsigned>(header.kind), header.bytes);
        }
    }
    // What may make a worker that does not check believe that its program can send here.
    void lie(size_t way) {
        if (way == 1 || way == 2) {
            if (way == 2) {
                const Echo guess{uint32_t{1} << 8 | 'x'}; // of the first of its urgent bytes
                send(Kind::echo, &guess, sizeof(guess));
            }
            const OtherAddresses none{};
            send(Kind::proved, &none, sizeof(none));
            send(Kind::data, "forged", 6);
        } else if (way == 3) {
            State consent;
            consent.grants = 1;
            send(Kind::state, &consent, sizeof(consent));
        }
    }
    void hello() {
        Hello mine;
        mine.ends = ends_;
        send(Kind::hello, &mine, sizeof(mine));
    }
    void send(Kind kind, const void* body, size_t bytes) {
        Header header;
        header.kind = kind;
        header.bytes = static_cast<uint32_t>(bytes);
        std::vector<uint8_t> message(sizeof(header) + bytes);
        memcpy(message.data(), &header, sizeof(header));
        if (bytes != 0) {
            memcpy(message.data() + sizeof(header), body, bytes);
        }
        (void)socket_.send(message.data(), message.size());
    }

    FabricSocket socket_;
    Ends ends_;
    bool is_connecting_ = true;
    std::vector<uint8_t> in_;
};

// The established connections of this network namespace whose peer has this address, as their peer sees them.
std::vector<Ends> connections_with(in_addr peer) {
    std::vector<Ends> made;
    std::ifstream file("/proc/net/tcp");
    std::string line;
    std::getline(file, line); // the columns' names
    while (std::getline(file, line)) {
        unsigned ip[2] = {};
        unsigned port[2] = {};
        unsigned state = 0;
        constexpr unsigned established = 1;
        if (sscanf(line.c_str(), " %*u: %8X:%4X %8X:%4X %2X", &ip[0], &port[0], &ip[1], &port[1], &state) == 5 &&
            state == established && ip[1] == peer.s_addr) {
            made.push_back({address_of({ip[1]}, static_cast<uint16_t>(port[1])),
                            address_of({ip[0]}, static_cast<uint16_t>(port[0]))});
        }
    }
    return made;
}

} // namespace

int main(int argc, char** argv) {
    in_addr ip{};
    if (argc != 2 || inet_pton(AF_INET, argv[1], &ip) != 1) {
        fputs("usage: impostor ADDRESS\n", stderr);
        return 2;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
    struct sigaction stop {};
    stop.sa_handler = [](int) { stopped = 1; };
    sigaction(SIGTERM, &stop, nullptr);
    puts("# begins");
    Seen seen;
    std::vector<Conversation> conversations;
    while (stopped == 0) {
        for (const Ends& ends : connections_with(ip)) {
            const auto is_same = [&](const Conversation& c) { return c.ends() == ends; };
            if (std::none_of(conversations.begin(), conversations.end(), is_same)) {
                FabricSocket made = FabricSocket::connecting(&ends.own, ends.peer);
                if (made) {
                    conversations.emplace_back(std::move(made), ends);
                }
            }
        }
        std::vector<pollfd> waits;
        for (const Conversation& c : conversations) {
            waits.push_back({c.fd(), c.events(), 0});
        }
        constexpr int look_again_ms = 5; // for new connections, and refused ones
        if (rpoll(waits.data(), waits.size(), look_again_ms) < 0 && errno != EINTR) {
            printf("# rpoll: %s\n", strerror(errno));
            return 2;
        }
        for (size_t i = conversations.size(); i-- != 0;) {
            if (waits[i].revents != 0 && !conversations[i].proceed(seen)) {
                conversations.erase(conversations.begin() + static_cast<ptrdiff_t>(i));
            }
        }
    }
    printf("# impostor: %zu streams, %zu hellos, %zu careful, %zu other messages\n", seen.streams, seen.hellos,
           seen.careful, seen.others);
    return seen.others == 0 ? 0 : 1;
}
