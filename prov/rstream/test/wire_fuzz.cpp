// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A libFuzzer target: the input is all that a hostile peer says, and what the program at our end does in between. First
// it is read as a hello and as a reject, then as a script for a link. Whatever the peer says, the link stays inside its
// buffers and never sends more than it was offered; once a rule is found broken the connection is over.
//
// A script starts with a byte of modes and the sizes of our buffers, then the hello of the peer, then steps: a byte
// that names the step, and what that step takes. Numbers come from the input; where it ends, they are zero.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "prov/rstream/wire/hello.hpp"
#include "prov/rstream/wire/limits.hpp"
#include "prov/rstream/wire/link.hpp"

using namespace rstream::wire;

namespace {

void require(bool truth) {
    if (!truth) {
        std::abort();
    }
}

class Input {
  public:
    explicit Input(std::span<const std::byte> data) : data_(data) {}
    [[nodiscard]] bool empty() const { return data_.empty(); }

    std::span<const std::byte> bytes(size_t length) {
        const auto taken = data_.first(std::min(length, data_.size()));
        data_ = data_.subspan(taken.size());
        return taken;
    }
    template <class T> T number() {
        T value{};
        const auto taken = bytes(sizeof value);
        if (!taken.empty()) {
            std::memcpy(&value, taken.data(), taken.size());
        }
        return value;
    }

  private:
    std::span<const std::byte> data_;
};

class Fuzz {
  public:
    explicit Fuzz(Input input)
        : input_(input), modes_(input_.number<uint8_t>()), staging_(min_buffer + input_.number<uint16_t>()),
          ring_(min_buffer + input_.number<uint16_t>()), credits_(min_queue + input_.number<uint8_t>()),
          maps_(most_maps, most_maps), link_({staging_, ring_, credits_, (modes_ & 8) != 0 ? ring_limit : 0}) {
        if (Hello::parse(input_.bytes(Hello::size), peer_) != Hello::Error::none) {
            peer_ = {};
            peer_.ring_size = 10000;
            peer_.data_credits = 20;
            peer_.control_credits = control_credits;
        }
        if ((modes_ & 2) == 0) { // or before we are open, which a hasty peer can manage
            open();
        }
    }

    void run() {
        while (!input_.empty() && step() == nullptr) {
            check();
        }
        check();
    }

  private:
    static constexpr size_t max_chunk = 65536;
    static constexpr size_t ring_limit = 1 << 20;
    static constexpr size_t most_maps = 5;

    [[nodiscard]] bool headers() const { return (modes_ & 1) != 0; }
    void open() {
        peer_ring_ = peer_.ring_size;
        if (!opened_) {
            opened_ = true;
            link_.open(peer_, headers(), max_chunk, (modes_ & 4) != 0 ? &maps_ : nullptr);
        }
    }

    // Null, or the rule that the peer broke.
    const char* step() {
        const auto what = input_.number<uint8_t>() % 24;
        switch (what) {
        case 16:
            return plausible_map();
        case 17:
            maps_memory(input_.number<uint8_t>());
            break;
        case 18:
            withdraws(input_.number<uint8_t>());
            break;
        case 19:
            writes(input_.number<uint16_t>(), offset());
            break;
        case 20:
            bypasses_to_map(1 + input_.number<uint8_t>(), offset());
            break;
        default:
            return peer_step(what);
        case 7:
            stage(input_.number<uint16_t>());
            break;
        case 8:
            stage(input_.number<uint8_t>());
            break;
        case 9:
            posts();
            break;
        case 10:
            return posts_in_vain();
        case 11:
            bypass(1 + input_.number<uint16_t>());
            break;
        case 12:
            consume(input_.number<uint16_t>());
            break;
        case 13:
            consume(ring_);
            break;
        case 14:
            release(input_.number<uint16_t>());
            break;
        case 15:
            ends(input_.number<uint8_t>());
            break;
        case 21:
            supply(input_.number<uint16_t>());
            break;
        case 22:
            settle();
            break;
        case 23:
            move_staging(input_.number<uint16_t>());
            break;
        }
        return nullptr;
    }

    // ---- the peer

    const char* peer_step(int what) {
        switch (what % 7) {
        case 0:
            return data(input_.number<uint64_t>());
        case 1:
            return data(input_.number<uint32_t>());
        case 2:
            return data(plausible_immediate());
        case 3:
            return raw_control();
        case 4:
            return plausible_control(Control::Type::credit);
        case 5:
            return plausible_control(Control::Type::data);
        default:
            return plausible_control(types[input_.number<uint8_t>() % std::size(types)]);
        }
    }

