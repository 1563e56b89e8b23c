// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Makes system calls directly: a preload library interposes libc's functions.
#include "preload/rules/hosts.hpp"

#include <cerrno>
#include <cstring>
#include <strings.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace preload {

namespace {

constexpr size_t max_name = 253; // RFC 1035
constexpr size_t max_file = size_t{4} << 20;

// Parses a hosts file byte by byte: lines of an address and names, comments after '#'.
class HostsParser {
  public:
    HostsParser(std::string_view wanted, HostAddresses& found) : wanted_(wanted), found_(found) {}

    void take(char c) {
        if (c == '\n') {
            end_word();
            words_ = 0;
            comment_ = false;
        } else if (comment_) {
            return;
        } else if (c == '#') {
            end_word();
            comment_ = true;
        } else if (c == ' ' || c == '\t' || c == '\r') {
            end_word();
        } else {
            if (length_ < word_.size()) {
                word_[length_] = c;
            }
            ++length_;
        }
    }

  private:
    void end_word() {
        if (length_ == 0) {
            return;
        }
        const std::string_view word(word_.data(), length_ < word_.size() ? length_ : 0); // too long: no name
        if (words_++ == 0) {
            has_address_ = parse_address(word);
        } else if (has_address_ && word.size() == wanted_.size() &&
                   strncasecmp(word.data(), wanted_.data(), word.size()) == 0 && found_.count < found_.all.size()) {
            found_.all[found_.count++] = address_;
            has_address_ = false; // once per line
        }
        length_ = 0;
    }

    bool parse_address(std::string_view word) {
        std::array<char, INET6_ADDRSTRLEN> text{};
        if (word.empty() || word.size() >= text.size() || memchr(word.data(), '\0', word.size()) != nullptr) {
            return false;
        }
        memcpy(text.data(), word.data(), word.size());
        address_ = {};
        address_.ipv6 = strchr(text.data(), ':') != nullptr;
        return inet_pton(address_.ipv6 ? AF_INET6 : AF_INET, text.data(), address_.bytes.data()) == 1;
    }

    std::string_view wanted_;
    HostAddresses& found_;
    std::array<char, max_name + 1> word_{};
    size_t length_ = 0; // of the word so far, which may be longer than word_
    size_t words_ = 0;  // of the line so far
    bool comment_ = false;
    bool has_address_ = false;
    HostAddress address_;
};

} // namespace

bool is_host_name(std::string_view text) {
    if (text.empty() || text.size() > max_name) {
        return false;
    }
    bool letters = false;
    for (const char c : text) {
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.') {
            return false;
        }
        letters = letters || letter;
    }
    return letters && text.front() != '-' && text.front() != '.';
}

HostAddresses find_host(std::string_view name, const char* file) {
    HostAddresses found;
    const long fd = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return found;
    }
    HostsParser parser(name, found);
    std::array<char, 2048> block{};
    for (size_t total = 0; total < max_file;) {
        const long got = syscall(SYS_read, fd, block.data(), block.size());
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            parser.take('\n'); // the last line may lack a newline
            break;
        }
        for (long i = 0; i < got; ++i) {
            parser.take(block[static_cast<size_t>(i)]);
        }
        total += static_cast<size_t>(got);
    }
    syscall(SYS_close, fd);
    return found;
}

} // namespace preload
