// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The model with threads: each end has a program that writes, one that reads, and one thread that makes progress;
// whoever has something to post takes turns. For ThreadSanitizer above all: the bytes of the rings are shared with
// nothing but what a link promises to keep them apart. Bounded in bytes, not in time; a stream that no longer
// moves is given up.
#include "prov/rstream/test/wire_model.hpp"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "prov/rstream/wire/limits.hpp"

using namespace rstream::wire;

namespace {

// One direction: messages that were posted, and the staging bytes of those that arrived.
class Wire {
  public:
    explicit Wire(size_t depth) : depth_(depth) {}

    bool post(Message message) {
        const std::lock_guard lock(mutex_);
        if (messages_.size() >= depth_) {
            return false;
        }
        messages_.push_back(std::move(message));
        return true;
    }
    std::optional<Message> arrival() {
        const std::lock_guard lock(mutex_);
        if (messages_.empty()) {
            return std::nullopt;
        }
        Message message = std::move(messages_.front());
        messages_.pop_front();
        return message;
    }
    void complete(size_t length) {
        const std::lock_guard lock(mutex_);
        completed_ += length;
    }
    size_t completed() {
        const std::lock_guard lock(mutex_);
        return std::exchange(completed_, 0);
    }

  private:
    const size_t depth_;
    std::mutex mutex_;
    std::deque<Message> messages_;
    size_t completed_ = 0;
};

struct Options {
    bool headers = false;
    bool grows = false;
    bool nosy = false; // asks for the state of a link from threads that have no part in it, and closes late
};

struct End {
    End(int number, Dice& dice, bool grows)
        : side(number), first_staging(min_buffer + dice.below(16384)), first_ring(min_buffer + dice.below(16384)),
          staging(first_staging), rings(first_ring), credits(static_cast<uint16_t>(min_queue + dice.below(60))),
          out(2 + dice.below(30)), seed(dice.below(1 << 30)),
          link({first_staging, first_ring, credits, grows ? first_ring + 100000 : 0}) {}

    int side;
    size_t first_staging;
    size_t first_ring;
    Staging staging; // with `posting`
    Rings rings;     // but for `find`, the reader's
    uint16_t credits;
    Wire out;
    uint64_t seed;
    std::mutex posting;
    Link link;
};

class Model {
  public:
    Model(uint64_t seed, const Options& options)
        : dice_(seed), options_(options), ends_{{0, dice_, options.grows}, {1, dice_, options.grows}} {
        for (End& end : ends_) {
            end.link.open(exchanged(peer(end).first_ring, peer(end).credits, options.grows), options.headers, 1 << 20);
        }
    }

