// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Both ends of a connection to another host in one thread, over TCP of this one: the program's calls are the library's
// own functions, the workers are two mirrors whose messages go from one to the other by hand. What the functions under
// test need of the rest of the library is here, too, so that one source of a program includes this.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/base/system.hpp"
#include "preload/connection/gate.hpp"
#include "preload/connection/io.hpp"
#include "preload/connection/positions.hpp"
#include "preload/connection/stream_internal.hpp"
#include "preload/connection/table.hpp"
#include "preload/fabric/mirror.hpp"
#include "preload/rendezvous/service.hpp"
#include "preload/rules/decide.hpp"
#include "preload/stats/page.hpp"
#include "preload/wait/epoll_set.hpp"
#include "preload/wait/wakeup.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names
#include "preload/test/listener.hpp"

// What the functions under test need of the rest of the library.
namespace {
int sets_woken = 0;
bool has_service = true; // and so can have the descriptor that wakes the worker
int workers_asked = 0;
std::function<void()> when_asked; // what the far end does meanwhile
uint64_t woken_id = 0;
} // namespace
namespace preload {
bool watches_asleep(const Connection&) { return false; }
bool watches_sleep_by_frame(const Connection&) { return false; }
void watches_frames_taken(const Connection&) {}
void watches_wake(const Connection&) { ++sets_woken; }
namespace gate {
bool pin(ConnectionState&) { return false; }
void restore_options(ConnectionState&, int) {}
} // namespace gate
namespace lifecycle {
bool in_vfork_child() { return false; }
} // namespace lifecycle
namespace io {
bool foreign(Connection&) { return false; }
} // namespace io
namespace policy {
uint64_t max_kernel_pause_ns() { return 0; } // it is asked each time
bool test_patient() { return false; }
} // namespace policy
namespace service {
bool take_steps_at(uint64_t) { return true; }
bool go_on_with(Connection&) { return true; }
uint64_t own_name() { return 1; }
bool ask(path::Segment&, unsigned) {
    ++workers_asked;
    static bool within = false; // the far end asks as well
    if (when_asked && !std::exchange(within, true)) {
        when_asked();
        within = false;
    }
    return true;
}
bool ask_holder(uint64_t, uint64_t) { return true; }
bool ask_to_wake(Connection&, uint64_t) { return has_service; }
} // namespace service
namespace stats {
void refresh(Connection&) {}
namespace detail {
void compare(base::stats::Row&, const Connection&, const ConnectionState&) {}
void moved_rare_case(Connection&, ConnectionState&, bool, uint64_t, uint64_t, uint32_t) {}
base::stats::Row* describe_late(Connection&) { return nullptr; }
} // namespace detail
} // namespace stats
namespace wakeup {
void wake_own(Id id) { woken_id = id; }
bool wake(Id, uid_t) { return has_service; }
} // namespace wakeup
} // namespace preload

