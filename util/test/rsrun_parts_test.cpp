// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The parts of rsrun: its command line, names in rules, what it sees of a program and of the machine, and records.
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <elf.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/rules/rule.hpp"
#include "util/rsrun/machine.hpp"
#include "util/rsrun/names.hpp"
#include "util/rsrun/options.hpp"
#include "util/rsrun/records.hpp"
#include "util/rsrun/target.hpp"
#include "util/test/process.hpp"
#include "util/test/rsrun_folder.hpp"

namespace {

using namespace rsrun_test;
using util_test::holds;
using Words = std::vector<std::string>;

rsrun::Options options(Words words) {
    words.insert(words.begin(), "rsrun");
    return rsrun::parse_options(words);
}

void test_options_end_where_the_program_begins() {
    const auto o = options({"--core", "tcp", "-v", "server", "-v", "--core", "x"});
    EXPECT(o.command == (Words{"server", "-v", "--core", "x"}));
    EXPECT(o.core == "tcp" && o.verbose && !o.explain && o.only.empty() && !o.send_buffer && !o.recv_buffer);
    EXPECT(options({"--", "-program"}).command == Words{"-program"});
}

void test_every_option_is_taken() {
    const auto o = options({"--sndbuf", "64K", "--rcvbuf=1M", "--only", ":80", "--only", "[fd00::]/8:1-2", "--config",
                            "f", "--log", "l", "--explain", "--explain=out", "--path", "fabric", "p"});
    EXPECT(*o.send_buffer == 65536 && *o.recv_buffer == 1048576 && o.config == "f" && o.log == "l" && o.explain);
    EXPECT(o.only == (Words{":80", "[fd00::]/8:1-2"}) && o.explain_file == "out" && o.command == Words{"p"});
    EXPECT(o.path == rsrun::Options::Path::fabric && options({"p"}).path == rsrun::Options::Path::automatic);
    EXPECT(options({"-h"}).help && options({"--version"}).version);
}

void test_a_bad_command_line_is_told() {
    const Words cases[] = {{},
                           {"-v"},
                           {"--core"},
                           {"--core=", "p"},
                           {"--sndbuf", "0", "p"},
                           {"--rcvbuf", "2G", "p"},
                           {"--sndbuf", "many", "p"},
                           {"--only", "", "p"},
                           {"--only", "host/8", "p"},
                           {"--path", "tcp", "p"},
                           {"--nonsense", "p"},
                           {"-x", "p"},
                           {"--log", "", "p"},
                           {"--config", "", "p"}};
    for (const auto& words : cases) {
        EXPECT(!failure_of([&] { options(words); }).empty());
    }
    const std::string said = failure_of([] { options({"--only", "10.0.0.0/33:80", "p"}); });
    EXPECT(said.starts_with("--only 10.0.0.0/33:80: a prefix of IPv4 is a number from 0 to 32 (at character 10)"));
    EXPECT(failure_of([] { options({}); }).starts_with("there is no program"));
}

void test_names_in_rules_become_addresses() {
    for (const char* rule : {"6379", ":80-90", "10.0.0.0/8:80", "[::1]:80", "localhost:80", "LocalHost"}) {
        EXPECT(rsrun::resolve_rule(rule) == Words{rule}); // the library knows these
    }
    std::array<char, 256> own{};
    gethostname(own.data(), own.size() - 1);
    if (strcmp(own.data(), "localhost") == 0 || failure_of([&] { rsrun::resolve_rule(own.data()); }) != "") {
        throw fabtests::Skip("this host's name has no address");
    }
    const Words resolved = rsrun::resolve_rule(std::string(own.data()) + ":80-90");
    EXPECT(!resolved.empty());
    for (const std::string& rule : resolved) {
        preload::Rule parsed;
        preload::Fault fault;
        std::string_view host;
        EXPECT(rule.ends_with(":80-90") && parse_rule(rule, parsed, host, fault) && host.empty());
    }
}

void test_a_name_that_cannot_be_resolved_is_told() {
    const std::string said = failure_of([] { rsrun::resolve_rule("no-such-host.invalid:80"); });
    EXPECT(said.starts_with("--only no-such-host.invalid:80: the name no-such-host.invalid cannot be resolved: "));
}

int status_of_search(const std::string& name, const char* path) {
    try {
        rsrun::find_program(name, path);
        return 0;
    } catch (const rsrun::NoProgram& e) {
        EXPECT(holds(e.why, name));
        return e.status;
    }
}

void test_a_program_is_looked_for_as_execvp_does() {
    const Folder folder;
    const std::string program = folder.put("a/program", "#!/bin/sh\n");
    folder.put("b/other", "");
    const std::string path = (folder.path / "b").string() + ":" + (folder.path / "a").string();
    EXPECT_EQ(rsrun::find_program("program", path.c_str()), program);
    EXPECT_EQ(rsrun::find_program(program, ""), program);
    EXPECT_EQ(status_of_search("program", "/nowhere"), 127);
    EXPECT_EQ(status_of_search("", path.c_str()), 127);
    EXPECT_EQ(status_of_search((folder.path / "none").string(), ""), 127);
    EXPECT_EQ(status_of_search((folder.path / "a").string(), ""), 126);
    EXPECT_EQ(rsrun::find_program("sh", nullptr), "/bin/sh");
    if (geteuid() != 0) { // who may run all but what nobody may
        folder.put("b/secret", "", 0600);
    }
    chmod((folder.path / "b/other").c_str(), 0600);
    EXPECT_EQ(status_of_search("other", path.c_str()), 126);
    EXPECT_EQ(status_of_search((folder.path / "b/other").string(), ""), 126);
}

// As much of an executable as is looked at.
struct Image {
    std::string interpreter{};
    std::string note{};
    int machine = -1; // that of this program

