// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// std::string_view::substr and similar functions are not used: they can throw, which needs the C++ library.
#include "preload/rules/rule.hpp"

#include <charconv>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "preload/rules/hosts.hpp"

namespace preload {

namespace {

constexpr size_t ipv4_bytes = 4;
constexpr unsigned mapped_bits = 96; // of ::ffff:0:0/96, the IPv4-mapped addresses
constexpr std::array<uint8_t, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_mapped(const std::array<uint8_t, 16>& address) {
    return memcmp(address.data(), mapped.data(), mapped.size()) == 0;
}

void unmap(std::array<uint8_t, 16>& address) {
    memmove(address.data(), address.data() + mapped.size(), ipv4_bytes);
    memset(address.data() + ipv4_bytes, 0, address.size() - ipv4_bytes);
}

// Bits after the prefix are ignored: 10.1.2.3/8 is 10.0.0.0/8.
void cut(std::array<uint8_t, 16>& address, unsigned prefix) {
    for (size_t i = 0; i < address.size(); ++i) {
        const unsigned bits = prefix > i * 8 ? prefix - static_cast<unsigned>(i) * 8 : 0;
        if (bits < 8) {
            address[i] = static_cast<uint8_t>(address[i] & ~(0xffU >> bits));
        }
    }
}

// Reads a text from its beginning to its end.
class Reader {
  public:
    explicit Reader(std::string_view text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

    [[nodiscard]] bool done() const { return at_ == end_; }
    [[nodiscard]] size_t position() const { return static_cast<size_t>(at_ - begin_); }
    bool take(char wanted) {
        const bool is = at_ != end_ && *at_ == wanted;
        at_ += is ? 1 : 0;
        return is;
    }
    // Returns the text before any of these characters, or before the end.
    std::string_view until(const char* ends) {
        const char* const from = at_;
        while (at_ != end_ && (*at_ == '\0' || strchr(ends, *at_) == nullptr)) {
            ++at_;
        }
        return {from, static_cast<size_t>(at_ - from)};
    }
    // Whether the rest is not empty, has only digits and hyphens, and does not begin with a hyphen.
    [[nodiscard]] bool is_number() const {
        const char* c = at_;
        while (c != end_ && ((*c >= '0' && *c <= '9') || *c == '-')) {
            ++c;
        }
        return c == end_ && c != at_ && *at_ != '-';
    }
    // Reads a decimal number of at most max; on failure, the position stays as it is.
    bool number(unsigned max, unsigned& value) {
        unsigned read = 0;
        const auto [rest, error] = std::from_chars(at_, end_, read);
        if (error != std::errc() || read > max) {
            return false;
        }
        at_ = rest;
        value = read;
        return true;
    }

  private:
    const char* begin_;
    const char* at_;
    const char* end_;
};

class Parser {
  public:
    Parser(std::string_view text, std::string_view& host, Fault& fault) : reader_(text), host_(host), fault_(fault) {}

    bool parse(Rule& rule) {
        if (reader_.done()) {
            return wrong("there is no rule");
        }
        if (reader_.is_number()) {
            return ports(rule);
        }
        // A rule that begins with a colon has no address; an IPv6 address, which may, has brackets.
        Reader ahead = reader_;
        if (!ahead.take(':') && !(address(rule) && prefix(rule))) {
            return false;
        }
        if (reader_.done()) {
            return true;
        }
        if (!reader_.take(':')) {
            return wrong(host_.empty() ? "an address is followed by /PREFIX, :PORT or nothing"
                                       : "a name is followed by :PORT or nothing");
        }
        return ports(rule);
    }

  private:
    bool wrong(const char* what) { return wrong(what, reader_.position()); }
    bool wrong(const char* what, size_t position) {
        fault_ = {what, position};
        return false;
    }

    bool address(Rule& rule) {
        const size_t start = reader_.position();
        const bool bracket = reader_.take('[');
        const std::string_view word = reader_.until(bracket ? "]" : "/:");
        if (bracket && !reader_.take(']')) {
            return wrong("the bracket is not closed", start);
        }
        if (!bracket && is_host_name(word)) {
            Reader ahead = reader_;
            if (ahead.take(':') && (ahead.until(":"), ahead.take(':'))) {
                return wrong("neither an address nor a name (IPv6 goes into brackets)", start);
            }
            host_ = word;
            return true;
        }
        std::array<char, INET6_ADDRSTRLEN> text{};
        const bool fits = word.size() < text.size() && memchr(word.data(), '\0', word.size()) == nullptr;
        if (fits) {
            memcpy(text.data(), word.data(), word.size());
        }
        if (!fits || inet_pton(bracket ? AF_INET6 : AF_INET, text.data(), rule.address.data()) != 1) {
            return wrong(bracket ? "not an IPv6 address" : "neither an address nor a name (IPv6 goes into brackets)",
                         start + (bracket ? 1 : 0));
        }
        rule.family = bracket ? Family::ipv6 : Family::ipv4;
        rule.prefix = bracket ? 128 : 32;
        return true;
    }

