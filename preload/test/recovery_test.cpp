// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// When a connection of the fabric fails, see stream_recovery.cpp. The fabric fails when the test says so: what a mirror
// has not said by then is lost, what it has said may still come.
#include "preload/path/record.hpp"
#include "preload/test/mirrored_pair.hpp"

namespace {

void test_what_was_under_way_goes_by_tcp() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("there"), 5);
    pair.settle();
    EXPECT_EQ(pair.a.write("lost"), 4);
    EXPECT_EQ(pair.b.write("as well"), 7);
    pair.a.lose();
    pair.b.lose();
    pair.finish();
    EXPECT_EQ(pair.b.read(), "therelost");
    EXPECT_EQ(pair.a.read(), "as well");
    pair.expect_to_go_on();
}

void test_an_end_hears_of_it_from_the_other_one() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.b.write("unread"), 6);
    pair.settle();
    EXPECT_EQ(pair.a.write("lost"), 4);
    pair.a.lose();
    pair.finish(); // b's worker still lives
    EXPECT(pair.b.fields().stage.load() == MirrorFields::lost);
    EXPECT_EQ(pair.b.read(), "lost");
    EXPECT_EQ(pair.a.read(), "unread");
    pair.expect_to_go_on();
}

// An epoch that has ended: all of it is in the far segment, and is read there, in front of what TCP brings.
void test_bytes_in_front_of_a_return_are_read_in_the_ring() {
    for (const bool by_poll : {false, true}) {
        Pair pair;
        pair.move();
        EXPECT_EQ(pair.a.write("by the ring, "), 13);
        pair.a.return_to_kernel();
        pair.settle();
        EXPECT_EQ(pair.a.write("by TCP, "), 8); // with Frame::resume in front
        pair.a.lose();
        pair.b.lose();
        pair.finish();
        EXPECT_EQ(by_poll ? pair.b.read_by_poll() : pair.b.read(), "by the ring, by TCP, ");
        pair.finish();
        pair.expect_to_go_on();
    }
}

// The same, where the reader has taken Frame::resume, and not yet all of the ring.
void test_a_return_that_was_seen_before_is_followed() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("by the ring, "), 13);
    pair.a.return_to_kernel();
    pair.settle();
    EXPECT_EQ(pair.a.write("by TCP"), 6);
    (void)stream::check(pair.b.connection, pair.sockets.accepted, 0, path::nobody); // takes the frame
    EXPECT(pair.b.state.resume_seen);
    pair.a.lose();
    pair.b.lose();
    pair.finish();
    EXPECT_EQ(pair.b.read_by_poll(), "by the ring, by TCP");
    pair.finish();
    pair.expect_to_go_on();
}

// The reader of another thread sleeps: nothing of the ring is to be read, and that is no reason to look for ever.
void test_a_read_returns_while_the_far_end_has_not_answered() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("unread"), 6);
    pair.settle();
    pair.b.state.sleepers = 1;
    pair.b.lose();
    EXPECT_EQ(pair.b.read(), "");
    pair.b.state.sleepers = 0;
    pair.a.lose();
    pair.finish();
    EXPECT_EQ(pair.b.read(), "unread");
    pair.expect_to_go_on();
}

// Whoever sleeps on the socket is woken by the record alone: it stays until they are awake.
void test_a_record_stays_for_those_who_sleep() {
    Pair pair;
    pair.move();
    pair.b.state.sleepers = 1;
    pair.a.lose();
    pair.b.await_bytes();
    pair.b.attend();
    EXPECT(pair.b.state.recovery.load() == preload::Recovery::sent);
    EXPECT(!pair.b.state.far_record_seen);
    pollfd one{pair.sockets.accepted, POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 0), 1);
    pair.b.state.sleepers = 0;
    pair.finish();
    pair.expect_to_go_on();
}

// One that sleeps on a descriptor is named in the ring, unless a worker has taken the name, and was killed.
void test_those_who_sleep_on_descriptors_are_woken() {
    constexpr uint64_t some_id = 4711;
    for (const bool named : {true, false}) {
        Pair pair;
        pair.move();
        pair.b.connection.watched = true;
        pair.b.connection.in_ring().wake.data_wanted = named ? some_id : uint64_t{path::nobody};
        sets_woken = 0;
        woken_id = 0;
        pair.a.lose();
        pair.b.lose();
        pair.b.connection.guarded = 0;
        pair.finish();
        EXPECT(sets_woken > 0);
        EXPECT(pair.b.connection.in_ring().wake.data_wanted.load() == path::nobody); // else the set looks at nothing
        pair.expect_to_go_on();
    }
}

