// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Two mirrors and their segments, each with what a program would do in it; messages go from one to the other by hand.
#include "preload/fabric/mirror.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace {

using preload::fabric::Bytes;
using preload::fabric::Header;
using preload::fabric::Kind;
using preload::fabric::Mirror;
using preload::fabric::State;
namespace path = preload::path;

constexpr size_t plenty = size_t{1} << 20;

// One host: the program's part is played by the test.
class Host {
  public:
    explicit Host(unsigned own) : own_(own), segment_(make()), mirror(*segment_, own) {}
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    ~Host() { path::unmap_segment(segment_); }

    path::Direction& out() { return segment_->direction[own_]; }
    path::Direction& in() { return segment_->direction[1 - own_]; }
    path::MirrorFields& fields() { return segment_->mirror; }

    // As the program writes, and grows, into its ring. Returns how much there was space for.
    size_t write(const std::string& text) {
        size_t done = 0;
        while (done < text.size()) {
            uint64_t space = 0;
            EXPECT(writable(out(), writer_, space));
            if (space == 0 && !grow(out(), writer_)) {
                break;
            }
            const size_t n = writer_.contiguous(std::min<uint64_t>(space, text.size() - done));
            memcpy(path::ring_memory(segment_, own_) + writer_.offset_of(writer_.position), text.data() + done, n);
            writer_.position += n;
            done += n;
            out().writer.head.store(writer_.position);
        }
        return done;
    }

    std::string read(size_t most = SIZE_MAX) {
        std::string text;
        uint64_t count = 0;
        while (text.size() < most && readable(in(), reader_, count) && count != 0) {
            const size_t n = reader_.contiguous(std::min<uint64_t>(count, most - text.size()));
            const auto* from = path::ring_memory(segment_, 1 - own_) + reader_.offset_of(reader_.position);
            text.append(reinterpret_cast<const char*>(from), n);
            reader_.position += n;
            in().reader.tail.store(reader_.position);
        }
        return text;
    }

    void switch_out() {
        uint32_t given = path::Consent::given;
        EXPECT(out().wake.consent.compare_exchange_strong(given, path::Consent::used));
        out().writer.epoch.fetch_add(1);
    }

  private:
    static path::Segment* make() {
        const int fd = path::open_memory();
        path::Segment* made = path::make_segment(7, fd);
        EXPECT(made != nullptr);
        close(fd);
        return made;
    }
    const unsigned own_;
    path::Segment* segment_;
    path::Cursor writer_;
    path::Cursor reader_;

  public:
    Mirror mirror;
};

// Returns how many messages; -1: one was refused.
int hear(Host& to, const Bytes& bytes) {
    int count = 0;
    for (size_t at = 0; at < bytes.size(); ++count) {
        Header header;
        memcpy(&header, bytes.data() + at, sizeof(header));
        if (!to.mirror.take(header, {bytes.data() + at + sizeof(header), header.bytes})) {
            return -1;
        }
        at += sizeof(header) + header.bytes;
    }
    return count;
}

// Everything that one has to say, to the other.
int carry(Host& from, Host& to, size_t limit = plenty) {
    Bytes bytes;
    from.mirror.collect(bytes, limit);
    return hear(to, bytes);
}

void settle(Host& a, Host& b) {
    for (int i = 0; i < 8; ++i) {
        EXPECT(carry(a, b) >= 0 && carry(b, a) >= 0);
    }
}

std::string pattern(size_t size) {
    std::string text(size, '\0');
    for (size_t i = 0; i < size; ++i) {
        text[i] = static_cast<char>('a' + i % 23);
    }
    return text;
}

void test_bytes_come_to_the_other_segment() {
    Host a(0);
    Host b(1);
    a.write("hello");
    settle(a, b);
    EXPECT(b.read() == "hello");
    b.write("back");
    settle(a, b);
    EXPECT(a.read() == "back");
    EXPECT(carry(a, b) == 0 && carry(b, a) == 0); // nothing is said twice
}

void test_a_ring_is_filled_and_grows_as_it_does_on_one_host() {
    Host a(0);
    Host b(1);
    std::string expected;
    std::string got;
    const std::string text = pattern(700000);
    for (size_t done = 0; got.size() < text.size();) {
        done += a.write(text.substr(done));
        settle(a, b);
        const std::string part = b.read(5000);
        EXPECT(!part.empty());
        got += part;
        settle(a, b);
    }
    EXPECT(got == text);
}

