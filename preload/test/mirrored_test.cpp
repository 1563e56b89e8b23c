// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A connection of the fabric that is proved, handed over and shut down (stream_mirrored.cpp, stream_hand_over.cpp),
// where what the far end says comes late.
#include "preload/test/mirrored_pair.hpp"

#include <atomic>
#include <thread>

namespace {

// The far end has shut down its direction only: it still reads what is in its ring, or has it sent again, and answers.
void test_an_end_is_handed_over_when_a_half_closed_peer_has_all() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("unread"), 6);
    pair.b.return_to_kernel();
    pair.settle();
    EXPECT_EQ(pair.b.write("its last"), 8);
    EXPECT_EQ(shutdown(pair.sockets.accepted, SHUT_WR), 0);
    pair.b.state.hold = true;
    EXPECT_EQ(pair.a.read_by_poll(), "its last!0");
    pair.a.state.hold = pair.a.state.handed_over = true;
    for (int i = 0; i < 4; ++i) { // its program's service has not answered yet
        (void)stream::hand_over_step(pair.a.connection, pair.sockets.connected);
        pair.settle();
    }
    EXPECT(pair.a.is_careful());
    for (int i = 0; i < 16 && pair.a.is_careful(); ++i) {
        pair.b.attend();
        pair.settle();
        (void)stream::hand_over_step(pair.a.connection, pair.sockets.connected);
    }
    EXPECT(!pair.a.is_careful());
    pair.settle();
    EXPECT_EQ(pair.b.read_by_poll(), "unread");
}

// Before its direction ends, an end waits for a far end that has taken bytes and is to ask for them again: nobody could
// send them then.
void test_a_shutdown_waits_for_a_far_end_that_has_taken_bytes() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("unread"), 6);
    pair.a.state.hold = true;
    pair.a.return_to_kernel();
    pair.settle();
    constexpr uint64_t late_ns = 300000000U;
    const uint64_t begin = preload::sys::now_ns();
    bool taken = false;
    when_asked = [&] {
        if (!taken || preload::sys::now_ns() - begin > late_ns) {
            taken = true;
            for (int i = 0; i < 4; ++i) {
                pair.settle();
                pair.b.attend();
            }
            pair.settle();
        }
    };
    EXPECT(stream::clear_out(pair.a.connection, pair.sockets.connected));
    when_asked = nullptr;
    EXPECT(stream::is_clear(pair.a.connection.out_ring(), pair.a.state.out_epoch.load()));
    EXPECT_EQ(shutdown(pair.sockets.connected, SHUT_WR), 0);
    EXPECT_EQ(pair.b.read_by_poll(), "unread!0");
}

// A worker tells the far end of each step by itself. Two ends that ask each other again with each question do nothing
// else.
void test_an_end_that_waits_for_a_step_asks_seldom() {
    constexpr int steps = 200;
    constexpr uint64_t pause_ns = 10000000U;
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.a.write("unread"), 6);
    pair.settle();
    pair.b.state.hold = pair.b.state.handed_over = true;
    workers_asked = 0;
    const uint64_t begin = preload::sys::now_ns();
    for (int i = 0; i < steps; ++i) {
        pair.b.attend();
    }
    const auto pauses = static_cast<int>((preload::sys::now_ns() - begin) / pause_ns);
    EXPECT(pair.b.is_careful());
    EXPECT(workers_asked > 0 && workers_asked <= pauses + 1);
}

// The last urgent byte of the proof, and the far end has switched behind it: it counts before the switch is looked at.
void test_a_switch_behind_the_last_urgent_byte_is_followed() {
    Pair pair;
    pair.settle();
    pair.b.await_last_urgent_byte();
    pair.a.say_urgent_byte();
    EXPECT_EQ(pair.a.write("by the ring"), 11);
    pair.settle();
    pair.a.send_frame();
    pair.b.await_bytes();
    EXPECT_EQ(pair.b.read(), "by the ring");
    EXPECT_EQ(pair.b.state.urgent_number, MirrorFields::urgent_bytes);
}

// Behind it may be anything, also what a record begins with.
void test_bytes_behind_the_last_urgent_byte_are_no_record() {
    Pair pair;
    pair.b.await_last_urgent_byte();
    pair.a.say_urgent_byte();
    EXPECT_EQ(pair.a.write("r"), 1);
    pair.b.await_bytes();
    EXPECT_EQ(pair.b.read(), "r");
}