// An end that has shut down its direction can say no more how far it has read, and need not: before, it has waited
// until the far end had returned, so that it has all. Its own end says the same of its direction.
void test_an_end_that_was_shut_down_has_all() {
    for (const bool far_end_knows : {true, false}) {
        Pair pair;
        pair.move();
        EXPECT_EQ(pair.a.write("by the ring"), 11);
        EXPECT_EQ(pair.b.write("unread"), 6);
        pair.settle();
        pair.b.return_to_kernel();
        pair.settle();
        pair.a.return_to_kernel();
        hear(pair.b, say(pair.a));
        if (far_end_knows) {
            pair.settle();
        }
        EXPECT_EQ(shutdown(pair.sockets.accepted, SHUT_WR), 0);
        pair.a.lose();
        pair.b.lose();
        pair.finish();
        EXPECT_EQ(pair.a.read_by_poll(), "unread!0");
        EXPECT_EQ(pair.b.read_by_poll(), "by the ring");
        pair.finish();
        EXPECT(pair.a.is_over());
        EXPECT_EQ(pair.a.write("by TCP"), 6);
        EXPECT_EQ(pair.b.read_by_poll(), "by TCP");
        EXPECT(pair.b.is_over());
    }
}

// One that has ended in the middle of an epoch was killed, or was not answered in time: nobody knows what is missing.
void test_an_end_in_the_middle_is_an_error() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.b.write("under way"), 9);
    EXPECT_EQ(shutdown(pair.sockets.accepted, SHUT_WR), 0);
    pair.a.lose();
    pair.finish();
    EXPECT_EQ(pair.a.read(), "!" + std::to_string(ECONNRESET));
}

// The kernel's EOF comes before the worker reports that the fabric has failed, if both were killed at once.
void test_an_end_that_comes_before_the_failure_is_known_is_an_error() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.b.write("under way"), 9);
    EXPECT_EQ(shutdown(pair.sockets.accepted, SHUT_WR), 0);
    pair.a.await_bytes();
    EXPECT_EQ(pair.a.read(), "");
    pair.finish();
    EXPECT_EQ(pair.a.read(), "!" + std::to_string(ECONNRESET));
}

// Which the kernel reports in the same way.
void test_a_shutdown_for_reading_is_no_end_of_the_far_end() {
    Pair pair;
    pair.move();
    pair.a.state.read_shut = true; // as shutdown() does
    EXPECT_EQ(shutdown(pair.sockets.connected, SHUT_RD), 0);
    EXPECT_EQ(pair.a.read(), "!0");
    pair.finish();
    EXPECT_EQ(pair.a.read(), "!0");
    pair.settle();
    EXPECT_EQ(pair.a.write("goes on"), 7);
    pair.settle();
    EXPECT_EQ(pair.b.read(), "goes on");
}

void test_an_end_that_the_far_worker_has_announced_is_one() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.b.write("all"), 3);
    pair.b.fields().closed = MirrorFields::closed_by_last;
    pair.settle();
    EXPECT_EQ(shutdown(pair.sockets.accepted, SHUT_WR), 0);
    pair.a.await_bytes();
    EXPECT_EQ(pair.a.read(), "all!0");
}