    const char* data(uint64_t immediate) {
        const char* broken = link_.on_data(immediate);
        if (broken == nullptr) {
            received_ += Immediate::decode(immediate)->length;
            believed_.control_arrived += Immediate::decode(immediate)->control_acks;
            const uint32_t acks = Immediate::decode(immediate)->data_acks;
            believed_.data_arrived += acks;
            require(acks == 0 || believed_.data_arrived <= messages_);
        }
        return broken;
    }

    // So long as the link believes what it is told, that is true.
    const char* control(const Control& control) {
        const char* broken = link_.on_control(control);
        if (broken == nullptr && control.type == Control::Type::offer) {
            believed_.control_arrived = control.control_arrived;
            require((peer_.features & Hello::feature_growth) != 0);
            require(control.argument < link_.peer_ring().size || (asked_ && control.argument > link_.peer_ring().size));
            require(control.argument >= min_buffer && control.argument <= max_buffer);
            asked_ = false;
            offered_ = {control.address, control.key, control.argument};
        } else if (broken == nullptr) {
            require(control.type != Control::Type::move || supplied_);
            supplied_ = supplied_ && control.type != Control::Type::move;
            believed_ = control;
            require(control.consumed <= sent_ && control.data_arrived <= messages_);
            if (control.type == Control::Type::data) {
                believed_.control_arrived += Immediate::decode(control.argument)->control_acks;
                believed_.data_arrived += Immediate::decode(control.argument)->data_acks;
                received_ += Immediate::decode(control.argument)->length;
            }
            require(believed_.control_arrived <= controls_);
        }
        return broken;
    }

    static constexpr Control::Type types[] = {Control::Type::credit, Control::Type::fin,  Control::Type::rst,
                                              Control::Type::data,   Control::Type::grow, Control::Type::offer,
                                              Control::Type::move};

    uint32_t plausible_immediate() {
        const auto length = input_.number<uint16_t>();
        const auto more = input_.number<uint8_t>();
        return Immediate{length, more & 1U, (more & 2) != 0, more >> 2 & 3U}.encode();
    }

    const char* raw_control() {
        const auto bytes = input_.bytes(Control::size);
        if (const auto map = MapMessage::decode(bytes)) {
            return this->map(*map);
        }
        const auto control = Control::decode(bytes);
        return control ? this->control(*control) : link_.on_message(bytes);
    }

    // ---- maps: few offsets, so that they meet

    uint64_t offset() { return uint64_t{100} * (input_.number<uint8_t>() % 16); }

    const char* map(const MapMessage& message) {
        std::array<std::byte, MapMessage::size> bytes{};
        message.encode(bytes);
        require(MapMessage::decode(bytes) == message);
        return link_.on_message(bytes);
    }

    const char* plausible_map() {
        MapMessage message;
        const auto how = input_.number<uint8_t>();
        message.type = static_cast<MapMessage::Type>(32 + how % 3);
        message.offset = offset();
        if (message.type == MapMessage::Type::map) {
            message.length = 1 + how;
            message.address = how % 2 == 0 ? 0 : message.offset + 1000000;
            message.key = message.offset; // so that a write tells which one it is for
        }
        return map(message);
    }

    void maps_memory(uint8_t how) {
        uint64_t at = how % 2 == 0 ? Maps::any : offset();
        if (maps_.claim(at, 1 + how) == Maps::Claim::made) {
            require(at < MapMessage::end_of_offsets);
            if (how % 8 == 0) {
                maps_.forget(at);
            } else {
                maps_.announce(at, at, at);
            }
        }
    }

    void withdraws(uint8_t how) {
        const uint64_t at = offset();
        const bool gone = maps_.withdraw(at, how % 2 == 0);
        if (gone || how % 4 == 0) {
            maps_.forget(at);
        }
        require(maps_.answered() <= maps_.awaited() && maps_.awaited() <= most_maps);
    }

    void writes(size_t length, uint64_t offset) {
        const auto target = maps_.find(offset);
        if ((modes_ & 4) == 0 || !target) {
            return;
        }
        require(maps_.covers(offset, target->length) && target->length <= MapMessage::end_of_offsets - offset);
        const Extent extent = link_.free_extent(std::min<uint64_t>(length, target->length));
        const size_t staging = extent.moved ? next_staging_ : staging_;
        require(extent.length == 0 || (extent.offset < staging && extent.length <= staging - extent.offset));
        if (extent.length != 0) {
            link_.stage_write(extent.length, *target);
        }
    }

    void bypasses_to_map(size_t length, uint64_t offset) {
        if (const auto post = link_.bypass_write(length, offset)) {
            require(post->chunk.length == length && post->chunk.bypass);
            posted(*post, 1);
        }
    }

