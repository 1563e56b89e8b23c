// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that speaks the rendezvous by itself, and lies. hostile.sh runs it.
//
//     hostile victim PORTFILE         an echo server, under the preload library
//     hostile honest PORT SECONDS     a client under the library that compares what comes back, byte by byte
//     hostile attack PORT SECONDS SEED [KIND]     without the library
//     hostile calls PORTFILE N        a server of N connections that measures its calls, under the library
//     hostile hold PORT N LETTER      a peer that makes these calls wait, see hostile_calls.hpp; without the library
//
// The victim serves everybody in one thread: if one connection stands still in the library, all do, and `honest` says
// so.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "preload/path/frame.hpp"
#include "preload/path/segment.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/test/hostile_calls.hpp"
#include "preload/test/hostile_channel.hpp"
#include "preload/test/hostile_echo.hpp"
#include "preload/test/hostile_sleepers.hpp"

namespace {

using namespace preload;
using hostile::connected;
using hostile::now_ms;

// The attack.

std::mt19937_64 random_source;
hostile::Sleepers sleepers(random_source);
uint64_t draw(uint64_t limit) { return random_source() % limit; }

enum Kind : uint32_t {
    random_message,
    empty_with_files,
    no_file,
    small_file,
    unsealed,
    not_memory,
    huge_pages,
    wrong_magic,
    wrong_token,
    silent,
    squat,
    stranger,
    lies,
    channel,
    flood,
    kinds
};
constexpr const char* kind_names[] = {"random message", "files without a message",
                                      "no file",        "small file",
                                      "unsealed file",  "not a memory file",
                                      "huge pages",     "wrong magic",
                                      "wrong token",    "silent",
                                      "squatted name",  "another user",
                                      "lies",           "channel",
                                      "flood of frames"};
std::array<uint64_t, kinds> done{};
std::array<uint64_t, kinds> skipped{};

socklen_t meeting_name(uint16_t own, uint16_t peer, sockaddr_un& out) {
    out = {};
    out.sun_family = AF_UNIX;
    const int length =
        snprintf(out.sun_path + 1, sizeof(out.sun_path) - 1, "rspreload/::ffff:127.0.0.1.%u-::ffff:127.0.0.1.%u",
                 std::min(own, peer), std::max(own, peer));
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

bool send_files(int socket, const void* data, size_t size, const std::vector<int>& files) {
    iovec part{const_cast<void*>(data), size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control{};
    if (!files.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
        memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) >= 0;
}

path::Segment* map(int fd) {
    void* at = mmap(nullptr, path::segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at != MAP_FAILED ? static_cast<path::Segment*>(at) : nullptr;
}

int memory_file(Kind kind, uint64_t token, path::Segment*& segment) {
    if (kind == no_file) {
        return -1;
    }
    if (kind == not_memory) {
        return open(draw(2) == 0 ? "/dev/zero" : "/proc/self/exe", O_RDONLY | O_CLOEXEC);
    }
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (kind == huge_pages ? MFD_HUGETLB : 0U);
    const int fd = memfd_create("hostile", flags);
    if (fd < 0) {
        return -1;
    }
    (void)ftruncate(fd, kind == small_file   ? static_cast<off_t>(draw(path::file_bytes))
                        : kind == huge_pages ? 2 << 20
                                             : static_cast<off_t>(path::file_bytes));
    if (kind != unsealed) {
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    if (kind != small_file && kind != huge_pages && (segment = map(fd)) != nullptr) {
        new (segment) path::Segment;
        segment->magic = kind == wrong_magic ? random_source() : path::segment_magic;
        segment->token = token;
    }
    return fd;
}

uint64_t any_value(uint64_t near) {
    switch (draw(6)) {
    case 0:
        return random_source();
    case 1:
        return near;
    case 2:
        return near + draw(400000);
    case 3:
        return near - draw(400000);
    case 4:
        return draw(8);
    default:
        return UINT64_MAX - draw(3);
    }
}

void lie(path::Segment& segment) {
    path::Direction& d = segment.direction[draw(2)];
    switch (draw(23)) {
    case 0:
        d.writer.head = any_value(d.writer.head);
        break;
    case 1:
        d.writer.grow_at = any_value(d.writer.head);
        break;
    case 2:
        d.writer.grow_area = static_cast<uint32_t>(any_value(1));
        break;
    case 3:
        d.writer.epoch = static_cast<uint32_t>(draw(2) == 0 ? d.writer.epoch + draw(3) : any_value(1));
        break;
    case 4:
        d.writer.switch_at = any_value(d.writer.switch_at);
        break;
    case 5:
        d.writer.frames = static_cast<uint32_t>(any_value(d.writer.frames));
        break;
    case 6:
        d.reader.tail = any_value(d.writer.head);
        break;
    case 7:
        d.reader.epoch = static_cast<uint32_t>(any_value(d.writer.epoch));
        break;
    case 8:
        d.reader.request = path::request_of(static_cast<uint32_t>(d.writer.epoch), static_cast<path::Request>(draw(4)));
        break;
    case 9:
        d.wake.consent = static_cast<uint32_t>(draw(4));
        break;
    case 10:
        d.wake.data_wanted = sleepers.any(segment);
        break;
    case 11:
        d.wake.space_wanted = sleepers.any(segment);
        break;
    case 12:
        segment.service[draw(2)] = random_source();
        break;
    case 13:
        segment.token = random_source();
        break;
    case 14:
        segment.magic = random_source();
        break;
    case 15:
        d.writer.resent = static_cast<uint32_t>(any_value(d.writer.epoch));
        break;
    case 16:
        d.writer.clear = static_cast<uint32_t>(any_value(d.writer.epoch));
        break;
    case 17:
        d.reader.received = any_value(d.reader.received);
        break;
    case 18:
        d.reader.given_back = any_value(d.reader.given_back);
        break;
    case 19:
        d.writer.ends = static_cast<uint32_t>(draw(2));
        break;
    case 21:
        sleepers.send_message(segment);
        break;
    case 20:
        d.writer.wakes = static_cast<uint32_t>(draw(2));
        break;
    default:
        d.reader.request = static_cast<uint32_t>(random_source());
    }
}

// As a true peer would switch to the ring. sent: bytes by TCP so far.
void switch_to_ring(path::Direction& out, uint64_t sent) {
    for (int i = 0; i < 100 && out.wake.consent != path::given; ++i) {
        usleep(1000);
    }
    out.wake.consent = path::used;
    out.writer.switch_at = sent;
    out.writer.epoch = out.writer.epoch + 1;
}

uint64_t tcp_sent = 0;

void send_some(int tcp, const void* data, size_t size) {
    const ssize_t n = send(tcp, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    tcp_sent += n > 0 ? static_cast<uint64_t>(n) : 0;
}

void make_worth(int tcp) {
    std::array<char, 256> bytes{};
    for (int i = 0; i < 3; ++i) {
        send_some(tcp, "x", 1);
        pollfd one{tcp, POLLIN, 0};
        poll(&one, 1, 1000);
        (void)recv(tcp, bytes.data(), bytes.size(), MSG_DONTWAIT);
    }
}

void abuse_channel(int meeting, int tcp) {
    hostile::ChannelAbuse abuse(meeting, random_source, send_files, [](uint64_t token) {
        path::Segment* segment = nullptr;
        const int file = memory_file(draw(2) == 0 ? lies : static_cast<Kind>(draw(wrong_token)), token, segment);
        if (segment != nullptr) {
            munmap(segment, path::segment_bytes);
        }
        return file;
    });
    sockaddr_in victim{};
    socklen_t length = sizeof(victim);
    getpeername(tcp, reinterpret_cast<sockaddr*>(&victim), &length);
    for (int i = 0; i < 4; ++i) {
        const int fd = connected(ntohs(victim.sin_port));
        make_worth(fd);
        abuse.add(fd);
    }
    abuse.run(60);
}

void after_agreement(Kind kind, int meeting, int tcp, path::Segment& segment, unsigned own) {
    if (kind == channel) {
        abuse_channel(meeting, tcp);
        return;
    }
    std::array<uint8_t, 4096> bytes{};
    const auto drain = [&] {
        while (recv(tcp, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
        }
    };
    usleep(2000);
    drain();
    // The victim becomes careful when a call of its own ends.
    send_some(tcp, "y", 1);
    usleep(3000);
    drain();
    path::Direction& out = segment.direction[own];
    if (kind == flood) {
        switch_to_ring(out, tcp_sent);
        std::vector<uint8_t> frames(65536, static_cast<uint8_t>(path::Frame::wake));
        const uint64_t end = now_ms() + 8000;
        out.writer.frames = 1U << 30;
        while (now_ms() < end) {
            if (send(tcp, frames.data(), frames.size(), MSG_NOSIGNAL) < 0) {
                break;
            }
        }
        return;
    }
    if (draw(4) != 0) {
        switch_to_ring(out, tcp_sent);
    }
    const uint64_t end = now_ms() + 5 + draw(150);
    while (now_ms() < end) {
        switch (draw(6)) {
        case 0:
            bytes.fill(static_cast<uint8_t>(draw(3) == 0 ? path::Frame::resume : path::Frame::wake));
            send_some(tcp, bytes.data(), 1 + draw(4));
            break;
        case 1:
            for (uint8_t& byte : bytes) {
                byte = static_cast<uint8_t>(random_source());
            }
            send_some(tcp, bytes.data(), 1 + draw(draw(4) == 0 ? bytes.size() : 3));
            break;
        case 2:
            drain();
            break;
        case 3: // as a true peer: some bytes
            out.writer.head = out.writer.head + 1 + draw(4000);
            out.wake.data_wanted = 0;
            bytes[0] = static_cast<uint8_t>(path::Frame::wake);
            send_some(tcp, bytes.data(), 1);
            break;
        default:
            lie(segment);
        }
        if (draw(8) == 0) {
            usleep(static_cast<useconds_t>(draw(1000)));
        }
    }
}

std::optional<hostile::Holds> holds; // after an honest agreement
unsigned lost = 0;

// The victim listens, this end passes the memory.
bool as_second(Kind kind, int tcp, const sockaddr_un& name, socklen_t length) {
    if (kind == stranger && geteuid() == 0 && setresuid(static_cast<uid_t>(-1), 65534, static_cast<uid_t>(-1)) != 0) {
        return false;
    }
    const int meeting = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool met = false;
    const int tries = holds ? 2500 : 100; // of 2 ms
    for (int i = 0; i < tries && !met; ++i) {
        met = connect(meeting, reinterpret_cast<const sockaddr*>(&name), length) == 0;
        if (!met) {
            usleep(2000);
        }
    }
    const timeval limit{1, 500000};
    setsockopt(meeting, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    path::Segment* segment = nullptr;
    if (met) {
        rendezvous::Hello hello;
        hello.bytes = path::file_bytes;
        hello.token = random_source() | 1;
        hello.service = random_source() | 1;
        rendezvous::Answer answer;
        if (kind == random_message) {
            std::array<uint8_t, 128> bytes{};
            for (uint8_t& byte : bytes) {
                byte = static_cast<uint8_t>(random_source());
            }
            memcpy(bytes.data(), &hello, draw(sizeof(hello)));
            (void)send_files(meeting, bytes.data(), 1 + draw(bytes.size()), {meeting, 0, 1});
        } else if (kind == empty_with_files) {
            (void)send_files(meeting, nullptr, 0, {0, 1, 2, meeting});
        } else if (kind != silent) {
            const int file = memory_file(kind, hello.token, segment);
            hello.token ^= kind == wrong_token ? 2 : 0;
            std::vector<int> files;
            if (file >= 0) {
                files.push_back(file);
            }
            (void)send_files(meeting, &hello, sizeof(hello), files);
            close(file);
        }
        const bool agreed = kind != silent && recv(meeting, &answer, sizeof(answer), 0) == sizeof(answer);
        if (agreed && kind == stranger) {
            printf("# a stranger was believed\n");
            exit(1);
        }
        if (agreed && segment != nullptr && holds) {
            lost += hostile::hold(*holds, tcp, *segment, tcp_sent) ? 0 : 1;
        } else if (agreed && segment != nullptr) {
            after_agreement(kind, meeting, tcp, *segment, 1);
        }
    }
    if (segment != nullptr) {
        munmap(segment, path::segment_bytes);
    }
    close(meeting);
    if (kind == stranger && getuid() == 0) {
        (void)setresuid(static_cast<uid_t>(-1), 0, static_cast<uid_t>(-1));
    }
    return met;
}

// This end listens, the victim passes the memory.
bool as_first(Kind kind, int tcp, int listener) {
    pollfd one{listener, POLLIN, 0};
    if (kind == squat || poll(&one, 1, 400) <= 0) {
        usleep(kind == squat ? 20000 : 0);
        return kind == squat;
    }
    const int meeting = accept(listener, nullptr, nullptr);
    rendezvous::Hello hello;
    iovec part{&hello, sizeof(hello)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const timeval limit{1, 0};
    setsockopt(meeting, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (recvmsg(meeting, &message, 0) != sizeof(hello) || CMSG_FIRSTHDR(&message) == nullptr) {
        close(meeting);
        return false;
    }
    int file = -1;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
    path::Segment* segment = map(file);
    close(file);
    rendezvous::Answer answer;
    answer.token = kind == wrong_token ? hello.token ^ 1 : hello.token;
    answer.service = random_source() | 1;
    if (kind == random_message) {
        std::array<uint8_t, 64> bytes{};
        (void)send_files(meeting, bytes.data(), draw(bytes.size()), {0, 1});
    } else if (kind == empty_with_files) {
        (void)send_files(meeting, nullptr, 0, {0, 1, 2, meeting});
    } else if (kind != silent && segment != nullptr) {
        if (kind == lies && draw(3) == 0) {
            lie(*segment); // before it is agreed
        }
        (void)send_files(meeting, &answer, sizeof(answer), {});
        if (kind != wrong_token) {
            after_agreement(kind, meeting, tcp, *segment, 0);
        }
    }
    if (segment != nullptr) {
        munmap(segment, path::segment_bytes);
    }
    close(meeting);
    return true;
}

void attack_once(uint16_t port, Kind kind) {
    if (kind == stranger && geteuid() != 0) {
        ++skipped[kind];
        return;
    }
    const int tcp = connected(port);
    sockaddr_in own{};
    socklen_t length = sizeof(own);
    getsockname(tcp, reinterpret_cast<sockaddr*>(&own), &length);
    const uint16_t own_port = ntohs(own.sin_port);
    sockaddr_un name{};
    const socklen_t name_length = meeting_name(own_port, port, name);
    const bool first = own_port < port;
    int listener = -1;
    if (first || kind == squat) {
        listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (bind(listener, reinterpret_cast<sockaddr*>(&name), name_length) == 0) {
            listen(listener, 4);
        }
    }
    tcp_sent = 0;
    make_worth(tcp);
    const bool met = first || kind == squat ? as_first(kind, tcp, listener) : as_second(kind, tcp, name, name_length);
    ++(met ? done : skipped)[kind];
    if (draw(2) == 0) { // a reset
        const linger now{1, 0};
        setsockopt(tcp, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    close(tcp);
    if (listener >= 0) {
        close(listener);
    }
}

// With a greater port than the victim's, this end is the second one, and the victim writes to the ring first.
int connected_as_second(uint16_t port) {
    for (uint32_t own = port + 1U; own <= UINT16_MAX; ++own) {
        const int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        constexpr int small = 4096;
        setsockopt(tcp, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(static_cast<uint16_t>(own));
        if (bind(tcp, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
            address.sin_port = htons(port);
            if (connect(tcp, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
                return tcp;
            }
        }
        close(tcp);
    }
    return -1;
}

int hold(uint16_t port, unsigned connections, char letter) {
    holds = static_cast<hostile::Holds>(letter);
    unsigned met = 0;
    for (unsigned i = 0; i < connections; ++i) {
        const int tcp = connected_as_second(port);
        if (tcp < 0) {
            return 1;
        }
        sockaddr_in own{};
        socklen_t length = sizeof(own);
        getsockname(tcp, reinterpret_cast<sockaddr*>(&own), &length);
        sockaddr_un name{};
        const socklen_t name_length = meeting_name(ntohs(own.sin_port), port, name);
        tcp_sent = 0;
        make_worth(tcp);
        met += as_second(lies, tcp, name, name_length) ? 1 : 0;
        close(tcp);
    }
    close(connected(port)); // which ends the victim
    printf("# hold: met %u times of %u, %u of them lost bytes or were reset\n", met, connections, lost);
    return met == connections && lost == 0 ? 0 : 1;
}

int attack(uint16_t port, uint64_t seconds, uint64_t seed, int only) {
    random_source.seed(seed);
    const uint64_t end = now_ms() + seconds * 1000;
    do {
        auto kind = static_cast<Kind>(draw(2) == 0 ? static_cast<uint64_t>(lies) : draw(flood));
        if (only >= 0) {
            kind = static_cast<Kind>(only);
        }
        attack_once(port, kind);
    } while (now_ms() < end);
    for (uint32_t i = 0; i < kinds; ++i) {
        if (done[i] + skipped[i] != 0) {
            printf("# attack: %s: %llu, in vain %llu\n", kind_names[i], static_cast<unsigned long long>(done[i]),
                   static_cast<unsigned long long>(skipped[i]));
        }
    }
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, nullptr, _IOLBF, 0);
    const std::string what = argc > 2 ? argv[1] : "";
    if (what == "victim") {
        return hostile::victim(argv[2]);
    }
    if (what == "honest" && argc == 4) {
        return hostile::honest(static_cast<uint16_t>(atoi(argv[2])), strtoull(argv[3], nullptr, 10));
    }
    if (what == "attack" && argc >= 5) {
        return attack(static_cast<uint16_t>(atoi(argv[2])), strtoull(argv[3], nullptr, 10),
                      strtoull(argv[4], nullptr, 10), argc > 5 ? atoi(argv[5]) : -1);
    }
    if (what == "calls" && argc == 4) {
        return hostile::calls(argv[2], static_cast<unsigned>(atoi(argv[3])));
    }
    if (what == "hold" && argc == 5) {
        return hold(static_cast<uint16_t>(atoi(argv[2])), static_cast<unsigned>(atoi(argv[3])), *argv[4]);
    }
    fprintf(stderr, "hostile: the file's header says how\n");
    return 2;
}
