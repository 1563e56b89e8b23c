// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which connections are upgraded by the rules: rules(…) stands for RSPRELOAD_RULES, file(…) for the administrator's
// file.
#include "preload/rules/rules.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/rules/hosts.hpp"

namespace {

using fabtests::Failure;
using preload::Fault;
using preload::Rule;
using preload::Rules;
using preload::Verdict;

struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    Address(const char* host, uint16_t port) {
        auto* const in = reinterpret_cast<sockaddr_in*>(&storage);
        auto* const in6 = reinterpret_cast<sockaddr_in6*>(&storage);
        if (inet_pton(AF_INET, host, &in->sin_addr) == 1) {
            in->sin_family = AF_INET;
            in->sin_port = htons(port);
            length = sizeof(*in);
        } else if (inet_pton(AF_INET6, host, &in6->sin6_addr) == 1) {
            in6->sin6_family = AF_INET6;
            in6->sin6_port = htons(port);
            length = sizeof(*in6);
        } else {
            throw Failure(std::string(host) + " is no address");
        }
    }
    [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Rules, and what was said of their texts.
struct Made {
    std::unique_ptr<Rules> rules = std::make_unique<Rules>();
    std::vector<std::string> complaints;

    preload::Report report() {
        return {[](void* all, const char* line) { static_cast<std::vector<std::string>*>(all)->emplace_back(line); },
                &complaints};
    }
    [[nodiscard]] bool upgrades(const char* host, uint16_t port) const {
        const Address server(host, port);
        return rules->for_upgrade(server.get(), server.length).verdict == Verdict::upgrade;
    }
    [[nodiscard]] std::string why(const char* host, uint16_t port) const {
        const Address server(host, port);
        return rules->for_upgrade(server.get(), server.length).reason;
    }
    [[nodiscard]] bool makes(int domain, int type, int protocol) const {
        return rules->for_socket(domain, type, protocol).verdict == Verdict::upgrade;
    }
};

Made rules(const char* words) {
    Made made;
    made.rules->add_words(words, made.report());
    return made;
}

Made file(std::string_view lines, const char* program = "redis-server") {
    Made made;
    made.rules->add_lines(lines, program, "preload_config", made.report());
    return made;
}

struct Folder {
    std::string path;
    Folder() {
        char name[] = "/tmp/rules_test.XXXXXX";
        if (mkdtemp(name) == nullptr) {
            throw Failure("mkdtemp");
        }
        path = name;
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
        for (const char* name : {"/config", "/log"}) {
            unlink((path + name).c_str());
        }
        rmdir(path.c_str());
    }
    void put(const std::string& text) const {
        const int fd = open((path + "/config").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        (void)!write(fd, text.data(), text.size());
        close(fd);
    }
    [[nodiscard]] std::string log() const {
        const int fd = open((path + "/log").c_str(), O_RDONLY | O_CLOEXEC);
        char text[2000] = {};
        (void)!read(fd, text, sizeof(text) - 1);
        close(fd);
        return text;
    }
};

void expect_fault(const char* text, size_t position, const char* part) {
    Rule rule;
    Fault fault;
    std::string_view host;
    if (parse_rule(text, rule, host, fault)) {
        throw Failure(std::string(text) + " is taken for a rule");
    }
    if (fault.position != position || strstr(fault.what, part) == nullptr) {
        throw Failure(std::string(text) + ": " + fault.what + " at " + std::to_string(fault.position));
    }
}

void test_only_tcp_is_upgraded() {
    const Made made = rules("");
    EXPECT(made.makes(AF_INET, SOCK_STREAM, 0) && made.makes(AF_INET6, SOCK_STREAM, IPPROTO_TCP));
    EXPECT(made.makes(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT(!made.makes(AF_INET, SOCK_DGRAM, 0) && !made.makes(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    EXPECT(!made.makes(AF_UNIX, SOCK_STREAM, 0) && !made.makes(AF_NETLINK, SOCK_RAW, 0));
    EXPECT(!made.makes(AF_INET, SOCK_STREAM, IPPROTO_SCTP) && !made.makes(AF_INET, SOCK_STREAM, 262));
    // No rule changes that: there is nothing that could carry them.
    EXPECT(!file("* * DGRAM UDP").makes(AF_INET, SOCK_DGRAM, IPPROTO_UDP));
}

void test_a_rule_of_a_port_names_it_at_every_address() {
    const Made made = rules(":6379");
    EXPECT(made.upgrades("127.0.0.1", 6379) && made.upgrades("::1", 6379) && made.upgrades("10.0.0.1", 6379));
    EXPECT(made.upgrades("0.0.0.0", 6379));
    EXPECT(!made.upgrades("127.0.0.1", 6380) && !made.upgrades("10.0.0.1", 6378));
}

void test_a_range_of_ports_has_both_its_ends() {
    const Made made = rules(":1000-2000");
    EXPECT(made.upgrades("10.0.0.1", 1000) && made.upgrades("10.0.0.1", 2000));
    EXPECT(!made.upgrades("10.0.0.1", 999) && !made.upgrades("10.0.0.1", 2001));
    const Made all = rules(":1-65535");
    EXPECT(all.upgrades("10.0.0.1", 1) && all.upgrades("127.0.0.1", 65535));
}

void test_a_prefix_says_how_many_bits_count() {
    EXPECT(rules("10.1.2.3").upgrades("10.1.2.3", 1) && !rules("10.1.2.3").upgrades("10.1.2.2", 1));
    const Made made = rules("10.77.1.9/23:80");
    EXPECT(made.upgrades("10.77.0.0", 80) && made.upgrades("10.77.1.255", 80));
    EXPECT(!made.upgrades("10.77.2.0", 80) && !made.upgrades("10.76.255.255", 80) && !made.upgrades("10.77.1.9", 81));
    EXPECT(rules("0.0.0.0/0").upgrades("255.1.2.3", 9) && !rules("0.0.0.0/0").upgrades("fd00::1", 9));
    const Made six = rules("[fd77:1::]/33:80-90");
    EXPECT(six.upgrades("fd77:1:7fff::1", 90) && !six.upgrades("fd77:1:8000::1", 90) && !six.upgrades("10.0.0.1", 90));
    EXPECT(rules("[fd77::1]").upgrades("fd77::1", 5) && !rules("[fd77::1]").upgrades("fd77::2", 5));
}

void test_an_ipv4_address_in_ipv6_is_one_of_ipv4() {
    EXPECT(rules("10.0.0.0/8").upgrades("::ffff:10.1.1.1", 80));
    const Made made = rules("[::ffff:10.0.0.0]/104");
    EXPECT(made.upgrades("10.255.0.1", 80) && made.upgrades("::ffff:10.255.0.1", 80) && !made.upgrades("11.0.0.1", 80));
    EXPECT(made.complaints.empty());
}

void test_several_rules_are_any_of_them() {
    const Made made = rules(" 10.0.0.0/8:80\t[::1]:81\n:82  ");
    EXPECT(made.complaints.empty());
    EXPECT(made.upgrades("10.1.1.1", 80) && made.upgrades("::1", 81) && made.upgrades("192.0.2.1", 82));
    EXPECT(!made.upgrades("10.1.1.1", 81) && !made.upgrades("::2", 81));
}

void test_what_is_no_rule_is_told_with_its_place() {
    expect_fault("", 0, "no rule");
    expect_fault("fd00::1", 0, "IPv6 goes into brackets");
    expect_fault("256.0.0.1", 0, "neither an address nor a name");
    expect_fault("10.0.1", 0, "neither an address nor a name");
    expect_fault("-host", 0, "neither an address nor a name");
    expect_fault(".host", 0, "neither an address nor a name");
    expect_fault("ho$t:80", 0, "neither an address nor a name");
    expect_fault("localhost/8", 9, "a name is followed by");
    expect_fault("localhost:", 10, "1 to 65535");
    expect_fault("localhost:http", 10, "1 to 65535");
    expect_fault("0", 0, "1 to 65535");
    expect_fault("65536", 0, "1 to 65535");
    expect_fault("80-79", 3, "ends before");
    expect_fault("80-", 3, "1 to 65535");
    expect_fault("-80", 0, "neither an address nor a name");
    expect_fault("80-90-100", 5, "nothing follows");
    expect_fault("10.0.0.1/33", 9, "0 to 32");
    expect_fault("10.0.0.1/", 9, "0 to 32");
    expect_fault("10.0.0.1/-1", 9, "0 to 32");
    expect_fault("10.0.0.1/8x", 10, "followed by");
    expect_fault("10.0.0.1/8/8", 10, "followed by");
    expect_fault("[fd00::1", 0, "not closed");
    expect_fault("[10.0.0.1]", 1, "not an IPv6 address");
    expect_fault("[fe80::1%eth0]", 1, "not an IPv6 address");
    expect_fault("[fd00::1]/129", 10, "0 to 128");
    expect_fault("[fd00::1]80", 9, "followed by");
    expect_fault(":", 1, "1 to 65535");
    expect_fault(":0", 1, "1 to 65535");
    expect_fault(":65536", 1, "1 to 65535");
    expect_fault(":99999999999999999999", 1, "1 to 65535");
    expect_fault(":80-", 4, "1 to 65535");
    expect_fault(":80-79", 4, "ends before");
    expect_fault(":80-0", 4, "1 to 65535");
    expect_fault(":80,81", 3, "nothing follows");
    expect_fault("10.0.0.1:http", 9, "1 to 65535");
    expect_fault("10.0.0.0000000000000000000000000000000000000000000000000000000001", 0,
                 "neither an address nor a name");
    expect_fault((std::string(254, 'a') + ":80").c_str(), 0, "neither an address nor a name");
}

void test_a_bad_rule_of_the_environment_is_left_out_and_the_others_count() {
    const Made made = rules(":80 non/sense :81");
    EXPECT_EQ(made.complaints.size(), 1U);
    EXPECT_EQ(made.complaints[0],
              "RSPRELOAD_RULES: 'non/sense' is left out: a name is followed by :PORT or nothing (at character 4)");
    EXPECT(made.upgrades("10.0.0.1", 80) && made.upgrades("10.0.0.1", 81) && !made.upgrades("10.0.0.1", 82));
    // Who asks for a few sockets, and errs, does not get all.
    EXPECT(!rules("non/sense").upgrades("10.0.0.1", 80) && !rules("non/sense").upgrades("10.0.0.1", 80));
}

void test_the_file_has_the_columns_of_rdma_core() {
    const Made made = file("# program domain type protocol\n"
                           "\n"
                           "redis-server INET STREAM TCP\n"
                           "nginx * * *   # of all kinds\n");
    EXPECT(made.complaints.empty());
    EXPECT(made.makes(AF_INET, SOCK_STREAM, 0) && made.makes(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
    EXPECT(!made.makes(AF_INET6, SOCK_STREAM, 0));
    EXPECT(made.upgrades("10.0.0.1", 80)); // of addresses it says nothing
    const char* const lines = "Redis pf_inet6 sock_stream ipproto_tcp\r\nother INET * *";
    EXPECT(file(lines).makes(AF_INET6, SOCK_STREAM, 0) && !file(lines).makes(AF_INET, SOCK_STREAM, 0));
    EXPECT(
        !file(lines, "red").makes(AF_INET6, SOCK_STREAM, 0)); // the line has a beginning of the name, not the reverse
    EXPECT(!file("redis-server IB STREAM TCP").makes(AF_INET, SOCK_STREAM, 0));
    EXPECT(!file("redis-server INET STREAM UDP").makes(AF_INET, SOCK_STREAM, 0));
    EXPECT(file("* * * *").makes(AF_INET, SOCK_STREAM, 0) && !file("* * DGRAM *").makes(AF_INET, SOCK_STREAM, 0));
    EXPECT(!file("nginx * * *").makes(AF_INET, SOCK_STREAM, 0));
}

void test_the_first_rule_of_the_file_that_matches_decides() {
    const Made made =
        file("kernel 10.0.0.0/24:22\nupgrade 10.0.0.0/8\nUpgrade :6379   # everywhere\nkernel 10.0.0.0/8:80\n");
    EXPECT(made.complaints.empty());
    EXPECT(!made.upgrades("10.0.0.1", 22) && made.upgrades("10.0.1.1", 22) && made.upgrades("10.0.0.1", 80));
    EXPECT(made.upgrades("10.1.0.1", 6379) && made.upgrades("192.0.2.1", 6379) && !made.upgrades("192.0.2.1", 80));
    EXPECT(!made.upgrades("10.0.0.1", 22) && made.upgrades("10.0.1.1", 22) && made.upgrades("10.0.0.1", 80));
    EXPECT(made.upgrades("127.0.0.1", 6379) && !made.upgrades("127.0.0.1", 6380));
    // Exceptions alone leave all else as it is.
    const Made except = file("kernel :22");
    EXPECT(!except.upgrades("10.0.0.1", 22) && except.upgrades("10.0.0.1", 23));
    EXPECT(!except.upgrades("127.0.0.1", 22) && except.upgrades("127.0.0.1", 23));
    EXPECT_EQ(except.why("127.0.0.1", 22), "a rule leaves the address to the kernel");
}

void test_a_bad_line_of_the_file_is_left_out() {
    const Made made = file("redis-server INET STREAM\n"
                           "redis-server UNIX STREAM TCP\n"
                           "redis-server INET SEQPACKET TCP\n"
                           "redis-server INET STREAM SCTP\n"
                           "upgrade every/thing\n"
                           "refuse 10.0.0.1\n"
                           "10.0.0.1/99\n"
                           "\xff\x01\x02\n");
    EXPECT_EQ(made.complaints.size(), 8U);
    for (size_t i = 0; i < made.complaints.size(); ++i) {
        EXPECT(made.complaints[i].starts_with("preload_config:" + std::to_string(i + 1) + ": "));
    }
    EXPECT(made.complaints[7].find("'?\?\?'") != std::string::npos);
    // Who selects, and errs, does not get all.
    EXPECT(!made.makes(AF_INET, SOCK_STREAM, 0) && !made.upgrades("10.0.0.1", 80));
    for (const char* line :
         {"upgrade every/thing", "every/thing", "upgrde 80", "nginx INET STREAM", "nginx * * SCTP"}) {
        EXPECT(file(line).complaints.size() == 1 && !file(line).upgrades("10.0.0.1", 80));
        EXPECT(file(std::string(line) + "\n80").upgrades("10.0.0.1", 80) ==
               (file(line).makes(AF_INET, SOCK_STREAM, 0)));
    }
    EXPECT(file("kernel every/thing").upgrades("10.0.0.1", 80));
}

void test_the_environment_has_exceptions_too() {
    EXPECT(!rules("kernel 22").upgrades("10.0.0.1", 22) && rules("kernel 22").upgrades("10.0.0.1", 23));
    const Made made = rules("kernel 10.0.0.1:80 UPGRADE 80 10.0.0.2");
    EXPECT(made.complaints.empty() && !made.upgrades("10.0.0.1", 80) && made.upgrades("10.0.0.3", 80));
    EXPECT(made.upgrades("10.0.0.2", 1) && !made.upgrades("10.0.0.3", 81));
    const Made cut = rules("80 kernel");
    EXPECT_EQ(cut.complaints.size(), 1U);
    EXPECT_EQ(cut.complaints[0], "RSPRELOAD_RULES: 'kernel' is left out: a rule must follow (at character 1)");
    EXPECT(cut.upgrades("10.0.0.1", 80) && !cut.upgrades("10.0.0.1", 81));
    EXPECT(!rules("kernel 22 upgrade").upgrades("10.0.0.1", 80) && rules("kernel").upgrades("10.0.0.1", 80));
}

void test_there_is_room_for_256_rules() {
    std::string words;
    for (int i = 1; i <= 257; ++i) {
        words += ":" + std::to_string(i) + " ";
    }
    const Made made = rules(words.c_str());
    EXPECT_EQ(made.complaints.size(), 1U);
    EXPECT(made.upgrades("10.0.0.1", 256) && !made.upgrades("10.0.0.1", 257));
    std::string lines;
    for (int i = 0; i < 66; ++i) {
        lines += "redis-server INET STREAM TCP\nother INET6 STREAM TCP\n"; // others take no space
    }
    EXPECT_EQ(file(lines).complaints.size(), 2U);
}

void test_what_is_no_address_stays_with_the_kernel() {
    const Made made = rules(":1-65535");
    const Address four("10.0.0.1", 80);
    const Address six("fd00::1", 80);
    const auto upgraded = [&](const sockaddr* address, socklen_t length) {
        return made.rules->for_upgrade(address, length).verdict == Verdict::upgrade;
    };
    EXPECT(!upgraded(nullptr, 16) && !upgraded(four.get(), 0) && !upgraded(four.get(), 1) && !upgraded(four.get(), 15));
    EXPECT(upgraded(four.get(), 16) && upgraded(four.get(), 128));
    EXPECT(!upgraded(six.get(), 16) && !upgraded(six.get(), 23));
    EXPECT(upgraded(six.get(), 24)); // without the scope, as the kernel takes it
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    EXPECT(!upgraded(reinterpret_cast<const sockaddr*>(&local), sizeof(local)));
    const sockaddr none{};
    EXPECT(!upgraded(&none, sizeof(none)));
}

// get() in a process of its own, which has this environment and perhaps a title that it gave itself; what it answers
// for 127.0.0.1 and two ports, and for another address, and how it calls the program.
std::string answers(const std::vector<std::pair<const char*, std::string>>& environment, const char* title = nullptr) {
    int ends[2];
    if (pipe(ends) != 0) {
        throw Failure("pipe");
    }
    const pid_t child = fork();
    if (child == 0) {
        for (const char* name : {"RSPRELOAD_RULES", "RSPRELOAD_CONFIG", "RSPRELOAD_LOG"}) {
            unsetenv(name);
        }
        for (const auto& [name, value] : environment) {
            setenv(name, value.c_str(), 1);
        }
        if (title != nullptr) {
            program_invocation_short_name = const_cast<char*>(title);
            prctl(PR_SET_NAME, title);
        }
        const Rules& mine = Rules::get();
        const auto answer = [&](const char* host, uint16_t port) {
            const Address to(host, port);
            return mine.for_upgrade(to.get(), to.length).verdict == Verdict::upgrade ? 'u' : 'k';
        };
        std::string said{answer("127.0.0.1", 80), answer("127.0.0.1", 81), answer("10.0.0.1", 82)};
        if (title != nullptr) {
            said += std::string(" ") + mine.program();
        }
        (void)!write(ends[1], said.data(), said.size());
        _exit(&mine == &Rules::get() ? 0 : 1);
    }
    close(ends[1]);
    char said[64] = {};
    (void)!read(ends[0], said, sizeof(said) - 1);
    close(ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
    return status == 0 ? said : "failed";
}

void test_without_rules_any_connection_is_upgraded() {
    const Made made = rules("");
    for (const char* host : {"127.0.0.1", "127.1.2.3", "10.0.0.1", "0.0.0.0"}) {
        EXPECT(made.upgrades(host, 80) && made.upgrades(std::string("::ffff:").append(host).c_str(), 80));
    }
    EXPECT(made.upgrades("::1", 80) && made.upgrades("fd00::1", 80) && made.upgrades("::", 80));
    EXPECT_EQ(made.why("127.0.0.1", 80), "by default");
}

void test_with_rules_only_what_they_name_is_upgraded() {
    const Made made = rules("127.0.0.1:6379 [::1]:90 10.0.0.0/8");
    EXPECT(made.upgrades("127.0.0.1", 6379) && made.upgrades("::ffff:127.0.0.1", 6379) && made.upgrades("::1", 90));
    EXPECT(made.upgrades("0.0.0.0", 6379) && made.upgrades("::", 90)); // this host, for Linux
    EXPECT(made.upgrades("10.1.1.1", 1) && !made.upgrades("127.0.0.1", 6380) && !made.upgrades("127.0.0.2", 6379));
    EXPECT_EQ(made.why("192.0.2.1", 80), "no rule names the address");
    EXPECT_EQ(made.why("10.1.1.1", 80), "a rule names the address");
}

void test_the_columns_of_rdma_core_count_for_upgrades() {
    const Made made = file("redis-server INET STREAM TCP\nkernel :22\n");
    EXPECT(made.upgrades("127.0.0.1", 6379) && !made.upgrades("127.0.0.1", 22) && !made.upgrades("::1", 6379));
    EXPECT_EQ(made.why("::1", 6379), "no rule names the address");
    EXPECT(!file("nginx * * *\n:80").upgrades("127.0.0.1", 80));
    EXPECT(file("nginx * * *\n:80", "nginx").upgrades("127.0.0.1", 80));
}

void test_a_bare_port_is_a_rule() {
    for (const char* words : {"6379-6381", ":6379-6381"}) {
        const Made made = rules(words);
        EXPECT(made.complaints.empty() && made.upgrades("127.0.0.1", 6379) && made.upgrades("fd00::1", 6381));
        EXPECT(!made.upgrades("127.0.0.1", 6382) && !made.upgrades("127.0.0.1", 6378));
    }
    EXPECT(rules("6379").upgrades("::1", 6379) && !rules("6379").upgrades("::1", 6380));
    EXPECT(file("kernel 22\n80").upgrades("127.0.0.1", 80) && !file("kernel 22\n80").upgrades("127.0.0.1", 22));
}

void test_localhost_is_all_of_loopback() {
    const Made made = rules("localhost:6379-6380 LOCALHOST:90");
    EXPECT(made.complaints.empty());
    EXPECT(made.upgrades("127.0.0.1", 6379) && made.upgrades("127.9.9.9", 6380) && made.upgrades("::1", 90));
    EXPECT(!made.upgrades("127.0.0.1", 6381) && !made.upgrades("::2", 6379) && !made.upgrades("10.0.0.1", 90));
    EXPECT(rules("localhost").upgrades("::1", 1) && !rules("localhost").upgrades("10.0.0.1", 1));
    EXPECT(!file("kernel localhost").upgrades("127.0.0.2", 1) && file("kernel localhost").upgrades("10.0.0.1", 1));
}

void test_a_name_is_left_to_the_caller_of_the_parser() {
    Rule rule;
    Fault fault;
    std::string_view host;
    EXPECT(parse_rule("my_host-1.example:80-81", rule, host, fault));
    EXPECT(host == "my_host-1.example" && rule.first_port == 80 && rule.last_port == 81);
    EXPECT(parse_rule("fd00", rule, host, fault) && host == "fd00" && rule.last_port == 65535);
    EXPECT(parse_rule("10.0.0.1:80", rule, host, fault) && host.empty());
    EXPECT(parse_rule("80", rule, host, fault) && host.empty() && rule.first_port == 80 && rule.last_port == 80);
}

void test_a_name_that_is_not_found_is_a_rule_that_matches_nothing() {
    const Made made = file("no-such-host.invalid:80\n");
    EXPECT_EQ(made.complaints.size(), 1U);
    EXPECT_EQ(made.complaints[0],
              "preload_config:1: 'no-such-host.invalid:80' is left out: the name is not in /etc/hosts "
              "(at character 1)");
    EXPECT(!made.upgrades("10.0.0.1", 80)); // not everything, although this is the only rule
}

std::string addresses_in(const Folder& folder, const char* name) {
    const preload::HostAddresses found = preload::find_host(name, (folder.path + "/config").c_str());
    std::string text;
    for (size_t i = 0; i < found.count; ++i) {
        char one[INET6_ADDRSTRLEN] = {};
        inet_ntop(found.all[i].ipv6 ? AF_INET6 : AF_INET, found.all[i].bytes.data(), one, sizeof(one));
        text += std::string(text.empty() ? "" : " ") + one;
    }
    return text;
}

void test_the_hosts_file_gives_a_name_its_addresses() {
    const Folder folder;
    folder.put("127.0.0.1 localhost\n"
               "# 10.0.0.9 node1\n"
               "10.0.0.1\tnode1.example node1 # node2\n"
               "fd00::1   NODE1\r\n"
               "10.0.0.2 node1x xnode1 node2 node2");
    EXPECT_EQ(addresses_in(folder, "node1"), "10.0.0.1 fd00::1");
    EXPECT_EQ(addresses_in(folder, "node1.example"), "10.0.0.1");
    EXPECT_EQ(addresses_in(folder, "node2"), "10.0.0.2"); // the last line lacks its end
    EXPECT_EQ(addresses_in(folder, "node"), "");
    EXPECT_EQ(addresses_in(folder, "10.0.0.1"), "");
    EXPECT_EQ(preload::find_host("node1", "/nowhere").count, 0U);
    EXPECT_EQ(preload::find_host("node1", folder.path.c_str()).count, 0U); // a folder
}

void test_a_damaged_hosts_file_is_read_as_far_as_it_makes_sense() {
    const Folder folder;
    std::string many;
    for (int i = 1; i <= 20; ++i) {
        many += "10.0.1." + std::to_string(i) + " many\n";
    }
    folder.put("node1\nnode1 node1\n300.1.1.1 node1\nfe80::1%eth0 node1\n" + std::string(5000, 'x') +
               " node1\n10.0.0.1 " + std::string(5000, 'y') + " node1\n" + std::string("10.0.0.\0 node1\n", 15) +
               "\n\n  \n" + many);
    EXPECT_EQ(addresses_in(folder, "node1"), "10.0.0.1");
    EXPECT_EQ(preload::find_host("many", (folder.path + "/config").c_str()).count, preload::max_host_addresses);
}

// get() reads it in a process of its own.
void test_the_program_is_known_by_its_file() {
    const Folder folder;
    folder.put("rules_test INET STREAM TCP\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path + "/config"}}, "title"), "uuu rules_test");
    folder.put("title INET STREAM TCP\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path + "/config"}}, "title"), "kkk rules_test");
}

void test_the_environment_outranks_the_file() {
    const Folder folder;
    const std::string config = folder.path + "/config";
    EXPECT_EQ(answers({{"RSPRELOAD_RULES", ":80"}, {"RSPRELOAD_CONFIG", config}}), "ukk");
    folder.put(":81\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config}}), "kuk");
    EXPECT_EQ(answers({{"RSPRELOAD_RULES", ":80"}, {"RSPRELOAD_CONFIG", config}}), "ukk");
    EXPECT_EQ(answers({{"RSPRELOAD_RULES", "  "}, {"RSPRELOAD_CONFIG", config}}), "kuk");
    folder.put("");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config}}), "uuu");
}

void test_the_log_names_each_fault_once() {
    const Folder folder;
    const std::string config = folder.path + "/config";
    const std::string log = folder.path + "/log";
    folder.put(":81\nsome nonsense\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config}, {"RSPRELOAD_LOG", log}}), "kuk");
    EXPECT(folder.log().ends_with(" warn: " + config +
                                  ":2: 'some' is left out: neither upgrade nor kernel (at character 1)\n"));
    EXPECT(folder.log().starts_with("rspreload["));
    EXPECT_EQ(folder.log().find('\n'), folder.log().size() - 1);
    unlink(log.c_str());
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config + "-of-none"}, {"RSPRELOAD_LOG", log}}), "kkk");
    EXPECT(folder.log().find("config-of-none cannot be opened") != std::string::npos);
}

void test_a_file_that_is_too_large_counts_as_far_as_it_is_read() {
    const Folder folder;
    folder.put(":81\n" + std::string(100000, '\n') + ":80\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path + "/config"}, {"RSPRELOAD_LOG", folder.path + "/log"}}), "kuk");
    EXPECT(folder.log().find("is too large") != std::string::npos);
}

void test_a_folder_or_a_pipe_is_no_file_to_wait_for() {
    const Folder folder;
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path}, {"RSPRELOAD_LOG", folder.path + "/log"}}), "kkk");
    EXPECT(folder.log().find("cannot be read") != std::string::npos);
    EXPECT(mkfifo((folder.path + "/config").c_str(), 0600) == 0);
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path + "/config"}}), "uuu");
}