// A reset is the kernel's answer to unread frames, too. Not if nobody has said that all has arrived.
void test_a_reset_before_the_failure_is_known_is_an_error() {
    for (const bool by_tcp : {false, true}) {
        Pair pair;
        pair.move();
        if (by_tcp) {
            pair.b.return_to_kernel();
            pair.settle();
        }
        EXPECT_EQ(pair.b.write("under way"), 9);
        const linger at_once{1, 0};
        setsockopt(pair.sockets.accepted, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        const int other = socket(AF_INET, SOCK_STREAM, 0);
        EXPECT_EQ(dup2(other, pair.sockets.accepted), pair.sockets.accepted); // closes it
        close(other);
        pair.a.await_bytes();
        const std::string got = pair.a.read();
        pair.finish();
        EXPECT_EQ(got + (got.find('!') == std::string::npos ? pair.a.read() : ""),
                  (by_tcp ? "under way!" : "!") + std::to_string(ECONNRESET));
    }
}

// Both ends have sent their records, and a has to send `text` again.
void lose_under_way(Pair& pair, const std::string& text) {
    pair.move();
    EXPECT_EQ(pair.a.write(text), static_cast<ssize_t>(text.size()));
    pair.a.lose();
    pair.b.await_bytes();
    pair.b.lose();
    EXPECT(pair.b.is_over() && pair.b.is_careful());
}

// A program that is killed behind its record: what it had to send again is missing, however much of it.
void test_an_end_behind_a_record_is_one_if_nothing_is_missing() {
    const std::string whole = "under way";
    for (const bool by_poll : {false, true}) {
        for (const size_t arrives : {size_t{0}, size_t{4}, whole.size()}) {
            Pair pair;
            lose_under_way(pair, whole);
            EXPECT_EQ(send(pair.sockets.connected, whole.data(), arrives, 0), static_cast<ssize_t>(arrives));
            EXPECT_EQ(shutdown(pair.sockets.connected, SHUT_WR), 0);
            pair.b.attend();
            const std::string error = std::to_string(arrives == whole.size() ? 0 : ECONNRESET);
            EXPECT_EQ(by_poll ? pair.b.read_by_poll() : pair.b.read(), whole.substr(0, arrives) + "!" + error);
        }
    }
}

// It stays careful until it has read them.
void test_resent_bytes_are_counted_before_the_connection_is_the_kernels_again() {
    Pair pair;
    lose_under_way(pair, "under way");
    pair.finish();
    EXPECT(pair.b.is_careful());
    EXPECT_EQ(pair.b.read(), "under way");
    pair.b.attend();
    EXPECT(!pair.b.is_careful());
    pair.expect_to_go_on();
}

// A holder that does not use the library reads them from the kernel.
void test_a_connection_is_handed_over_in_front_of_resent_bytes() {
    Pair pair;
    lose_under_way(pair, "under way");
    EXPECT_EQ(stream::hand_over_step(pair.b.connection, pair.sockets.accepted), 0);
    EXPECT(!pair.b.is_careful());
    pair.a.attend();
    EXPECT_EQ(pair.b.read(), "under way");
    pair.expect_to_go_on();
}

// Behind the record of a program that has closed, nothing comes.
void test_a_close_that_cannot_send_the_rest_is_a_reset() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("under way"), 9);
    pair.a.lose();
    pair.a.state.open = 0;
    EXPECT(stream::prepare_close(pair.a.connection, pair.sockets.connected, false) == stream::Ending::reset);
}

void test_a_close_behind_a_failure_is_none_if_nothing_is_missing() {
    Pair pair;
    pair.move();
    const std::string much(8000, 'm'); // so that the far end reports that it has read them
    EXPECT_EQ(pair.a.write(much), static_cast<ssize_t>(much.size()));
    pair.settle();
    EXPECT_EQ(pair.b.read(), much);
    pair.settle();
    pair.a.lose();
    pair.a.state.open = 0;
    EXPECT(stream::prepare_close(pair.a.connection, pair.sockets.connected, false) == stream::Ending::whole);
}

// The other end's program has closed, and its worker sends the record.
void send_record(int fd, uint64_t head, uint64_t tail) {
    path::Record record;
    record.head = head;
    record.tail = tail;
    record.epoch = 1;
    record.followed = 1;
    EXPECT_EQ(send(fd, &path::Record::mark, 1, MSG_OOB), 1);
    EXPECT_EQ(send(fd, &record, sizeof(record), 0), static_cast<ssize_t>(sizeof(record)));
    EXPECT_EQ(shutdown(fd, SHUT_WR), 0);
}

// Without an answer, nothing can be sent to it again.
void test_an_end_that_was_shut_down_compares_what_it_has() {
    for (const bool by_poll : {false, true}) {
        for (const bool hears_first : {false, true}) {
            for (const uint64_t missing : {0U, 1U}) {
                Pair pair;
                pair.move();
                EXPECT_EQ(pair.a.write("all of it"), 9);
                pair.settle();
                EXPECT_EQ(shutdown(pair.sockets.accepted, SHUT_WR), 0);
                if (hears_first) {
                    pair.b.lose();
                }
                const uint64_t head = pair.a.state.out.position + missing;
                send_record(pair.sockets.connected, head, pair.b.state.out.position);
                pair.b.lose();
                std::string text = by_poll ? pair.b.read_by_poll() : pair.b.read();
                for (int i = 0; i < 8 && text.find('!') == std::string::npos; ++i) {
                    text += pair.b.read();
                }
                EXPECT_EQ(text.substr(text.find('!')), missing == 0 ? "!0" : "!" + std::to_string(ECONNRESET));
                if (missing == 0) {
                    EXPECT_EQ(text.substr(0, text.find('!')), "all of it");
                }
            }
        }
    }
}