// Unread, it would turn the new holder's close into a reset. The worker says when the far end sends no further one.
void test_a_connection_that_is_handed_over_in_the_proof_has_no_unread_urgent_byte() {
    Pair pair;
    pair.a.fields().stage = MirrorFields::proving;
    pair.a.state.urgent_number = 0;
    EXPECT_EQ(stream::begin_to_hand_over(pair.a.connection, pair.sockets.connected, preload::Reason::passed), -EAGAIN);
    EXPECT(pair.a.is_careful());
    EXPECT_EQ(pair.a.fields().withdraw.load(), 1U);
    EXPECT_EQ(pair.a.fields().closed.load(), static_cast<uint32_t>(MirrorFields::open));
    EXPECT_EQ(send(pair.sockets.accepted, "!", 1, MSG_OOB), 1);
    pollfd urgent{pair.sockets.connected, POLLPRI, 0};
    EXPECT_EQ(poll(&urgent, 1, -1), 1);
    pair.a.fields().stage = MirrorFields::failed;
    pair.a.attend();
    EXPECT(!pair.a.is_careful());
    EXPECT_EQ(pair.a.fields().closed.load(), static_cast<uint32_t>(MirrorFields::left));
    EXPECT_EQ(send(pair.sockets.accepted, "data", 4, 0), 4);
    std::array<char, 8> bytes{};
    EXPECT_EQ(recv(pair.sockets.connected, bytes.data(), bytes.size(), 0), 4);
    EXPECT_EQ(shutdown(pair.sockets.connected, SHUT_RDWR), 0);
    EXPECT_EQ(recv(pair.sockets.accepted, bytes.data(), bytes.size(), 0), 0);
}

// It may have ended, or have failed with a proof of which only the far end knows whether it is complete.
void test_a_hand_over_in_the_proof_does_not_wait_for_a_worker_for_ever() {
    constexpr uint64_t long_ago = 10000000000; // ns
    Pair pair;
    pair.a.fields().stage = MirrorFields::proved;
    EXPECT_EQ(stream::begin_to_hand_over(pair.a.connection, pair.sockets.connected, preload::Reason::passed), -EAGAIN);
    pair.a.attend();
    EXPECT(pair.a.is_careful());
    pair.a.state.steps_since_ns = pair.a.state.steps_since_ns.load() - long_ago;
    pair.a.attend();
    EXPECT(!pair.a.is_careful());
}

// Of several processes, one that ends, or executes another program, tells the worker if it knows of no other.
void test_the_worker_hears_of_the_last_process() {
    Pair pair;
    const uint64_t changes = pair.a.fields().changes.load();
    stream::announce_leaving(pair.a.connection);
    EXPECT_EQ(MirrorFields::last_leaving(pair.a.fields().shared.load()), getpid());
    EXPECT(pair.a.fields().changes.load() != changes);
    stream::withdraw_leaving(pair.a.connection);
    EXPECT_EQ(pair.a.fields().shared.load(), static_cast<uint32_t>(MirrorFields::several));
}

// What was withdrawn is not sent, and what is being sent cannot be withdrawn.
void test_an_urgent_byte_is_withdrawn_or_sent() {
    Pair pair;
    MirrorFields& fields = pair.a.fields();
    fields.stage = MirrorFields::proving;
    const uint32_t first = MirrorFields::urgent_of(1, '1');
    fields.urgent_to_send = first | MirrorFields::urgent_claimed;
    EXPECT(!fields.withdraw_urgent());
    fields.urgent_to_send = first;
    EXPECT(fields.withdraw_urgent() == 0U);
    pair.a.attend();
    EXPECT_EQ(fields.urgent_sent.load(), 0U);
    fields.urgent_to_send = first;
    pair.a.attend();
    EXPECT_EQ(fields.urgent_sent.load(), first);
    EXPECT(!fields.has_urgent_to_send());
    EXPECT(fields.withdraw_urgent() == 1U);
}

// Nothing has come by TCP behind the last urgent byte, so the socket is still at its mark, and whoever looks for frames
// has to read. The kernel reports a reset to one call only, which is not the program's then.
void test_a_reset_at_the_mark_is_left_to_the_next_read() {
    Pair pair;
    pair.settle();
    pair.b.await_last_urgent_byte();
    pair.a.say_urgent_byte();
    pollfd urgent{pair.sockets.accepted, POLLPRI, 0};
    EXPECT_EQ(poll(&urgent, 1, -1), 1);
    pair.b.attend();
    EXPECT_EQ(pair.b.state.urgent_number, MirrorFields::urgent_bytes);
    pair.settle();
    EXPECT_EQ(pair.a.write("last"), 4);
    pair.settle();
    EXPECT(stream::is_at_mark(pair.sockets.accepted));
    stream::announce_reset(pair.a.connection, pair.sockets.connected);
    pair.settle();
    const sockaddr none{AF_UNSPEC, {}};
    EXPECT_EQ(connect(pair.sockets.connected, &none, sizeof(none)), 0);
    pollfd reset{pair.sockets.accepted, 0, 0};
    EXPECT_EQ(poll(&reset, 1, -1), 1);
    EXPECT_EQ(pair.b.read_by_poll(), "last!" + std::to_string(ECONNRESET));
    EXPECT_EQ(pair.b.read(), "!0");
}