const CMUnitTest tests[] = {
    FABTEST(test_without_rules_any_connection_is_upgraded),
    FABTEST(test_with_rules_only_what_they_name_is_upgraded),
    FABTEST(test_the_columns_of_rdma_core_count_for_upgrades),
    FABTEST(test_a_bare_port_is_a_rule),
    FABTEST(test_localhost_is_all_of_loopback),
    FABTEST(test_a_name_is_left_to_the_caller_of_the_parser),
    FABTEST(test_a_name_that_is_not_found_is_a_rule_that_matches_nothing),
    FABTEST(test_the_hosts_file_gives_a_name_its_addresses),
    FABTEST(test_a_damaged_hosts_file_is_read_as_far_as_it_makes_sense),
    FABTEST(test_the_program_is_known_by_its_file),
    FABTEST(test_only_tcp_is_upgraded),
    FABTEST(test_a_rule_of_a_port_names_it_at_every_address),
    FABTEST(test_a_range_of_ports_has_both_its_ends),
    FABTEST(test_a_prefix_says_how_many_bits_count),
    FABTEST(test_an_ipv4_address_in_ipv6_is_one_of_ipv4),
    FABTEST(test_several_rules_are_any_of_them),
    FABTEST(test_what_is_no_rule_is_told_with_its_place),
    FABTEST(test_a_bad_rule_of_the_environment_is_left_out_and_the_others_count),
    FABTEST(test_the_file_has_the_columns_of_rdma_core),
    FABTEST(test_the_first_rule_of_the_file_that_matches_decides),
    FABTEST(test_a_bad_line_of_the_file_is_left_out),
    FABTEST(test_the_environment_has_exceptions_too),
    FABTEST(test_there_is_room_for_256_rules),
    FABTEST(test_what_is_no_address_stays_with_the_kernel),
    FABTEST(test_the_environment_outranks_the_file),
    FABTEST(test_the_log_names_each_fault_once),
    FABTEST(test_a_file_that_is_too_large_counts_as_far_as_it_is_read),
    FABTEST(test_a_folder_or_a_pipe_is_no_file_to_wait_for),
};

} // namespace

int main() {
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
