// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The arithmetic of the ring against a queue, the messages of the rendezvous, and the buffers of a call. All of it is
// free of I/O.
#include <algorithm>
#include <random>
#include <vector>

#include "base/copy.hpp"
#include "fabtests/common/test.hpp"
#undef skip // cmocka's macro, and a member of Parts
#include "preload/connection/parts.hpp"
#include "preload/path/ring.hpp"
#include "preload/path/segment.hpp"
#include "preload/rendezvous/message.hpp"

namespace {

using namespace preload;
using path::area_offset;
using path::area_sizes;
using path::areas;
using path::Cursor;
using path::Direction;

// Both sides of a direction, as stream.cpp and stream_write.cpp use them.
class Ring {
  public:
    // At most size bytes, numbered from the beginning of the stream. Returns how many there was space for.
    uint64_t write(uint64_t size) {
        uint64_t space = 0;
        EXPECT(writable(direction, writer, space));
        EXPECT(space <= writer.capacity());
        const uint64_t total = std::min(space, size);
        for (uint64_t left = total; left != 0;) {
            const size_t n = writer.contiguous(left);
            EXPECT(n > 0 && writer.offset_of(writer.position) + n <= memory.size());
            uint8_t* to = &memory[writer.offset_of(writer.position)];
            for (size_t i = 0; i < n; ++i) {
                to[i] = pattern(writer.position + i);
            }
            writer.position += n;
            left -= n;
        }
        direction.writer.head.store(writer.position);
        return total;
    }
    uint64_t read(uint64_t size) {
        uint64_t there = 0;
        EXPECT(readable(direction, reader, there));
        EXPECT(there <= reader.capacity());
        const uint64_t total = std::min(there, size);
        for (uint64_t left = total; left != 0;) {
            const size_t n = reader.contiguous(left);
            EXPECT(n > 0 && reader.offset_of(reader.position) + n <= memory.size());
            const uint8_t* got = &memory[reader.offset_of(reader.position)];
            uint64_t first_wrong = reader.position; // one comparison for each byte, one check for all of them
            for (size_t i = 0; i < n && got[i] == pattern(reader.position + i); ++i) {
                ++first_wrong;
            }
            EXPECT_EQ(first_wrong, reader.position + n);
            reader.position += n;
            left -= n;
        }
        direction.reader.tail.store(reader.position);
        return total;
    }
    void write_all(uint64_t size) { EXPECT_EQ(write(size), size); }
    void read_all() {
        while (reader.position != writer.position) {
            EXPECT(read(UINT64_MAX) != 0);
        }
    }
    uint64_t space() {
        uint64_t space = 0;
        EXPECT(writable(direction, writer, space));
        return space;
    }
    bool grow() { return path::grow(direction, writer); }
    // The two sides at a position far into the stream.
    void begin_at(uint64_t position, uint32_t area) {
        writer = reader = {position, position - position % 100, area};
        direction.writer.head = direction.reader.tail = position;
        direction.writer.grow_at = writer.base;
        direction.writer.grow_area = area;
    }

    static uint8_t pattern(uint64_t position) { return static_cast<uint8_t>((position * 2654435761U) >> 13); }