    // What an honest peer might say, or nearly.
    const char* plausible_control(Control::Type type) {
        Control said = believed_;
        said.type = type;
        const auto how = input_.number<uint8_t>();
        said.consumed = how & 1 ? sent_ : said.consumed + input_.number<uint8_t>();
        said.data_arrived = how & 2 ? messages_ : said.data_arrived + (how >> 2 & 1U);
        said.control_arrived = how & 8 ? controls_ : said.control_arrived + (how >> 4 & 1U);
        said.flags = type == Control::Type::fin ? how >> 5 & 1U : 0;
        if (type == Control::Type::data) {
            said.argument = plausible_immediate();
        } else if (type == Control::Type::offer) {
            said = {type, 0, input_.number<uint32_t>(), 0, 0, said.control_arrived, 1, 2};
        } else {
            said.argument = type == Control::Type::move ? static_cast<uint32_t>(received_) : 0;
        }
        return control(said);
    }

    // ---- the program

    void stage(size_t length) {
        const Extent extent = link_.free_extent(length);
        require(extent.length <= length && extent.length <= link_.space());
        const size_t staging = extent.moved ? next_staging_ : staging_;
        require(extent.length == 0 || (extent.offset < staging && extent.length <= staging - extent.offset));
        link_.stage(extent.length);
    }

    void posts() {
        if (const auto post = link_.next()) {
            posted(*post, 1);
        }
    }

    // The core refuses, and while it is asked the peer already speaks of what it can not have seen.
    const char* posts_in_vain() {
        const auto post = link_.next();
        if (!post) {
            return nullptr;
        }
        posted(*post, 1);
        const char* broken = input_.empty() ? nullptr : peer_step(input_.number<uint8_t>());
        posted(*post, -1);
        link_.undo(*post);
        return broken;
    }

    void bypass(size_t length) {
        if (const auto post = link_.bypass(length)) {
            require(post->chunk.length == length && post->chunk.bypass);
            posted(*post, 1);
            if (input_.number<uint8_t>() % 8 == 0) {
                posted(*post, -1);
                link_.undo(*post);
            }
        }
    }

    // Checks a post and counts it, or takes it off again.
    void posted(const Post& post, int times) {
        const Chunk& chunk = post.chunk;
        switch (post.kind) {
        case Post::Kind::control:
            controls_ += times;
            growth_posted(post.control, times);
            require(Control::decode(encoded(post.control)) == post.control);
            return;
        case Post::Kind::map: {
            controls_ += times;
            std::array<std::byte, MapMessage::size> bytes{};
            post.map.encode(bytes);
            require(MapMessage::decode(bytes) == post.map);
            return;
        }
        case Post::Kind::write: // where it may go is looked at by the model test
            require(chunk.length > 0 && chunk.length <= max_chunk);
            require(chunk.bypass || in_staging(chunk));
            flying_ += chunk.bypass ? 0 : times * chunk.length;
            return;
        case Post::Kind::skip:
            require(chunk.length > 0 && chunk.length <= std::max(staging_, next_staging_));
            flying_ += times * chunk.length;
            return;
        case Post::Kind::data:
            break;
        }
        require(chunk.length > 0 && chunk.length <= max_chunk);
        const size_t ring = link_.peer_ring().size;
        require(chunk.ring_offset < ring && chunk.length <= ring - chunk.ring_offset);
        require(times < 0 || chunk.ring_offset == sent_ % ring);
        require(chunk.bypass || in_staging(chunk));
        const auto immediate = Immediate::decode(headers() ? post.control.argument : post.immediate.encode());
        require(immediate && immediate->length == chunk.length);
        require(immediate->data_acks == 0 || (peer_.features & Hello::feature_data_acks) != 0);
        sent_ += times * chunk.length;
        messages_ += times;
        flying_ += chunk.bypass ? 0 : times * chunk.length;
    }

    [[nodiscard]] bool in_staging(const Chunk& chunk) const {
        const size_t staging = chunk.staging_moved ? next_staging_ : staging_;
        return chunk.staging_offset < staging && chunk.length <= staging - chunk.staging_offset;
    }

    void growth_posted(const Control& control, int times) {
        if (control.type == Control::Type::grow) {
            require((peer_.features & Hello::feature_growth) != 0);
            asked_ = times > 0;
        } else if (control.type == Control::Type::offer) {
            require(control.argument == next_ring_ && control.argument != ring_ && control.argument <= ring_limit);
            supplied_ = times > 0;
        } else if (control.type == Control::Type::move && times > 0) {
            require(offered_ && link_.peer_ring() == *offered_);
            moved_before_ = {peer_ring_, peer_from_};
            peer_from_ = offered_->size < peer_ring_ ? sent_ : peer_from_; // a smaller ring is empty
            peer_ring_ = offered_->size;
        } else if (control.type == Control::Type::move) {
            std::tie(peer_ring_, peer_from_) = moved_before_;
        }
    }

