// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rsrun: with a stand-in for the preload library, what a program that it runs is given. rsrun_parts_test has its
// command line, and what it sees of a program and of the machine.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "util/rsrun/machine.hpp"
#include "util/rsrun/parts.hpp"
#include "util/test/process.hpp"
#include "util/test/rsrun_folder.hpp"

namespace {

namespace fs = std::filesystem;
using fabtests::Failure;
using namespace rsrun_test;
using util_test::holds;
using Words = std::vector<std::string>;

std::string read_file(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
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
    setenv("RSPRELOAD_FABRIC", "1", 1); // as within a program that another rsrun has started
    const auto within = stage.run({"--path", "memory", "env"});
    unsetenv("RSPRELOAD_FABRIC");
    EXPECT(has_line(within.output, "RSPRELOAD_FABRIC=0"));
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
    complaint({"--config", "/", "ls"}, 125, "--config /: Is a directory");
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
