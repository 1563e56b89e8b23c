// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the tests of maps share: the operations in short, two ends that know of each other's maps, and what both have to
// do for one to come on.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace fabtests {

using Bytes = std::vector<unsigned char>;

inline constexpr uint64_t anywhere = FI_RSTREAM_MAP_ANY;

inline fi_ops_rstream_map& ops_of(Stream& s) {
    void* ops = nullptr;
    check("fi_open_ops", fi_open_ops(&s.ep->fid, FI_RSTREAM_MAP_OPS, 0, &ops, nullptr));
    return *static_cast<fi_ops_rstream_map*>(ops);
}

inline int map(Stream& s, Bytes& memory, uint64_t& offset, uint64_t access = FI_REMOTE_WRITE) {
    return ops_of(s).map(s.get(), memory.data(), memory.size(), access, &offset);
}
inline uint64_t mapped(Stream& s, Bytes& memory, uint64_t offset = anywhere) {
    EXPECT_RESULT(map(s, memory, offset), 0);
    return offset;
}
inline int unmap(Stream& s, Bytes& memory, uint64_t flags = 0) {
    return ops_of(s).unmap(s.get(), memory.data(), memory.size(), flags);
}
inline ssize_t write(Stream& s, const void* data, size_t length, uint64_t offset, uint64_t flags = 0) {
    return ops_of(s).write(s.get(), data, length, offset, flags);
}

// Two ends of one thread that know of so many maps of each other's.
struct Ends {
    explicit Ends(size_t maps = 16, size_t buffers = 0) : host(here()), listener(host) {
        client = std::make_unique<Stream>(host);
        prepare(*client, maps, buffers);
        client->connect(listener.name().data());
        const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
        server = std::make_unique<Stream>(host, info.get());
        prepare(*server, maps, buffers);
        server->accept();
        for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(host.next_event().type, FI_CONNECTED);
        }
    }
    ~Ends() {
        client.reset();
        server.reset();
    }
    static void prepare(Stream& s, size_t maps, size_t buffers) {
        s.set_option(FI_OPT_RSTREAM_MAPS, maps);
        s.set_buffers(buffers);
    }

    Host host;
    Listener listener;
    std::unique_ptr<Stream> client;
    std::unique_ptr<Stream> server;
};

// Lets both ends work until that is so.
template <class So> void until(Stream& a, Stream& b, So so) {
    for (const auto start = Clock::now(); !so();) {
        (void)peek_recv(a);
        (void)peek_recv(b);
        EXPECT(milliseconds_since(start) < patience(10000));
    }
}

// All of it, with both ends at work.
inline void write_all(Stream& from, Stream& to, const void* data, size_t length, uint64_t offset) {
    size_t written = 0;
    until(from, to, [&] {
        const ssize_t n = write(from, static_cast<const char*>(data) + written, length - written, offset + written);
        EXPECT(n > 0 || n == -FI_EAGAIN || written == length);
        written += static_cast<size_t>(std::max<ssize_t>(n, 0));
        return written == length;
    });
}

// One byte of the stream: what is known on one side now is known on the other.
inline void pass_a_byte(Stream& from, Stream& to) {
    char byte = 7;
    from.send_all(&byte, 1);
    byte = 0;
    until(from, to, [&] { return recv(to, &byte, 1) == 1; });
    EXPECT_EQ(byte, '\7');
}

inline void unmapped(Stream& s, Stream& peer, Bytes& memory) {
    until(s, peer, [&] {
        const int ret = unmap(s, memory);
        EXPECT(ret == 0 || ret == -FI_EAGAIN);
        return ret == 0;
    });
}

inline Bytes noise(size_t length, unsigned seed) {
    std::mt19937 dice(seed);
    Bytes bytes(length);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<unsigned char>(dice()); });
    return bytes;
}

inline void both_ways_still_work(Ends& ends) { exchange_bytes(*ends.client, *ends.server, 100000); }

// Ends what threads do until then, on every way out.
struct Until {
    ~Until() { over = true; }
    std::atomic<bool>& over;
};

} // namespace fabtests