    bool prefix(Rule& rule) {
        if (!host_.empty()) {
            return true;
        }
        if (reader_.take('/')) {
            unsigned bits = 0;
            if (!reader_.number(rule.prefix, bits)) {
                return wrong(rule.family == Family::ipv4 ? "a prefix of IPv4 is a number from 0 to 32"
                                                         : "a prefix of IPv6 is a number from 0 to 128");
            }
            rule.prefix = static_cast<uint8_t>(bits);
        }
        rule = with_address(rule, rule.family, rule.address, rule.prefix);
        return true;
    }

    bool ports(Rule& rule) {
        const size_t start = reader_.position();
        unsigned first = 0;
        if (!reader_.number(65535, first) || first == 0) {
            return wrong("a port is a number from 1 to 65535", start);
        }
        unsigned last = first;
        if (reader_.take('-')) {
            const size_t second = reader_.position();
            if (!reader_.number(65535, last) || last == 0) {
                return wrong("a port is a number from 1 to 65535", second);
            }
            if (last < first) {
                return wrong("the range of ports ends before it begins", second);
            }
        }
        if (!reader_.done()) {
            return wrong("nothing follows the ports");
        }
        rule.first_port = static_cast<uint16_t>(first);
        rule.last_port = static_cast<uint16_t>(last);
        return true;
    }

    Reader reader_;
    std::string_view& host_;
    Fault& fault_;
};

} // namespace

bool Endpoint::take(const sockaddr* from, socklen_t length) {
    if (from == nullptr || length < offsetof(sockaddr, sa_data)) {
        return false;
    }
    sa_family_t kind = 0; // programs pass unaligned addresses
    memcpy(&kind, &from->sa_family, sizeof(kind));
    *this = Endpoint{};
    if (kind == AF_INET && length >= sizeof(sockaddr_in)) {
        sockaddr_in in{};
        memcpy(&in, from, sizeof(in));
        family = Family::ipv4;
        memcpy(address.data(), &in.sin_addr, ipv4_bytes);
        port = ntohs(in.sin_port);
        return true;
    }
    // What the kernel takes too: without the scope, which is a later addition.
    if (kind == AF_INET6 && length >= offsetof(sockaddr_in6, sin6_scope_id)) {
        sockaddr_in6 in6{};
        memcpy(&in6, from, offsetof(sockaddr_in6, sin6_scope_id));
        family = Family::ipv6;
        memcpy(address.data(), &in6.sin6_addr, address.size());
        port = ntohs(in6.sin6_port);
        if (is_mapped(address)) {
            unmap(address);
            family = Family::ipv4;
        }
        return true;
    }
    return false;
}

bool Endpoint::is_wildcard() const {
    constexpr std::array<uint8_t, 16> zeros{};
    return memcmp(address.data(), zeros.data(), zeros.size()) == 0;
}

bool Rule::matches(const Endpoint& endpoint) const {
    if (endpoint.port < first_port || endpoint.port > last_port) {
        return false;
    }
    if (family == Family::any) {
        return true;
    }
    std::array<uint8_t, 16> theirs = endpoint.address;
    cut(theirs, prefix);
    return family == endpoint.family && memcmp(theirs.data(), address.data(), address.size()) == 0;
}

bool parse_rule(std::string_view text, Rule& rule, std::string_view& host, Fault& fault) {
    Rule read;
    read.verdict = rule.verdict;
    host = {};
    if (!Parser(text, host, fault).parse(read)) {
        return false;
    }
    rule = read;
    return true;
}

Rule with_address(Rule rule, Family family, const std::array<uint8_t, 16>& address, unsigned prefix) {
    rule.family = family;
    rule.address = address;
    if (family == Family::ipv6 && prefix >= mapped_bits && is_mapped(address)) {
        unmap(rule.address);
        rule.family = Family::ipv4;
        prefix -= mapped_bits;
    }
    cut(rule.address, prefix);
    rule.prefix = static_cast<uint8_t>(prefix);
    return rule;
}

} // namespace preload
