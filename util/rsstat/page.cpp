// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/page.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>

#include "util/rsstat/process.hpp"

namespace rsstat {

namespace {

namespace stats = base::stats;

// Acquire: later loads, such as that of a generation, return values at least as new.
uint64_t value_of(const stats::Word& word) { return word.load(std::memory_order_acquire); }
uint32_t value_of(const stats::Half& half) { return half.load(std::memory_order_acquire); }

// The largest value if the sum exceeds it: a sum is never smaller than one of its parts.
uint64_t sum_of(uint64_t a, uint64_t b) { return a + std::min(b, UINT64_MAX - a); }

Traffic copy(const stats::Traffic& from) {
    Traffic to;
    to.path_bytes = value_of(from.path_bytes);
    to.bytes = sum_of(to.path_bytes, value_of(from.kernel_bytes));
    to.calls = sum_of(value_of(from.path_calls), value_of(from.kernel_calls));
    to.wakeups = value_of(from.wakeups);
    to.blocked = value_of(from.blocked);
    to.buffer_bytes = value_of(from.buffer_bytes);
    return to;
}

// An address, or "-" if the words are invalid.
std::string address_of(const stats::Word (&from)[3]) {
    const uint64_t first = value_of(from[0]);
    const auto family = static_cast<uint16_t>(first);
    const auto port = static_cast<unsigned>(first >> 16 & 0xffff);
    const std::array<uint64_t, 2> bytes{value_of(from[1]), value_of(from[2])};
    std::array<char, INET6_ADDRSTRLEN> text{};
    if ((family != AF_INET && family != AF_INET6) ||
        inet_ntop(family, bytes.data(), text.data(), text.size()) == nullptr) {
        return "-";
    }
    return family == AF_INET ? fmt::format("{}:{}", text.data(), port) : fmt::format("[{}]:{}", text.data(), port);
}

std::string text_of(const stats::Word (&from)[6]) {
    std::array<uint64_t, std::size(stats::Ends().device)> words{};
    for (size_t i = 0; i < words.size(); ++i) {
        words[i] = value_of(from[i]);
    }
    const auto* text = reinterpret_cast<const char*>(words.data());
    return printable({text, strnlen(text, sizeof(words))});
}

enum class Seen { nothing, socket, torn };

Seen read_row(const stats::Row& row, stats::Library library, Socket& out) {
    constexpr int max_attempts = 4;
    for (int i = 0; i < max_attempts; ++i) {
        const uint32_t before = row.generation.load(std::memory_order_acquire);
        if (before == 0) {
            return Seen::nothing;
        }
        if ((before & 1) != 0) {
            continue;
        }
        const bool live = value_of(row.live) != 0;
        out.fd = row.fd.load(std::memory_order_acquire);
        const uint32_t role = value_of(row.role);
        out.role =
            role <= static_cast<uint32_t>(stats::Role::inherited) ? static_cast<stats::Role>(role) : stats::Role::none;
        out.path = value_of(row.path) & (stats::receives_by_path | stats::sends_by_path);
        out.over_fabric = (value_of(row.path) & stats::over_fabric) != 0;
        out.reason = value_of(row.reason) % stats::max_reasons;
        out.upgrades = value_of(row.upgrades);
        out.returns = value_of(row.returns);
        out.began_ns = value_of(row.began_ns);
        out.sleeps = value_of(row.sleeps);
        out.in = copy(row.in);
        out.out = copy(row.out);
        if (const auto* ends =
                library == stats::Library::sockets ? &static_cast<const stats::SocketRow&>(row).ends : nullptr;
            ends != nullptr) {
            out.local = address_of(ends->local);
            out.peer = address_of(ends->peer);
            out.device = text_of(ends->device);
            out.path = stats::receives_by_path | stats::sends_by_path;
            out.in.path_bytes = out.in.bytes;
            out.out.path_bytes = out.out.bytes;
            out.reason = 0;
        }
        if (row.generation.load(std::memory_order_relaxed) == before) {
            return live && out.fd >= 0 ? Seen::socket : Seen::nothing;
        }
    }
    return Seen::torn;
}

void read_ended(const stats::Ended& from, stats::Library library, Ended& to) {
    for (size_t i = 0; i < 2; ++i) {
        to.fabric_bytes[i] = value_of(from.fabric_bytes[i]);
        to.path_bytes[i] = sum_of(value_of(from.path_bytes[i]), to.fabric_bytes[i]);
        to.bytes[i] = sum_of(to.path_bytes[i], value_of(from.kernel_bytes[i]));
        to.calls[i] = value_of(from.calls[i]);
    }
    to.upgraded = value_of(from.upgraded);
    to.wakeups = value_of(from.wakeups);
    to.sleeps = value_of(from.sleeps);
    to.upgrades = value_of(from.upgrades);
    to.returns = value_of(from.returns);
    for (size_t i = 0; i < to.reasons.size(); ++i) {
        to.reasons[i] = value_of(from.reasons[i]);
    }
    if (library == stats::Library::sockets) {
        to.path_bytes = to.bytes;
    }
}

void read_rows(const char* rows, uint32_t count, Page& page) {
    const size_t length = stats::row_bytes_of(page.library);
    page.sockets.clear();
    page.torn = 0;
    for (uint32_t i = 0; i < count; ++i) {
        Socket socket;
        socket.row = i;
        switch (read_row(*reinterpret_cast<const stats::Row*>(rows + i * length), page.library, socket)) {
        case Seen::socket:
            page.sockets.push_back(socket);
            break;
        case Seen::torn:
            ++page.torn;
            break;
        case Seen::nothing:
            break;
        }
    }
}

} // namespace

bool is_of_other_version(const void* memory, size_t size) {
    const auto& header = *static_cast<const stats::Header*>(memory); // loaded from only if there is one
    return size >= stats::header_bytes && __atomic_load_n(&header.magic, __ATOMIC_ACQUIRE) == stats::magic &&
           __atomic_load_n(&header.version, __ATOMIC_RELAXED) != stats::version;
}

std::optional<Page> read_page(const void* memory, size_t size) {
    if (size < stats::header_bytes) {
        return {};
    }
    const auto& header = *static_cast<const stats::Header*>(memory);
    // Load each word once: a second load may return another value.
    const uint64_t magic = __atomic_load_n(&header.magic, __ATOMIC_ACQUIRE);
    const uint32_t version = __atomic_load_n(&header.version, __ATOMIC_RELAXED);
    const uint32_t row_bytes = __atomic_load_n(&header.row_bytes, __ATOMIC_RELAXED);
    const uint32_t library = __atomic_load_n(reinterpret_cast<const uint32_t*>(&header.library), __ATOMIC_RELAXED);
    if (magic != stats::magic || version != stats::version ||
        (library != static_cast<uint32_t>(stats::Library::preload) &&
         library != static_cast<uint32_t>(stats::Library::sockets))) {
        return {};
    }
    Page page;
    page.library = static_cast<stats::Library>(library);
    const size_t row_length = stats::row_bytes_of(page.library);
    if (row_bytes != row_length) {
        return {};
    }
    const size_t space = std::min<size_t>((size - stats::header_bytes) / row_length, stats::max_rows);
    const char* rows = static_cast<const char*>(memory) + stats::header_bytes;
    page.made_ns = __atomic_load_n(&header.made_ns, __ATOMIC_RELAXED);
    page.without_row = value_of(header.without_row);
    page.sleeps = value_of(header.sleeps);
    page.slept_ns = value_of(header.slept_ns);
    // A socket that is closed meanwhile would be counted twice, or not at all: in that case read everything again, a
    // few times.
    constexpr int max_attempts = 4;
    for (int i = 0; i < max_attempts; ++i) {
        page.ended.sockets = header.ended.sockets.load(std::memory_order_acquire);
        const bool settled = value_of(header.ended.closing) == page.ended.sockets;
        const auto used = static_cast<uint32_t>(std::min<size_t>(value_of(header.rows_used), space));
        read_rows(rows, used, page);
        read_ended(header.ended, page.library, page.ended);
        if (settled && value_of(header.ended.closing) == page.ended.sockets) {
            break;
        }
    }
    return page;
}

} // namespace rsstat
