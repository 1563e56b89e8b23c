// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which sockets the preload library carries, by its rules: rules(…) stands for RSPRELOAD_RULES, file(…) for the
// administrator's file.
#include "rsockets/preload/rules.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"

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
    [[nodiscard]] bool connects(const char* host, uint16_t port) const {
        const Address to(host, port);
        return rules->for_connect(to.get(), to.length).verdict == Verdict::carry;
    }
    [[nodiscard]] bool listens(const char* host, uint16_t port) const {
        const Address at(host, port);
        return rules->for_listen(at.get(), at.length).verdict == Verdict::carry;
    }
    [[nodiscard]] bool makes(int domain, int type, int protocol) const {
        return rules->for_socket(domain, type, protocol).verdict == Verdict::carry;
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
        for (const char* name : {"/class/infiniband/rxe0", "/class/infiniband", "/class", ""}) {
            rmdir((path + name).c_str());
        }
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
    if (parse_rule(text, rule, fault)) {
        throw Failure(std::string(text) + " is taken for a rule");
    }
    if (fault.position != position || strstr(fault.what, part) == nullptr) {
        throw Failure(std::string(text) + ": " + fault.what + " at " + std::to_string(fault.position));
    }
}

void test_without_rules_streams_are_carried_but_for_loopback_and_multicast() {
    const Made made = rules("");
    EXPECT(made.complaints.empty());
    EXPECT(made.connects("10.0.0.1", 80) && made.connects("fd00::1", 80));
    EXPECT(!made.connects("127.0.0.1", 80) && !made.connects("127.1.2.3", 80) && !made.connects("::1", 80));
    EXPECT(!made.connects("::ffff:127.0.0.1", 80) && made.connects("::ffff:10.0.0.1", 80));
    EXPECT(!made.connects("0.0.0.0", 80) && !made.connects("::", 80)); // this host, for Linux
    EXPECT(!made.connects("224.0.0.1", 80) && !made.connects("239.255.255.255", 80) && !made.connects("ff02::1", 80));
    EXPECT(made.listens("0.0.0.0", 80) && made.listens("::", 80) && made.listens("10.0.0.1", 80));
    EXPECT(!made.listens("127.0.0.1", 80) && !made.listens("::1", 80));
}

void test_without_a_device_only_what_a_rule_names_is_carried() {
    const Folder folder;
    const auto carried = [&](const char* cores, const char* words) {
        Made made = rules(words);
        made.rules->look_for_device(folder.path.c_str(), cores);
        return made.connects("10.0.0.1", 80);
    };
    EXPECT(!carried(nullptr, "") && carried(nullptr, ":80"));
    EXPECT(mkdir((folder.path + "/class").c_str(), 0700) == 0);
    EXPECT(mkdir((folder.path + "/class/infiniband").c_str(), 0700) == 0);
    EXPECT(!carried(nullptr, "")); // the kernel's module is there, and nothing else
    EXPECT(mkdir((folder.path + "/class/infiniband/rxe0").c_str(), 0700) == 0);
    EXPECT(carried(nullptr, "") && carried("", "") && carried("verbs", "") && carried("tcp,verbs", ""));
    EXPECT(!carried("tcp", "") && carried("tcp", ":80"));
}

