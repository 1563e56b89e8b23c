// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rsrun: its command line, what it sees of a program and of the machine, and, with a stand-in for the preload
// libraries, what a program that it runs is given.
#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <elf.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/rules/rule.hpp"
#include "util/common/failure.hpp"
#include "util/rsrun/machine.hpp"
#include "util/rsrun/names.hpp"
#include "util/rsrun/options.hpp"
#include "util/rsrun/parts.hpp"
#include "util/rsrun/records.hpp"
#include "util/rsrun/target.hpp"
#include "util/test/process.hpp"

namespace {

namespace fs = std::filesystem;
using fabtests::Failure;
using util_test::holds;
using Words = std::vector<std::string>;

rsrun::Options options(Words words) {
    words.insert(words.begin(), "rsrun");
    return rsrun::parse_options(words);
}

template <class Call> std::string failure_of(Call call) {
    try {
        call();
    } catch (const util::Failure& e) {
        return e.what();
    }
    return "";
}

// A folder of the build's, so that libraries can be loaded from it, and gone at the end.
struct Folder {
    fs::path path;
    Folder() {
        const char* build = getenv("FABTESTS_BIN");
        std::string name = fs::canonical(build != nullptr ? build : ".").string() + "/rsrun_test.XXXXXX";
        if (mkdtemp(name.data()) == nullptr) {
            throw Failure("mkdtemp " + name);
        }
        path = name;
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    std::string put(const std::string& name, const std::string& text, mode_t mode = 0755) const {
        const fs::path file = path / name;
        fs::create_directories(file.parent_path());
        std::ofstream(file, std::ios::binary) << text;
        chmod(file.c_str(), mode);
        return file.string();
    }
};

std::string read_file(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
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
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + std::string(name, name_size) + content;
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

// An installation in a folder: rsrun, files in place of the fabric's parts, and the stand-in for the preload library.
struct Stage : Folder {
    std::string build;
    Stage() {
        const char* bin = getenv("FABTESTS_BIN");
        build = fs::canonical(bin != nullptr ? bin : ".").string();
        fs::create_directories(path / "bin/.libs");
        fs::copy_file(build + "/rsrun", path / "bin/rsrun");
        fs::copy_file(fixture(), shim());
        put("bin/.libs/rspreload-fabric", "");
        put("bin/.libs/librsocket-ofi.so.1", "");
        put("bin/.libs/librstream-fi.so", "");
        for (const char* name : {"LD_PRELOAD", "FI_PROVIDER", "FI_PROVIDER_PATH", "FI_RSTREAM_CORE", "LD_LIBRARY_PATH",
                                 "RSPRELOAD_RULES"}) {
            unsetenv(name);
        }
    }
    [[nodiscard]] std::string program() const { return fs::relative(path / "bin/rsrun", build).string(); }
    [[nodiscard]] util_test::Ended run(const Words& words) const { return util_test::run_program(program(), words); }
    [[nodiscard]] std::string libs() const { return (path / "bin/.libs").string(); }
    [[nodiscard]] std::string shim() const { return libs() + "/librspreload-ofi.so"; }
    [[nodiscard]] std::string worker() const { return libs() + "/rspreload-fabric"; }
    [[nodiscard]] std::string fixture() const { return build + "/util/test/.libs/librsrunfixture.so"; }
};

bool has_line(const std::string& text, const std::string& line) { return holds("\n" + text, "\n" + line + "\n"); }

void skip_with_a_device() {
    if (rsrun::Machine::inspect().has_active_port) {
        throw fabtests::Skip("this machine has an RDMA device");
    }
}

void test_without_options_only_the_library_is_preloaded() {
    skip_with_a_device();
    const Stage stage;
    for (const char* part : {"rspreload-fabric", "librsocket-ofi.so.1", "librstream-fi.so"}) { // not needed
        fs::remove(stage.libs() + "/" + part);
    }
    const auto ended = stage.run({"env"});
    EXPECT_EQ(ended.errors, "");
    EXPECT_EQ(ended.status, 0);
    EXPECT(has_line(ended.output, "LD_PRELOAD=" + stage.shim()));
    for (const char* name : {"\nFI_", "\nRSPRELOAD_", "\nRS_", "\nLD_LIBRARY_PATH"}) {
        EXPECT(!holds("\n" + ended.output, name));
    }
}

void test_the_program_alone_gets_the_environment() {
    const Stage stage;
    setenv("FI_PROVIDER_PATH", "/others", 1);
    const auto ended = stage.run({"--core", "tcp", "--sndbuf", "64K", "--rcvbuf", "1M", "--only", "80", "--only",
                                  "10.0.0.0/8", "--only", "localhost:81", "--log", "log", "env"});
    unsetenv("FI_PROVIDER_PATH");
    EXPECT_EQ(ended.errors, "");
    EXPECT_EQ(ended.status, 0);
    const std::string log = (fs::current_path() / "log").string();
    unlink(log.c_str());
    EXPECT(has_line(ended.output, "LD_PRELOAD=" + stage.shim())); // its sockets stay the kernel's
    EXPECT(has_line(ended.output, "RSPRELOAD_FABRIC=1"));
    EXPECT(has_line(ended.output, "RSPRELOAD_FABRIC_WORKER=" + stage.worker()));
    EXPECT(has_line(ended.output, "FI_PROVIDER_PATH=/others")); // the program's own
    const std::string worker = "RSPRELOAD_WORKER_";
    EXPECT(has_line(ended.output, worker + "LD_LIBRARY_PATH=" + stage.libs()));
    EXPECT(has_line(ended.output, worker + "FI_PROVIDER_PATH=" + stage.libs() + ":/others"));
    EXPECT(has_line(ended.output, "RSPRELOAD_RULES=80 10.0.0.0/8 localhost:81"));
    EXPECT(has_line(ended.output, "RSPRELOAD_LOG=" + log));
    EXPECT(has_line(ended.output, worker + "FI_RSTREAM_CORE=tcp"));
    EXPECT(has_line(ended.output, worker + "RS_WMEM_DEFAULT=65536"));
    EXPECT(has_line(ended.output, worker + "RS_MEM_DEFAULT=1048576"));
    EXPECT(!holds(ended.output, "RSPRELOAD_EXPLAIN") && !holds(ended.output, "RSPRELOAD_CONFIG"));
}

void test_a_path_is_chosen() {
    const Stage stage;
    const auto memory = stage.run({"--path", "memory", "--core", "tcp", "env"});
    EXPECT(has_line(memory.output, "LD_PRELOAD=" + stage.shim()) && !holds(memory.output, "RSPRELOAD_"));
    fs::remove(stage.worker());
    const auto missing = stage.run({"--path", "fabric", "--core", "tcp", "env"});
    EXPECT_EQ(missing.status, 125);
    EXPECT(holds(missing.errors, "rspreload-fabric is missing"));
    EXPECT_EQ(stage.run({"--path", "auto", "env"}).status, 0);
    stage.put("bin/.libs/rspreload-fabric", "");
    const auto ended = stage.run({"--path", "fabric", "env"});
    EXPECT_EQ(ended.errors, "");
    EXPECT(has_line(ended.output, "RSPRELOAD_WORKER_FI_RSTREAM_CORE=verbs"));
}

void test_what_was_preloaded_comes_after_it() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    throw fabtests::Skip("a program with a sanitizer starts with nothing preloaded before that");
#endif
    const Stage stage;
    const std::string other = stage.libs() + "/other.so";
    fs::copy_file(stage.shim(), other);
    setenv("LD_PRELOAD", other.c_str(), 1);
    const auto ended = stage.run({"--core=tcp", "env"});
    unsetenv("LD_PRELOAD");
    EXPECT(has_line(ended.output, "LD_PRELOAD=" + stage.shim() + ":" + other));
}

void test_without_explain_it_becomes_the_program() {
    const Stage stage;
    const std::string mine = read_file("/proc/self/comm");
    const auto ended = stage.run({"sh", "-c", "cat /proc/$PPID/comm; exit 7"});
    EXPECT_EQ(ended.output, mine);
    EXPECT_EQ(ended.status, 7);
    EXPECT_EQ(stage.run({"sh", "-c", "kill -9 $$"}).status, 128 + SIGKILL);
}

void test_explain_tells_of_each_socket_at_the_end() {
    const Stage stage;
    const auto ended = stage.run({"--explain", "sh", "-c", "echo said; exit 3"});
    EXPECT_EQ(ended.status, 3);
    EXPECT_EQ(ended.output, "said\n");
    EXPECT(holds(ended.errors,
                 "socket 3 connected to 127.0.0.1:80 from 127.0.0.1:4000: shared memory since 2 ms, 10 bytes "
                 "sent, 20 received\n"));
    EXPECT(holds(ended.errors, "socket 4 listens on [::1]:90\n"));
    EXPECT(holds(ended.errors,
                 "socket 5 accepted at [::1]:90 from [::1]:4001: kernel TCP (ended before an upgrade was due), 1 "
                 "bytes sent, 2 received\n"));
    EXPECT(ended.errors.ends_with("rsrun: 3 sockets, 1 upgraded\n"));
    const std::string file = (stage.path / "records").string();
    const auto quiet = stage.run({"--explain=" + file, "sh", "-c", "exit 0"});
    EXPECT(quiet.status == 0 && quiet.errors.empty());
    EXPECT_EQ(util_test::count_lines(read_file(file)), 3U);
    EXPECT(holds(read_file(file), "\tprogram\t3\tconnect\t"));
}

void test_with_explain_status_and_signals_are_the_programs() {
    const Stage stage;
    EXPECT_EQ(stage.run({"--explain", "sh", "-c", "kill -SEGV $$"}).status, 128 + SIGSEGV);
    const std::string script = "trap 'echo usr1' USR1; trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    util_test::Process process(stage.program(), {"--explain", "sh", "-c", script});
    EXPECT_EQ(process.line(), "ready");
    process.signal(SIGUSR1);
    EXPECT_EQ(process.line(), "usr1");
    process.signal(SIGTERM);
    EXPECT_EQ(process.status(), 9);
    EXPECT(holds(process.errors(), " upgraded\n")); // those of each sleep too
}

void test_the_child_of_explain_has_the_signals_of_its_parent() {
    const Stage stage;
    const char* const script = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    EXPECT_EQ(stage.run({"--explain", "sh", "-c", script}).output, stage.run({"sh", "-c", script}).output);
}

void test_what_it_cannot_run_is_told_with_a_status_of_its_own() {
    const Stage stage;
    const auto complaint = [&](const Words& words, int status, const std::string& part) {
        const auto ended = stage.run(words);
        if (ended.status != status || util_test::count_lines(ended.errors) != 1 || !holds(ended.errors, part)) {
            throw Failure("status " + std::to_string(ended.status) + ", " + ended.errors);
        }
    };
    complaint({"no-such-program"}, 127, "rsrun: no-such-program: there is no such program");
    complaint({"/"}, 126, "rsrun: /: not a file");
    complaint({"--only", "x/y", "ls"}, 125, "rsrun: --only x/y: a name is followed by");
    complaint({"--only", "no-such-host.invalid:1", "ls"}, 125, "the name no-such-host.invalid cannot be resolved");
    complaint({"--config", "/nowhere/at/all", "ls"}, 125, "--config /nowhere/at/all: No such file");
    complaint({"--log", "/nowhere/at/all", "ls"}, 125, "--log /nowhere/at/all: cannot be written");
    complaint({"--explain=/nowhere/at/all", "ls"}, 125, "--explain /nowhere/at/all: cannot be written");
    for (const char* part : {"librstream-fi.so", "librsocket-ofi.so.1", "rspreload-fabric"}) {
        fs::remove(stage.libs() + "/" + part);
        complaint({"--core=tcp", "ls"}, 125, part);
        EXPECT(stage.run({"ls"}).errors.empty()); // they are the fabric's alone
    }
    fs::remove(stage.shim());
    stage.put("bin/.libs/rspreload-fabric", ""); // which says that this is a build tree
    complaint({"ls"}, 125, "librspreload-ofi.so is missing");
}

void test_a_plugin_elsewhere_is_found_by_the_environment() {
    const Stage stage;
    fs::remove(stage.libs() + "/librstream-fi.so");
    stage.put("elsewhere/librstream-fi.so", "");
    const std::string elsewhere = (stage.path / "elsewhere").string();
    const std::string given = "/nowhere:" + elsewhere;
    setenv("FI_PROVIDER_PATH", given.c_str(), 1);
    const auto ended = stage.run({"--core=tcp", "env"});
    unsetenv("FI_PROVIDER_PATH");
    EXPECT(has_line(ended.output, "RSPRELOAD_WORKER_FI_PROVIDER_PATH=" + elsewhere + ":" + given));
}

void test_what_cannot_be_upgraded_runs_in_silence() {
    const Stage stage;
    const std::string program = stage.put("script", "#!/bin/sh\necho ran\n");
    const auto plain = stage.run({program});
    EXPECT(plain.output == "ran\n" && plain.errors.empty());
    if (geteuid() != 0) {
        throw fabtests::Skip("only root can make a program of another user's");
    }
    const std::string copy = (stage.path / "true").string();
    fs::copy_file("/bin/true", copy);
    EXPECT(chown(copy.c_str(), 12345, 0) == 0 && chmod(copy.c_str(), 04755) == 0);
    const auto setuid = stage.run({copy});
    EXPECT(setuid.status == 0 && setuid.errors.empty());
    for (const char* option : {"-v", "--explain"}) {
        const auto asked = stage.run({option, copy});
        EXPECT_EQ(asked.status, 0);
        EXPECT(holds(asked.errors, "is setuid") && holds(asked.errors, "; its sockets stay with the kernel\n"));
    }
}

void test_verbose_says_what_is_set() {
    const Stage stage;
    const auto ended = stage.run({"-v", "--core=tcp", "--only", ":80", "true"});
    EXPECT(holds(ended.errors, "rsrun: RSPRELOAD_RULES=:80\n") &&
           holds(ended.errors, "rsrun: RSPRELOAD_WORKER_FI_RSTREAM_CORE=tcp\n"));
    EXPECT(holds(ended.errors, "rsrun: runs "));
    skip_with_a_device();
    EXPECT(holds(stage.run({"-v", "true"}).errors, ": connections to other hosts stay with the kernel\n"));
}

// As `make install DESTDIR=…` lays it out.
void test_an_installation_may_be_staged() {
    const Stage stage;
    const std::string bin = (stage.path / "bin").string();
    EXPECT_EQ(rsrun::find_shim(bin), stage.shim());
    EXPECT_EQ(rsrun::find_fabric_parts(bin, "").provider_folder, stage.libs());
    EXPECT(holds(failure_of([] { rsrun::find_shim("/nowhere"); }), "is missing"));
    EXPECT(holds(failure_of([] { rsrun::find_fabric_parts("/nowhere", ""); }), "is missing"));
    const std::string root = (stage.path / "root").string();
    for (const char* folder : {RSRUN_BINDIR, RSRUN_LIBDIR, RSRUN_PRELOAD_DIR, RSRUN_PROVIDER_DIR}) {
        fs::create_directories(root + folder);
    }
    const std::string program = root + RSRUN_BINDIR "/rsrun";
    const std::string shim = root + RSRUN_PRELOAD_DIR "/librspreload-ofi.so";
    fs::copy_file(stage.build + "/rsrun", program);
    fs::copy_file(stage.fixture(), shim);
    std::ofstream(root + RSRUN_PRELOAD_DIR "/rspreload-fabric") << "";
    std::ofstream(root + RSRUN_LIBDIR "/librsocket-ofi.so.1") << "";
    std::ofstream(root + RSRUN_PROVIDER_DIR "/librstream-fi.so") << "";
    const auto ended = util_test::run_program(fs::relative(program, stage.build).string(), {"--core=tcp", "env"});
    EXPECT_EQ(ended.status, 0);
    EXPECT(has_line(ended.output, "LD_PRELOAD=" + shim));
    EXPECT(has_line(ended.output, "RSPRELOAD_WORKER_LD_LIBRARY_PATH=" + root + RSRUN_LIBDIR));
    EXPECT(has_line(ended.output, "RSPRELOAD_WORKER_FI_PROVIDER_PATH=" + root + RSRUN_PROVIDER_DIR));
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
    FABTEST(test_without_options_only_the_library_is_preloaded),
    FABTEST(test_the_program_alone_gets_the_environment),
    FABTEST(test_a_path_is_chosen),
    FABTEST(test_what_was_preloaded_comes_after_it),
    FABTEST(test_without_explain_it_becomes_the_program),
    FABTEST(test_explain_tells_of_each_socket_at_the_end),
    FABTEST(test_with_explain_status_and_signals_are_the_programs),
    FABTEST(test_the_child_of_explain_has_the_signals_of_its_parent),
    FABTEST(test_what_it_cannot_run_is_told_with_a_status_of_its_own),
    FABTEST(test_a_plugin_elsewhere_is_found_by_the_environment),
    FABTEST(test_what_cannot_be_upgraded_runs_in_silence),
    FABTEST(test_verbose_says_what_is_set),
    FABTEST(test_an_installation_may_be_staged),
};

} // namespace

int main() {
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
