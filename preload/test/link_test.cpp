// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One connection of a worker's, whose far end, and whose program, the test plays: its stream is two queues of bytes.
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
bool is_sole_holder(int) { return true; }
} // namespace preload::rendezvous

namespace {

using namespace preload::fabric;
namespace path = preload::path;

class Owner final : public LinkOwner {
  public:
    bool watch(int, uint64_t, bool) override { return true; }
    void unwatch(int) override {}
    void attend(const path::Segment&, unsigned) override {}
    void wake(path::Segment&, unsigned, uint64_t) override {}
    void send_control(Control::Kind kind, uint64_t, preload::Reason why) override {
        told = kind;
        reason = why;
    }
    OtherDevices& other_devices() override { return devices; }
    Control::Kind told{};
    preload::Reason reason{};
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

    // Both ends are proven to be each other's.
    void move() {
        link.on_event(EPOLLIN, now); // the far end connects
        Hello hello;
        hello.ends = ends_.reversed();
        hear(Kind::hello, &hello, sizeof(hello));
        memory().direction[1].wake.consent = path::Consent::given;
        link.progress();
        hear(Kind::careful);
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

// Else its worker would never end.
void test_a_link_ends_after_its_program_though_the_far_end_says_nothing() {
    Host host;
    host.move();
    EXPECT_EQ(host.link.deadline(), UINT64_MAX);
    host.memory().mirror.closed = path::MirrorFields::closed_by_last;
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
    host.memory().mirror.closed = path::MirrorFields::closed_by_last;
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

// The program has written, and may have closed; then the fabric fails.
class Closed : public Host {
  public:
    explicit Closed(size_t bytes, uint32_t closed = path::MirrorFields::closed_by_last) {
        move();
        memory().direction[0].writer.epoch = 1;
        write(bytes);
        memory().mirror.closed = closed;
        link.progress();
        EXPECT(!link.is_over());
    }
    void fail() {
        has_ended = true;
        link.on_event(EPOLLIN, now);
    }
    // As the program does, growing the ring whenever it is full.
    void write(size_t bytes) {
        path::Direction& ring = memory().direction[0];
        for (size_t i = 0; i < bytes; ++i) {
            uint64_t space = 0;
            EXPECT(writable(ring, writer_, space));
            if (space == 0) {
                EXPECT(path::populate(&memory(), 0, writer_.area + 1));
                EXPECT(grow(ring, writer_));
            }
            path::ring_memory(&memory(), 0)[writer_.offset_of(writer_.position)] = pattern(writer_.position);
            ++writer_.position;
        }
        ring.writer.head = writer_.position;
    }
    static uint8_t pattern(uint64_t position) { return static_cast<uint8_t>(position * 2654435761U >> 11); }

    // The far end has read the ring up to here. Its record is behind what its program has sent by TCP before.
    void send_record(uint64_t tail) const {
        path::Record record;
        record.tail = tail;
        EXPECT_EQ(send(far(), "unread", 6, 0), 6);
        EXPECT_EQ(send(far(), &path::Record::mark, 1, MSG_OOB), 1);
        EXPECT_EQ(send(far(), &record, sizeof(record), 0), static_cast<ssize_t>(sizeof(record)));
    }
    [[nodiscard]] path::Record receive_record() const {
        uint8_t mark = 0;
        EXPECT_EQ(recv(far(), &mark, 1, MSG_OOB), 1);
        EXPECT_EQ(mark, path::Record::mark);
        path::Record record;
        EXPECT_EQ(recv(far(), &record, sizeof(record), MSG_WAITALL), static_cast<ssize_t>(sizeof(record)));
        return record;
    }
    // All from this position on, and the end of the stream, while the worker is called again and again.
    void expect_rest(uint64_t position) {
        for (;;) {
            std::array<uint8_t, 65536> bytes{};
            link.on_event(EPOLLIN | EPOLLOUT, now);
            const ssize_t n = recv(far(), bytes.data(), bytes.size(), 0);
            EXPECT(n >= 0);
            for (ssize_t i = 0; i < n; ++i) {
                EXPECT_EQ(bytes[static_cast<size_t>(i)], pattern(position++));
            }
            if (n == 0) {
                break;
            }
        }
        EXPECT_EQ(position, writer_.position);
        for (int i = 0; i < 1000 && !link.is_over(); ++i) { // until the far kernel's acknowledgement
            usleep(1000);
            link.on_time(link.deadline());
        }
        EXPECT(link.is_over());
    }
    void expect_reset() const {
        EXPECT(link.is_over());
        char byte = 0;
        ssize_t n = 1;
        while (n > 0) { // the record comes first
            n = recv(far(), &byte, 1, 0);
        }
        EXPECT_EQ(n, -1);
        EXPECT_EQ(errno, ECONNRESET);
    }

  private:
    path::Cursor writer_;
};

void test_what_a_closed_program_has_sent_goes_by_tcp_if_the_fabric_fails() {
    Closed host(5000);
    host.fail();
    const path::Record record = host.receive_record();
    EXPECT_EQ(record.magic, path::Record::expected_magic);
    EXPECT_EQ(record.head, 5000U);
    EXPECT_EQ(record.epoch, 1U);
    EXPECT_EQ(record.resumed, 0U);
    host.send_record(1234);
    host.expect_rest(1234);
}

// The rest is in two areas of the ring, and more than TCP takes at once.
void test_the_rest_may_be_in_two_areas() {
    Closed host(path::area_sizes[0] + 3 * path::area_sizes[1] / 4);
    host.fail();
    (void)host.receive_record();
    host.send_record(100);
    host.expect_rest(100);
}

void test_a_far_end_that_had_all_gets_the_end_only() {
    Closed host(5000);
    host.fail();
    (void)host.receive_record();
    host.send_record(5000);
    host.expect_rest(5000);
}

void test_the_rest_goes_by_tcp_if_the_far_end_does_not_answer() {
    Closed host(5000);
    host.link.on_time(host.link.deadline());
    EXPECT(!host.link.is_over());
    (void)host.receive_record();
    host.send_record(4000);
    host.expect_rest(4000);
}

void test_a_wrong_record_is_a_reset() {
    for (const uint64_t tail : {uint64_t{5001}, UINT64_MAX}) {
        Closed host(5000);
        host.fail();
        host.send_record(tail);
        host.link.on_event(EPOLLIN, host.now);
        host.expect_reset();
    }
}

// It has shut down its direction.
void test_a_far_end_that_sends_no_record_gets_one_and_the_end() {
    Closed host(5000);
    host.fail();
    EXPECT_EQ(host.receive_record().head, 5000U);
    EXPECT_EQ(shutdown(host.far(), SHUT_WR), 0);
    host.expect_rest(5000);
}

void test_waiting_for_the_far_ends_record_is_bounded() {
    Closed host(5000);
    host.fail();
    EXPECT(!host.link.is_over());
    EXPECT(host.link.deadline() != UINT64_MAX);
    host.link.on_time(host.link.deadline() - 1);
    EXPECT(!host.link.is_over());
}

// Else nobody would send the rest.
void test_the_worker_sends_the_rest_of_a_program_that_ended_unaware() {
    Closed host(5000, path::MirrorFields::open);
    host.fail();
    EXPECT_EQ(host.memory().mirror.stage.load(), static_cast<uint32_t>(path::MirrorFields::lost));
    EXPECT(!host.link.is_over());
    EXPECT(!host.link.arm(1));
    EXPECT(!host.link.progress());
    host.link.abandon();
    EXPECT(host.link.arm(1));
    EXPECT(host.link.progress());
    (void)host.receive_record();
    host.send_record(10);
    host.expect_rest(10);
}

// It has learnt of the failure first, from the far end, and has not sent its record yet.
void test_a_program_that_ends_as_it_begins_to_recover_leaves_the_rest() {
    for (const bool notices : {false, true}) { // the worker, before the program ends
        Closed host(5000, path::MirrorFields::open);
        host.memory().mirror.stage = path::MirrorFields::lost;
        if (notices) {
            EXPECT(host.link.progress());
        } else {
            host.fail();
        }
        EXPECT(!host.link.is_over());
        EXPECT(!host.link.progress());
        host.link.abandon();
        EXPECT(host.link.progress());
        (void)host.receive_record();
        host.send_record(77);
        host.expect_rest(77);
    }
}

void test_a_program_that_goes_on_by_tcp_needs_no_worker() {
    Closed host(5000, path::MirrorFields::open);
    host.fail();
    EXPECT(!host.link.is_over());
    host.memory().mirror.recovering = 1;
    EXPECT(host.link.arm(1));
    EXPECT(host.link.progress());
    EXPECT(host.link.is_over());
    char byte = 0;
    EXPECT_EQ(recv(host.far(), &byte, 1, 0), 0); // the test is the only other one that had it
}

// The kernel gives up sooner without a process.
void test_a_link_ends_when_tcp_is_acknowledged() {
    Host host;
    host.move();
    const int tcp = host.link.tcp();
    const std::array<uint8_t, 65536> bytes{};
    uint64_t filled = 0;
    for (ssize_t n = 1; n > 0; filled += static_cast<uint64_t>(std::max<ssize_t>(n, 0))) {
        n = send(tcp, bytes.data(), bytes.size(), MSG_DONTWAIT);
    }
    host.memory().mirror.closed = path::MirrorFields::closed_by_last;
    to_far_end.clear();
    host.link.progress();
    State sent;
    memcpy(&sent, to_far_end.data() + sizeof(Header), sizeof(sent));
    State answer;
    answer.synced = sent.sync;
    host.hear(Kind::state, &answer, sizeof(answer));
    host.link.progress();
    EXPECT(!host.link.is_over());
    host.link.on_time(host.link.deadline());
    EXPECT(!host.link.is_over());
    EXPECT(!host.link.progress());
    std::array<uint8_t, 65536> received{};
    uint64_t count = 0;
    for (ssize_t n = 1; n > 0; count += static_cast<uint64_t>(n)) {
        n = recv(host.far(), received.data(), received.size(), 0);
        EXPECT(n >= 0);
    }
    EXPECT_EQ(count, filled);
    for (int i = 0; i < 1000 && !host.link.is_over(); ++i) {
        usleep(1000);
        host.link.on_time(host.link.deadline());
    }
    EXPECT(host.link.is_over());
}

void test_an_abortive_close_stays_a_reset() {
    Closed host(5000);
    host.memory().mirror.closed = path::MirrorFields::aborted;
    host.fail();
    host.expect_reset();
}

constexpr HostAddress host_address(uint8_t last) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}; }
constexpr preload::rendezvous::Address own_end{host_address(1), 40000};
constexpr preload::rendezvous::Address far_end{host_address(2), 80};
constexpr preload::rendezvous::Address other_end{host_address(3), 80};

// A link of a host whose far end was proved before, and has told of another device.
class WithOthers : public Host {
  public:
    explicit WithOthers(uint32_t accepted) : Host(between(accepted), told()) {}

