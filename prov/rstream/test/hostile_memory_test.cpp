// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a peer can do with the address and the key that it was given. On a core with an adapter nothing of ours stands
// between the peer and the memory: that it can write to the receive ring of its own stream, and do nothing else, is a
// matter of what was registered, and how. Cores that name memory by its address let the test look at what lies around
// the ring.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "prov/rstream/test/hostile_peer.hpp"

using namespace fabtests;
using namespace hostile;

namespace {

constexpr size_t page = 4096;
constexpr size_t near = 64;

// What is there, if it is mapped.
std::optional<std::vector<std::byte>> look_at(uint64_t address, size_t length) {
    std::vector<std::byte> bytes(length);
    iovec to{bytes.data(), length};
    iovec from{std::bit_cast<void*>(address), length};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(length)) {
        return std::nullopt;
    }
    return bytes;
}

// The pages before and behind a ring: whatever lies there, or else pages of the test's own, so that there is something
// to do harm to.
class Around {
  public:
    Around(const Scene& scene, const wire::Hello& ring) : before_(ring.ring_address - page) {
        if (scene.virtual_addresses()) {
            behind_ = ring.ring_address + ring.ring_size;
            for (const uint64_t at : {before_, behind_}) {
                void* wanted = std::bit_cast<void*>(at);
                void* got = mmap(wanted, page, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                if (got == wanted) {
                    memset(got, 0x5a, page);
                    own_.push_back(got);
                }
            }
            was_before_ = look_at(before_, page);
            was_behind_ = look_at(behind_, page);
            EXPECT(was_before_.has_value());
            EXPECT(was_behind_.has_value());
        }
    }
    Around(const Around&) = delete;
    Around& operator=(const Around&) = delete;
    ~Around() {
        for (void* one : own_) {
            munmap(one, page);
        }
    }
    // What is the test's own is as it was. What others own may change by itself, but not to what the peer writes: the
    // nearest bytes tell.
    void expect_unchanged() const {
        if (behind_ == 0) {
            return;
        }
        const auto before = look_at(before_, page);
        const auto behind = look_at(behind_, page);
        EXPECT(before.has_value());
        EXPECT(behind.has_value());
        if (own_.size() == 2) {
            expect_same("before", *was_before_, *before);
            expect_same("behind", *was_behind_, *behind);
        }
        const auto spoilt = [](std::byte was, std::byte is) { return was != is && is == Raw::poison; };
        for (size_t i = 0; i < near; ++i) {
            EXPECT(!spoilt(was_before_->at(page - 1 - i), before->at(page - 1 - i)));
            EXPECT(!spoilt(was_behind_->at(i), behind->at(i)));
        }
    }

  private:
    static void expect_same(const char* where, const std::vector<std::byte>& was, const std::vector<std::byte>& is) {
        if (was == is) {
            return;
        }
        const auto first = std::mismatch(was.begin(), was.end(), is.begin());
        const auto changed = [](std::byte a, std::byte b) { return a != b ? 1 : 0; };
        const int count = std::inner_product(was.begin(), was.end(), is.begin(), 0, std::plus<>(), changed);
        throw Failure("the page " + std::string(where) + " the ring has " + std::to_string(count) +
                      " other bytes; at " + std::to_string(first.first - was.begin()) + " there is " +
                      std::to_string(std::to_integer<int>(*first.second)));
    }

    uint64_t before_;
    uint64_t behind_ = 0; // 0 where addresses say nothing of where the memory is
    std::vector<void*> own_;
    std::optional<std::vector<std::byte>> was_before_;
    std::optional<std::vector<std::byte>> was_behind_;
};

// ---- reading

// What a region may be used for is for the adapter to check. Linux's siw checks bounds and domain of what it is asked
// to read, not whether it may be read (siw_qp_sq_proc_tx calls siw_check_sgl_tx with no permissions, seen in 6.1).
void need_read_permission() {
    const Scene scene;
    if (std::string(scene.raw_host.info->domain_attr->name).starts_with("siw")) {
        throw Skip("Linux's siw lets all be read that is registered");
    }
}

void expect_read_fails(Scene& scene, Raw& raw, Stream& victim, uint64_t address, size_t length, uint64_t key) {
    EXPECT_RESULT(raw.peep(address, length, key), 0);
    EXPECT(scene.until(raw, victim, [&] { return raw.outcome != FI_EINPROGRESS; }));
    EXPECT(raw.outcome != 0);
    EXPECT(std::all_of(raw.booty(), raw.booty() + length, [](std::byte b) { return b == Raw::poison; }));
    expect_reset(scene, victim, raw);
    scene.others_carry_on();
}

void expect_read_fails(int64_t offset, size_t length) {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    expect_read_fails(scene, raw, *victim, raw.peer.ring_address + static_cast<uint64_t>(offset), length,
                      raw.peer.ring_key);
}

void test_the_ring_can_not_be_read() {
    need_read_permission();
    expect_read_fails(0, 1);
    expect_read_fails(100, 64);
}

void test_what_lies_around_the_ring_can_not_be_read() {
    const auto size = static_cast<int64_t>(Scene().witness.server->get_option(FI_OPT_RECV_BUF_SIZE));
    expect_read_fails(-1, 1);
    expect_read_fails(size, 1);
    expect_read_fails(-32, 64);
    expect_read_fails(size - 32, 64);
}

void test_the_ring_of_another_stream_can_not_be_read() {
    need_read_permission();
    Scene scene;
    Raw owner(scene);
    const auto other = scene.attack(owner);
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    expect_read_fails(scene, raw, *victim, owner.peer.ring_address, 64, owner.peer.ring_key);
}

// So that a peer for whom the core opens the ring after all learns nothing but its own words.
void test_the_ring_holds_nothing_of_ours() {
    Scene scene;
    if (!scene.virtual_addresses()) {
        throw Skip("the addresses of this core say nothing of where the memory is");
    }
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    const auto ring = look_at(raw.peer.ring_address, raw.peer.ring_size);
    EXPECT(ring.has_value());
    EXPECT(std::all_of(ring->begin(), ring->end(), [](std::byte b) { return b == std::byte{}; }));
}

// ---- writing

void expect_write_changes_nothing(int64_t offset, size_t length) {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    const Around around(scene, raw.peer);
    raw.poke(raw.peer.ring_address + static_cast<uint64_t>(offset), length, raw.peer.ring_key);
    expect_reset(scene, *victim, raw);
    around.expect_unchanged();
    scene.others_carry_on();
}

void test_a_write_before_the_ring_changes_nothing() {
    expect_write_changes_nothing(-1, 1);
    expect_write_changes_nothing(-32, 64);
}

void test_a_write_behind_the_ring_changes_nothing() {
    const auto size = static_cast<int64_t>(Scene().witness.server->get_option(FI_OPT_RECV_BUF_SIZE));
    expect_write_changes_nothing(size, 1);
    expect_write_changes_nothing(size - 32, 64);
    expect_write_changes_nothing(size - 2000, page); // of more than one frame
}

// What is written to the ring and never announced is not part of the stream.
void test_an_unannounced_write_to_the_ring_puts_nothing_in_the_stream() {
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    EXPECT_RESULT(raw.poke(raw.peer.ring_address, 64, raw.peer.ring_key), 0);
    EXPECT_RESULT(raw.poke(raw.peer.ring_address + raw.peer.ring_size - 64, 64, raw.peer.ring_key), 0);
    EXPECT_RESULT(raw.data(5), 0); // only now, and only five
    EXPECT(scene.until(raw, *victim, [&] { return peek_recv(*victim) > 0; }));
    char bytes[64];
    EXPECT_RESULT(recv(*victim, bytes, sizeof(bytes)), 5);
    EXPECT_RESULT(recv(*victim, bytes, sizeof(bytes)), -FI_EAGAIN);
    scene.others_carry_on();
}

// ---- keys of others

// libfabric has protection domains and nothing narrower: with the key of another stream of the same domain a peer can
// spoil bytes that are on their way there, if the core lets it. It can not make them part of that stream.
void test_a_key_of_another_stream_of_the_domain_puts_nothing_in_that_stream() {
    Scene scene;
    Raw owner(scene);
    const auto other = scene.attack(owner);
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    const Around around(scene, owner.peer);
    raw.poke(owner.peer.ring_address + 100, 64, owner.peer.ring_key);
    raw.data(5); // comes behind it, or not at all
    EXPECT(scene.until(raw, *victim, [&] { return peek_recv(*victim) != -FI_EAGAIN; }));
    const ssize_t came = peek_recv(*victim);
    printf("# with the key of another stream of the domain, its ring %s be written to\n",
           came == 5 ? "can" : "can not");
    if (came != 5) {
        expect_reset(scene, *victim, raw);
    }
    around.expect_unchanged();
    EXPECT_RESULT(peek_recv(*other), -FI_EAGAIN);
    EXPECT_RESULT(owner.data(5), 0);
    EXPECT(scene.until(owner, *other, [&] { return peek_recv(*other) != -FI_EAGAIN; }));
    EXPECT_RESULT(peek_recv(*other), 5);
    scene.others_carry_on();
}

void test_a_key_of_another_domain_is_of_no_use() {
    Scene elsewhere;
    Raw owner(elsewhere);
    const auto other = elsewhere.attack(owner);
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    const auto before = look_at(owner.peer.ring_address, 64);
    raw.poke(owner.peer.ring_address, 64, owner.peer.ring_key);
    expect_reset(scene, *victim, raw);
    EXPECT(look_at(owner.peer.ring_address, 64) == before);
    EXPECT_RESULT(peek_recv(*other), -FI_EAGAIN);
    elsewhere.others_carry_on();
    scene.others_carry_on();
}

void test_the_key_of_a_closed_stream_is_of_no_use() {
    Scene scene;
    wire::Hello old;
    {
        Raw owner(scene);
        auto other = scene.attack(owner);
        old = owner.peer;
        owner.close();
        scene.ended(*other);
        other.reset();
    }
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    EXPECT(old.ring_key != raw.peer.ring_key);
    const Around around(scene, old);
    raw.poke(old.ring_address, 64, old.ring_key);
    expect_reset(scene, *victim, raw);
    around.expect_unchanged();
    scene.others_carry_on();
}

// ---- keepalive

// The question that keepalive asks: it needs nothing that can be read.
void test_a_read_of_no_bytes_succeeds_and_reads_nothing() {
    if (core_name() == "tcp") {
        throw Skip("on tcp the kernel asks");
    }
    Scene scene;
    Raw raw(scene);
    const auto victim = scene.attack(raw);
    for (int i = 0; i < 3; ++i) {
        EXPECT_RESULT(raw.peep(raw.peer.ring_address, 0, raw.peer.ring_key), 0);
        // The peer's program has no part in it.
        const auto start = Clock::now();
        while (raw.outcome == FI_EINPROGRESS && milliseconds_since(start) < patience(10000)) {
            raw.progress();
        }
        EXPECT_EQ(raw.outcome, 0);
        EXPECT(std::all_of(raw.booty(), raw.booty() + page, [](std::byte b) { return b == Raw::poison; }));
    }
    EXPECT_RESULT(peek_recv(*victim), -FI_EAGAIN);
    EXPECT_RESULT(raw.data(5), 0);
    EXPECT(scene.until(raw, *victim, [&] { return peek_recv(*victim) == 5; }));
    scene.others_carry_on();
}

} // namespace

int main() {
    show_core();
    // The verbs core registers what its cache holds for reading and writing from afar, whatever was asked for: so the
    // cache is off here, as fi_rstream(7) advises where peers are not trusted. FI_MR_CACHE_MAX_COUNT=1024 shows it.
    setenv("FI_MR_CACHE_MAX_COUNT", "0", 0);
    const CMUnitTest tests[] = {
        FABTEST(test_the_ring_can_not_be_read),
        FABTEST(test_what_lies_around_the_ring_can_not_be_read),
        FABTEST(test_the_ring_of_another_stream_can_not_be_read),
        FABTEST(test_the_ring_holds_nothing_of_ours),
        FABTEST(test_a_write_before_the_ring_changes_nothing),
        FABTEST(test_a_write_behind_the_ring_changes_nothing),
        FABTEST(test_an_unannounced_write_to_the_ring_puts_nothing_in_the_stream),
        FABTEST(test_a_key_of_another_stream_of_the_domain_puts_nothing_in_that_stream),
        FABTEST(test_a_key_of_another_domain_is_of_no_use),
        FABTEST(test_the_key_of_a_closed_stream_is_of_no_use),
        FABTEST(test_a_read_of_no_bytes_succeeds_and_reads_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