    Direction direction;
    Cursor writer;
    Cursor reader;
    std::vector<uint8_t> memory = std::vector<uint8_t>(path::ring_bytes);
};

void test_areas_lie_behind_each_other_in_the_ring() {
    size_t end = 0;
    for (uint32_t area = 0; area < areas; ++area) {
        EXPECT_EQ(area_offset(area), end);
        EXPECT_EQ(area_sizes[area] & (area_sizes[area] - 1), 0U);
        EXPECT_EQ(end % path::page, 0U);
        end += area_sizes[area];
    }
    EXPECT_EQ(end, path::ring_bytes);
}

void test_new_ring_is_empty_and_has_the_space_of_its_first_area() {
    Ring ring;
    EXPECT_EQ(ring.read(100), 0U);
    EXPECT_EQ(ring.space(), area_sizes[0]);
}

void test_bytes_wrap_at_the_end_of_every_area() {
    for (uint32_t area = 0; area < areas; ++area) {
        for (const uint64_t before : {uint64_t{1}, uint64_t{area_sizes[area]} - 1, uint64_t{area_sizes[area]}}) {
            Ring ring;
            ring.begin_at(5000, area);
            ring.write_all(before);
            ring.read_all();
            ring.write_all(area_sizes[area]);
            EXPECT_EQ(ring.space(), 0U);
            EXPECT_EQ(ring.read(UINT64_MAX), area_sizes[area]);
        }
    }
}

void test_positions_beyond_32_bits_do_not_matter() {
    for (const uint64_t position : {(uint64_t{1} << 32) - 5, uint64_t{1} << 40, (uint64_t{1} << 63) - 3}) {
        Ring ring;
        ring.begin_at(position, 0);
        ring.write_all(area_sizes[0]);
        EXPECT(ring.grow());
        ring.write_all(1000);
        ring.read_all();
    }
}

void test_reader_follows_growth_at_any_position() {
    for (const uint64_t unread : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{area_sizes[0]}}) {
        for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{8191}, uint64_t{8192}, uint64_t{20000}}) {
            Ring ring;
            for (uint64_t done = 0; done < first; ring.read_all()) {
                done += ring.write(std::min<uint64_t>(first - done, 777));
            }
            ring.write_all(unread);
            EXPECT(ring.grow());
            EXPECT_EQ(ring.space(), area_sizes[1]);
            ring.write_all(area_sizes[1]);
            if (unread != 0) {
                EXPECT_EQ(ring.read(UINT64_MAX), unread); // what is in one area at once
            }
            EXPECT_EQ(ring.read(UINT64_MAX), area_sizes[1]);
            EXPECT_EQ(ring.space(), area_sizes[1]);
        }
    }
}

void test_one_read_never_reaches_into_the_next_area() {
    Ring ring;
    ring.write_all(area_sizes[0]);
    EXPECT(ring.grow());
    ring.write_all(3);
    EXPECT_EQ(ring.read(area_sizes[0] - 1), area_sizes[0] - 1);
    EXPECT_EQ(ring.read(100), 1U);
    EXPECT_EQ(ring.read(100), 3U);
}

void test_ring_grows_again_only_when_the_reader_has_left_the_area_before() {
    Ring ring;
    ring.write_all(area_sizes[0]);
    EXPECT(ring.grow());
    ring.write_all(area_sizes[1]);
    EXPECT(!ring.grow()); // the reader is in the first area
    EXPECT_EQ(ring.read(area_sizes[0] - 1), area_sizes[0] - 1);
    EXPECT(!ring.grow());
    ring.read_all();
    ring.write_all(area_sizes[1]);
    EXPECT(ring.grow());
    ring.write_all(area_sizes[2]);
    EXPECT(!ring.grow()); // there is no larger one
    ring.read_all();
}

// The reader has read all of the first area, and has not yet looked whether there is a second one.
void test_ring_does_not_grow_again_past_a_reader_between_two_areas() {
    Ring ring;
    ring.write_all(area_sizes[0]);
    EXPECT_EQ(ring.read(UINT64_MAX), area_sizes[0]);
    ring.write_all(area_sizes[0]);
    EXPECT(ring.grow());
    ring.write_all(area_sizes[1]);
    EXPECT_EQ(ring.read(UINT64_MAX), area_sizes[0]); // the tail is where the second area begins
    if (ring.grow()) {
        ring.write_all(area_sizes[2]);
    }
    EXPECT_EQ(ring.read(UINT64_MAX), area_sizes[1]);
    ring.read_all();
}

void test_reading_in_part_frees_as_much_space() {
    Ring ring;
    ring.write_all(area_sizes[0]);
    EXPECT_EQ(ring.read(1000), 1000U);
    EXPECT_EQ(ring.space(), 1000U);
    ring.write_all(1000);
    EXPECT_EQ(ring.space(), 0U);
    ring.read_all();
    EXPECT_EQ(ring.space(), area_sizes[0]);
}

// What is read is compared by Ring, so that two counters say what a queue would.
void test_random_operations_agree_with_a_queue() {
    std::mt19937_64 random(20261122);
    for (int run = 0; run < 150; ++run) {
        Ring ring;
        uint64_t queued = 0;
        const uint64_t large = uint64_t{1} << (4 + random() % 16);
        for (int step = 0; step < 200; ++step) {
            switch (random() % 5) {
            case 0:
            case 1:
                queued += ring.write(1 + random() % large);
                break;
            case 2:
            case 3: {
                const uint64_t n = ring.read(1 + random() % large);
                EXPECT(n <= queued && (n != 0 || queued == 0));
                queued -= n;
                break;
            }
            default:
                if (ring.space() == 0) {
                    (void)ring.grow();
                }
            }
            EXPECT_EQ(ring.writer.position - ring.reader.position, queued);
            EXPECT(ring.space() <= ring.writer.capacity());
        }
        ring.read_all();
    }
}