// The worker has not said yet what the far end knows, and that does not matter any more: poll(2) reports the reset, and
// that it can be written, so EAGAIN would have a program try again and again.
void test_a_write_behind_a_reset_reports_it_at_once() {
    Pair pair;
    pair.move();
    stream::announce_reset(pair.a.connection, pair.sockets.connected);
    const sockaddr none{AF_UNSPEC, {}};
    EXPECT_EQ(connect(pair.sockets.connected, &none, sizeof(none)), 0);
    pair.b.await_bytes();
    pair.b.state.ended = true; // as a wait has found
    EXPECT_EQ(pair.b.write("x"), -ECONNRESET);
    EXPECT_EQ(pair.b.write("x"), -EPIPE);
    pair.settle();
    EXPECT_EQ(pair.b.read(), "!0");
}

uint64_t arrived_at(End& end, int fd) {
    uint64_t count = 0;
    (void)stream::check(end.connection, fd, POLLIN, path::nobody, &count);
    return count;
}

// A program that is told of edges has left what it was told of unread, and is told of more all the same.
void test_bytes_behind_a_return_arrive_while_the_ring_is_unread() {
    Pair pair;
    const int fd = pair.sockets.accepted;
    pair.move();
    EXPECT_EQ(pair.a.write("x"), 1);
    pair.settle();
    const uint64_t before = arrived_at(pair.b, fd);
    pair.a.return_to_kernel();
    pair.settle();
    EXPECT_EQ(pair.a.write("yz"), 2);
    pair.settle();
    EXPECT_EQ(arrived_at(pair.b, fd), before + 2);
    EXPECT_EQ(arrived_at(pair.b, fd), before + 2);
    EXPECT_EQ(pair.b.read(), "xyz");
    EXPECT_EQ(arrived_at(pair.b, fd), before + 2);
}

bool has_bytes(int fd) { // by TCP of this host
    constexpr int timeout_ms = 1000;
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, timeout_ms) == 1;
}

// What the worker of an end does when its program's service has asked for attention.
void ask(Pair& pair, End& end) {
    end.mirror.attended();
    pair.settle();
}

// A thread that sleeps on the socket, in any call, is woken by the frame only. It may be due before the far end's
// worker has all that is in front of it.
void test_a_frame_that_was_asked_for_is_sent_once_the_far_end_knows() {
    Pair pair;
    pair.move();
    {
        const stream::ReadSection section(pair.a.connection, pair.sockets.connected);
        EXPECT(stream::request_return(pair.a.connection));
    }
    ask(pair, pair.a);
    pair.b.attend(); // returns, but nothing may go by TCP yet
    EXPECT(!stream::far_end_knows(pair.b.connection));
    pair.settle();
    pair.b.attend();
    EXPECT(has_bytes(pair.sockets.connected));
    EXPECT_EQ(pair.a.read(), "");
    EXPECT_EQ(pair.a.state.in_epoch.load(), pair.b.state.out_epoch.load());
}

// The far end has returned by itself, and its frame waits for a byte that its program may never write.
void test_a_frame_is_sent_if_the_far_end_has_returned_before_it_is_asked() {
    Pair pair;
    pair.move();
    pair.b.return_to_kernel();
    pair.settle();
    {
        const stream::ReadSection section(pair.a.connection, pair.sockets.connected);
        EXPECT(stream::request_return(pair.a.connection));
    }
    ask(pair, pair.a);
    pair.b.attend();
    EXPECT(has_bytes(pair.sockets.connected));
}

// Both programs send before they receive, and both rings are left at the same moment.
void test_two_full_rings_left_at_once_wake_both_ends() {
    constexpr uint64_t long_ns = 10000000000U;
    const std::string much(path::ring_bytes, 'm');
    Pair pair;
    pair.move();
    for (End* end : {&pair.a, &pair.b}) {
        while (end->write(much) > 0) {
            pair.settle();
        }
        end->state.sleepers = 1;
    }
    workers_asked = 0;
    const uint64_t later = preload::sys::now_ns() + long_ns;
    EXPECT(!stream::leave_full_ring(pair.a.connection, pair.sockets.connected, later));
    EXPECT(!stream::leave_full_ring(pair.b.connection, pair.sockets.accepted, later));
    EXPECT_EQ(workers_asked, 2);
    pair.settle();
    ask(pair, pair.a);
    ask(pair, pair.b);
    for (int i = 0; i < 2; ++i) {
        pair.a.attend();
        pair.b.attend();
        pair.settle();
    }
    EXPECT(has_bytes(pair.sockets.connected));
    EXPECT(has_bytes(pair.sockets.accepted));
    EXPECT_EQ(pair.a.write("more"), 4);
    EXPECT_EQ(pair.b.write("more"), 4);
}

