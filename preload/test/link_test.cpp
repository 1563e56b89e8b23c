// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One connection of a worker's, whose far end, and whose program, the test plays: its stream is two queues of bytes.
#include "preload/fabric/link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/rendezvous/holders.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names

namespace preload::fabric {

namespace {
Bytes from_far_end;
Bytes to_far_end;
int listening_fails = 0; // with this errno
} // namespace

FabricSocket FabricSocket::listening(const rendezvous::Address&) {
    errno = listening_fails;
    return listening_fails != 0 ? FabricSocket() : FabricSocket(1000);
}
FabricSocket FabricSocket::connecting(const rendezvous::Address&, const rendezvous::Address&) { return {}; }
void FabricSocket::close() { fd_ = -1; }
int FabricSocket::connected() const { return 0; }
FabricSocket FabricSocket::accept(rendezvous::Address& from) const {
    from = {};
    return FabricSocket(fd_ + 1);
}
ssize_t FabricSocket::receive(void* buffer, size_t size) const {
    const size_t n = std::min(size, from_far_end.size());
    if (n == 0) {
        return -EAGAIN;
    }
    memcpy(buffer, from_far_end.data(), n);
    from_far_end.erase(from_far_end.begin(), from_far_end.begin() + static_cast<ptrdiff_t>(n));
    return static_cast<ssize_t>(n);
}
ssize_t FabricSocket::send(const void* data, size_t size) const {
    const auto* bytes = static_cast<const uint8_t*>(data);
    to_far_end.insert(to_far_end.end(), bytes, bytes + size);
    return static_cast<ssize_t>(size);
}

} // namespace preload::fabric

namespace preload::rendezvous {
bool is_sole_holder(int) { return true; }
} // namespace preload::rendezvous

namespace {

using namespace preload::fabric;
namespace path = preload::path;

class Owner final : public LinkOwner {
  public:
    bool watch(int, uint64_t, bool) override { return true; }
    void attend(const path::Segment&, unsigned) override {}
    void wake(path::Segment&, unsigned, uint64_t) override {}
    void send_control(Control::Kind kind, uint64_t, preload::Reason why) override {
        told = kind;
        reason = why;
    }
    Control::Kind told{};
    preload::Reason reason{};
};

class Host {
  public:
    Host() : link(owner, task(), segment(), socket()) {}
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    ~Host() { close(far_); }

    path::Segment& memory() { return *segment_; }

    void hear(Kind kind, const void* body = nullptr, size_t bytes = 0) {
        Header header;
        header.kind = kind;
        header.bytes = static_cast<uint32_t>(bytes);
        const auto* head = reinterpret_cast<const uint8_t*>(&header);
        from_far_end.insert(from_far_end.end(), head, head + sizeof(header));
        const auto* from = static_cast<const uint8_t*>(body);
        if (bytes != 0) {
            from_far_end.insert(from_far_end.end(), from, from + bytes);
        }
        link.on_event(EPOLLIN, now);
    }

    // Both ends are proven to be each other's.
    void move() {
        link.on_event(EPOLLIN, now); // the far end connects
        Hello hello;
        hear(Kind::hello, &hello, sizeof(hello));
        memory().direction[1].wake.consent = path::Consent::given;
        link.progress();
        hear(Kind::careful);
        for (uint32_t i = 0; i < path::MirrorFields::urgent_bytes; ++i) {
            const Echo echo{memory().mirror.urgent_to_send.load()};
            hear(Kind::echo, &echo, sizeof(echo));
        }
        hear(Kind::proved);
        EXPECT_EQ(memory().mirror.stage.load(), static_cast<uint32_t>(path::MirrorFields::moving));
    }

    uint64_t now = 1;
    Owner owner;

  private:
    static Control task() {
        Control made;
        made.token = 4711;
        return made;
    }
    path::Segment* segment() {
        const int fd = path::open_memory();
        segment_ = path::make_segment(4711, fd);
        EXPECT(segment_ != nullptr);
        close(fd);
        return segment_;
    }
    int socket() {
        int pair[2] = {-1, -1};
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        far_ = pair[1];
        return pair[0];
    }
    path::Segment* segment_ = nullptr; // the link's
    int far_ = -1;

  public:
    Link link;
};

// Else its worker would never end.
void test_a_link_ends_after_its_program_though_the_far_end_says_nothing() {
    Host host;
    host.move();
    EXPECT_EQ(host.link.deadline(), UINT64_MAX);
    host.memory().mirror.closed = 1;
    host.link.progress();
    EXPECT(!host.link.is_over());
    EXPECT(host.link.deadline() != UINT64_MAX);
    host.link.on_time(host.link.deadline() - 1);
    EXPECT(!host.link.is_over());
    host.link.on_time(host.link.deadline());
    EXPECT(host.link.is_over());
}

void test_a_link_ends_when_the_far_end_has_all() {
    Host host;
    host.move();
    host.memory().mirror.closed = 1;
    to_far_end.clear();
    host.link.progress();
    State said;
    EXPECT(to_far_end.size() == sizeof(Header) + sizeof(said));
    memcpy(&said, to_far_end.data() + sizeof(Header), sizeof(said));
    State answer;
    answer.synced = said.sync;
    host.hear(Kind::state, &answer, sizeof(answer));
    host.link.progress();
    EXPECT(host.link.is_over());
}

// The program's service then tries no other connection of that address.
void test_an_address_of_no_device_is_told() {
    for (const int error : {ENODEV, EADDRNOTAVAIL}) {
        listening_fails = error;
        const Host host;
        EXPECT(host.link.is_over());
        EXPECT_EQ(host.owner.told, Control::failed);
        EXPECT(host.owner.reason == preload::Reason::no_device);
    }
    listening_fails = 0;
}

// By a socket of the fabric's, or over the tcp core by one of the kernel's that does not share it.
void test_a_port_that_is_taken_is_told() {
    listening_fails = EADDRINUSE;
    const Host host;
    EXPECT(host.link.is_over());
    EXPECT(host.owner.reason == preload::Reason::port_taken);
    listening_fails = 0;
}

// Before both ends have met, nobody but the program can go on with it.
void test_a_link_ends_with_its_program_while_it_listens() {
    Host host;
    host.link.progress();
    EXPECT(!host.link.is_over());
    host.link.abandon();
    host.link.progress();
    EXPECT(host.link.is_over());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_link_ends_after_its_program_though_the_far_end_says_nothing),
        FABTEST(test_a_link_ends_when_the_far_end_has_all),
        FABTEST(test_an_address_of_no_device_is_told),
        FABTEST(test_a_port_that_is_taken_is_told),
        FABTEST(test_a_link_ends_with_its_program_while_it_listens),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