// Values at which arithmetic goes wrong, near what is true.
uint64_t hostile(std::mt19937_64& random, uint64_t near) {
    const uint64_t delta = random() % 3 == 0 ? random() % 4 : random() % (path::ring_bytes * 2);
    switch (random() % 8) {
    case 0:
        return random();
    case 1:
        return UINT64_MAX - random() % 3;
    case 2:
        return near - delta;
    case 3:
        return (uint64_t{1} << 32) + delta;
    case 4:
        return near + (uint64_t{1} << (random() % 64));
    case 5:
        return 0;
    default:
        return near + delta;
    }
}

void test_lies_of_the_writer_never_lead_the_reader_out_of_an_area() {
    std::mt19937_64 random(4);
    uint64_t believed = 0;
    for (int run = 0; run < 200000; ++run) {
        Direction direction;
        Cursor reader;
        reader.area = static_cast<uint32_t>(random() % areas);
        reader.base = random() % 2 != 0 ? random() % 100000 : uint64_t{1} << 40;
        reader.position = reader.base + random() % (2 * path::ring_bytes);
        for (int step = 0; step < 4; ++step) {
            const uint64_t position = reader.position;
            direction.writer.head = hostile(random, position);
            direction.writer.grow_at = random() % 3 == 0 ? position : hostile(random, position);
            direction.writer.grow_area =
                static_cast<uint32_t>(random() % 4 == 0 ? hostile(random, reader.area) : random() % (areas + 1));
            uint64_t count = 0;
            if (!readable(direction, reader, count)) {
                break;
            }
            EXPECT(reader.area < areas && reader.base <= reader.position && reader.position == position);
            EXPECT(count <= reader.capacity());
            for (uint64_t left = count; left != 0;) {
                const size_t n = reader.contiguous(left);
                const size_t offset = reader.offset_of(reader.position);
                EXPECT(n > 0 && n <= left && offset >= area_offset(reader.area) &&
                       offset + n <= area_offset(reader.area) + reader.capacity());
                reader.position += n;
                left -= n;
            }
            believed += count;
        }
    }
    EXPECT(believed > 0);
}

void test_lies_of_the_reader_never_give_more_space_than_an_area_has() {
    std::mt19937_64 random(5);
    for (int run = 0; run < 200000; ++run) {
        Direction direction;
        Cursor writer;
        writer.area = static_cast<uint32_t>(random() % areas);
        writer.base = random() % 2 != 0 ? random() % 100000 : uint64_t{1} << 40;
        writer.position = writer.base + random() % (2 * path::ring_bytes);
        for (int step = 0; step < 4; ++step) {
            direction.reader.tail = hostile(random, writer.position);
            uint64_t space = 0;
            if (!writable(direction, writer, space)) {
                break;
            }
            EXPECT(space <= writer.capacity());
            for (uint64_t left = space; left != 0;) {
                const size_t n = writer.contiguous(left);
                const size_t offset = writer.offset_of(writer.position);
                EXPECT(n > 0 && n <= left && offset + n <= area_offset(writer.area) + writer.capacity());
                writer.position += n;
                left -= n;
            }
            direction.reader.tail = hostile(random, writer.position);
            (void)grow(direction, writer);
            EXPECT(writer.area < areas && writer.base <= writer.position);
        }
    }
}

void test_request_holds_its_epoch_and_what_is_asked() {
    for (const uint32_t epoch : {1U, 3U, path::max_epoch}) {
        for (const path::Request what : {path::return_quietly, path::return_to_kernel, path::halt, path::resend}) {
            const uint32_t request = path::request_of(epoch, what);
            EXPECT_EQ(path::requested_epoch(request), epoch);
            EXPECT(path::requests(request, epoch, what));
            EXPECT(!path::requests(request, epoch + 1, what));
        }
        EXPECT(!path::requests(path::request_of(epoch, path::resend), epoch, path::return_to_kernel));
    }
}