// The end whose worker lives still gets from it what the far end had said before.
void test_a_worker_that_goes_on_changes_nothing() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("late"), 4);
    pair.a.lose();
    EXPECT_EQ(pair.b.read(), ""); // takes the record and answers it, without the service
    pair.a.attend();
    preload::fabric::State old; // of before
    old.epoch = 1;
    old.followed = 1;
    old.frames = 1;
    old.request = path::request_of(2, path::halt);
    Header header;
    header.kind = preload::fabric::Kind::state;
    header.bytes = sizeof(old);
    EXPECT(pair.b.mirror.take(header, {reinterpret_cast<const uint8_t*>(&old), sizeof(old)}));
    pair.b.connection.out_ring().wake.consent = path::Consent::given;
    EXPECT_EQ(pair.b.read(), "late");
    EXPECT_EQ(pair.b.write("too"), 3);
    EXPECT_EQ(pair.a.read(), "too");
    pair.finish();
    pair.expect_to_go_on();
}

// An end that is proved, and does not know yet that the far end is: the record's urgent byte is no part of the proof.
void test_a_record_is_no_part_of_the_proof() {
    Pair pair;
    pair.b.fields().stage = MirrorFields::proved;
    EXPECT_EQ(pair.a.write("by TCP"), 6);
    pair.a.lose();
    EXPECT_EQ(pair.b.read(), "by TCP");
    pair.finish();
    EXPECT_EQ(pair.b.fields().urgent_received.load(), 0U);
    pair.expect_to_go_on();
}

// A child that is about to execute another program has no service, and what it does is to reach the far end all the
// same.
void test_a_process_without_a_service_wakes_the_worker() {
    constexpr uint64_t workers_id = 4711;
    Pair pair;
    pair.move();
    has_service = false;
    workers_asked = 0;
    pair.a.mirror.arm(workers_id);
    const std::string more(path::area_sizes[0] / 4, 'm'); // of which the far writer must hear that it was read
    EXPECT_EQ(pair.a.write(more), static_cast<ssize_t>(more.size()));
    EXPECT_EQ(workers_asked, 1);
    pair.settle();
    pair.b.mirror.arm(workers_id);
    EXPECT_EQ(pair.b.read(), more);
    EXPECT_EQ(workers_asked, 2); // there is space
    pair.a.mirror.arm(workers_id);
    pair.a.return_to_kernel();
    EXPECT_EQ(workers_asked, 3);
    has_service = true;
}

// The proof: an end says one urgent byte after another.
struct Proving : Pair {
    Proving() {
        for (End* end : {&a, &b}) {
            end->fields().stage = MirrorFields::proving;
            end->state.urgent_number = 0;
        }
    }
    void say_urgent(uint8_t byte) {
        const uint32_t wanted = MirrorFields::urgent_of(++said_, byte);
        a.fields().urgent_to_send = wanted;
        a.attend();
        EXPECT_EQ(a.fields().urgent_sent.load(), wanted);
    }
    // One call, which takes all that is there: a program that is told of more may be told once, and takes a short read
    // for the end (epoll(7), edge-triggered).
    std::string read_once(int flags = 0) {
        std::array<char, 100> buffer;
        const iovec one{buffer.data(), buffer.size()};
        Parts parts(&one, 1);
        const ssize_t n = stream::read_now(b.connection, sockets.accepted, parts, flags);
        return n < 0 ? "!" + std::to_string(-n) : std::string(buffer.data(), static_cast<size_t>(n));
    }
    long unread() { return stream::unread(b.connection, sockets.accepted); }
    uint64_t arrived() {
        uint64_t count = 0;
        (void)stream::check(b.connection, sockets.accepted, POLLIN, path::nobody, &count);
        return count;
    }

  private:
    uint32_t said_ = 0;
};

void test_bytes_behind_an_urgent_byte_are_seen() {
    Proving pair;
    const uint64_t before = pair.arrived();
    pair.say_urgent('u');
    EXPECT_EQ(pair.unread(), 0);
    EXPECT_EQ(pair.arrived(), before);
    EXPECT_EQ(pair.a.write("behind"), 6);
    EXPECT_EQ(pair.unread(), 6);
    EXPECT_EQ(pair.arrived(), before + 6);
    EXPECT_EQ(pair.read_once(MSG_PEEK), "behind");
    EXPECT_EQ(pair.read_once(), "behind");
    EXPECT_EQ(pair.arrived(), before + 6);
    EXPECT_EQ(pair.b.fields().urgent_received.load(), MirrorFields::urgent_of(1, 'u'));
    EXPECT_EQ(pair.b.state.received.load(), pair.b.received());
}

