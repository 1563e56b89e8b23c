// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One connection of a worker's, whose far end, and whose program, the test plays: its stream is two queues of bytes.
// What the functions under test need of the rest of the worker is here, too, so that one source of a program includes
// this.
#pragma once

#include "preload/fabric/link.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "preload/rendezvous/holders.hpp"

#include "fabtests/common/test.hpp" // last: cmocka has macros of plain names
#include "preload/test/listener.hpp"

namespace preload::fabric {

namespace {
Bytes from_far_end;
Bytes to_far_end;
int listening_fails = 0; // with this errno
std::vector<rendezvous::Address> listened_at;
rendezvous::Address comes_from;
std::vector<rendezvous::Address> connected_to;
bool connects_from_own = false;    // the last one
std::vector<int> connecting_fails; // with these, one after the other; then it is under way
bool has_ended = false;            // the stream
} // namespace

FabricSocket FabricSocket::listening(const rendezvous::Address& own) {
    listened_at.push_back(own);
    errno = listening_fails;
    return listening_fails != 0 ? FabricSocket() : FabricSocket(1000);
}
FabricSocket FabricSocket::connecting(const rendezvous::Address* own, const rendezvous::Address& peer) {
    connected_to.push_back(peer);
    connects_from_own = own != nullptr;
    errno = connecting_fails.empty() ? 0 : connecting_fails.front();
    if (!connecting_fails.empty()) {
        connecting_fails.erase(connecting_fails.begin());
    }
    return errno != 0 ? FabricSocket() : FabricSocket(1000);
}
void FabricSocket::close() { fd_ = -1; }
int FabricSocket::connected() const { return 0; }
FabricSocket FabricSocket::accept(rendezvous::Address& from) const {
    from = comes_from;
    return FabricSocket(fd_ + 1);
}
ssize_t FabricSocket::receive(void* buffer, size_t size) const {
    const size_t n = std::min(size, from_far_end.size());
    if (n == 0) {
        return has_ended ? -ECONNRESET : -EAGAIN;
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
namespace {
bool has_no_other_holder = false;
} // namespace
bool is_sole_holder(int) { return has_no_other_holder; }
} // namespace preload::rendezvous

namespace {

using namespace preload::fabric;
namespace path = preload::path;

class Owner final : public LinkOwner {
  public:
    bool watch(int, uint64_t, bool) override { return true; }
    void unwatch(int) override {}
    void attend(const path::Segment& segment, unsigned) override { stage = segment.mirror.stage.load(); }
    void wake(path::Segment&, unsigned, uint64_t) override {}
    void send_control(Control::Kind kind, uint64_t, preload::Reason why) override {
        told = kind;
        reason = why;
    }
    OtherDevices& other_devices() override { return devices; }
    Control::Kind told{};
    preload::Reason reason{};
    uint32_t stage = path::MirrorFields::proving; // when the program was last requested to look
    OtherDevices devices{[] { return own_devices; }};
    static OtherDevices::Found own_devices;
};
OtherDevices::Found Owner::own_devices;

class Host {
  public:
    Host() : Host(task(), Owner()) {}
    Host(const Control& task, const Owner& prepared)
        : owner(prepared), ends_(task.ends), link(owner, task, segment(), socket()) {}
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    ~Host() {
        close(far_);
        has_ended = false;
        from_far_end.clear();
        comes_from = {};
        connected_to.clear();
        listened_at.clear();
        connecting_fails.clear();
    }

    path::Segment& memory() { return *segment_; }
    [[nodiscard]] int far() const { return far_; } // the far end of the TCP connection

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

    void begin_to_prove() {
        link.on_event(EPOLLIN, now); // the far end connects
        Hello hello;
        hello.ends = ends_.reversed();
        hear(Kind::hello, &hello, sizeof(hello));
        memory().direction[1].wake.consent = path::Consent::given;
        link.progress();
        hear(Kind::careful);
    }

    // Both ends are proven to be each other's.
    void move() {
        begin_to_prove();
        for (uint32_t i = 0; i < path::MirrorFields::urgent_bytes; ++i) {
            const Echo echo{memory().mirror.urgent_to_send.load()};
            hear(Kind::echo, &echo, sizeof(echo));
        }
        hear(Kind::proved, &far_others, sizeof(far_others));
        EXPECT_EQ(memory().mirror.stage.load(), static_cast<uint32_t>(path::MirrorFields::moving));
    }

    uint64_t now = 1;
    Owner owner;
    OtherAddresses far_others{}; // what the far end tells

    static Control task() {
        Control made;
        made.token = 4711;
        return made;
    }

  private:
    path::Segment* segment() {
        const int fd = path::open_memory();
        segment_ = path::make_segment(4711, fd);
        EXPECT(segment_ != nullptr);
        close(fd);
        return segment_;
    }
    int socket() {
        const auto [made, far] = preload_test::connected_pair();
        far_ = far;
        return made;
    }
    const preload::rendezvous::Ends ends_;
    path::Segment* segment_ = nullptr; // the link's
    int far_ = -1;

  public:
    Link link;
};

} // namespace