    static std::array<std::byte, Control::size> encoded(const Control& control) {
        std::array<std::byte, Control::size> bytes{};
        control.encode(bytes);
        return bytes;
    }

    void consume(size_t length) {
        const Extent piece = link_.peek(length);
        link_.consume(piece.length);
    }

    // A ring of another size for the peer, and what comes of it.
    void supply(size_t by) {
        if (link_.growth_wanted()) {
            require(next_ring_ == 0);
            next_ring_ = std::min(ring_limit, ring_ + 1 + by);
            link_.supply({4, 5, next_ring_});
        } else if (link_.may_shrink() && ring_ > min_buffer) {
            require(next_ring_ == 0 && (peer_.features & Hello::feature_shrink) != 0);
            next_ring_ = min_buffer + by % (ring_ - min_buffer);
            link_.supply({4, 5, next_ring_});
        }
    }
    void settle() {
        if (link_.settle()) {
            require(next_ring_ >= min_buffer && next_ring_ != ring_);
            ring_ = std::exchange(next_ring_, 0);
            require(link_.ring_size() == ring_);
        }
    }
    void move_staging(size_t by) {
        if (link_.settle_staging()) {
            staging_ = std::exchange(next_staging_, 0);
        }
        if (!link_.staging_moves()) {
            const bool shrinks = link_.unreleased() == 0 && by % 2 == 0 && staging_ > min_buffer;
            next_staging_ = shrinks ? min_buffer + by % (staging_ - min_buffer) : staging_ + 1 + by;
            link_.move_staging(next_staging_);
        }
    }

    void release(size_t length) {
        length = std::min(length, flying_);
        link_.release(length);
        flying_ -= length;
    }

    void ends(uint8_t how) {
        switch (how % 5) {
        case 0:
            link_.finish(false);
            break;
        case 1:
            link_.finish(true);
            break;
        case 2:
            link_.abort();
            break;
        case 3:
            link_.finish_with_reset();
            break;
        default:
            open();
            break; // ours came late
        }
    }

    // ---- what must hold

    // Below zero where the peer was believed in something that was then undone.
    static int64_t in_flight(uint64_t sent, uint64_t arrived) { return static_cast<int64_t>(sent - arrived); }

    void check() const {
        const size_t readable = link_.readable();
        require(readable <= ring_ + next_ring_);
        for (const size_t skip : {size_t{0}, readable / 2, readable}) {
            const Extent piece = link_.peek(readable, skip);
            const size_t ring = piece.moved ? next_ring_ : ring_;
            require(piece.length <= readable - skip);
            require(piece.offset < ring && piece.length <= ring - piece.offset);
        }
        require(link_.space() <= std::max(staging_, next_staging_));
        require(in_flight(sent_, std::max(believed_.consumed, peer_from_)) <=
                static_cast<int64_t>(link_.peer_ring().size));
        require(in_flight(messages_, believed_.data_arrived) <= peer_.data_credits);
        require(in_flight(controls_, believed_.control_arrived) <= peer_.control_credits);
        require(!link_.peer_closed() || link_.peer_finished());
        require(link_.unreleased() <= std::max(staging_, next_staging_));
        (void)link_.control_due();
        (void)link_.all_arrived();
        (void)link_.anything_unacknowledged();
    }

    Input input_;
    uint8_t modes_;
    size_t staging_;
    size_t ring_;
    uint64_t credits_;
    Hello peer_;
    Maps maps_;
    Link link_;
    bool opened_ = false;

    Control believed_; // what the peer said last
    uint64_t sent_ = 0;
    uint64_t messages_ = 0;
    uint64_t controls_ = 0;
    size_t flying_ = 0; // staging bytes whose write is not complete
    uint64_t received_ = 0;
    size_t next_ring_ = 0; // 0: there is none
    size_t next_staging_ = 0;
    bool asked_ = false;    // the peer, for a larger ring
    bool supplied_ = false; // the peer was offered one
    std::optional<RemoteRing> offered_;
    size_t peer_ring_ = 0; // that is written to, and the position from which on it was empty
    uint64_t peer_from_ = 0;
    std::pair<size_t, uint64_t> moved_before_;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    Hello hello;
    if (Hello::parse(bytes, hello) == Hello::Error::none) {
        require(hello.user_length <= size - Hello::size);
        require(hello.ring_size >= min_buffer && hello.ring_size <= max_buffer && hello.data_credits >= min_queue);
        std::array<std::byte, Hello::size> back{};
        hello.encode(back);
        Hello again;
        require(hello.user_length != 0 || (Hello::parse(back, again) == Hello::Error::none && again == hello));
    }
    if (const auto reject = Reject::parse(bytes)) {
        require(reject->user_length <= size - Reject::size);
        (void)to_string(reject->reason);
    }
    Fuzz(Input(bytes)).run();
    return 0;
}