    std::string run() {
        std::vector<std::thread> threads;
        for (End& end : ends_) {
            threads.emplace_back([&] { writes(end); });
            threads.emplace_back([&] { reads(end); });
            threads.emplace_back([&] { progresses(end); });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        const std::lock_guard lock(failing_);
        return failure_;
    }
    [[nodiscard]] uint64_t growths() const { return ends_[0].rings.growths() + ends_[1].rings.growths(); }

  private:
    static constexpr uint64_t total = 500000; // bytes in each direction

    End& peer(const End& end) { return ends_[1 - end.side]; }

    void failed(const std::string& text) {
        const std::lock_guard lock(failing_);
        if (failure_.empty()) {
            failure_ = text;
        }
        stop_ = true;
    }
    void moved() { moves_.fetch_add(1, std::memory_order_relaxed); }

    // A thread that has nothing to do. False once all is lost.
    class Patience {
      public:
        explicit Patience(Model& model) : model_(model) {}
        bool wait() {
            std::this_thread::yield();
            const uint64_t moves = model_.moves_.load(std::memory_order_relaxed);
            const auto now = std::chrono::steady_clock::now();
            if (moves != seen_) {
                seen_ = moves;
                since_ = now;
            } else if (now - since_ > std::chrono::seconds(10)) {
                model_.failed("nothing moves any more");
            }
            return !model_.stop_;
        }

      private:
        Model& model_;
        uint64_t seen_ = 0;
        std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
    };

    // With `posting` held.
    bool gives_to_core(End& end, const Post& post, std::vector<uint8_t> bytes) {
        if (!end.out.post(Message(post, options_.headers, end.link.peer_ring().key,
                                  end.staging.of(post.chunk.staging_moved), std::move(bytes)))) {
            end.link.undo(post);
            return false;
        }
        moved();
        return true;
    }
    void posts(End& end) {
        while (const auto post = end.link.next()) {
            if (!gives_to_core(end, *post, {})) {
                return;
            }
        }
    }

    // Up to `length` bytes of the stream from `at` on; how many were taken.
    size_t sends(End& end, uint64_t at, size_t length, bool straight) {
        const std::lock_guard lock(end.posting);
        if (straight) {
            const auto post = end.link.bypass(length);
            std::vector<uint8_t> bytes;
            for (size_t i = 0; post && i < length; ++i) {
                bytes.push_back(pattern(end.side, at + i));
            }
            return post && gives_to_core(end, *post, std::move(bytes)) ? length : 0;
        }
        const Extent extent = end.link.free_extent(length);
        uint8_t* to = end.staging.at(extent);
        for (size_t i = 0; i < extent.length; ++i) {
            to[i] = pattern(end.side, at + i);
        }
        if (extent.length != 0) {
            end.link.stage(extent.length);
        }
        posts(end);
        return extent.length;
    }

    void writes(End& end) {
        Dice dice(end.seed);
        Patience patience(*this);
        for (uint64_t at = 0; at < total && patience.wait();) {
            const size_t length = std::min<uint64_t>(dice.size(dice.percent(80) ? 200 : 30000), total - at);
            at += sends(end, at, length, dice.percent(20));
            if (options_.grows && dice.below(50) == 0) {
                grows_staging(end, dice.below(20000));
            }
        }
        ends_stream(end, false);
        if (options_.nosy) {
            while (!end.link.all_arrived() && patience.wait()) {
            }
            ends_stream(end, true);
        }
        written_.fetch_add(1);
    }

    void grows_staging(End& end, size_t by) {
        const std::lock_guard lock(end.posting);
        if (!end.staging.settle(end.link)) {
            failed("a staging ring was left that is still in use");
        }
        if (!end.link.staging_moves()) {
            const size_t size = end.link.staging_size();
            const bool shrinks = end.link.unreleased() == 0 && size > 2 * min_buffer;
            end.staging.move(end.link, shrinks ? size / 2 : size + 1 + by);
        }
    }

    // What a reader does about a ring of another size when it finds nothing to read.
    void grows_ring(End& end, Dice& dice) {
        if (end.link.settle()) {
            end.rings.settle();
        }
        if (end.link.growth_wanted()) {
            const size_t more = end.link.ring_limit() - end.link.ring_size();
            end.link.supply(end.rings.make(end.link.ring_size() + 1 + dice.below(more)));
            const std::lock_guard lock(end.posting);
            posts(end);
        } else if (options_.grows && end.link.may_shrink() && end.link.ring_size() > end.first_ring &&
                   dice.below(10) == 0) {
            const size_t less = end.link.ring_size() - end.first_ring;
            end.link.supply(end.rings.make(end.link.ring_size() - 1 - dice.below(less)));
            const std::lock_guard lock(end.posting);
            posts(end);
        }
    }

    void ends_stream(End& end, bool closed) {
        const std::lock_guard lock(end.posting);
        end.link.finish(closed);
        posts(end);
    }

    void reads(End& end) {
        Dice dice(end.seed + 1);
        Patience patience(*this);
        size_t wanted = 1;
        for (uint64_t at = 0; at < total && patience.wait();) {
            const bool last = end.link.peer_finished(); // asked first: all that came before it is readable
            const size_t readable = end.link.readable();
            grows_ring(end, dice);
            if (readable < wanted && !last) {
                continue;
            }
            const Extent piece = end.link.peek(dice.size(end.link.ring_size()));
            const uint8_t* got = end.rings.at(piece);
            for (size_t i = 0; i < piece.length; ++i) {
                if (got[i] != pattern(1 - end.side, at + i)) {
                    return failed("another byte at position " + std::to_string(at + i));
                }
            }
            if (piece.length == 0 && last) {
                return failed("the stream ended after " + std::to_string(at));
            }
            end.link.consume(piece.length);
            at += piece.length;
            wanted = dice.percent(20) ? dice.size(end.first_ring / 2) : 1;
            if (end.link.control_due()) {
                const std::lock_guard lock(end.posting);
                posts(end);
            }
        }
    }

    [[nodiscard]] bool all_done() const {
        return written_.load() == 2 && ends_[0].link.all_arrived() && ends_[1].link.all_arrived();
    }

    void progresses(End& end) {
        Patience patience(*this);
        Wire& in = peer(end).out;
        while (patience.wait() && !all_done()) {
            while (auto message = in.arrival()) {
                const Memory ring = end.rings.find(message->key);
                if (message->data && (!ring || !message->place(*ring))) {
                    return failed("a write outside the ring");
                }
                message->staging.reset();
                if (const char* broken = message->announce(end.link)) {
                    return failed(std::string("end ") + std::to_string(end.side) + " says: " + broken);
                }
                in.complete(message->data && !message->chunk.bypass ? message->chunk.length : 0);
                moved();
            }
            if (const size_t length = end.out.completed()) {
                end.link.release(length);
            }
            if (options_.nosy) {
                busy_.fetch_add(end.link.all_arrived() || end.link.control_due());
            }
            const std::lock_guard lock(end.posting);
            posts(end);
        }
    }

    Dice dice_;
    Options options_;
    End ends_[2];
    std::atomic<uint64_t> moves_{0};
    std::atomic<uint64_t> busy_{0};
    std::atomic<int> written_{0};
    std::atomic<bool> stop_{false};
    std::mutex failing_;
    std::string failure_;
};

void check(const Options& options) {
    uint64_t growths = 0;
    assert_string_equal(first_failure(8,
                                      [&](uint64_t seed) {
                                          Model model(seed, options);
                                          std::string failure = model.run();
                                          growths += model.growths();
                                          return failure;
                                      }),
                        "");
    assert_true(options.grows || growths == 0);
}

void test_threads_with_immediates(void**) { check({}); }
void test_threads_with_headers(void**) { check({.headers = true}); }
void test_threads_with_rings_that_grow(void**) { check({.grows = true}); }
void test_threads_with_headers_and_rings_that_grow(void**) { check({.headers = true, .grows = true, .nosy = true}); }
void test_state_may_be_asked_from_any_side(void**) { check({.nosy = true}); }

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_with_immediates),
        cmocka_unit_test(test_threads_with_headers),
        cmocka_unit_test(test_threads_with_rings_that_grow),
        cmocka_unit_test(test_threads_with_headers_and_rings_that_grow),
        cmocka_unit_test(test_state_may_be_asked_from_any_side),
    };
    return RUN_TAP(tests);
}
