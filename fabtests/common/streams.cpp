// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/common/streams.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

namespace fabtests {

std::string core_name() {
    const char* name = getenv("FABTESTS_CORE");
    return name != nullptr && *name != '\0' ? name : "tcp";
}

std::string node_name() {
    const char* name = getenv("FABTESTS_NODE");
    return name != nullptr && *name != '\0' ? name : "127.0.0.1";
}

Request here() {
    Request request;
    request.core = core_name();
    request.node = node_name();
    request.source = true;
    return request;
}

void need_core(const std::string& core) {
    if (core_name() != core) {
        throw Skip("for the core " + core + " only");
    }
}

// ---- Pattern

namespace {
constexpr size_t period = 65521; // the largest prime below 64 Ki
}

Pattern::Pattern(uint64_t seed) : table_(period) {
    uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
    for (auto& byte : table_) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        byte = static_cast<unsigned char>(state >> 32);
    }
}

void Pattern::fill(void* to, size_t length) {
    auto* at = static_cast<unsigned char*>(to);
    while (length != 0) {
        const size_t offset = position_ % period;
        const size_t n = std::min(length, period - offset);
        memcpy(at, &table_[offset], n);
        at += n;
        position_ += n;
        length -= n;
    }
}

void Pattern::check(const void* from, size_t length) {
    const auto* at = static_cast<const unsigned char*>(from);
    while (length != 0) {
        const size_t offset = position_ % period;
        const size_t n = std::min(length, period - offset);
        if (memcmp(at, &table_[offset], n) != 0) {
            const auto wrong = std::mismatch(at, at + n, &table_[offset]).first - at;
            throw Failure("byte " + std::to_string(position_ + static_cast<uint64_t>(wrong)) + " is not what was sent");
        }
        at += n;
        position_ += n;
        length -= n;
    }
}

// ---- Waiting and moving

void wait_for_any(fid_fabric* fabric, const std::vector<fid*>& fids, int timeout_ms) {
    std::vector<fid*> list = fids;
    const int ready = fi_trywait(fabric, list.data(), static_cast<int>(list.size()));
    if (ready == -FI_EAGAIN) {
        return;
    }
    check("fi_trywait", ready);
    std::vector<pollfd> fds;
    fds.reserve(fids.size());
    for (fid* one : fids) {
        fds.push_back({wait_fd(one), POLLIN, 0});
    }
    if (poll(fds.data(), fds.size(), patience(timeout_ms)) == 0) {
        throw Error("nothing happens", -FI_ETIMEDOUT);
    }
}

Flow::Flow(Stream& f, Stream& t, uint64_t n, size_t piece, uint64_t seed)
    : from(f), to(t), total(n), out_(seed), in_(seed), sending_(piece), sending_at_(piece), receiving_(piece) {}

bool Flow::step() {
    bool moved = false;
    if (sent < total) {
        if (sending_at_ == sending_.size()) {
            sending_.resize(std::min<uint64_t>(sending_.size(), total - sent));
            out_.fill(sending_.data(), sending_.size());
            sending_at_ = 0;
        }
        const ssize_t n = fabtests::send(from, &sending_[sending_at_], sending_.size() - sending_at_);
        if (n != -FI_EAGAIN) {
            EXPECT(n != 0);
            sending_at_ += static_cast<size_t>(fabtests::check("fi_send", n));
            sent += static_cast<uint64_t>(n);
            moved = true;
        }
    }
    const ssize_t n = fabtests::recv(to, receiving_.data(), std::min<uint64_t>(receiving_.size(), total - received));
    if (n != -FI_EAGAIN && received < total) {
        EXPECT(n != 0);
        in_.check(receiving_.data(), static_cast<size_t>(fabtests::check("fi_recv", n)));
        received += static_cast<uint64_t>(n);
        moved = true;
    }
    return moved;
}

void run_flows(std::span<Flow> flows) {
    for (;;) {
        bool moved = false;
        bool done = true;
        for (Flow& flow : flows) {
            moved = (!flow.done() && flow.step()) || moved;
            done = done && flow.done();
        }
        if (done) {
            return;
        }
        if (!moved) {
            std::vector<fid*> fids;
            for (const Flow& flow : flows) {
                fids.push_back(&flow.from.ep->fid);
                fids.push_back(&flow.to.ep->fid);
            }
            std::sort(fids.begin(), fids.end());
            fids.erase(std::unique(fids.begin(), fids.end()), fids.end());
            wait_for_any(flows.front().from.host.fabric.get(), fids);
        }
    }
}

void move_bytes(Stream& from, Stream& to, uint64_t total, size_t piece, uint64_t seed) {
    Flow flow(from, to, total, piece, seed);
    run_flows({&flow, 1});
}

void exchange_bytes(Stream& a, Stream& b, uint64_t total, size_t piece, uint64_t seed) {
    std::array flows{Flow(a, b, total, piece, seed), Flow(b, a, total, piece, seed + 1)};
    run_flows(flows);
}

void send_pattern(Stream& stream, uint64_t total, size_t piece, uint64_t seed) {
    Pattern pattern(seed);
    std::vector<char> buffer(piece);
    while (pattern.position() < total) {
        const size_t n = std::min<uint64_t>(piece, total - pattern.position());
        pattern.fill(buffer.data(), n);
        stream.send_all(buffer.data(), n);
    }
}