void test_only_tcp_is_carried() {
    const Made made = rules("");
    EXPECT(made.makes(AF_INET, SOCK_STREAM, 0) && made.makes(AF_INET6, SOCK_STREAM, IPPROTO_TCP));
    EXPECT(made.makes(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT(!made.makes(AF_INET, SOCK_DGRAM, 0) && !made.makes(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    EXPECT(!made.makes(AF_UNIX, SOCK_STREAM, 0) && !made.makes(AF_NETLINK, SOCK_RAW, 0));
    EXPECT(!made.makes(AF_INET, SOCK_STREAM, IPPROTO_SCTP) && !made.makes(AF_INET, SOCK_STREAM, 262));
    // No rule changes that: there is nothing that could carry them.
    EXPECT(!file("* * DGRAM UDP").makes(AF_INET, SOCK_DGRAM, IPPROTO_UDP));
}

void test_a_rule_of_a_port_carries_it_at_every_address() {
    const Made made = rules(":6379");
    EXPECT(made.connects("127.0.0.1", 6379) && made.connects("::1", 6379) && made.connects("10.0.0.1", 6379));
    EXPECT(made.connects("0.0.0.0", 6379));
    EXPECT(!made.connects("127.0.0.1", 6380) && !made.connects("10.0.0.1", 6378));
    EXPECT(made.listens("127.0.0.1", 6379) && made.listens("::", 6379) && !made.listens("::", 80));
}

void test_a_range_of_ports_has_both_its_ends() {
    const Made made = rules(":1000-2000");
    EXPECT(made.connects("10.0.0.1", 1000) && made.connects("10.0.0.1", 2000));
    EXPECT(!made.connects("10.0.0.1", 999) && !made.connects("10.0.0.1", 2001));
    const Made all = rules(":1-65535");
    EXPECT(all.connects("10.0.0.1", 1) && all.connects("127.0.0.1", 65535));
}

void test_a_prefix_says_how_many_bits_count() {
    EXPECT(rules("10.1.2.3").connects("10.1.2.3", 1) && !rules("10.1.2.3").connects("10.1.2.2", 1));
    const Made made = rules("10.77.1.9/23:80");
    EXPECT(made.connects("10.77.0.0", 80) && made.connects("10.77.1.255", 80));
    EXPECT(!made.connects("10.77.2.0", 80) && !made.connects("10.76.255.255", 80) && !made.connects("10.77.1.9", 81));
    EXPECT(rules("0.0.0.0/0").connects("255.1.2.3", 9) && !rules("0.0.0.0/0").connects("fd00::1", 9));
    const Made six = rules("[fd77:1::]/33:80-90");
    EXPECT(six.connects("fd77:1:7fff::1", 90) && !six.connects("fd77:1:8000::1", 90) && !six.connects("10.0.0.1", 90));
    EXPECT(rules("[fd77::1]").connects("fd77::1", 5) && !rules("[fd77::1]").connects("fd77::2", 5));
}

void test_an_ipv4_address_in_ipv6_is_one_of_ipv4() {
    EXPECT(rules("10.0.0.0/8").connects("::ffff:10.1.1.1", 80));
    const Made made = rules("[::ffff:10.0.0.0]/104");
    EXPECT(made.connects("10.255.0.1", 80) && made.connects("::ffff:10.255.0.1", 80) && !made.connects("11.0.0.1", 80));
    EXPECT(made.complaints.empty());
}

void test_several_rules_are_any_of_them() {
    const Made made = rules(" 10.0.0.0/8:80\t[::1]:81\n:82  ");
    EXPECT(made.complaints.empty());
    EXPECT(made.connects("10.1.1.1", 80) && made.connects("::1", 81) && made.connects("192.0.2.1", 82));
    EXPECT(!made.connects("10.1.1.1", 81) && !made.connects("::2", 81));
}

void test_a_listener_on_all_addresses_is_carried_if_a_rule_can_reach_it() {
    const Made made = rules("10.0.0.0/8:80");
    EXPECT(made.listens("0.0.0.0", 80) && made.listens("::", 80) && made.listens("10.0.0.1", 80));
    EXPECT(!made.listens("0.0.0.0", 81) && !made.listens("192.0.2.1", 80));
    EXPECT(rules("[fd00::]/8:80").listens("::", 80) && !rules("[fd00::]/8:80").listens("0.0.0.0", 80));
    // What the kernel is to have of it does not keep the others from it.
    EXPECT(file("kernel 10.0.0.0/8").listens("0.0.0.0", 80));
    EXPECT(!file("kernel 0.0.0.0/0").listens("0.0.0.0", 80) && !file("kernel :80").listens("::", 80));
}

void test_what_is_no_rule_is_told_with_its_place() {
    expect_fault("", 0, "no rule");
    expect_fault("localhost:80", 0, "not an IPv4 address");
    expect_fault("fd00::1", 0, "not an IPv4 address");
    expect_fault("256.0.0.1", 0, "not an IPv4 address");
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
    expect_fault("10.0.0.0000000000000000000000000000000000000000000000000000000001", 0, "not an IPv4 address");
}

void test_a_bad_rule_of_the_environment_is_left_out_and_the_others_count() {
    const Made made = rules(":80 nonsense :81");
    EXPECT_EQ(made.complaints.size(), 1U);
    EXPECT_EQ(
        made.complaints[0],
        "RSPRELOAD_RULES: 'nonsense' is left out: not an IPv4 address (IPv6 goes into brackets) (at character 1)");
    EXPECT(made.connects("10.0.0.1", 80) && made.connects("10.0.0.1", 81) && !made.connects("10.0.0.1", 82));
    // Who asks for a few sockets, and errs, does not get all.
    EXPECT(!rules("nonsense").connects("10.0.0.1", 80));
}

void test_the_file_has_the_columns_of_rdma_core() {
    const Made made = file("# program domain type protocol\n"
                           "\n"
                           "redis-server INET STREAM TCP\n"
                           "nginx * * *   # of all kinds\n");
    EXPECT(made.complaints.empty());
    EXPECT(made.makes(AF_INET, SOCK_STREAM, 0) && made.makes(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
    EXPECT(!made.makes(AF_INET6, SOCK_STREAM, 0));
    EXPECT(made.connects("10.0.0.1", 80) && !made.connects("127.0.0.1", 80)); // of addresses it says nothing
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
    const Made made = file("kernel 10.0.0.0/24:22\ncarry 10.0.0.0/8\n:6379   # everywhere\nkernel 10.0.0.0/8:80\n");
    EXPECT(made.complaints.empty());
    EXPECT(!made.connects("10.0.0.1", 22) && made.connects("10.0.1.1", 22) && made.connects("10.0.0.1", 80));
    EXPECT(made.connects("127.0.0.1", 6379) && !made.connects("192.0.2.1", 80));
    // Exceptions alone leave all else as it is.
    const Made except = file("kernel :22");
    EXPECT(!except.connects("10.0.0.1", 22) && except.connects("10.0.0.1", 23) && !except.connects("127.0.0.1", 23));
}

void test_a_bad_line_of_the_file_is_left_out() {
    const Made made = file("redis-server INET STREAM\n"
                           "redis-server UNIX STREAM TCP\n"
                           "redis-server INET SEQPACKET TCP\n"
                           "redis-server INET STREAM SCTP\n"
                           "carry everything\n"
                           "refuse 10.0.0.1\n"
                           "10.0.0.1/99\n"
                           "\xff\x01\x02\n");
    EXPECT_EQ(made.complaints.size(), 8U);
    for (size_t i = 0; i < made.complaints.size(); ++i) {
        EXPECT(made.complaints[i].starts_with("preload_config:" + std::to_string(i + 1) + ": "));
    }
    EXPECT(made.complaints[7].find("'?\?\?'") != std::string::npos);
    EXPECT(made.makes(AF_INET, SOCK_STREAM, 0) && made.connects("10.0.0.1", 80));
}

void test_there_is_room_for_256_rules() {
    std::string words;
    for (int i = 1; i <= 257; ++i) {
        words += ":" + std::to_string(i) + " ";
    }
    const Made made = rules(words.c_str());
    EXPECT_EQ(made.complaints.size(), 1U);
    EXPECT(made.connects("10.0.0.1", 256) && !made.connects("10.0.0.1", 257));
    std::string lines;
    for (int i = 0; i < 66; ++i) {
        lines += "redis-server INET STREAM TCP\nother INET6 STREAM TCP\n"; // others take no room
    }
    EXPECT_EQ(file(lines).complaints.size(), 2U);
}

void test_what_is_no_address_stays_with_the_kernel() {
    const Made made = rules(":1-65535");
    const Address four("10.0.0.1", 80);
    const Address six("fd00::1", 80);
    const auto carried = [&](const sockaddr* address, socklen_t length) {
        return made.rules->for_connect(address, length).verdict == Verdict::carry ||
               made.rules->for_listen(address, length).verdict == Verdict::carry;
    };
    EXPECT(!carried(nullptr, 16) && !carried(four.get(), 0) && !carried(four.get(), 1) && !carried(four.get(), 15));
    EXPECT(carried(four.get(), 16) && carried(four.get(), 128));
    EXPECT(!carried(six.get(), 16) && !carried(six.get(), 23));
    EXPECT(carried(six.get(), 24)); // without the scope, as the kernel takes it
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    EXPECT(!carried(reinterpret_cast<const sockaddr*>(&local), sizeof(local)));
    const sockaddr none{};
    EXPECT(!carried(&none, sizeof(none)));
}

// get() in a process of its own, which has this environment; what it answers for 127.0.0.1 and two ports.
std::string answers(const std::vector<std::pair<const char*, std::string>>& environment) {
    int ends[2];
    if (pipe(ends) != 0) {
        throw Failure("pipe");
    }
    const pid_t child = fork();
    if (child == 0) {
        for (const char* name : {"RSPRELOAD_RULES", "RSPRELOAD_CONFIG", "RSPRELOAD_LOG"}) {
            unsetenv(name);
        }
        setenv("FI_RSTREAM_CORE", "tcp", 1); // whatever devices there are
        for (const auto& [name, value] : environment) {
            setenv(name, value.c_str(), 1);
        }
        const Rules& mine = Rules::get();
        const auto answer = [&](const char* host, uint16_t port) {
            const Address to(host, port);
            return mine.for_connect(to.get(), to.length).verdict == Verdict::carry ? 'c' : 'k';
        };
        const char said[] = {answer("127.0.0.1", 80), answer("127.0.0.1", 81), answer("10.0.0.1", 82)};
        (void)!write(ends[1], said, sizeof(said));
        _exit(&mine == &Rules::get() ? 0 : 1);
    }
    close(ends[1]);
    char said[4] = {};
    (void)!read(ends[0], said, sizeof(said));
    close(ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
    return status == 0 ? said : "failed";
}

void test_the_environment_outranks_the_file() {
    const Folder folder;
    const std::string config = folder.path + "/config";
    EXPECT_EQ(answers({{"RSPRELOAD_RULES", ":80"}, {"RSPRELOAD_CONFIG", config}}), "ckk");
    folder.put(":81\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config}}), "kck");
    EXPECT_EQ(answers({{"RSPRELOAD_RULES", ":80"}, {"RSPRELOAD_CONFIG", config}}), "ckk");
    EXPECT_EQ(answers({{"RSPRELOAD_RULES", "  "}, {"RSPRELOAD_CONFIG", config}}), "kck");
    folder.put("");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config}}), "kkk");
}

void test_the_log_names_each_fault_once() {
    const Folder folder;
    const std::string config = folder.path + "/config";
    const std::string log = folder.path + "/log";
    folder.put(":81\nsome nonsense\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config}, {"RSPRELOAD_LOG", log}}), "kck");
    EXPECT(folder.log().ends_with(" warn: " + config +
                                  ":2: 'some' is left out: neither carry nor kernel (at character 1)\n"));
    EXPECT(folder.log().starts_with("rspreload["));
    EXPECT_EQ(folder.log().find('\n'), folder.log().size() - 1);
    unlink(log.c_str());
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", config + "-of-none"}, {"RSPRELOAD_LOG", log}}), "kkk");
    EXPECT(folder.log().find("config-of-none cannot be opened") != std::string::npos);
}

void test_a_file_that_is_too_large_counts_as_far_as_it_is_read() {
    const Folder folder;
    folder.put(":81\n" + std::string(100000, '\n') + ":80\n");
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path + "/config"}, {"RSPRELOAD_LOG", folder.path + "/log"}}), "kck");
    EXPECT(folder.log().find("is too large") != std::string::npos);
}

void test_a_folder_or_a_pipe_is_no_file_to_wait_for() {
    const Folder folder;
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path}, {"RSPRELOAD_LOG", folder.path + "/log"}}), "kkk");
    EXPECT(folder.log().find("cannot be read") != std::string::npos);
    EXPECT(mkfifo((folder.path + "/config").c_str(), 0600) == 0);
    EXPECT_EQ(answers({{"RSPRELOAD_CONFIG", folder.path + "/config"}}), "kkk");
}

const CMUnitTest tests[] = {
    FABTEST(test_without_rules_streams_are_carried_but_for_loopback_and_multicast),
    FABTEST(test_without_a_device_only_what_a_rule_names_is_carried),
    FABTEST(test_only_tcp_is_carried),
    FABTEST(test_a_rule_of_a_port_carries_it_at_every_address),
    FABTEST(test_a_range_of_ports_has_both_its_ends),
    FABTEST(test_a_prefix_says_how_many_bits_count),
    FABTEST(test_an_ipv4_address_in_ipv6_is_one_of_ipv4),
    FABTEST(test_several_rules_are_any_of_them),
    FABTEST(test_a_listener_on_all_addresses_is_carried_if_a_rule_can_reach_it),
    FABTEST(test_what_is_no_rule_is_told_with_its_place),
    FABTEST(test_a_bad_rule_of_the_environment_is_left_out_and_the_others_count),
    FABTEST(test_the_file_has_the_columns_of_rdma_core),
    FABTEST(test_the_first_rule_of_the_file_that_matches_decides),
    FABTEST(test_a_bad_line_of_the_file_is_left_out),
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