template <class Message> std::vector<uint8_t> bytes_of(const Message& message) {
    std::vector<uint8_t> bytes(sizeof(message));
    memcpy(bytes.data(), static_cast<const void*>(&message), sizeof(message));
    return bytes;
}

template <class Message> Message valid() {
    Message message;
    message.token = 7;
    if constexpr (requires { message.service; }) {
        message.service = 9;
    }
    return message;
}

template <class Message> void expect_exact_parse() {
    std::vector<uint8_t> bytes = bytes_of(valid<Message>());
    EXPECT(rendezvous::parse<Message>(bytes).has_value());
    EXPECT_EQ(rendezvous::parse<Message>(bytes)->token, 7U);
    for (size_t size = 0; size < bytes.size(); ++size) {
        EXPECT(!rendezvous::parse<Message>({bytes.data(), size}).has_value());
    }
    bytes.push_back(0);
    EXPECT(!rendezvous::parse<Message>(bytes).has_value());
    bytes.pop_back();
    for (size_t bit = 0; bit < 64; ++bit) { // of the magic
        std::vector<uint8_t> spoiled = bytes;
        spoiled[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
        EXPECT(!rendezvous::parse<Message>(spoiled).has_value());
    }
}

void test_message_is_taken_with_its_size_and_magic_only() {
    expect_exact_parse<rendezvous::Hello>();
    expect_exact_parse<rendezvous::Answer>();
    expect_exact_parse<rendezvous::Attend>();
}

template <class Message> void expect_checked_fields() {
    Message message = valid<Message>();
    message.version = rendezvous::protocol_version + 1;
    EXPECT(!rendezvous::parse<Message>(bytes_of(message)).has_value());
    message = valid<Message>();
    message.token = 0;
    EXPECT(!rendezvous::parse<Message>(bytes_of(message)).has_value());
    message = valid<Message>();
    message.service = 0;
    EXPECT(!rendezvous::parse<Message>(bytes_of(message)).has_value());
}

void test_hello_and_answer_have_a_version_a_token_and_a_service() {
    expect_checked_fields<rendezvous::Hello>();
    expect_checked_fields<rendezvous::Answer>();
    EXPECT(!rendezvous::parse<rendezvous::Answer>(bytes_of(valid<rendezvous::Hello>())).has_value());
}

struct Buffers {
    std::array<uint8_t, 10> first{};
    std::array<uint8_t, 7> second{};
    std::array<uint8_t, 20> third{};
    std::array<iovec, 6> list{{{nullptr, 0},
                               {first.data(), first.size()},
                               {nullptr, 0},
                               {second.data(), second.size()},
                               {third.data(), third.size()},
                               {nullptr, 0}}};
};

void test_parts_are_filled_in_order_across_empty_buffers() {
    Buffers buffers;
    Parts parts(buffers.list.data(), buffers.list.size());
    EXPECT_EQ(parts.size(), 37U);
    std::vector<uint8_t> bytes(37);
    for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<uint8_t>(i + 1);
    }
    parts.put(bytes.data(), 4);
    parts.put(bytes.data() + 4, 0);
    parts.put(bytes.data() + 4, 14);
    EXPECT_EQ(parts.size(), 19U);
    parts.put(bytes.data() + 18, 19);
    EXPECT(parts.empty());
    EXPECT_EQ(buffers.first[9], 10);
    EXPECT_EQ(buffers.second[0], 11);
    EXPECT_EQ(buffers.second[6], 17);
    EXPECT_EQ(buffers.third[0], 18);
    EXPECT_EQ(buffers.third[19], 37);
}

void test_parts_are_read_in_order_and_can_be_skipped() {
    Buffers buffers;
    for (size_t i = 0; i < buffers.first.size(); ++i) {
        buffers.first[i] = static_cast<uint8_t>(i);
    }
    buffers.second.fill('s');
    buffers.third.fill('t');
    Parts parts(buffers.list.data(), buffers.list.size());
    parts.skip(9);
    std::array<uint8_t, 12> out{};
    parts.get(out.data(), 1);
    EXPECT_EQ(out[0], 9);
    parts.get(out.data(), 8);
    EXPECT(out[6] == 's');
    EXPECT(out[7] == 't');
    EXPECT_EQ(parts.size(), 19U);
}