void recv_pattern(Stream& stream, uint64_t total, size_t piece, uint64_t seed) {
    Pattern pattern(seed);
    std::vector<char> buffer(piece);
    while (pattern.position() < total) {
        const ssize_t n =
            check("fi_recv", stream.recv_some(buffer.data(), std::min<uint64_t>(piece, total - pattern.position())));
        if (n == 0) {
            throw Failure("the stream ends after " + std::to_string(pattern.position()) + " bytes");
        }
        pattern.check(buffer.data(), static_cast<size_t>(n));
    }
}

ssize_t send_message(Stream& s, std::initializer_list<iovec> segments, uint64_t flags) {
    fi_msg message{};
    message.msg_iov = segments.begin();
    message.iov_count = segments.size();
    return fi_sendmsg(s.get(), &message, flags);
}

ssize_t recv_message(Stream& s, std::initializer_list<iovec> segments, uint64_t flags) {
    fi_msg message{};
    message.msg_iov = segments.begin();
    message.iov_count = segments.size();
    return fi_recvmsg(s.get(), &message, flags);
}

ssize_t await_readable(Stream& s, size_t bytes, Stream* sender) {
    std::vector<fid*> fids{&s.ep->fid};
    if (sender != nullptr) {
        fids.push_back(&sender->ep->fid);
    }
    for (;;) {
        const ssize_t now = peek_recv(s);
        if (now != -FI_EAGAIN && (now <= 0 || static_cast<size_t>(now) >= bytes)) {
            return now;
        }
        if (sender != nullptr) {
            (void)peek_send(*sender);
        }
        wait_for_any(s.host.fabric.get(), fids);
    }
}

uint64_t fill_up(Stream& s, Pattern& pattern, size_t piece) {
    std::vector<char> buffer(piece);
    uint64_t total = 0;
    for (;;) {
        pattern.fill(buffer.data(), piece);
        for (size_t at = 0; at < piece;) {
            const ssize_t n = send(s, &buffer[at], piece - at);
            if (n == -FI_EAGAIN) {
                return total;
            }
            check("fi_send", n);
            at += static_cast<size_t>(n);
            total += static_cast<uint64_t>(n);
        }
    }
}

void drain_checked(Stream& from, Stream& to, Pattern& expected, uint64_t total) {
    std::vector<char> buffer(3001);
    for (uint64_t received = 0; received < total;) {
        const ssize_t got = recv(to, buffer.data(), std::min<uint64_t>(buffer.size(), total - received));
        if (got == -FI_EAGAIN) {
            (void)peek_send(from);
            wait_for_any(to.host.fabric.get(), {&to.ep->fid, &from.ep->fid});
            continue;
        }
        EXPECT(got != 0);
        expected.check(buffer.data(), static_cast<size_t>(check("fi_recv", got)));
        received += static_cast<uint64_t>(got);
    }
}

void await_event(std::initializer_list<Host*> hosts, int timeout_ms) {
    const auto start = Clock::now();
    for (;;) {
        std::vector<pollfd> fds;
        for (Host* host : hosts) {
            const int ready = try_wait(*host, &host->eq->fid);
            if (ready == -FI_EAGAIN && host == *hosts.begin()) {
                return;
            }
            if (ready == 0) {
                fds.push_back({wait_fd(&host->eq->fid), POLLIN, 0});
            }
        }
        const int left = patience(timeout_ms) - milliseconds_since(start);
        if (left <= 0 || poll(fds.data(), fds.size(), fds.size() < hosts.size() ? 1 : left) < 0) {
            throw Error("no event in time", -FI_ETIMEDOUT);
        }
    }
}

int try_wait(Host& host, fid* one) { return fi_trywait(host.fabric.get(), &one, 1); }

int wait_fd(fid* one) {
    int fd = -1;
    check("fi_control(FI_GETWAIT)", fi_control(one, FI_GETWAIT, &fd));
    return fd;
}

bool readable(int fd, int timeout_ms) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, timeout_ms) == 1;
}

// ---- Addresses and counts

std::vector<std::byte> closed_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    close(fd);
    EXPECT(ok);
    std::vector<std::byte> bytes(sizeof(address));
    memcpy(bytes.data(), &address, sizeof(address));
    return bytes;
}

std::string to_text(const std::vector<std::byte>& bytes) {
    std::string text;
    for (const std::byte one : bytes) {
        constexpr const char* digits = "0123456789abcdef";
        text += digits[static_cast<unsigned>(one) >> 4];
        text += digits[static_cast<unsigned>(one) & 15];
    }
    return text;
}

std::vector<std::byte> from_text(const std::string& text) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i + 1 < text.size(); i += 2) {
        bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
    }
    return bytes;
}

size_t fds_at_rest(Host& host) {
    {
        const Pair a(host, 0); // at once
        const Pair b(host, 0);
    }
    // What is left of them goes as the queue is read.
    size_t fds = open_fds();
    for (int same = 0; same < 20; ++same) {
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        (void)fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), patience(10), 0);
        if (const size_t now = open_fds(); now != fds) {
            fds = now;
            same = 0;
        }
    }
    return fds;
}

size_t open_fds() {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

size_t mappings() {
    std::ifstream maps("/proc/self/maps");
    return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
}

namespace {
size_t statm(int field) {
    std::ifstream file("/proc/self/statm");
    size_t pages = 0;
    for (int i = 0; i <= field; ++i) {
        file >> pages;
    }
    return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}
} // namespace

size_t address_space_bytes() { return statm(0); }
size_t resident_bytes() { return statm(1); }

} // namespace fabtests