void test_a_read_goes_on_behind_an_urgent_byte() {
    Proving pair;
    const uint64_t before = pair.arrived();
    EXPECT_EQ(pair.a.write("before"), 6);
    pair.say_urgent('u');
    EXPECT_EQ(pair.a.write("behind"), 6);
    EXPECT_EQ(pair.unread(), 12);
    EXPECT_EQ(pair.arrived(), before + 12);
    EXPECT_EQ(pair.read_once(), "beforebehind");
    EXPECT_EQ(pair.unread(), 0);
    EXPECT_EQ(pair.b.fields().urgent_received.load(), MirrorFields::urgent_of(1, 'u'));
    pair.say_urgent('v');
    EXPECT_EQ(pair.a.write("again"), 5);
    shutdown(pair.sockets.connected, SHUT_WR);
    EXPECT_EQ(pair.unread(), 5);
    EXPECT_EQ(pair.arrived(), before + 17);
    EXPECT_EQ(pair.read_once(), "again");
    EXPECT_EQ(pair.read_once(), "");
    EXPECT_EQ(pair.b.fields().urgent_received.load(), MirrorFields::urgent_of(2, 'v'));
}

// How long after a failure, or a failed attempt, the next attempt is due, in seconds.
uint64_t pause_after(preload::ConnectionState& s, bool was_on_it) {
    constexpr uint64_t second_ns = 1000000000;
    const uint64_t before = preload::sys::now_ns();
    preload::stream::retry_fabric_later(s, was_on_it);
    const uint64_t pause = (s.retry_at_ns - before) / second_ns;
    EXPECT(s.retry_at_ns <= preload::sys::now_ns() + pause * second_ns); // whole seconds from the call on
    return pause;
}

void test_a_fabric_that_fails_soon_each_time_is_tried_ever_more_seldom() {
    preload::ConnectionState s;
    s.fabric_since_ns = preload::sys::now_ns();
    for (const uint64_t expected : {1U, 4U, 16U, 64U, 256U, 1024U, 1024U}) {
        EXPECT_EQ(pause_after(s, true), expected);
        EXPECT_EQ(pause_after(s, false), 1U);
    }
    s.fabric_since_ns = preload::sys::now_ns() - 61000000000U; // it has worked for a minute
    EXPECT_EQ(pause_after(s, true), 1U);
}

void test_a_fabric_that_cannot_be_reached_is_tried_often() {
    preload::ConnectionState s;
    s.fabric_since_ns = preload::sys::now_ns();
    for (const uint64_t expected : {1U, 2U, 4U, 8U, 16U, 16U}) {
        EXPECT_EQ(pause_after(s, false), expected);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_fabric_that_fails_soon_each_time_is_tried_ever_more_seldom),
        FABTEST(test_a_fabric_that_cannot_be_reached_is_tried_often),
        FABTEST(test_what_was_under_way_goes_by_tcp),
        FABTEST(test_an_end_hears_of_it_from_the_other_one),
        FABTEST(test_bytes_in_front_of_a_return_are_read_in_the_ring),
        FABTEST(test_a_return_that_was_seen_before_is_followed),
        FABTEST(test_a_read_returns_while_the_far_end_has_not_answered),
        FABTEST(test_a_record_stays_for_those_who_sleep),
        FABTEST(test_those_who_sleep_on_descriptors_are_woken),
        FABTEST(test_an_end_that_was_shut_down_has_all),
        FABTEST(test_an_end_in_the_middle_is_an_error),
        FABTEST(test_an_end_that_comes_before_the_failure_is_known_is_an_error),
        FABTEST(test_a_shutdown_for_reading_is_no_end_of_the_far_end),
        FABTEST(test_an_end_that_the_far_worker_has_announced_is_one),
        FABTEST(test_a_reset_before_the_failure_is_known_is_an_error),
        FABTEST(test_an_end_behind_a_record_is_one_if_nothing_is_missing),
        FABTEST(test_resent_bytes_are_counted_before_the_connection_is_the_kernels_again),
        FABTEST(test_a_connection_is_handed_over_in_front_of_resent_bytes),
        FABTEST(test_a_close_that_cannot_send_the_rest_is_a_reset),
        FABTEST(test_a_close_behind_a_failure_is_none_if_nothing_is_missing),
        FABTEST(test_an_end_that_was_shut_down_compares_what_it_has),
        FABTEST(test_a_worker_that_goes_on_changes_nothing),
        FABTEST(test_a_record_is_no_part_of_the_proof),
        FABTEST(test_a_process_without_a_service_wakes_the_worker),
        FABTEST(test_bytes_behind_an_urgent_byte_are_seen),
        FABTEST(test_a_read_goes_on_behind_an_urgent_byte),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