void test_what_is_not_read_holds_the_writer_back() {
    Host a(0);
    Host b(1);
    const std::string text = pattern(1000000);
    size_t taken = 0;
    for (int i = 0; i < 10; ++i) {
        taken += a.write(text);
        settle(a, b);
    }
    EXPECT(taken <= path::ring_bytes);
    EXPECT(b.read().size() == taken);
}

void test_a_consent_is_granted_to_the_far_writer() {
    Host a(0);
    Host b(1);
    settle(a, b);
    EXPECT(a.out().wake.consent == path::Consent::withheld);
    b.in().wake.consent = path::Consent::given; // by b's program, as the reader
    settle(a, b);
    EXPECT(b.in().wake.consent == path::Consent::used && a.out().wake.consent == path::Consent::given);
    a.out().writer.switch_at = 99;
    a.switch_out();
    settle(a, b);
    EXPECT(b.in().writer.epoch == 1 && b.in().writer.switch_at == 99);
}

void test_a_consent_comes_back_if_it_was_not_used() {
    Host a(0);
    Host b(1);
    b.in().wake.consent = path::Consent::given;
    settle(a, b);
    b.fields().withdraw = 1;
    settle(a, b);
    EXPECT(a.out().wake.consent == path::Consent::withheld && b.in().wake.consent == path::Consent::withheld);
    b.in().wake.consent = path::Consent::given; // and can be given again
    settle(a, b);
    EXPECT(a.out().wake.consent == path::Consent::given);
}

void test_a_consent_that_was_used_does_not_come_back() {
    Host a(0);
    Host b(1);
    b.in().wake.consent = path::Consent::given;
    settle(a, b);
    b.fields().withdraw = 1;
    a.switch_out(); // both at once
    settle(a, b);
    EXPECT(b.in().wake.consent == path::Consent::used && b.in().writer.epoch == 1);
}

void test_an_epoch_is_known_there_with_all_in_front_of_it() {
    Host a(0);
    Host b(1);
    b.in().wake.consent = path::Consent::given;
    settle(a, b);
    a.switch_out();
    a.write("in the ring");
    EXPECT(a.fields().applied != 1);
    settle(a, b);
    EXPECT_EQ(a.fields().applied.load(), 1);
    a.write(" and its end");
    a.out().writer.epoch = 2;
    EXPECT(carry(a, b) > 0);
    EXPECT_EQ(b.in().writer.epoch.load(), 2);
    EXPECT(a.fields().applied == 1); // until b has said so
    EXPECT(b.read() == "in the ring and its end");
    settle(a, b);
    EXPECT_EQ(a.fields().applied.load(), 2);
}

void test_a_close_waits_for_what_is_in_front() {
    Host a(0);
    Host b(1);
    a.write("last");
    a.fields().closed = 1;
    EXPECT(carry(a, b) > 0);
    EXPECT(!a.mirror.has_closed() && b.mirror.far_has_closed());
    EXPECT(carry(b, a) > 0);
    EXPECT(a.mirror.has_closed());
    EXPECT(b.read() == "last");
}

// Another process was about to return when the last one closed: the far end says back the last that it has heard.
void test_a_return_behind_a_close_is_no_matter() {
    Host a(0);
    Host b(1);
    b.in().wake.consent = path::Consent::given;
    settle(a, b);
    a.switch_out();
    settle(a, b);
    a.fields().closed = 1;
    Bytes first;
    EXPECT(a.mirror.collect(first, plenty));
    a.out().writer.epoch = 2;
    Bytes second;
    EXPECT(a.mirror.collect(second, plenty));
    EXPECT(hear(b, first) > 0 && hear(b, second) > 0);
    settle(a, b);
    EXPECT(a.mirror.has_closed());
}

void test_a_sleeper_is_named_when_bytes_come() {
    Host a(0);
    Host b(1);
    b.in().wake.data_wanted = 1234567;
    a.write("x");
    settle(a, b);
    EXPECT_EQ(b.mirror.data_sleeper(), 1234567U);
    EXPECT_EQ(b.mirror.data_sleeper(), 0U);
    EXPECT(b.in().wake.data_wanted == path::nobody);
}

// The bytes fill a message, and the state with the switch comes in the next one: in between, the reader, which knows of
// no switch, goes to sleep again.
void test_a_sleeper_is_named_when_the_switch_comes_behind_the_bytes() {
    Host a(0);
    Host b(1);
    b.in().wake.consent = path::Consent::given;
    settle(a, b);
    a.switch_out();
    a.write("in the ring");
    EXPECT_EQ(carry(a, b, 1), 1);
    EXPECT_EQ(b.in().writer.epoch.load(), 0);
    b.in().wake.data_wanted = 1234567;
    EXPECT(carry(a, b) > 0);
    EXPECT_EQ(b.in().writer.epoch.load(), 1);
    EXPECT_EQ(b.mirror.data_sleeper(), 1234567U);
}

