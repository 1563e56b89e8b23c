// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that writes what it likes into its fields of a ring, and messages of any bytes. The first byte chooses. The
// memory is exactly the ring's, so that AddressSanitizer sees a step beyond it.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "preload/path/ring.hpp"
#include "preload/rendezvous/message.hpp"

namespace {

using namespace preload;

void require(bool condition) {
    if (!condition) {
        abort();
    }
}

class Input {
  public:
    Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    [[nodiscard]] bool empty() const { return size_ == 0; }
    template <class T> T take() {
        T value{};
        const size_t n = size_ < sizeof(value) ? size_ : sizeof(value);
        memcpy(&value, data_, n);
        data_ += n;
        size_ -= n;
        return value;
    }

  private:
    const uint8_t* data_;
    size_t size_;
};

// A value of any kind, or one near what is true.
uint64_t value_near(Input& input, uint64_t truth) {
    switch (input.take<uint8_t>() % 4) {
    case 0:
        return input.take<uint64_t>();
    case 1:
        return truth + input.take<uint32_t>();
    case 2:
        return truth - input.take<uint16_t>();
    default:
        return truth;
    }
}

template <class Use> void walk(std::vector<uint8_t>& memory, path::Cursor& cursor, uint64_t count, Use&& use) {
    while (count != 0) {
        const size_t n = cursor.contiguous(count);
        require(n != 0 && n <= count);
        const size_t offset = cursor.offset_of(cursor.position);
        require(offset >= path::area_offset(cursor.area) &&
                offset + n <= path::area_offset(cursor.area) + cursor.capacity());
        use(memory.data() + offset, n);
        cursor.position += n;
        count -= n;
    }
}

void lying_peer(Input input) {
    static std::vector<uint8_t> memory(path::ring_bytes);
    path::Direction ring;
    path::Cursor writer; // this end writes one direction,
    path::Cursor reader; // and reads another one with the same fields
    while (!input.empty()) {
        switch (input.take<uint8_t>() % 8) {
        case 0:
            ring.writer.head = value_near(input, reader.position);
            break;
        case 1:
            ring.writer.grow_at = value_near(input, reader.position);
            break;
        case 2:
            ring.writer.grow_area =
                input.take<uint8_t>() % 4 == 0 ? input.take<uint32_t>() : input.take<uint8_t>() % 4U;
            break;
        case 3:
            ring.reader.tail = value_near(input, writer.position);
            break;
        case 4:
        case 5: {
            uint64_t count = 0;
            if (!path::readable(ring, reader, count)) {
                return;
            }
            require(count <= reader.capacity() && reader.area < path::areas);
            const uint64_t wanted = input.take<uint32_t>();
            walk(memory, reader, wanted < count ? wanted : count, [](const uint8_t* at, size_t n) {
                [[maybe_unused]] static volatile uint8_t seen;
                seen = at[0];
                seen = at[n - 1];
            });
            break;
        }
        case 6: {
            uint64_t space = 0;
            if (!path::writable(ring, writer, space)) {
                return;
            }
            require(space <= writer.capacity());
            const uint64_t wanted = input.take<uint32_t>();
            walk(memory, writer, wanted < space ? wanted : space, [](uint8_t* at, size_t n) { at[0] = at[n - 1] = 1; });
            break;
        }
        default:
            (void)path::grow(ring, writer);
            require(writer.area < path::areas && writer.base <= writer.position);
        }
    }
}

template <class Message> void one_message(const uint8_t* data, size_t size) {
    const std::vector<uint8_t> copy(data, data + size);
    const auto message = rendezvous::parse<Message>(copy);
    if (!message) {
        return;
    }
    require(size == sizeof(Message) && message->magic == Message::expected_magic);
    require(memcmp(static_cast<const void*>(&*message), copy.data(), size) == 0);
    if constexpr (requires { message->service; }) {
        require(message->service != 0 && message->token != 0 && message->version == rendezvous::protocol_version);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) {
        return 0;
    }
    if (data[0] % 4 != 0) {
        lying_peer({data + 1, size - 1});
        return 0;
    }
    one_message<rendezvous::Hello>(data + 1, size - 1);
    one_message<rendezvous::Answer>(data + 1, size - 1);
    one_message<rendezvous::Attend>(data + 1, size - 1);
    return 0;
}
