// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// How a link (fabric/link.hpp) ends.
#include <optional>

#include <poll.h>

#include "preload/test/link_host.hpp"

namespace {

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

// An end that leaves before anything was moved says how many urgent bytes it has sent, and hears the same.
class Leaving : public Host {
  public:
    Leaving() {
        begin_to_prove();
        to_far_end.clear();
    }
    // What the link has said with `closed`; none: nothing so far.
    static std::optional<uint32_t> said() {
        Header header;
        ClosedEarly closed;
        if (to_far_end.size() < sizeof(header) + sizeof(closed)) {
            return std::nullopt;
        }
        memcpy(&header, to_far_end.data(), sizeof(header));
        EXPECT(header.kind == Kind::closed && header.bytes == sizeof(closed));
        memcpy(&closed, to_far_end.data() + sizeof(header), sizeof(closed));
        return closed.urgent_sent;
    }
    void hear_closed(uint32_t urgent_sent) {
        const ClosedEarly closed{urgent_sent};
        hear(Kind::closed, &closed, sizeof(closed));
    }
    [[nodiscard]] bool is_told() const { return owner.stage == path::MirrorFields::failed; }
    path::MirrorFields& fields() { return memory().mirror; }
};

void test_a_program_that_stays_with_tcp_is_told_when_both_ends_have_stopped() {
    Leaving host;
    host.fields().withdraw = 1;
    EXPECT(!host.link.progress());
    EXPECT(Leaving::said() == 0U);
    EXPECT(!host.fields().has_urgent_to_send());
    EXPECT(!host.is_told());
    host.hear_closed(0);
    EXPECT(host.is_told());
    EXPECT(host.link.is_over());
}

void test_an_urgent_byte_of_the_far_end_that_is_under_way_is_awaited() {
    Leaving host;
    host.fields().withdraw = 1;
    EXPECT(!host.link.progress());
    host.hear_closed(1);
    host.link.on_time(host.link.deadline());
    EXPECT(!host.is_told());
    EXPECT_EQ(send(host.far(), "!", 1, MSG_OOB), 1);
    pollfd urgent{host.link.tcp(), POLLPRI, 0};
    EXPECT_EQ(poll(&urgent, 1, -1), 1);
    host.link.on_time(host.link.deadline());
    EXPECT(host.is_told());
}

// By a read, which skips it.
void test_an_urgent_byte_that_the_program_has_taken_is_not_awaited() {
    Leaving host;
    host.fields().withdraw = 1;
    host.fields().urgent_received = path::MirrorFields::urgent_of(1, '!');
    EXPECT(host.link.progress()); // it echoes that
    EXPECT(!host.link.progress());
    host.hear_closed(1);
    EXPECT(host.is_told());
}

// The program stays with TCP, and its far end's urgent byte is behind what it has not read. While the worker has the
// connection, too, no close of its is the last one.
class Guarding : public Leaving {
  public:
    Guarding() {
        preload::rendezvous::has_no_other_holder = false;
        fields().withdraw = 1;
        EXPECT(!link.progress());
        EXPECT_EQ(send(far(), "unread", 6, 0), 6);
        EXPECT_EQ(send(far(), "!", 1, MSG_OOB), 1);
        pollfd urgent{link.tcp(), POLLPRI, 0};
        EXPECT_EQ(poll(&urgent, 1, -1), 1);
        hear_closed(1);
        EXPECT(is_told());
        EXPECT(!link.is_over());
        fields().closed = path::MirrorFields::left;
        EXPECT(!link.progress());
        look();
        EXPECT(!link.is_over());
    }
    void look(uint64_t later = 0) { link.on_time(link.deadline() + later); }
    void read(size_t count) const {
        std::array<char, 16> bytes{};
        EXPECT_EQ(recv(link.tcp(), bytes.data(), count, 0), static_cast<ssize_t>(count));
    }
    static constexpr uint64_t long_time = 2000000000; // ns
};

void test_a_holder_that_reads_over_the_urgent_byte_needs_no_worker() {
    Guarding host;
    host.read(6);
    host.look(Guarding::long_time);
    EXPECT(!host.link.is_over());
    EXPECT_EQ(send(host.far(), "more", 4, 0), 4);
    host.read(4);
    host.look(Guarding::long_time);
    EXPECT(host.link.is_over());
}

void test_a_holder_that_closes_in_front_of_the_urgent_byte_makes_no_reset() {
    Guarding host;
    host.read(6);
    preload::rendezvous::has_no_other_holder = true;
    host.look();
    EXPECT(!host.link.is_over()); // a descriptor may be under way
    host.look();
    EXPECT(host.link.is_over());
    char byte = 0;
    EXPECT_EQ(recv(host.far(), &byte, 1, 0), 0);
}

void test_a_holder_that_closes_with_bytes_unread_makes_a_reset() {
    Guarding host;
    preload::rendezvous::has_no_other_holder = true;
    host.look();
    host.look();
    EXPECT(host.link.is_over());
    char byte = 0;
    EXPECT_EQ(recv(host.far(), &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
}

// The program's thread may be stopped between its look and its send.
void test_an_urgent_byte_that_is_being_sent_counts() {
    Leaving host;
    const uint32_t wanted = host.fields().urgent_to_send.load();
    host.fields().urgent_to_send = wanted | path::MirrorFields::urgent_claimed;
    host.hear_closed(0);
    host.link.on_time(host.link.deadline());
    EXPECT(!Leaving::said());
    EXPECT(!host.is_told());
    host.fields().urgent_sent = wanted;
    host.link.on_time(host.link.deadline());
    EXPECT(Leaving::said() == 1U);
    EXPECT(host.is_told());
}

void test_a_far_end_that_leaves_in_the_proof_is_answered() {
    Leaving host;
    host.hear_closed(0);
    EXPECT(Leaving::said() == 0U);
    EXPECT(host.is_told());
    EXPECT(host.link.is_over());
}

// Its program is told all the same, and waits for no longer than that.
void test_a_far_end_that_does_not_say_how_many_is_not_awaited_for_ever() {
    Leaving host;
    host.fields().withdraw = 1;
    EXPECT(!host.link.progress());
    constexpr int most = 10000; // looks
    for (int looks = 0; looks < most && !host.link.is_over(); ++looks) {
        host.link.on_time(host.link.deadline());
    }
    EXPECT(host.link.is_over());
    EXPECT(host.is_told());
}

// A count that cannot be: the far end is not the library.
void test_a_far_end_that_has_sent_too_many_urgent_bytes_is_left() {
    Leaving host;
    host.hear_closed(path::MirrorFields::urgent_bytes + 1);
    host.hear_closed(path::MirrorFields::urgent_bytes + 1);
    EXPECT(host.is_told());
    EXPECT(host.link.is_over());
}

// Its process has said so before it ends: nobody looks at all processes for that.
void test_the_last_process_that_leaves_is_known() {
    Host host;
    host.move();
    EXPECT_EQ(host.link.leaving_process(), 0);
    host.memory().mirror.shared = path::MirrorFields::several;
    EXPECT_EQ(host.link.leaving_process(), 0);
    host.memory().mirror.shared = path::MirrorFields::last_leaves(4711);
    EXPECT_EQ(host.link.leaving_process(), 4711);
    EXPECT(host.link.is_shared());
    host.link.forget_leaving_process();
    EXPECT_EQ(host.link.leaving_process(), 0);
    EXPECT(host.link.is_shared());
    host.memory().mirror.shared = path::MirrorFields::last_leaves(4711);
    host.link.abandon();
    EXPECT_EQ(host.link.leaving_process(), 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_link_ends_after_its_program_though_the_far_end_says_nothing),
        FABTEST(test_a_link_ends_when_the_far_end_has_all),
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
        FABTEST(test_a_program_that_stays_with_tcp_is_told_when_both_ends_have_stopped),
        FABTEST(test_an_urgent_byte_of_the_far_end_that_is_under_way_is_awaited),
        FABTEST(test_an_urgent_byte_that_the_program_has_taken_is_not_awaited),
        FABTEST(test_a_holder_that_reads_over_the_urgent_byte_needs_no_worker),
        FABTEST(test_a_holder_that_closes_in_front_of_the_urgent_byte_makes_no_reset),
        FABTEST(test_a_holder_that_closes_with_bytes_unread_makes_a_reset),
        FABTEST(test_an_urgent_byte_that_is_being_sent_counts),
        FABTEST(test_a_far_end_that_leaves_in_the_proof_is_answered),
        FABTEST(test_a_far_end_that_does_not_say_how_many_is_not_awaited_for_ever),
        FABTEST(test_a_far_end_that_has_sent_too_many_urgent_bytes_is_left),
        FABTEST(test_the_last_process_that_leaves_is_known),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