void test_who_sleeps_on_the_socket_has_a_frame_sent_by_the_far_program() {
    Host a(0);
    Host b(1);
    b.in().wake.data_wanted = path::by_frame;
    a.write("x");
    settle(a, b);
    EXPECT(a.fields().frames == 1 && a.mirror.attend_wanted());
    EXPECT(b.mirror.data_sleeper() == 0);
}

void test_a_writer_is_woken_when_half_is_free() {
    Host a(0);
    Host b(1);
    const size_t full = a.write(pattern(1000000));
    a.out().wake.space_wanted = 77777;
    settle(a, b);
    EXPECT_EQ(a.mirror.space_sleeper(), 0U);
    EXPECT(b.read(full).size() == full);
    settle(a, b);
    EXPECT_EQ(a.mirror.space_sleeper(), 77777U);
}

void test_what_is_given_back_goes_to_the_far_writer() {
    Host a(0);
    Host b(1);
    a.out().writer.epoch = 1;
    settle(a, b);
    // b's program has taken bytes from TCP and asks for them again.
    path::Segment* segment =
        reinterpret_cast<path::Segment*>(reinterpret_cast<char*>(&b.fields()) - offsetof(path::Segment, mirror));
    uint8_t* area = path::map_give_back(segment, 0);
    EXPECT(area != nullptr);
    const std::string taken = "taken from TCP";
    std::copy(taken.begin(), taken.end(), area);
    b.in().reader.given_back = taken.size();
    b.in().reader.request = path::request_of(1, path::resend);
    settle(a, b);
    path::Segment* other =
        reinterpret_cast<path::Segment*>(reinterpret_cast<char*>(&a.fields()) - offsetof(path::Segment, mirror));
    uint8_t* there = path::map_give_back(other, 0);
    EXPECT(there != nullptr && memcmp(there, taken.data(), taken.size()) == 0);
    EXPECT(a.out().reader.given_back == taken.size() && a.out().reader.request == path::request_of(1, path::resend));
    path::unmap_give_back(area);
    path::unmap_give_back(there);
}

// A writer whose reader seems to have read all, and to give nothing back, is done with the ring.
void test_what_is_given_back_is_told_before_the_tail() {
    Host a(0);
    Host b(1);
    a.write("taken");
    settle(a, b);
    b.in().reader.given_back.store(5);
    EXPECT(b.read() == "taken");
    b.write("data");
    Bytes bytes;
    b.mirror.collect(bytes, 1); // the data alone
    Header header;
    memcpy(&header, bytes.data(), sizeof(header));
    EXPECT(header.kind == Kind::data && a.mirror.take(header, {bytes.data() + sizeof(header), header.bytes}));
    EXPECT(a.out().reader.tail.load() == 0 || a.out().reader.given_back.load() == 5);
    b.fields().changes.fetch_add(1);
    b.mirror.attended();
    settle(a, b);
    EXPECT(a.out().reader.tail.load() == 5 && a.out().reader.given_back.load() == 5);
}

// The program reads while the worker says what it has read. What it does not say then, it says later: the far writer
// may wait for it.
void test_what_is_read_while_the_state_is_told_is_told() {
    Host a(0);
    Host b(1);
    constexpr int rounds = 3000;
    std::atomic<int> wanted{0};
    std::atomic<int> done{0};
    std::thread reader([&] {
        for (int round = 1; round <= rounds; ++round) {
            while (wanted.load() < round) {
                std::this_thread::yield();
            }
            for (int i = 0; i < round % 400; ++i) {
                (void)wanted.load(); // at another moment each time
            }
            (void)b.read();
            done = round;
        }
    });
    const std::string some = pattern(4096); // half of the first area
    int untold = 0;
    for (int round = 1; round <= rounds; ++round) {
        a.write(some);
        while (carry(a, b) > 0) {
        }
        wanted = round;
        while (done.load() < round) {
            b.mirror.attended(); // says all, whether it is news or not
            (void)carry(b, a);
        }
        while (carry(b, a) > 0) {
        }
        const uint64_t left = a.out().writer.head.load() - a.out().reader.tail.load();
        untold += left >= path::area_sizes[0] / 4 ? 1 : 0;
        b.mirror.attended();
        (void)carry(b, a);
    }
    reader.join();
    EXPECT_EQ(untold, 0);
}