// The far end has shut down its own direction, and still reads: EOF must not overtake what is in the ring.
void test_a_shutdown_waits_for_what_a_half_closed_peer_has_not_received() {
    constexpr timespec late{1, 300000000}; // longer than a peer is given to read the ring
    Pair pair;
    pair.move();
    EXPECT_EQ(shutdown(pair.sockets.accepted, SHUT_WR), 0);
    EXPECT_EQ(pair.a.write("its last"), 8);
    pair.a.state.ended = true; // as the service notes it
    std::atomic<bool> over{false};
    std::thread workers([&] {
        (void)nanosleep(&late, nullptr);
        while (!over) {
            pair.settle();
        }
    });
    stream::prepare_shutdown(pair.a.connection, pair.sockets.connected, SHUT_WR);
    const bool knows = stream::far_end_knows(pair.a.connection);
    over = true;
    workers.join();
    EXPECT(knows);
    EXPECT_EQ(shutdown(pair.sockets.connected, SHUT_WR), 0);
    EXPECT_EQ(pair.b.read_by_poll(), "its last!0");
}

// For edge-triggered epoll(7), bytes that were reported before, and EOF, are no news, but space will be.
void test_what_is_readable_does_not_hide_that_space_is_to_come() {
    Pair pair;
    pair.move();
    EXPECT_EQ(pair.b.write("unread"), 6);
    pair.settle();
    pair.a.return_to_kernel(); // and the far end does not know yet
    const auto look = [&] {
        return stream::check(pair.a.connection, pair.sockets.connected, POLLIN | POLLOUT, path::nobody);
    };
    stream::Readiness r = look();
    EXPECT_EQ(r.events & (POLLIN | POLLOUT), POLLIN);
    EXPECT(r.soon && !r.only_soon(POLLIN | POLLOUT));
    pair.settle();
    r = look();
    EXPECT_EQ(r.events & (POLLIN | POLLOUT), POLLIN | POLLOUT);
    EXPECT(!r.soon);
}

// Its set sleeps, or has other members to report: the kernel's socket has space, so no event follows.
void test_a_write_that_came_before_the_far_end_knew_is_told_of_space() {
    Pair pair;
    pair.move();
    pair.a.connection.watched = true;
    pair.a.return_to_kernel();
    EXPECT_EQ(pair.a.write("refused"), -EAGAIN);
    sets_woken = 0;
    pair.a.attend();
    EXPECT_EQ(sets_woken, 0);
    pair.settle();
    pair.a.attend();
    EXPECT(sets_woken > 0);
    EXPECT_EQ(pair.a.write("taken"), 5);
    pair.a.connection.watched = false;
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_end_is_handed_over_when_a_half_closed_peer_has_all),
        FABTEST(test_a_shutdown_waits_for_a_far_end_that_has_taken_bytes),
        FABTEST(test_an_end_that_waits_for_a_step_asks_seldom),
        FABTEST(test_a_switch_behind_the_last_urgent_byte_is_followed),
        FABTEST(test_bytes_behind_the_last_urgent_byte_are_no_record),
        FABTEST(test_a_connection_that_is_handed_over_in_the_proof_has_no_unread_urgent_byte),
        FABTEST(test_a_hand_over_in_the_proof_does_not_wait_for_a_worker_for_ever),
        FABTEST(test_the_worker_hears_of_the_last_process),
        FABTEST(test_an_urgent_byte_is_withdrawn_or_sent),
        FABTEST(test_a_reset_at_the_mark_is_left_to_the_next_read),
        FABTEST(test_a_write_behind_a_reset_reports_it_at_once),
        FABTEST(test_bytes_behind_a_return_arrive_while_the_ring_is_unread),
        FABTEST(test_a_frame_that_was_asked_for_is_sent_once_the_far_end_knows),
        FABTEST(test_a_frame_is_sent_if_the_far_end_has_returned_before_it_is_asked),
        FABTEST(test_two_full_rings_left_at_once_wake_both_ends),
        FABTEST(test_a_shutdown_waits_for_what_a_half_closed_peer_has_not_received),
        FABTEST(test_what_is_readable_does_not_hide_that_space_is_to_come),
        FABTEST(test_a_write_that_came_before_the_far_end_knew_is_told_of_space),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