  private:
    static Control between(uint32_t accepted) {
        Control made = task();
        made.accepted = accepted;
        made.ends = {own_end, far_end};
        return made;
    }
    static Owner told() {
        Owner made;
        Owner::own_devices = {own_end, {host_address(4), 0}};
        made.devices.note_proved(far_end, {other_end.bytes}, nullptr, 1);
        return made;
    }
};

bool said(Kind kind, OtherAddresses* others = nullptr) {
    Header header;
    for (size_t at = 0; at + sizeof(header) <= to_far_end.size(); at += sizeof(header) + header.bytes) {
        memcpy(&header, to_far_end.data() + at, sizeof(header));
        if (header.kind == kind) {
            if (others != nullptr) {
                EXPECT_EQ(header.bytes, sizeof(*others));
                memcpy(others, to_far_end.data() + at + sizeof(header), sizeof(*others));
            }
            return true;
        }
    }
    return false;
}

void test_a_host_without_its_device_connects_by_another() {
    connecting_fails = {ENODEV};
    WithOthers host(1);
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(connected_to[0] == far_end && connected_to[1] == other_end);
    EXPECT(!connects_from_own);
    to_far_end.clear();
    host.link.on_event(EPOLLOUT, host.now);
    EXPECT(said(Kind::hello));
}

void test_a_far_end_that_does_not_answer_is_reached_by_another_device() {
    WithOthers host(1);
    EXPECT_EQ(connected_to.size(), 1U);
    EXPECT(connects_from_own);
    host.link.on_time(host.link.deadline());
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(!host.link.is_over());
    host.link.on_time(host.link.deadline());
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(host.link.is_over());
    EXPECT(host.owner.reason == preload::Reason::no_peer);
}

// It may not listen yet: the same one again, as long as there is time.
void test_a_far_end_that_refuses_is_tried_again_by_the_same_device() {
    connecting_fails = {ECONNREFUSED};
    WithOthers host(1);
    host.link.on_time(host.link.deadline());
    EXPECT_EQ(connected_to.size(), 2U);
    EXPECT(connected_to[1] == far_end);
}

void test_the_first_failure_is_told() {
    connecting_fails = {EHOSTUNREACH, ENODEV};
    const WithOthers host(1);
    EXPECT(host.link.is_over());
    EXPECT(host.owner.reason == preload::Reason::no_peer);
}

void test_a_far_end_may_come_by_another_device() {
    WithOthers host(0);
    EXPECT_EQ(listened_at.size(), 2U);
    EXPECT(listened_at[0] == own_end);
    EXPECT(listened_at[1].bytes == host_address(4) && listened_at[1].port == own_end.port);
    to_far_end.clear();
    comes_from = {host_address(9), 1};
    host.link.on_event(EPOLLIN, host.now);
    EXPECT(to_far_end.empty());
    comes_from = {other_end.bytes, 1};
    host.link.on_event(EPOLLIN, host.now);
    EXPECT(said(Kind::hello));
}

void test_ends_that_are_proved_tell_each_other_of_their_devices() {
    WithOthers host(0);
    comes_from = far_end;
    host.far_others = {host_address(7)};
    to_far_end.clear();
    host.move();
    OtherAddresses told{};
    EXPECT(said(Kind::proved, &told));
    EXPECT(told == OtherAddresses{host_address(4)});
    EXPECT(host.owner.devices.is_of({host_address(7), 1}, far_end));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_host_without_its_device_connects_by_another),
        FABTEST(test_a_far_end_that_does_not_answer_is_reached_by_another_device),
        FABTEST(test_a_far_end_that_refuses_is_tried_again_by_the_same_device),
        FABTEST(test_the_first_failure_is_told),
        FABTEST(test_a_far_end_may_come_by_another_device),
        FABTEST(test_ends_that_are_proved_tell_each_other_of_their_devices),
        FABTEST(test_a_link_ends_after_its_program_though_the_far_end_says_nothing),
        FABTEST(test_a_link_ends_when_the_far_end_has_all),
        FABTEST(test_an_address_of_no_device_is_told),
        FABTEST(test_a_port_that_is_taken_is_told),
        FABTEST(test_a_link_ends_with_its_program_while_it_listens),
        FABTEST(test_what_a_closed_program_has_sent_goes_by_tcp_if_the_fabric_fails),
        FABTEST(test_the_rest_may_be_in_two_areas),
        FABTEST(test_a_far_end_that_had_all_gets_the_end_only),
        FABTEST(test_the_rest_goes_by_tcp_if_the_far_end_does_not_answer),
        FABTEST(test_a_wrong_record_is_a_reset),
        FABTEST(test_a_far_end_that_sends_no_record_gets_one_and_the_end),
        FABTEST(test_waiting_for_the_far_ends_record_is_bounded),
        FABTEST(test_the_worker_sends_the_rest_of_a_program_that_ended_unaware),
        FABTEST(test_a_program_that_ends_as_it_begins_to_recover_leaves_the_rest),
        FABTEST(test_a_program_that_goes_on_by_tcp_needs_no_worker),
        FABTEST(test_a_link_ends_when_tcp_is_acknowledged),
        FABTEST(test_an_abortive_close_stays_a_reset),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