void test_parts_for_the_kernel_begin_where_the_call_is_and_end_at_the_limit() {
    Buffers buffers;
    Parts parts(buffers.list.data(), buffers.list.size());
    parts.skip(3);
    std::array<iovec, 16> list{};
    EXPECT_EQ(parts.fill(list, UINT64_MAX), 3U);
    EXPECT(list[0].iov_base == buffers.first.data() + 3 && list[0].iov_len == 7);
    EXPECT_EQ(list[2].iov_len, 20U);
    EXPECT_EQ(parts.fill(list, 8), 2U);
    EXPECT_EQ(list[1].iov_len, 1U);
    EXPECT_EQ(parts.fill(list, 0), 0U);
    std::array<iovec, 1> one{};
    EXPECT_EQ(parts.fill(one, UINT64_MAX), 1U); // the rest comes with the next call
    EXPECT_EQ(parts.size(), 34U);
}

// The C library's copy is bad at some distances, so those are copied in pieces.
void test_copies_are_exact_at_any_distance_within_a_page() {
    constexpr size_t page = 4096;
    constexpr size_t most = 3 * page;
    std::vector<uint8_t> from(most + page);
    for (size_t i = 0; i < from.size(); ++i) {
        from[i] = Ring::pattern(i);
    }
    for (const size_t distance : {0, 1, 16, 31, 32, 33, 4064, 4080, 4095}) {
        for (const size_t size : {size_t{0}, size_t{1}, page / 2 - 1, page / 2, page / 2 + 1, page, page + 31, most}) {
            std::vector<uint8_t> to(most + 2 * page);
            const size_t before =
                (reinterpret_cast<uintptr_t>(from.data()) + distance - reinterpret_cast<uintptr_t>(to.data())) % page;
            base::copy_bytes(to.data() + before, from.data(), size);
            const auto begin = to.begin() + static_cast<ptrdiff_t>(before);
            const auto end = begin + static_cast<ptrdiff_t>(size);
            EXPECT(std::equal(begin, end, from.begin()));
            EXPECT(std::all_of(to.begin(), begin, [](uint8_t byte) { return byte == 0; }));
            EXPECT(std::all_of(end, to.end(), [](uint8_t byte) { return byte == 0; }));
        }
    }
}

void test_parts_without_a_byte_are_empty() {
    const iovec none{nullptr, 0};
    std::array<iovec, 4> list{};
    Parts empty(&none, 1);
    EXPECT(empty.empty());
    EXPECT_EQ(empty.fill(list, UINT64_MAX), 0U);
    Parts no_list(nullptr, 0);
    EXPECT(no_list.empty());
    EXPECT_EQ(no_list.fill(list, UINT64_MAX), 0U);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_areas_lie_behind_each_other_in_the_ring),
        FABTEST(test_new_ring_is_empty_and_has_the_space_of_its_first_area),
        FABTEST(test_bytes_wrap_at_the_end_of_every_area),
        FABTEST(test_positions_beyond_32_bits_do_not_matter),
        FABTEST(test_reader_follows_growth_at_any_position),
        FABTEST(test_one_read_never_reaches_into_the_next_area),
        FABTEST(test_ring_grows_again_only_when_the_reader_has_left_the_area_before),
        FABTEST(test_ring_does_not_grow_again_past_a_reader_between_two_areas),
        FABTEST(test_reading_in_part_frees_as_much_space),
        FABTEST(test_random_operations_agree_with_a_queue),
        FABTEST(test_lies_of_the_writer_never_lead_the_reader_out_of_an_area),
        FABTEST(test_lies_of_the_reader_never_give_more_space_than_an_area_has),
        FABTEST(test_request_holds_its_epoch_and_what_is_asked),
        FABTEST(test_message_is_taken_with_its_size_and_magic_only),
        FABTEST(test_hello_and_answer_have_a_version_a_token_and_a_service),
        FABTEST(test_parts_are_filled_in_order_across_empty_buffers),
        FABTEST(test_parts_are_read_in_order_and_can_be_skipped),
        FABTEST(test_parts_for_the_kernel_begin_where_the_call_is_and_end_at_the_limit),
        FABTEST(test_parts_without_a_byte_are_empty),
        FABTEST(test_copies_are_exact_at_any_distance_within_a_page),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