namespace {

using preload::Connection;
using preload::ConnectionState;
using preload::Parts;
using preload::fabric::Bytes;
using preload::fabric::Header;
using preload::fabric::Mirror;
namespace path = preload::path;
namespace stream = preload::stream;
using path::MirrorFields;

class End {
  public:
    End(int fd, unsigned own) : fd_(fd), segment_(make()), mirror(*segment_, own) {
        state.out_direction = own;
        state.gate = preload::gate::careful;
        state.nonblocking = true;
        state.urgent_number = MirrorFields::urgent_bytes;
        connection.state = &state;
        connection.segment = segment_;
        connection.fd = fd;
        connection.numbers = 1;
        connection.mirrored = true;
        uintptr_t before = 0;
        EXPECT(preload::table::put(fd, reinterpret_cast<uintptr_t>(&connection), before));
        fields().stage = MirrorFields::moving;
        connection.in_ring().wake.consent = path::Consent::given;
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    ~End() {
        (void)preload::table::take(fd_);
        close(fd_);
        path::unmap_segment(segment_);
    }

    MirrorFields& fields() { return segment_->mirror; }
    ssize_t write(const std::string& text) {
        const iovec one{const_cast<char*>(text.data()), text.size()};
        Parts parts(&one, 1);
        const ssize_t n = stream::write_now(connection, fd_, parts, MSG_NOSIGNAL);
        return n == stream::gone ? send(fd_, text.data(), text.size(), MSG_NOSIGNAL) : n; // it is the kernel's again
    }
    // What can be read at once; "!" and the error's number after an error.
    std::string read() {
        std::string text;
        for (;;) {
            std::array<char, 100> buffer;
            const iovec one{buffer.data(), buffer.size()};
            Parts parts(&one, 1);
            ssize_t n = stream::read_now(connection, fd_, parts, 0);
            if (n == stream::gone) {
                n = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
                n = n < 0 ? -errno : n;
                state.received += static_cast<uint64_t>(std::max<ssize_t>(n, 0));
            }
            if (n <= 0) {
                return n == -EAGAIN ? text : text + "!" + std::to_string(-n);
            }
            text.append(buffer.data(), static_cast<size_t>(n));
        }
    }
    // As a program that reads only when poll(2) says so.
    std::string read_by_poll() {
        std::string text;
        for (int i = 0; i < 8 && text.find('!') == std::string::npos; ++i) {
            const stream::Readiness r = stream::check(connection, fd_, POLLIN, path::nobody);
            pollfd one{fd_, POLLIN, 0};
            if ((r.events & POLLIN) != 0 || (r.blocked && poll(&one, 1, 0) > 0)) {
                text += read();
            }
        }
        return text;
    }
    void return_to_kernel() {
        const stream::WriteSection section(connection, fd_);
        stream::return_out(connection, false);
    }
    // As the program's service does when it hears that the worker has ended.
    void lose() {
        fields().stage = MirrorFields::lost;
        stream::attend(connection, fd_);
    }
    // The proof is nearly over.
    void await_last_urgent_byte() {
        state.urgent_number = MirrorFields::urgent_bytes - 1;
        fields().stage = MirrorFields::proved;
    }
    void say_urgent_byte() {
        EXPECT_EQ(send(fd_, "!", 1, MSG_OOB), 1);
        stream::count_sent(connection, 1);
    }
    void send_frame() {
        const auto byte = static_cast<uint8_t>(path::Frame::wake);
        EXPECT_EQ(send(fd_, &byte, 1, 0), 1);
    }
    void await_bytes() const { // by TCP
        pollfd one{fd_, POLLIN, 0};
        EXPECT_EQ(poll(&one, 1, -1), 1);
    }
    // And when it is told of an urgent byte, or asked.
    void attend() { stream::attend(connection, fd_); }
    [[nodiscard]] bool by_ring() const { return (state.in_epoch.load() & state.out_epoch.load() & 1) != 0; }
    [[nodiscard]] bool is_over() const { return state.recovered.load() && !state.broken.load(); }
    [[nodiscard]] bool is_careful() const { return (state.gate.load() & preload::gate::careful) != 0; }
    // What the kernel says that the program's calls have taken.
    [[nodiscard]] uint64_t received() const {
        preload::Positions now;
        EXPECT(preload::read_positions(fd_, now));
        return now.received;
    }

  private:
    static path::Segment* make() {
        const int fd = path::open_memory();
        path::Segment* made = path::make_segment(7, fd);
        EXPECT(made != nullptr);
        close(fd);
        return made;
    }
    const int fd_;
    path::Segment* segment_;

  public:
    ConnectionState state;
    Connection connection;
    Mirror mirror;
};

struct Sockets {
    int connected = -1;
    int accepted = -1;
    Sockets() {
        std::tie(connected, accepted) = preload_test::connected_pair();
        const int yes = 1;
        for (const int fd : {connected, accepted}) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
        }
    }
};

Bytes say(End& end) {
    constexpr size_t plenty = size_t{1} << 20;
    Bytes bytes;
    end.mirror.collect(bytes, plenty);
    return bytes;
}

void hear(End& end, const Bytes& bytes) {
    for (size_t at = 0; at < bytes.size();) {
        Header header;
        memcpy(&header, bytes.data() + at, sizeof(header));
        EXPECT(end.mirror.take(header, {bytes.data() + at + sizeof(header), header.bytes}));
        at += sizeof(header) + header.bytes;
    }
}

struct Pair {
    Sockets sockets;
    End a{sockets.connected, 0};
    End b{sockets.accepted, 1};

    void settle() {
        for (int i = 0; i < 8; ++i) {
            hear(b, say(a));
            hear(a, say(b));
        }
    }
    // Both directions move to the rings.
    void move() {
        settle();
        EXPECT_EQ(a.write("a"), 1);
        settle();
        EXPECT_EQ(b.read(), "a");
        EXPECT_EQ(b.write("b"), 1);
        settle();
        EXPECT_EQ(a.read(), "b");
        EXPECT(a.by_ring() && b.by_ring());
        settle();
    }
    void finish() {
        for (int i = 0; i < 8; ++i) {
            a.attend();
            b.attend();
        }
    }
    // Bytes go by TCP, both ways.
    void expect_to_go_on() {
        EXPECT(a.is_over() && b.is_over());
        EXPECT_EQ(a.write("on"), 2);
        EXPECT_EQ(b.read(), "on");
        EXPECT_EQ(b.write("and on"), 6);
        EXPECT_EQ(a.read(), "and on");
        EXPECT_EQ(a.state.received.load(), a.received());
        EXPECT_EQ(b.state.received.load(), b.received());
    }
};

} // namespace
