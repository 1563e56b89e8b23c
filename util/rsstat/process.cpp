// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/process.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

namespace rsstat {

namespace {

std::string file_text(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// Parses the fields after the name, which may contain blanks and brackets. False: invalid line of /proc/PID/stat.
bool read_start(const std::string& stat, uint64_t& ticks) {
    const size_t end = stat.rfind(')');
    if (end == std::string::npos) {
        return false;
    }
    std::istringstream fields(stat.substr(end + 1));
    constexpr int before = 19; // proc(5): the name is field 2, starttime field 22
    std::string skipped;
    for (int i = 0; i < before; ++i) {
        fields >> skipped;
    }
    return static_cast<bool>(fields >> ticks);
}

uint64_t kilobytes_of(const std::string& status, const char* name) {
    const size_t at = status.find(name);
    return at != std::string::npos ? strtoull(status.c_str() + at + strlen(name), nullptr, 10) * 1024 : 0;
}

// An address in the format of /proc/net/tcp: words in host byte order as hexadecimal digits, and the port.
std::optional<std::string> parse_address(const std::string& text) {
    const size_t colon = text.find(':');
    if (colon != 8 && colon != 32) {
        return {};
    }
    std::array<uint32_t, 4> words{};
    for (size_t i = 0; i < colon / 8; ++i) {
        words[i] = static_cast<uint32_t>(strtoul(text.substr(i * 8, 8).c_str(), nullptr, 16));
    }
    const auto port = static_cast<unsigned>(strtoul(text.c_str() + colon + 1, nullptr, 16) & 0xffff);
    std::array<char, INET6_ADDRSTRLEN> address{};
    const bool is_mapped = colon == 32 && words[0] == 0 && words[1] == 0 && words[2] == htonl(0xffff);
    if (colon == 8 || is_mapped) {
        inet_ntop(AF_INET, colon == 8 ? words.data() : &words[3], address.data(), address.size());
        return fmt::format("{}:{}", address.data(), port);
    }
    inet_ntop(AF_INET6, words.data(), address.data(), address.size());
    return fmt::format("[{}]:{}", address.data(), port);
}

std::string link_of(const std::string& path) {
    std::array<char, 64> target{};
    const ssize_t n = readlink(path.c_str(), target.data(), target.size() - 1);
    return n > 0 ? std::string(target.data(), static_cast<size_t>(n)) : "";
}

} // namespace

std::string printable(std::string_view text) {
    std::string out(text);
    std::replace_if(
        out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return out;
}

std::optional<ProcessFacts> facts_of(pid_t pid) {
    const std::string folder = fmt::format("/proc/{}/", pid);
    uint64_t ticks = 0;
    if (!read_start(file_text(folder + "stat"), ticks)) {
        return {};
    }
    ProcessFacts facts;
    std::string name = file_text(folder + "comm");
    if (!name.empty() && name.back() == '\n') {
        name.pop_back();
    }
    facts.program = printable(name);
    facts.started_ns = ticks * (1000000000U / static_cast<uint64_t>(sysconf(_SC_CLK_TCK)));
    const std::string status = file_text(folder + "status");
    const size_t users = status.find("\nUid:");
    unsigned real = 0;
    unsigned effective = 0;
    if (users == std::string::npos || sscanf(status.c_str() + users, "\nUid: %u %u", &real, &effective) != 2) {
        return {};
    }
    facts.real_user = real;
    facts.effective_user = effective;
    facts.pinned_bytes = kilobytes_of(status, "\nVmPin:");
    facts.locked_bytes = kilobytes_of(status, "\nVmLck:");
    return facts;
}

std::optional<std::pair<uint64_t, Addresses>> parse_tcp_line(const std::string& line) {
    std::istringstream fields(line);
    std::string number;
    std::string local;
    std::string peer;
    std::string state;
    std::string queues;
    std::string skipped;
    uint64_t inode = 0;
    fields >> number >> local >> peer >> state >> queues >> skipped >> skipped >> skipped >> skipped;
    if (!(fields >> inode) || inode == 0) {
        return {};
    }
    const auto own = parse_address(local);
    const auto other = parse_address(peer);
    Addresses addresses;
    if (!own || !other ||
        sscanf(queues.c_str(), "%" SCNx64 ":%" SCNx64, &addresses.send_queue, &addresses.receive_queue) != 2) {
        return {};
    }
    constexpr const char* listening = "0A";
    addresses.local = *own;
    addresses.peer = state == listening ? "-" : *other;
    return std::pair(inode, addresses);
}

const Addresses* KernelSockets::find(pid_t pid, int fd) {
    if (pid != last_pid_) {
        last_pid_ = pid;
        last_ = nullptr;
        const std::string space = link_of(fmt::format("/proc/{}/ns/net", pid));
        if (!space.empty()) {
            const auto [at, made] = tables_.try_emplace(space);
            last_ = &at->second;
            for (const char* name : {"tcp", "tcp6"}) {
                std::ifstream file(made ? fmt::format("/proc/{}/net/{}", pid, name) : "");
                for (std::string line; std::getline(file, line);) {
                    if (auto socket = parse_tcp_line(line)) {
                        at->second.insert(std::move(*socket));
                    }
                }
            }
        }
    }
    uint64_t inode = 0;
    if (last_ == nullptr ||
        sscanf(link_of(fmt::format("/proc/{}/fd/{}", pid, fd)).c_str(), "socket:[%" SCNu64 "]", &inode) != 1) {
        return nullptr;
    }
    const auto found = last_->find(inode);
    return found != last_->end() ? &found->second : nullptr;
}

} // namespace rsstat
