// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The modes that have one connection for two processes: pingpong, pairs of them at once, and stream.
#include <algorithm>
#include <numeric>
#include <thread>

#include "fabtests/programs/path/message.hpp"
#include "fabtests/programs/path/modes.hpp"

namespace path_bench {

void echo(Channel& channel, size_t size, uint64_t count) {
    std::vector<char> message(size);
    for (uint64_t sequence = 0; sequence < count && channel.receive_all(message); ++sequence) {
        verify(message, sequence);
        channel.send(message);
    }
}

void Exchange::once() {
    stamp(out_, sequence_);
    channel_.send(out_);
    if (!channel_.receive_all(in_)) {
        throw PeerLost("the stream ended instead of an answer");
    }
    verify(in_, sequence_++);
}

void Exchange::repeat(uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) {
        once();
    }
}

Figures distribution(std::vector<double>& values) {
    if (values.empty()) {
        return {};
    }
    std::sort(values.begin(), values.end());
    const auto at = [&](double part) {
        return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
    };
    return {at(0.5), at(0.99), values.back(),
            std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size())};
}

namespace {

// The size of the messages that are exchanged before a stream.
constexpr size_t warm_size = 64;

Channel accept_one(const Link& link, Wait wait) {
    const Listener listener;
    link.tell(listener.port);
    return {listener.accept(), wait};
}

Channel connect_one(const Link& link, Wait wait) { return {connect_to(link.hear()), wait}; }

Figures echo_server(Link& link, const Options& options) {
    link.keep(0);
    Channel channel = accept_one(link, options.wait);
    echo(channel, options.size);
    return {};
}

util::Json described(const Options& options) {
    return {{"mode", options.mode}, {"size", options.size}, {"wait", name_of(options.wait)}};
}

// What is common to these modes, then what was found.
util::Json joined(util::Json json, const util::Json& found) {
    json.update(found);
    return json;
}

// Counts exchanges for as long as the other pairs do the same.
Figures pair_client(Link& link, const SharedBoard& board, const Options& options) {
    link.keep(1);
    Channel channel = connect_one(link, options.wait);
    Exchange exchange(channel, options.size);
    exchange.repeat(options.warm);
    ++board->ready;
    while (board->ready < options.pairs) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const uint64_t start = now_ns();
    const uint64_t end = start + options.duration_ms * 1000000;
    uint64_t count = 0;
    uint64_t now = start;
    for (; now < end; now = now_ns()) {
        exchange.once();
        ++count;
    }
    return {static_cast<double>(count), static_cast<double>(now - start) * 1e-9};
}

uint64_t messages_of(const Options& options) { return std::max<uint64_t>(1, options.bytes / options.size); }

Figures stream_sender(Link& link, const Options& options) {
    link.keep(1);
    Channel channel = connect_one(link, options.wait);
    Exchange(channel, warm_size).repeat(options.warm);
    std::vector<char> message(options.size);
    const uint64_t count = messages_of(options);
    link.tell(now_ns());
    for (uint64_t sequence = 0; sequence < count; ++sequence) {
        stamp(message, sequence);
        channel.send(message);
    }
    return {};
}

// Receives as a server does: as much as there is, up to 64 KiB or a message.
Figures stream_receiver(Link& link, const Options& options) {
    constexpr size_t buffer_size = 65536;
    link.keep(0);
    Channel channel = accept_one(link, options.wait);
    echo(channel, warm_size, options.warm);
    const uint64_t count = messages_of(options);
    std::vector<char> buffer(std::max<size_t>(1, buffer_size / options.size) * options.size);
    const std::span<char> all(buffer);
    size_t have = 0;
    size_t verified = 0;
    for (uint64_t sequence = 0; sequence < count;) {
        const size_t received = channel.receive(all.subspan(have));
        if (received == 0) {
            throw PeerLost(fmt::format("the stream ended in message {} of {}", sequence, count));
        }
        have += received;
        for (; have - verified >= options.size; verified += options.size) {
            verify(all.subspan(verified, options.size), sequence++);
        }
        if (have == all.size()) {
            have = verified = 0;
        }
    }
    const uint64_t end = now_ns();
    if (have != verified || channel.receive(all) != 0) {
        util::fail("there are bytes behind the last message");
    }
    return {static_cast<double>(end - link.hear()) * 1e-9};
}

} // namespace

util::Json pingpong(const Options& options) {
    Team team(options.limit);
    Link link;
    team.start("server", [&] { return echo_server(link, options); });
    team.start("client", [&] {
        link.keep(1);
        Channel channel = connect_one(link, options.wait);
        Exchange exchange(channel, options.size);
        exchange.repeat(options.warm);
        std::vector<double> halves;
        halves.reserve(options.iterations);
        uint64_t before = now_ns();
        for (uint64_t i = 0; i < options.iterations; ++i) {
            exchange.once();
            const uint64_t after = now_ns();
            halves.push_back(static_cast<double>(after - before) / 2000);
            before = after;
        }
        return distribution(halves);
    });
    const Figures found = team.finish().back();
    return joined(described(options), {{"iterations", options.iterations},
                                       {"median_us", found.at(0)},
                                       {"p99_us", found.at(1)},
                                       {"mean_us", found.at(3)}});
}

util::Json pairs(const Options& options) {
    Team team(options.limit);
    const SharedBoard board;
    std::vector<Link> links(options.pairs);
    for (Link& link : links) {
        team.start("server", [&] { return echo_server(link, options); });
        team.start("client", [&] { return pair_client(link, board, options); });
    }
    uint64_t exchanges = 0;
    double rate = 0;
    for (const Figures& found : team.finish()) {
        if (!found.empty()) {
            exchanges += static_cast<uint64_t>(found.at(0));
            rate += found.at(0) / found.at(1);
        }
    }
    return joined(described(options), {{"pairs", options.pairs}, {"exchanges", exchanges}, {"exchanges_per_s", rate}});
}

util::Json stream(const Options& options) {
    Team team(options.limit);
    Link link;
    team.start("receiver", [&] { return stream_receiver(link, options); });
    team.start("sender", [&] { return stream_sender(link, options); });
    const double seconds = team.finish().front().at(0);
    const uint64_t bytes = messages_of(options) * options.size;
    return joined(described(options),
                  {{"bytes", bytes}, {"seconds", seconds}, {"mb_per_s", static_cast<double>(bytes) * 1e-6 / seconds}});
}

} // namespace path_bench
