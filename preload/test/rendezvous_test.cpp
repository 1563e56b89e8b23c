// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the service looks connections up in: by their ends while it agrees on them, and by their tokens afterwards. And
// which messages it takes for what they say.
#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "fabtests/common/test.hpp"
#include "preload/connection/kept_state.hpp"
#include "preload/rendezvous/message.hpp"
#include "preload/rendezvous/pending.hpp"
#include "preload/rendezvous/token_index.hpp"

namespace {

using namespace preload;
using namespace preload::rendezvous;

Ends ends_of(uint16_t own, uint16_t peer) {
    Ends ends;
    ends.own.port = own;
    ends.peer.port = peer;
    return ends;
}

Upgrade upgrade_of(uint16_t own, uint16_t peer, int fd = 0) {
    Upgrade upgrade;
    upgrade.ends = ends_of(own, peer);
    upgrade.fd = fd;
    return upgrade;
}

void test_pending_ones_are_found_by_their_ends() {
    const auto table = std::make_unique<PendingTable>();
    std::map<std::pair<uint16_t, uint16_t>, Pending*> expected;
    std::mt19937 random(1);
    for (int i = 0; i < 100000; ++i) {
        const auto own = static_cast<uint16_t>(random() % 100);
        const auto peer = static_cast<uint16_t>(random() % 60);
        Pending* found = table->find(ends_of(own, peer));
        const auto place = expected.find({own, peer});
        EXPECT(found == (place != expected.end() ? place->second : nullptr));
        if (found != nullptr) {
            EXPECT_EQ(found->upgrade.fd, own + peer);
            table->remove(*found);
            expected.erase(place);
        } else {
            Pending* made = table->add(upgrade_of(own, peer, own + peer));
            EXPECT(made != nullptr);
            EXPECT(made->offer == nullptr);
            made->ready_sent_on = reinterpret_cast<Channel*>(1); // the next one is not to have it
            expected[{own, peer}] = made;
        }
    }
    std::set<Pending*> seen;
    table->for_each([&](Pending& one) { EXPECT(seen.insert(&one).second); });
    EXPECT_EQ(seen.size(), expected.size());
}

void test_the_youngest_of_those_with_the_same_ends_is_found() {
    const auto table = std::make_unique<PendingTable>();
    Pending* old = table->add(upgrade_of(1, 2, 3));
    Pending* young = table->add(upgrade_of(1, 2, 4));
    EXPECT(table->find(ends_of(1, 2)) == young);
    EXPECT(table->find(old->upgrade) == old);
    EXPECT(table->find(young->upgrade) == young);
    table->remove(*young);
    EXPECT(table->find(ends_of(1, 2)) == old);
    table->remove(*old);
    EXPECT(table->find(ends_of(1, 2)) == nullptr);
}

void test_a_full_table_takes_no_more_until_one_is_removed() {
    const auto table = std::make_unique<PendingTable>();
    std::vector<Pending*> made;
    for (size_t i = 0; i < PendingTable::capacity; ++i) {
        EXPECT(!table->full());
        made.push_back(table->add(upgrade_of(static_cast<uint16_t>(i), 1)));
        EXPECT(made.back() != nullptr);
    }
    EXPECT(table->full());
    EXPECT(table->add(upgrade_of(1, 2)) == nullptr);
    table->remove(*made[17]);
    EXPECT(!table->full());
    EXPECT(table->add(upgrade_of(1, 2)) != nullptr);
    EXPECT(table->full());
}

// A connection with a number of its own in the table, which refers to nothing in the kernel.
struct Token {
    explicit Token(uint64_t value) {
        static int next = 500;
        state.token = value;
        connection.state = &state;
        connection.fd = next++;
        uintptr_t before = 0;
        EXPECT(table::put(connection.fd, reinterpret_cast<uintptr_t>(&connection), before));
    }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;
    ~Token() { (void)table::take(connection.fd); }
    ConnectionState state;
    Connection connection;
};

size_t count(const TokenIndex& index, uint64_t token) {
    size_t found = 0;
    EXPECT(index.for_each(token, [&](Connection&) { ++found; }));
    return found;
}

void test_those_that_await_a_meeting_are_in_order_of_age() {
    std::array<Pending, 100> all;
    AwaitingList list;
    std::mt19937 random(1);
    std::multiset<uint64_t> expected;
    for (int i = 0; i < 100000; ++i) {
        Pending& one = all[random() % all.size()];
        if (one.awaits_meeting) {
            list.remove(one);
            expected.erase(expected.find(one.since));
        } else {
            one.since = random() % 1000;
            list.add(one);
            expected.insert(one.since);
        }
        EXPECT_EQ(list.oldest() != nullptr ? list.oldest()->since : UINT64_MAX,
                  expected.empty() ? UINT64_MAX : *expected.begin());
    }
    for (; !expected.empty(); expected.erase(expected.begin())) {
        EXPECT_EQ(list.oldest()->since, *expected.begin());
        list.remove(*list.oldest());
    }
    EXPECT(list.oldest() == nullptr);
}

void test_both_ends_of_a_connection_are_found_by_their_token() {
    const auto index = std::make_unique<TokenIndex>();
    Token one(0x1234567890);
    Token other(0x1234567890);
    index->note(one.state.token, one.connection);
    EXPECT_EQ(count(*index, one.state.token), 1U);
    index->note(one.state.token, other.connection);
    index->note(one.state.token, other.connection);
    EXPECT_EQ(count(*index, one.state.token), 2U);
    EXPECT_EQ(count(*index, 0x1234567891), 0U);
    other.state.token = 7;
    EXPECT_EQ(count(*index, 0x1234567890), 1U);
}

// Those that have another token by now make space; when there is none, the index says that it does not know.
void test_an_index_without_room_says_so() {
    constexpr uint64_t step = uint64_t{1} << 32; // the same place
    const auto index = std::make_unique<TokenIndex>();
    std::vector<std::unique_ptr<Token>> tokens;
    for (uint64_t i = 1; i <= TokenIndex::set_size; ++i) {
        tokens.push_back(std::make_unique<Token>(i * step));
        index->note(i * step, tokens.back()->connection);
    }
    tokens[3]->state.token = 5;
    Token next(100 * step);
    index->note(next.state.token, next.connection);
    EXPECT_EQ(count(*index, 100 * step), 1U);
    EXPECT_EQ(count(*index, step), 1U);
    Token last(101 * step);
    index->note(last.state.token, last.connection);
    EXPECT(!index->for_each(101 * step, [](Connection&) {}));
    EXPECT_EQ(count(*index, 6), 0U); // elsewhere
}

void test_a_closed_connection_is_not_found_by_its_token() {
    const auto index = std::make_unique<TokenIndex>();
    Token one(9);
    index->note(9, one.connection);
    (void)table::take(one.connection.fd);
    EXPECT_EQ(count(*index, 9), 0U);
}

// A connection whose state can be released and recycled.
struct Recyclable {
    static constexpr int fd = 400;
    ConnectionState* open() {
        ConnectionState* state = new_state();
        EXPECT(state != nullptr);
        connection.state = state;
        uintptr_t before = 0;
        EXPECT(table::put(fd, reinterpret_cast<uintptr_t>(&connection), before));
        return state;
    }
    void close() {
        (void)table::take(fd);
        release_state(connection.state.load());
    }
    Connection connection;
};

void test_a_state_that_the_service_uses_is_recycled_afterwards_only() {
    constexpr int several = 600; // more than are allocated at a time
    Recyclable one;
    ConnectionState* const first = one.open();
    {
        const KeptState kept(one.connection, Recyclable::fd);
        EXPECT(kept.get() == first);
        one.close();
        for (int i = 0; i < several; ++i) {
            EXPECT(new_state() != first);
        }
        EXPECT(!KeptState(one.connection, Recyclable::fd)); // it is closed
    }
    bool recycled = false;
    for (int i = 0; i < several && !recycled; ++i) {
        recycled = new_state() == first;
    }
    EXPECT(recycled);
}

// What the service does after a look at a connection must not be done to the next one that gets its memory.
void test_a_connection_that_the_service_uses_is_recycled_afterwards_only() {
    constexpr int several = 200; // more than are allocated at a time
    Connection* const first = new_connection();
    EXPECT(first != nullptr);
    first->state = new_state();
    uintptr_t before = 0;
    EXPECT(table::put(Recyclable::fd, reinterpret_cast<uintptr_t>(first), before));
    {
        const KeptState kept(*first, Recyclable::fd);
        EXPECT(kept.get() == first->state.load());
        (void)table::take(Recyclable::fd);
        free_connection(*first);
        for (int i = 0; i < several; ++i) {
            EXPECT(new_connection() != first);
        }
    }
    bool recycled = false;
    for (int i = 0; i < several && !recycled; ++i) {
        recycled = new_connection() == first;
    }
    EXPECT(recycled);
}

// The end that the service finds is that of the connection it has looked at, and not of the next one with its state.
void test_an_end_is_noted_for_no_other_connection() {
    constexpr int rounds = 200000;
    Recyclable one;
    std::atomic<bool> done{false};
    std::thread service([&] {
        while (!done.load()) {
            const KeptState kept(one.connection, Recyclable::fd);
            if (kept) {
                kept.get()->ended = true;
            }
        }
    });
    int wrong = 0;
    for (int i = 0; i < rounds; ++i) {
        ConnectionState* fresh = new_state();
        wrong += fresh->ended ? 1 : 0;
        one.connection.state = fresh;
        uintptr_t before = 0;
        (void)table::put(Recyclable::fd, reinterpret_cast<uintptr_t>(&one.connection), before);
        one.close();
    }
    done = true;
    service.join();
    EXPECT_EQ(wrong, 0);
}

template <class Message> std::optional<Message> parsed(const Message& message, size_t size = sizeof(Message)) {
    std::vector<uint8_t> bytes(size);
    if (size != 0) {
        memcpy(bytes.data(), &message, std::min(size, sizeof(message)));
    }
    return parse<Message>(bytes);
}

void test_a_proposal_is_taken_for_one_only_if_it_is_one() {
    Proposal good;
    good.kind = Proposal::offer;
    good.token = 1;
    EXPECT(parsed(good).has_value());
    EXPECT(!parsed(good, sizeof(good) - 1).has_value());
    EXPECT(!parsed(good, sizeof(good) + 1).has_value());
    EXPECT(!parsed(good, 0).has_value());
    for (const uint32_t kind : {0U, 5U, UINT32_MAX}) {
        Proposal bad = good;
        bad.kind = kind;
        EXPECT(!parsed(bad).has_value());
    }
    Proposal bad = good;
    bad.version += 1;
    EXPECT(!parsed(bad).has_value());
    bad = good;
    bad.magic ^= 1;
    EXPECT(!parsed(bad).has_value());
    bad = good;
    bad.token = 0;
    EXPECT(!parsed(bad).has_value());
    bad.kind = Proposal::ready;
    EXPECT(parsed(bad).has_value());
    bad.token = 1;
    EXPECT(!parsed(bad).has_value());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_pending_ones_are_found_by_their_ends),
        FABTEST(test_the_youngest_of_those_with_the_same_ends_is_found),
        FABTEST(test_a_full_table_takes_no_more_until_one_is_removed),
        FABTEST(test_those_that_await_a_meeting_are_in_order_of_age),
        FABTEST(test_both_ends_of_a_connection_are_found_by_their_token),
        FABTEST(test_an_index_without_room_says_so),
        FABTEST(test_a_closed_connection_is_not_found_by_its_token),
        FABTEST(test_a_state_that_the_service_uses_is_recycled_afterwards_only),
        FABTEST(test_a_connection_that_the_service_uses_is_recycled_afterwards_only),
        FABTEST(test_an_end_is_noted_for_no_other_connection),
        FABTEST(test_a_proposal_is_taken_for_one_only_if_it_is_one),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