    [[nodiscard]] std::string bytes() const {
        ElfW(Ehdr) header{};
        std::ifstream self("/proc/self/exe", std::ios::binary);
        self.read(reinterpret_cast<char*>(&header), sizeof(header));
        header.e_machine = static_cast<ElfW(Half)>(machine >= 0 ? machine : header.e_machine);
        header.e_phoff = sizeof(header);
        header.e_phnum = 0;
        std::string segments;
        std::string data;
        constexpr size_t data_at = 1024;
        const auto add = [&](uint32_t type, const std::string& content) {
            ElfW(Phdr) segment{};
            segment.p_type = type;
            segment.p_offset = data_at + data.size();
            segment.p_filesz = content.size();
            segments.append(reinterpret_cast<const char*>(&segment), sizeof(segment));
            data += content;
            ++header.e_phnum;
        };
        add(PT_LOAD, "");
        if (!interpreter.empty()) {
            add(PT_INTERP, interpreter + std::string(1, '\0'));
        }
        if (!note.empty()) {
            add(PT_NOTE, note);
        }
        std::string all(reinterpret_cast<const char*>(&header), sizeof(header));
        all += segments;
        all.resize(data_at);
        return all + data;
    }
};

std::string note(const char* name, uint32_t name_size, const std::string& content) {
    const ElfW(Nhdr) header{name_size, static_cast<uint32_t>(content.size()), 4};
    std::string text(reinterpret_cast<const char*>(&header), sizeof(header));
    return text.append(name, name_size) + content;
}

void test_what_nothing_can_be_preloaded_into_is_seen() {
    const Folder folder;
    const std::string plain = "/lib64/ld-linux-x86-64.so.2";
    const auto seen = [&](const Image& image) { return rsrun::inspect(folder.put("program", image.bytes())); };
    EXPECT_EQ(seen({plain}).untouched, "");
    EXPECT(holds(seen({""}).untouched, "linked statically") && seen({""}).preload);
    EXPECT(holds(seen({"/lib/ld-musl-x86_64.so.1"}).untouched, "musl") && !seen({"/lib/ld-musl-x86_64.so.1"}).preload);
    EXPECT(holds(seen({plain, "", EM_SPARC}).untouched, "another kind of processor"));
    EXPECT(!seen({plain, "", EM_SPARC}).preload);
    EXPECT(holds(seen({plain, note("Go\0", 4, "an identity.")}).untouched, "Go"));
    EXPECT(holds(seen({plain, note("GNU", 4, "abcd") + note("Go\0", 4, "abcd")}).untouched, "Go"));
    EXPECT_EQ(seen({plain, note("GNU", 4, "abcd")}).untouched, "");
    // Damaged ones are for the kernel to refuse.
    const std::string whole = Image{plain, note("Go\0", 4, "abcd")}.bytes();
    for (size_t size = 0; size < whole.size(); size += 7) {
        (void)rsrun::inspect(folder.put("damaged", whole.substr(0, size)));
    }
    std::string lies = whole;
    memset(lies.data() + 64, 0xff, 300);
    (void)rsrun::inspect(folder.put("damaged", lies));
}

void test_a_script_is_its_interpreter() {
    const Folder folder;
    const std::string still = folder.put("static", Image{}.bytes());
    const std::string script = folder.put("script", "#! " + still + " -x\n");
    EXPECT(holds(rsrun::inspect(script).untouched, "static is linked statically"));
    EXPECT(holds(rsrun::inspect(folder.put("second", "#!" + script + "\n")).untouched, "linked statically"));
    EXPECT_EQ(rsrun::inspect(folder.put("plain", "#!/bin/sh\n")).untouched, "");
    EXPECT_EQ(rsrun::inspect(folder.put("self", "#!" + (folder.path / "self").string() + "\n")).untouched, "");
    EXPECT_EQ(rsrun::inspect(folder.put("text", "echo\n")).untouched, "");
    EXPECT_EQ(rsrun::inspect(folder.put("nothing", "#!\n")).untouched, "");
}

void test_rights_of_others_are_seen() {
    const Folder folder;
    const std::string program = folder.put("program", Image{"/lib64/ld-linux-x86-64.so.2"}.bytes(), 04755);
    EXPECT_EQ(rsrun::inspect(program).untouched, ""); // its user's own
    if (geteuid() == 0) {
        EXPECT(chown(program.c_str(), 12345, 0) == 0 && chmod(program.c_str(), 04755) == 0);
        EXPECT(holds(rsrun::inspect(program).untouched, "is setuid"));
        EXPECT(chown(program.c_str(), 0, 12345) == 0 && chmod(program.c_str(), 02755) == 0);
        EXPECT(holds(rsrun::inspect(program).untouched, "is setgid"));
    } else if (access("/usr/bin/su", X_OK) == 0) {
        EXPECT(holds(rsrun::inspect("/usr/bin/su").untouched, "is setuid"));
    } else {
        throw fabtests::Skip("only root can make a program of another user's, and there is no su");
    }
}

void test_the_machine_is_looked_at() {
    const Folder folder;
    EXPECT(!rsrun::Machine::inspect(folder.path.string()).has_device);
    folder.put("class/infiniband/rxe0/ports/1/state", "1: DOWN\n");
    const auto down = rsrun::Machine::inspect(folder.path.string());
    EXPECT(down.has_device && !down.has_active_port && down.memlock > 0);
    folder.put("class/infiniband/rxe1/ports/1/state", "4: ACTIVE\n");
    EXPECT(rsrun::Machine::inspect(folder.path.string()).has_active_port);
}

void test_troubles_of_the_machine_are_told() {
    constexpr uint64_t each = uint64_t{1} << 20;
    rsrun::Machine m;
    m.memlock = 8 * each;
    const auto one = [&](const char* cores, const char* part) {
        const auto found = troubles(m, {cores, each});
        return found.size() == 1 && holds(found.front(), part);
    };
    EXPECT(one("verbs", "this machine has no RDMA device: nothing moves to the fabric"));
    EXPECT(troubles(m, {"verbs,tcp", each}).empty() && troubles(m, {"tcp", each}).empty());
    m.has_device = true;
    EXPECT(one("verbs", "no port of an RDMA device is active"));
    m.has_active_port = true;
    EXPECT(troubles(m, {"verbs", each}).empty());
    m.memlock = 2 * each;
    EXPECT(one("verbs", "2048 KiB, is enough for no more than 2 connections, each of which pins 1024 KiB"));
    m.memlock = each / 2;
    EXPECT(one("verbs", "512 KiB, is too low for one connection, which pins 1024 KiB"));
    m.may_pin_all = true;
    EXPECT(troubles(m, {"verbs", each}).empty());
}

void test_records_become_lines() {
    const auto records = rsrun::read_records(
        "7\tredis-server\t8\taccept\t127.0.0.1:6379\t127.0.0.1:51234\tshm\t1\t0\t2\t1234\t567\t-\n"
        "8\tnginx\t5\taccept\t10.0.0.2:80\t10.0.0.1:4000\tkernel\t0\t0\t-\t10\t20\tthe peer does not run under rsrun, "
        "or keeps to the kernel\n"
        "8\tnginx\t4\tlisten\t0.0.0.0:80\t-\tkernel\t-\t-\t-\t-\t-\t-\n"
        "9\tsshd\t5\tconnect\t[::1]:4000\t[::1]:22\tkernel\t1\t1\t3\t10\t20\tpassed to another process\n"
        "9\tsshd\t6\tconnect\t[::1]:4001\t[::1]:22\tshm\t3\t2\t3\t10\t20\t-\n"
        "9\tcurl\t6\tconnect\t10.0.0.1:4001\t10.0.0.2:80\tverbs\t-\t-\t-\t10\t20\t-\n"
        "9\tcurl\t7\tconnect\t10.0.0.1:4002\t10.0.0.2:80\tkernel\t0\t0\t-\t-\t-\t-\n");
    EXPECT(records.damaged == 0 && records.upgraded == 4);
    EXPECT_EQ(records.lines.size(), 7U);
    EXPECT_EQ(records.lines[0],
              "redis-server[7] socket 8 accepted at 127.0.0.1:6379 from 127.0.0.1:51234: shared memory "
              "since 2 ms, 1234 bytes sent, 567 received");
    EXPECT_EQ(records.lines[1],
              "nginx[8] socket 5 accepted at 10.0.0.2:80 from 10.0.0.1:4000: "
              "kernel TCP (the peer does not run under rsrun, or keeps to the kernel), 10 bytes sent, 20 received");
    EXPECT_EQ(records.lines[2], "nginx[8] socket 4 listens on 0.0.0.0:80");
    EXPECT_EQ(records.lines[3],
              "sshd[9] socket 5 connected to [::1]:22 from [::1]:4000: kernel TCP (returned to the kernel "
              "once: passed to another process), 10 bytes sent, 20 received");
    EXPECT_EQ(records.lines[4],
              "sshd[9] socket 6 connected to [::1]:22 from [::1]:4001: shared memory since 3 ms (returned "
              "to the kernel twice), 10 bytes sent, 20 received");
    EXPECT_EQ(records.lines[5],
              "curl[9] socket 6 connected to 10.0.0.2:80 from 10.0.0.1:4001: the fabric (verbs), 10 bytes "
              "sent, 20 received");
    EXPECT_EQ(records.lines[6], "curl[9] socket 7 connected to 10.0.0.2:80 from 10.0.0.1:4002: kernel TCP");
    EXPECT(explanation(records).ends_with("\n7 sockets, 4 upgraded\n"));
}

void test_damaged_records_are_counted() {
    const auto records = rsrun::read_records("not a record\n"
                                             "8\tnginx\t5\taccept\ta\tb\tkernel\t-\t-\t-\t-\n" // too short
                                             "8\tnginx\t5\tperhaps\ta\tb\tkernel\t-\t-\t-\t-\t-\t-\n"
                                             "8\tnginx\t5\taccept\ta\tb\tshm\tmany\t-\t-\t-\t-\t-\n");
    EXPECT(records.damaged == 4 && records.lines.empty());
    EXPECT_EQ(explanation(records), "0 sockets, 0 upgraded\n4 records could not be read\n");
    EXPECT_EQ(explanation(rsrun::read_records("")), "0 sockets, 0 upgraded\n");
}

const CMUnitTest tests[] = {
    FABTEST(test_options_end_where_the_program_begins),
    FABTEST(test_every_option_is_taken),
    FABTEST(test_a_bad_command_line_is_told),
    FABTEST(test_names_in_rules_become_addresses),
    FABTEST(test_a_name_that_cannot_be_resolved_is_told),
    FABTEST(test_a_program_is_looked_for_as_execvp_does),
    FABTEST(test_what_nothing_can_be_preloaded_into_is_seen),
    FABTEST(test_a_script_is_its_interpreter),
    FABTEST(test_rights_of_others_are_seen),
    FABTEST(test_the_machine_is_looked_at),
    FABTEST(test_troubles_of_the_machine_are_told),
    FABTEST(test_records_become_lines),
    FABTEST(test_damaged_records_are_counted),
};

} // namespace

int main() {
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