// A reader wakes the worker only if the far writer must hear of it.
void test_a_worker_sleeps_while_little_is_read() {
    constexpr uint64_t worker = 77777;
    Host a(0);
    Host b(1);
    a.write("a request");
    settle(a, b);
    EXPECT(!b.mirror.arm(worker) && b.in().wake.space_wanted.load() == path::nobody);
    EXPECT(b.read() == "a request");
    EXPECT(!b.mirror.arm(worker) && b.in().wake.space_wanted.load() == path::nobody);
    a.write(pattern(path::area_sizes[0] / 4));
    settle(a, b);
    EXPECT(!b.mirror.arm(worker) && b.in().wake.space_wanted.load() == worker);
    (void)b.read();
    EXPECT(b.mirror.arm(worker));
}

void test_what_makes_no_sense_is_refused() {
    Host a(0);
    const Bytes body(64, 1);
    const auto refused = [&](Kind kind, uint64_t position, uint32_t area, size_t size) {
        Host b(1);
        Header header;
        header.kind = kind;
        header.position = position;
        header.area = area;
        header.bytes = static_cast<uint32_t>(size);
        const Bytes of_size(size, 1);
        return !b.mirror.take(header, of_size);
    };
    EXPECT(!refused(Kind::data, 0, 0, 64));
    EXPECT(refused(Kind::data, 1, 0, 64));                           // bytes are missing
    EXPECT(refused(Kind::data, 0, path::areas, 64));                 // no such area
    EXPECT(refused(Kind::data, 0, 0, 0));                            // nothing
    EXPECT(refused(Kind::data, 0, 0, path::area_sizes[0] + 1));      // more than fits
    EXPECT(refused(Kind::state, 0, 0, sizeof(State) - 1));           // not whole
    EXPECT(refused(Kind::taken, path::give_back_bytes - 10, 0, 11)); // past the area
    EXPECT(refused(Kind::taken, UINT64_MAX - 5, 0, 11));             // and around
    EXPECT(refused(static_cast<Kind>(99), 0, 0, 8) && refused(Kind::hello, 0, 0, 8));
}

// The far end's service looks once for what it was asked to attend to. A state cannot be told while the program changes
// it: here, bytes that were written in front of the end of an epoch were not collected.
void test_attention_is_asked_for_behind_the_state() {
    Host a(0);
    Host b(1);
    settle(a, b);
    a.out().writer.epoch.fetch_add(1);
    a.in().reader.request.store(path::request_of(1, path::return_to_kernel));
    const uint64_t head = a.out().writer.head.exchange(path::ring_bytes); // no reader takes that many
    a.mirror.attended();
    carry(a, b);
    EXPECT_EQ(b.fields().asked.load(), 0);
    a.out().writer.head.store(head);
    carry(a, b);
    EXPECT_EQ(b.fields().asked.load(), 1);
    EXPECT_EQ(b.out().reader.request.load(), path::request_of(1, path::return_to_kernel));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_bytes_come_to_the_other_segment),
        FABTEST(test_a_ring_is_filled_and_grows_as_it_does_on_one_host),
        FABTEST(test_what_is_not_read_holds_the_writer_back),
        FABTEST(test_a_consent_is_granted_to_the_far_writer),
        FABTEST(test_a_consent_comes_back_if_it_was_not_used),
        FABTEST(test_a_consent_that_was_used_does_not_come_back),
        FABTEST(test_an_epoch_is_known_there_with_all_in_front_of_it),
        FABTEST(test_a_close_waits_for_what_is_in_front),
        FABTEST(test_a_return_behind_a_close_is_no_matter),
        FABTEST(test_a_sleeper_is_named_when_bytes_come),
        FABTEST(test_a_sleeper_is_named_when_the_switch_comes_behind_the_bytes),
        FABTEST(test_who_sleeps_on_the_socket_has_a_frame_sent_by_the_far_program),
        FABTEST(test_a_writer_is_woken_when_half_is_free),
        FABTEST(test_what_is_given_back_goes_to_the_far_writer),
        FABTEST(test_what_is_given_back_is_told_before_the_tail),
        FABTEST(test_what_is_read_while_the_state_is_told_is_told),
        FABTEST(test_a_worker_sleeps_while_little_is_read),
        FABTEST(test_what_makes_no_sense_is_refused),
        FABTEST(test_attention_is_asked_for_behind_the_state),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
