// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Makes system calls directly: a preload library interposes libc's functions.
#include "preload/rules/rules.hpp"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/rules/hosts.hpp"

#ifndef RSOCKET_CONFIG_DIR // set by the build
#define RSOCKET_CONFIG_DIR "/etc/rdma/rsocket"
#endif

namespace preload {

// The origin of a text, for reports. line 0: the environment.
struct Place {
    const char* source;
    size_t line;
    const Report& report;

    void say(std::string_view text, const char* what, size_t position) const;
    void say(const char* what) const;
};

namespace {

constexpr size_t max_file = size_t{64} << 10;
constexpr int af_ib = 27; // Linux's value; glibc does not define it everywhere

template <class... Arguments> void report_line(const Report& report, const char* format, Arguments... arguments) {
    if (report.say != nullptr) {
        std::array<char, 400> line{};
        snprintf(line.data(), line.size(), format, arguments...);
        report.say(report.context, line.data());
    }
}

constexpr bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f'; }

// Removes the next word from the text and returns it; empty at the end.
std::string_view next_word(std::string_view& text) {
    while (!text.empty() && is_blank(text.front())) {
        text.remove_prefix(1);
    }
    size_t length = 0;
    while (length < text.size() && !is_blank(text[length])) {
        ++length;
    }
    const std::string_view word(text.data(), length);
    text.remove_prefix(length);
    return word;
}

bool same(std::string_view text, std::string_view wanted) {
    return text.size() == wanted.size() && strncasecmp(text.data(), wanted.data(), text.size()) == 0;
}

struct Name {
    std::string_view text;
    int value;
};
constexpr std::array domains{Name{"*", -1},        Name{"INET", AF_INET},    Name{"INET6", AF_INET6},
                             Name{"IB", af_ib},    Name{"AF_INET", AF_INET}, Name{"AF_INET6", AF_INET6},
                             Name{"AF_IB", af_ib}, Name{"PF_INET", AF_INET}, Name{"PF_INET6", AF_INET6},
                             Name{"PF_IB", af_ib}};
constexpr std::array types{Name{"*", -1}, Name{"STREAM", SOCK_STREAM}, Name{"DGRAM", SOCK_DGRAM},
                           Name{"SOCK_STREAM", SOCK_STREAM}, Name{"SOCK_DGRAM", SOCK_DGRAM}};
constexpr std::array protocols{Name{"*", -1}, Name{"TCP", IPPROTO_TCP}, Name{"UDP", IPPROTO_UDP},
                               Name{"IPPROTO_TCP", IPPROTO_TCP}, Name{"IPPROTO_UDP", IPPROTO_UDP}};

template <size_t N> bool look_up(const std::array<Name, N>& names, std::string_view text, int& value) {
    for (const Name& name : names) {
        if (same(text, name.text)) {
            value = name.value;
            return true;
        }
    }
    return false;
}

} // namespace

void Place::say(std::string_view text, const char* what, size_t position) const {
    std::array<char, 64> shown{}; // truncated; unprintable characters are replaced
    for (size_t i = 0; i + 1 < shown.size() && i < text.size(); ++i) {
        shown[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    }
    if (line == 0) {
        report_line(report, "%s: '%s' is left out: %s (at character %zu)", source, shown.data(), what, position + 1);
    } else {
        report_line(report, "%s:%zu: '%s' is left out: %s (at character %zu)", source, line, shown.data(), what,
                    position + 1);
    }
}

void Place::say(const char* what) const { report_line(report, "%s:%zu: the line is left out: %s", source, line, what); }

bool Rules::add_parsed(const Rule& rule, std::string_view text, const Place& place) {
    if (rule_count_ == rules_.size()) {
        place.say(text, "there are too many rules, 256 is the most", 0);
        return false;
    }
    rules_[rule_count_++] = rule;
    return true;
}

bool Rules::add_host(const Rule& rule, std::string_view host, std::string_view text, const Place& place) {
    if (same(host, "localhost")) { // independent of any file
        constexpr std::array<uint8_t, 16> ipv4{127};
        constexpr std::array<uint8_t, 16> ipv6{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
        return add_parsed(with_address(rule, Family::ipv4, ipv4, 8), text, place) &&
               add_parsed(with_address(rule, Family::ipv6, ipv6, 128), text, place);
    }
    const HostAddresses found = find_host(host);
    if (found.count == 0) {
        place.say(text, "the name is not in /etc/hosts", 0);
        return true; // still a rule, which matches nothing
    }
    for (size_t i = 0; i < found.count; ++i) {
        const HostAddress& one = found.all[i];
        const Rule resolved = one.ipv6 ? with_address(rule, Family::ipv6, one.bytes, 128)
                                       : with_address(rule, Family::ipv4, one.bytes, 32);
        if (!add_parsed(resolved, text, place)) {
            return false;
        }
    }
    return true;
}

bool Rules::add_rule(std::string_view text, Verdict verdict, const Place& place) {
    Rule rule;
    rule.verdict = verdict;
    std::string_view host;
    Fault fault;
    if (!parse_rule(text, rule, host, fault)) {
        place.say(text, fault.what, fault.position);
        return false;
    }
    return host.empty() ? add_parsed(rule, text, place) : add_host(rule, host, text, place);
}

void Rules::add_upgrade(std::string_view text, const Place& place) {
    only_ = true; // even if it is invalid: a user who selects a few sockets must not get all
    add_rule(text, Verdict::upgrade, place);
}

bool Rules::add_words(std::string_view words, const Report& report) {
    const Place place{"RSPRELOAD_RULES", 0, report};
    bool any = false;
    for (std::string_view word = next_word(words); !word.empty(); word = next_word(words)) {
        any = true;
        const bool is_kernel = same(word, "kernel");
        const std::string_view rule = is_kernel || same(word, "upgrade") ? next_word(words) : word;
        if (rule.empty()) {
            only_ = only_ || !is_kernel;
            place.say(word, "a rule must follow", 0);
        } else if (is_kernel) {
            add_rule(rule, Verdict::kernel, place);
        } else {
            add_upgrade(rule, place);
        }
    }
    return any;
}

void Rules::add_lines(std::string_view lines, std::string_view program, const char* source, const Report& report) {
    for (size_t number = 1; !lines.empty(); ++number) {
        const auto* const end = static_cast<const char*>(memchr(lines.data(), '\n', lines.size()));
        const size_t length = end != nullptr ? static_cast<size_t>(end - lines.data()) : lines.size();
        add_line({lines.data(), length}, program, Place{source, number, report});
        lines.remove_prefix(end != nullptr ? length + 1 : length);
    }
}

void Rules::add_line(std::string_view line, std::string_view program, const Place& place) {
    std::array<std::string_view, 4> words{};
    size_t count = 0;
    for (std::string_view word = next_word(line); !word.empty() && count < words.size(); word = next_word(line)) {
        if (word.front() == '#') {
            break;
        }
        words[count++] = word;
    }
    switch (count) {
    case 0:
        return;
    case 1:
        add_upgrade(words[0], place);
        return;
    case 2:
        if (same(words[0], "upgrade")) {
            add_upgrade(words[1], place);
        } else if (same(words[0], "kernel")) {
            add_rule(words[1], Verdict::kernel, place);
        } else {
            only_ = true;
            place.say(words[0], "neither upgrade nor kernel", 0);
        }
        return;
    case 3:
        only_ = true;
        place.say("there are four columns, program domain type protocol, or a rule");
        return;
    default: // further words are ignored, as in rdma-core
        add_kind(words.data(), program, place);
    }
}

void Rules::add_kind(const std::string_view* columns, std::string_view program, const Place& place) {
    listed_ = true; // see add_upgrade()
    Kind kind;
    if (!look_up(domains, columns[1], kind.domain)) {
        place.say(columns[1], "not a domain: *, INET, INET6 or IB", 0);
        return;
    }
    if (!look_up(types, columns[2], kind.type)) {
        place.say(columns[2], "not a type: *, STREAM or DGRAM", 0);
        return;
    }
    if (!look_up(protocols, columns[3], kind.protocol)) {
        place.say(columns[3], "not a protocol: *, TCP or UDP", 0);
        return;
    }
    // A prefix of the name is enough, case-insensitive, as in rdma-core.
    const std::string_view name = columns[0];
    if (!same(name, "*") &&
        (name.size() > program.size() || strncasecmp(name.data(), program.data(), name.size()) != 0)) {
        return;
    }
    if (kind_count_ == kinds_.size()) {
        place.say("there are too many for this program, 64 is the most");
        return;
    }
    kinds_[kind_count_++] = kind;
}

Decision Rules::for_socket(int domain, int type, int protocol) const {
    const int plain = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (domain != AF_INET && domain != AF_INET6) {
        return {Verdict::kernel, "not an internet socket"};
    }
    if (plain != SOCK_STREAM) {
        return {Verdict::kernel, "not a stream"};
    }
    if (protocol != 0 && protocol != IPPROTO_TCP) {
        return {Verdict::kernel, "not TCP"};
    }
    if (!listed_) {
        return {Verdict::upgrade, "a stream"};
    }
    for (size_t i = 0; i < kind_count_; ++i) {
        const Kind& kind = kinds_[i];
        if ((kind.domain == -1 || kind.domain == domain) && (kind.type == -1 || kind.type == plain) &&
            (kind.protocol == -1 || kind.protocol == IPPROTO_TCP)) {
            return {Verdict::upgrade, "listed in the configuration"};
        }
    }
    return {Verdict::kernel, "no rule names the address"}; // decide() knows these words
}

namespace {

Decision by_rule(const Rule& rule) {
    return rule.verdict == Verdict::upgrade ? Decision{Verdict::upgrade, "a rule names the address"}
                                            : Decision{Verdict::kernel, "a rule leaves the address to the kernel"};
}

// Linux connects to this host if the address is the wildcard.
void wildcard_to_loopback(Endpoint& endpoint) {
    if (endpoint.is_wildcard()) {
        endpoint.address = {};
        endpoint.address[endpoint.family == Family::ipv4 ? 3 : 15] = 1;
        if (endpoint.family == Family::ipv4) {
            endpoint.address[0] = 127;
        }
    }
}

} // namespace

const Rule* Rules::first_match(const Endpoint& endpoint) const {
    for (size_t i = 0; i < rule_count_; ++i) {
        if (rules_[i].matches(endpoint)) {
            return &rules_[i];
        }
    }
    return nullptr;
}

Decision Rules::for_upgrade(const sockaddr* server, socklen_t length) const {
    Endpoint endpoint;
    if (!endpoint.take(server, length)) {
        return {Verdict::kernel, "not an internet address"};
    }
    sa_family_t domain = 0;
    memcpy(&domain, &server->sa_family, sizeof(domain));
    const Decision socket = for_socket(domain, SOCK_STREAM, IPPROTO_TCP);
    if (socket.verdict == Verdict::kernel) {
        return socket;
    }
    wildcard_to_loopback(endpoint);
    if (const Rule* rule = first_match(endpoint)) {
        return by_rule(*rule);
    }
    return only_ ? Decision{Verdict::kernel, "no rule names the address"} : Decision{Verdict::upgrade, "by default"};
}

void Rules::load_file(const char* path, bool named, const Report& report) {
    const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (named || errno != ENOENT) {
            only_ = true; // see add_upgrade()
            report_line(report, "%s cannot be opened: error %d", path, errno);
        }
        return;
    }
    void* const memory =
        mmap(nullptr, max_file, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t size = 0;
    while (memory != MAP_FAILED && size < max_file) {
        const long got = syscall(SYS_read, fd, static_cast<char*>(memory) + size, max_file - size);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            only_ = true;
            report_line(report, "%s cannot be read: error %d", path, errno);
        }
        if (got <= 0) {
            break;
        }
        size += static_cast<size_t>(got);
    }
    syscall(SYS_close, fd);
    if (memory == MAP_FAILED) {
        only_ = true;
        report_line(report, "%s is not read: there is no memory", path);
        return;
    }
    if (size == max_file) {
        only_ = true;
        report_line(report, "%s is too large: what follows its first %zu bytes is left out", path, max_file);
    }
    add_lines({static_cast<const char*>(memory), size}, program(), path, report);
    munmap(memory, max_file);
}

// Without /proc, uses the name that the program was started by.
void Rules::find_program() {
    constexpr std::string_view gone = " (deleted)"; // appended to the path once the file was replaced
    const long size = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path_.data(), path_.size() - 1);
    size_t length = size > 0 ? static_cast<size_t>(size) : 0;
    if (length > gone.size() && memcmp(path_.data() + length - gone.size(), gone.data(), gone.size()) == 0) {
        length -= gone.size();
    }
    path_[length] = '\0';
    if (const char* const slash = strrchr(path_.data(), '/')) {
        program_ = slash + 1;
    } else if (program_invocation_short_name != nullptr) {
        program_ = program_invocation_short_name;
    }
}

void Rules::load(const Report& report) {
    find_program();
    const char* words = getenv("RSPRELOAD_RULES");
    if (words != nullptr && add_words(words, report)) {
        return;
    }
    const char* named = getenv("RSPRELOAD_CONFIG");
    const bool is_named = named != nullptr && *named != '\0';
    load_file(is_named ? named : RSOCKET_CONFIG_DIR "/preload_config", is_named, report);
}

namespace {

// Without a log there is nobody to report its errors to.
void append_to_log(void* /*context*/, const char* text) {
    const char* path = getenv("RSPRELOAD_LOG");
    if (path == nullptr || *path == '\0') {
        return;
    }
    const long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0) {
        return;
    }
    std::array<char, 480> line{};
    const int length = snprintf(line.data(), line.size(), "rspreload[%d] warn: %s\n", getpid(), text);
    syscall(SYS_write, fd, line.data(), static_cast<size_t>(length));
    syscall(SYS_close, fd);
}

void count(void* context, const char* /*line*/) { ++*static_cast<size_t*>(context); }

constinit std::atomic<const Rules*> loaded{nullptr};
constinit const Rules none; // if there is no memory for others

} // namespace

// Threads, or a signal handler and the code that it interrupted, may read the rules at the same time: none waits, and
// the first to publish wins; it alone reports invalid lines.
const Rules& Rules::get() {
    if (const Rules* rules = loaded.load(std::memory_order_acquire)) {
        return *rules;
    }
    const int saved = errno;
    void* const memory = mmap(nullptr, sizeof(Rules), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* mine = memory == MAP_FAILED ? nullptr : new (memory) Rules;
    size_t faults = 0;
    if (mine != nullptr) {
        mine->load({count, &faults});
    }
    const Rules* first = nullptr;
    const bool won = loaded.compare_exchange_strong(first, mine != nullptr ? mine : &none, std::memory_order_acq_rel);
    if (mine != nullptr && won && faults != 0) {
        void* const scratch = mmap(nullptr, sizeof(Rules), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (scratch != MAP_FAILED) {
            (new (scratch) Rules)->load({append_to_log, nullptr});
            munmap(scratch, sizeof(Rules));
        }
    } else if (mine != nullptr && !won) {
        munmap(memory, sizeof(Rules));
    }
    errno = saved;
    return *loaded.load(std::memory_order_acquire);
}

} // namespace preload
