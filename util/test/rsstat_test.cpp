// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rsstat: its command line, what it reads of the kernel, and pages of counters, whatever is in them.
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <random>
#include <thread>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "fabtests/common/test.hpp"
#include "preload/connection/state.hpp"
#include "util/common/failure.hpp"
#include "util/rsstat/formats.hpp"
#include "util/rsstat/options.hpp"
#include "util/rsstat/page.hpp"
#include "util/rsstat/process.hpp"
#include "util/rsstat/reasons.hpp"
#include "util/rsstat/segments.hpp"
#include "util/rsstat/snapshot.hpp"
#include "util/rsstat/table.hpp"
#include "util/test/process.hpp"

namespace {

namespace stats = base::stats;
using Words = std::vector<std::string>;

// A page as a library makes it, with space for a few rows.
class Made {
  public:
    explicit Made(size_t rows = 4)
        : size_(stats::header_bytes + rows * sizeof(stats::Row)),
          memory_(static_cast<std::byte*>(::operator new (size_, std::align_val_t{64}))) {
        memset(static_cast<void*>(memory_), 0, size_);
        auto* made = new (memory_) stats::Header;
        made->version = stats::version;
        made->row_bytes = sizeof(stats::Row);
        made->rows = static_cast<uint32_t>(rows);
        made->magic = stats::magic;
    }
    Made(const Made&) = delete;
    Made& operator=(const Made&) = delete;
    ~Made() { ::operator delete (memory_, std::align_val_t{64}); }

    [[nodiscard]] stats::Header& header() { return *reinterpret_cast<stats::Header*>(memory_); }
    [[nodiscard]] stats::Row& row(uint32_t i) {
        header().rows_used = std::max<uint32_t>(header().rows_used, i + 1);
        return *reinterpret_cast<stats::Row*>(memory_ + stats::header_bytes + i * sizeof(stats::Row));
    }
    // The same where rows have the length of the header's library.
    [[nodiscard]] stats::Row& bytes_row(uint32_t i) {
        return *reinterpret_cast<stats::Row*>(memory_ + stats::header_bytes +
                                              i * stats::row_bytes_of(header().library));
    }
    [[nodiscard]] std::byte* bytes() { return memory_; }
    [[nodiscard]] size_t size() const { return size_; }
    [[nodiscard]] std::optional<rsstat::Page> read() const { return rsstat::read_page(memory_, size_); }

  private:
    const size_t size_;
    std::byte* const memory_;
};

void describe(stats::Row& row, int fd, uint64_t bytes) {
    row.fd = fd;
    row.role = static_cast<uint32_t>(stats::Role::connect);
    row.path = stats::receives_by_path | stats::sends_by_path;
    row.in.kernel_bytes = bytes;
    row.in.kernel_calls = 1;
    row.live = 1;
    row.generation = 2;
}

rsstat::Snapshot snapshot_of(rsstat::Page page) {
    rsstat::Snapshot snapshot;
    rsstat::ProcessView process;
    process.pid = 1;
    process.facts.program = "test";
    for (const rsstat::Socket& socket : page.sockets) {
        process.sockets.push_back({socket, {"-", "-", 0, 0}});
    }
    page.sockets.clear();
    process.page = std::move(page);
    snapshot.processes.push_back(std::move(process));
    return snapshot;
}

// All that can be made of it.
std::string all_texts(const rsstat::Snapshot& snapshot) {
    return sockets_text(snapshot, nullptr) + sockets_text(snapshot, &snapshot) + processes_text(snapshot, nullptr) +
           reasons_text(snapshot) + json_text(snapshot, &snapshot) + prometheus_text(snapshot);
}

void test_a_path_to_another_host_is_the_fabric() {
    Made page;
    describe(page.row(0), 3, 10);
    describe(page.row(1), 4, 20);
    page.row(1).path = stats::receives_by_path | stats::over_fabric;
    describe(page.row(2), 5, 30);
    page.row(2).path = stats::over_fabric; // it may come to be there
    describe(page.row(3), 6, 40);
    page.row(3).path = stats::receives_by_path | stats::sends_by_path | stats::over_fabric;
    const rsstat::Snapshot now = snapshot_of(*page.read());
    const std::string table = sockets_text(now, nullptr);
    EXPECT(util_test::holds(table, " shm "));
    EXPECT(util_test::holds(table, " fabric/kernel "));
    EXPECT(util_test::holds(table, " kernel "));
    EXPECT(util_test::holds(table, " fabric "));
    const std::string metrics = prometheus_text(now);
    EXPECT(util_test::holds(metrics, "path=\"shm\"} 1\n"));
    EXPECT(util_test::holds(metrics, "path=\"fabric\"} 2\n"));
    EXPECT(util_test::holds(metrics, "path=\"kernel\"} 1\n"));
}

void test_a_row_is_read() {
    Made page;
    describe(page.row(2), 7, 100);
    const auto read = page.read();
    EXPECT(read.has_value());
    EXPECT_EQ(read->sockets.size(), 1U);
    EXPECT_EQ(read->sockets[0].row, 2U);
    EXPECT_EQ(read->sockets[0].fd, 7);
    EXPECT_EQ(read->sockets[0].in.bytes, 100U);
}

void test_a_row_that_is_being_changed_or_has_ended_is_left_out() {
    Made page;
    describe(page.row(0), 7, 100);
    page.row(0).generation = 3;
    describe(page.row(1), 8, 100);
    page.row(1).live = 0;
    const auto read = page.read();
    EXPECT(read->sockets.empty());
    EXPECT_EQ(read->torn, 1U);
}

void test_another_magic_version_or_size_is_no_page() {
    Made page;
    EXPECT(!rsstat::read_page(page.bytes(), stats::header_bytes - 1));
    for (const uint32_t other : {stats::version - 1, stats::version + 1}) {
        page.header().version = other;
        EXPECT(!page.read());
        EXPECT(rsstat::is_of_other_version(page.bytes(), stats::header_bytes));
        EXPECT(!rsstat::is_of_other_version(page.bytes(), stats::header_bytes - 1));
    }
    page.header().version = stats::version;
    page.header().row_bytes = 0;
    EXPECT(!page.read());
    page.header().row_bytes = sizeof(stats::Row);
    page.header().library = static_cast<stats::Library>(77);
    EXPECT(!page.read());
    page.header().library = stats::Library::sockets;
    EXPECT(!page.read()); // with rows of the other library's
    page.header().row_bytes = sizeof(stats::SocketRow);
    EXPECT(page.read().has_value());
    page.header().magic = 0;
    EXPECT(!page.read());
}

void test_more_rows_than_there_is_space_for_are_not_read() {
    Made page;
    describe(page.row(3), 7, 100);
    page.header().rows_used = UINT32_MAX;
    page.header().rows = UINT32_MAX;
    EXPECT_EQ(page.read()->sockets.size(), 1U);
}

// Addresses and the device of librsocket-ofi's sockets are the process's own words.
void test_a_process_cannot_write_to_the_terminal() {
    Made page(8);
    page.header().library = stats::Library::sockets;
    page.header().row_bytes = sizeof(stats::SocketRow);
    auto& row = static_cast<stats::SocketRow&>(page.row(0));
    describe(row, 7, 100);
    row.ends.local[0] = UINT64_MAX;
    row.ends.peer[0] = AF_INET | 80U << 16;
    row.ends.peer[1] = 0x0100007f;
    for (stats::Word& word : row.ends.device) {
        word = 0x1b5b324a1b5b324a;
    }
    const auto read = page.read();
    const rsstat::Socket& s = read->sockets.at(0);
    EXPECT_EQ(s.local, "-");
    EXPECT_EQ(s.peer, "127.0.0.1:80");
    EXPECT_EQ(s.device.size(), 48U);
    EXPECT_EQ(s.device, rsstat::printable(s.device));
    EXPECT_EQ(s.in.path_bytes, 100U);
}

void test_values_that_make_no_sense_are_bounded() {
    Made page;
    stats::Row& row = page.row(0);
    describe(row, 7, 100);
    row.role = 1000;
    row.path = UINT32_MAX;
    row.reason = UINT32_MAX;
    row.in.path_bytes = UINT64_MAX - 1;
    page.header().ended.path_bytes[1] = UINT64_MAX;
    page.header().ended.kernel_bytes[1] = UINT64_MAX;
    row.began_ns = UINT64_MAX;
    const auto read = page.read();
    const rsstat::Socket& s = read->sockets.at(0);
    EXPECT(s.role == stats::Role::none);
    EXPECT_EQ(s.path, 3U);
    EXPECT(s.reason < stats::max_reasons);
    EXPECT_EQ(s.in.path_bytes, UINT64_MAX - 1);
    EXPECT_EQ(s.in.bytes, UINT64_MAX); // 100 more
    EXPECT_EQ(read->ended.bytes[1], UINT64_MAX);
    EXPECT(!all_texts(snapshot_of(*read)).empty());
}

// Whatever a process writes, and whenever, rsstat comes to an end with text that is fit for a terminal.
void test_random_pages_do_no_harm() {
    const auto seed = static_cast<unsigned>(getpid());
    std::mt19937_64 random(seed);
    constexpr int rounds = 300;
    for (int i = 0; i < rounds; ++i) {
        Made page(16);
        auto* words = reinterpret_cast<uint64_t*>(page.bytes());
        constexpr size_t named = offsetof(stats::Header, made_ns) / sizeof(uint64_t);
        for (size_t at = i % 8 == 0 ? 0 : named; at < page.size() / sizeof(uint64_t); ++at) {
            words[at] = random() >> (random() % 64);
        }
        const bool of_sockets = i % 2 != 0;
        page.header().library = of_sockets ? stats::Library::sockets : stats::Library::preload;
        page.header().row_bytes = static_cast<uint32_t>(stats::row_bytes_of(page.header().library));
        const uint32_t rows = of_sockets ? 9 : 16; // that the memory has space for
        page.header().rows_used = rows;
        for (uint32_t row = 0; row < rows; ++row) { // not all of them torn
            page.bytes_row(row).generation = static_cast<uint32_t>(random());
        }
        if (const auto read = page.read(); read) {
            EXPECT(read->sockets.size() <= 16);
            for (const char c : all_texts(snapshot_of(*read))) {
                EXPECT(c == '\n' || (c >= ' ' && c <= '~'));
            }
        }
    }
}

void test_a_page_that_always_changes_is_read_to_an_end() {
    Made page(64);
    for (uint32_t i = 0; i < 64; ++i) {
        describe(page.row(i), static_cast<int>(i), i);
    }
    std::atomic<bool> done{false};
    std::thread writer([&] {
        for (uint32_t i = 0; !done; ++i) {
            stats::Row& row = page.row(i % 64);
            row.generation.fetch_add(1);
            row.in.path_bytes.fetch_add(i);
            page.header().rows_used = i;
            page.header().ended.closing.fetch_add(1);
        }
    });
    constexpr int rounds = 2000;
    size_t most = 0;
    for (int i = 0; i < rounds; ++i) {
        most = std::max(most, page.read()->sockets.size());
    }
    done = true;
    writer.join();
    EXPECT(most <= 64);
}

void test_names_are_printable() { EXPECT_EQ(rsstat::printable("a\033[2Jb\x9b\n\x7f"), "a?[2Jb???"); }

void test_a_segment_is_a_page_only_if_it_looks_like_one() {
    const std::string bytes = std::to_string(stats::page_bytes_of(stats::Library::preload));
    const auto line = [&](const std::string& key, const std::string& mode, const std::string& size, int attached) {
        return key + "  98318  " + mode + " " + size + " 4242 4242 " + std::to_string(attached) +
               " 1000 0 1000 0 1795453707 0 1795453707 16384 0";
    };
    const auto good = rsstat::parse_segment(line("0", "1600", bytes, 1));
    EXPECT(good.has_value());
    EXPECT_EQ(good->id, 98318);
    EXPECT_EQ(good->creator, 4242);
    EXPECT_EQ(good->user, 1000U);
    const std::string sockets = std::to_string(stats::page_bytes_of(stats::Library::sockets));
    EXPECT(rsstat::parse_segment(line("0", "1600", sockets, 1)).has_value());
    EXPECT(!rsstat::parse_segment(line("5", "1600", bytes, 1)));
    EXPECT(!rsstat::parse_segment(line("0", "600", bytes, 1)));
    EXPECT(!rsstat::parse_segment(line("0", "1666", bytes, 1)));
    EXPECT(!rsstat::parse_segment(line("0", "1600", "4096", 1)));
    EXPECT(!rsstat::parse_segment(line("0", "1600", bytes, 0)));
    EXPECT(!rsstat::parse_segment("       key      shmid perms"));
    EXPECT(!rsstat::parse_segment(""));
}

void test_the_kernels_sockets_are_read() {
    const auto four = rsstat::parse_tcp_line("   0: 0100007F:1CE7 0200007F:0050 01 0000000A:00000014 00:00000000 "
                                             "00000000     0        0 68121 1 0000000000000000 100 0 0 10 0");
    EXPECT(four.has_value());
    EXPECT_EQ(four->first, 68121U);
    EXPECT_EQ(four->second.local, "127.0.0.1:7399");
    EXPECT_EQ(four->second.peer, "127.0.0.2:80");
    EXPECT_EQ(four->second.send_queue, 10U);
    EXPECT_EQ(four->second.receive_queue, 20U);
    const auto six = rsstat::parse_tcp_line(
        "   1: 00000000000000000000000001000000:1CE7 00000000000000000000000000000000:0000 0A 00000000:00000000 "
        "00:00000000 00000000     0        0 68122 1 0000000000000000 100 0 0 10 0");
    EXPECT_EQ(six->second.local, "[::1]:7399");
    EXPECT_EQ(six->second.peer, "-");
    EXPECT(!rsstat::parse_tcp_line("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when"));
    EXPECT(!rsstat::parse_tcp_line("0: xyz abc"));
}

// A page that was made by a process which had the number before, or by another user, is not this one's.
void test_a_page_belongs_to_its_process() {
    rsstat::ProcessFacts facts;
    facts.started_ns = 5000000000;
    facts.real_user = facts.effective_user = 1000;
    rsstat::Page page;
    page.made_ns = 6000000000;
    EXPECT(belongs_to(page, 1000, facts));
    EXPECT(belongs_to(page, 0, facts));
    EXPECT(!belongs_to(page, 1001, facts));
    page.made_ns = 4000000000;
    EXPECT(!belongs_to(page, 1000, facts));
}

void test_own_facts_are_found() {
    const auto facts = rsstat::facts_of(getpid());
    EXPECT(facts.has_value());
    EXPECT(facts->program.starts_with("rsstat_test") || facts->program.starts_with("lt-rsstat_test"));
    EXPECT(facts->started_ns != 0);
    EXPECT_EQ(facts->effective_user, geteuid());
    EXPECT(!rsstat::facts_of(0x7ffffff0));
}

void test_options() {
    const auto parsed = rsstat::parse_options({"rsstat", "-p", "12", "--pid=13", "-i", "1", "-n", "3", "--json"});
    EXPECT_EQ(parsed.pids.size(), 2U);
    EXPECT_EQ(*parsed.interval, 1U);
    EXPECT_EQ(*parsed.repetitions, 3U);
    EXPECT(parsed.view == rsstat::View::json);
    for (const Words& bad : {Words{"rsstat", "-p", "0"}, Words{"rsstat", "x"}, Words{"rsstat", "-n", "3"},
                             Words{"rsstat", "--json", "--reasons"}, Words{"rsstat", "--prometheus", "-i", "1"}}) {
        bool refused = false;
        try {
            (void)rsstat::parse_options(bad);
        } catch (const util::Failure&) {
            refused = true;
        }
        EXPECT(refused);
    }
}

void test_numbers_are_short() {
    EXPECT_EQ(rsstat::short_number(999), "999");
    EXPECT_EQ(rsstat::short_number(1250), "1.2K");
    EXPECT_EQ(rsstat::short_bytes(65536), "64K");
    EXPECT_EQ(rsstat::short_time(59000000000), "59s");
    EXPECT_EQ(rsstat::short_time(90000000000), "1m30");
    EXPECT_EQ(rsstat::short_time(7260000000000), "2h01");
    EXPECT_EQ(rsstat::rate(10, 5, 1000), 0.0);
    EXPECT_EQ(rsstat::rate(0, 5, 1000000000), 5.0);
}

void test_every_reason_has_a_name_a_text_and_an_advice() {
    for (uint32_t i = 0; i <= static_cast<uint32_t>(preload::Reason::unseen_wait); ++i) {
        EXPECT(!rsstat::name_of_reason(i).starts_with("reason_"));
        EXPECT(!rsstat::advice_for(i).empty());
        EXPECT(rsstat::text_of_reason(i) != "-");
    }
    EXPECT_EQ(rsstat::name_of_reason(63), "reason_63");
}

void test_the_page_has_every_reason() {
    const char* source = getenv("srcdir");
    std::ifstream file((source != nullptr ? source : ".") + std::string("/man/rsstat.1.md"));
    std::string page;
    for (std::string word; file >> word;) { // wherever its lines end
        page += word + " ";
    }
    EXPECT(!page.empty());
    for (uint32_t i = 0; rsstat::name_of_reason(i) != fmt::format("reason_{}", i); ++i) {
        const std::string entry = fmt::format("{} `{}` : ", i, rsstat::name_of_reason(i));
        const size_t found = page.find(entry);
        EXPECT(found != std::string::npos);
        const auto is_there = [&](std::string text) {
            text[0] = static_cast<char>(toupper(text[0]));
            return page.find(text, found) < found + 250;
        };
        EXPECT(i == 0 || is_there(rsstat::text_of_reason(i)));
        EXPECT(is_there(rsstat::advice_for(i)));
    }
}

void test_formats_agree() {
    Made page;
    describe(page.row(0), 7, 1000);
    page.row(0).in.path_bytes = 4000;
    page.row(0).in.path_calls = 8;
    describe(page.row(1), 8, 500);
    page.row(1).path = stats::over_fabric; // with the kernel again
    page.row(1).in.path_bytes = 20;
    page.header().ended.path_bytes[0] = 30;
    page.header().ended.fabric_bytes[0] = 7;
    page.header().ended.kernel_bytes[0] = 100;
    page.header().ended.calls[0] = 5;
    page.header().ended.sockets = 2;
    page.header().ended.closing = 2;
    page.header().ended.reasons[static_cast<uint32_t>(preload::Reason::no_peer)] = 2;
    auto snapshot = snapshot_of(*page.read());
    snapshot.processes[0].facts.program = "a\"b\\c";
    const auto json = nlohmann::json::parse(json_text(snapshot, nullptr));
    const auto& process = json.at("processes").at(0);
    EXPECT_EQ(process.at("sockets").at(0).at("received").at("bytes").get<uint64_t>(), 5000U);
    EXPECT_EQ(process.at("sockets").at(0).at("received").at("path_bytes").get<uint64_t>(), 4000U);
    EXPECT_EQ(process.at("sockets").at(0).at("received").at("calls").get<uint64_t>(), 9U);
    EXPECT_EQ(process.at("ended").at("reasons").at("no_peer").get<int>(), 2);
    EXPECT_EQ(process.at("program").get<std::string>(), "a\"b\\c");
    const std::string metrics = prometheus_text(snapshot);
    const std::string labels = "{pid=\"1\",program=\"a\\\"b\\\\c\",library=\"rspreload-ofi\",";
    EXPECT(util_test::holds(metrics, "rstream_bytes_total" + labels + "direction=\"received\",path=\"shm\"} 4030\n"));
    EXPECT(
        util_test::holds(metrics, "rstream_bytes_total" + labels + "direction=\"received\",path=\"kernel\"} 1600\n"));
    EXPECT(util_test::holds(metrics, "rstream_bytes_total" + labels + "direction=\"received\",path=\"fabric\"} 27\n"));
    EXPECT(util_test::holds(metrics, "rstream_calls_total" + labels + "direction=\"received\"} 15\n"));
    EXPECT(util_test::holds(reasons_text(snapshot), "run the program at the other end under rsrun, too"));
}

void test_the_program_runs() {
    EXPECT_EQ(util_test::run_program("rsstat", {"--help"}).status, 0);
    const auto ended = util_test::run_program("rsstat", {"--json"});
    EXPECT_EQ(ended.status, 0);
    EXPECT(nlohmann::json::parse(ended.output).contains("processes"));
    util_test::expect_complaint(util_test::run_program("rsstat", {"--nothing"}), "--nothing");
}

void test_a_process_that_cannot_be_shown_is_named() {
    using util_test::expect_complaint;
    using util_test::run_program;
    const pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    siginfo_t about{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &about, WEXITED | WNOWAIT), 0); // its number is not reused yet
    expect_complaint(run_program("rsstat", {"-p", std::to_string(child)}), fmt::format("process {} (", child));
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    const std::string none = "2147483647"; // greater than the kernel's PID_MAX_LIMIT
    const std::string own = std::to_string(getpid());
    for (const char* view : {"--processes", "--reasons", "--json", "--prometheus"}) {
        expect_complaint(run_program("rsstat", {"-p", none, view}), "there is no process " + none);
        expect_complaint(run_program("rsstat", {view, "-p", own}), fmt::format("process {} (", own));
    }
    expect_complaint(run_program("rsstat", {"-p", own, "-i", "1"}), "does not run under rsrun");
}

void test_a_process_of_another_version_or_user_is_said_to_be_that() {
    rsstat::Snapshot snapshot;
    EXPECT(util_test::holds(why_missing(snapshot, 0x7ffffff0), "there is no process 2147483632"));
    EXPECT(util_test::holds(why_missing(snapshot, getpid()), "has no counters"));
    snapshot.other_versions.push_back(getpid());
    EXPECT(util_test::holds(why_missing(snapshot, getpid()), "another version"));
    rsstat::ProcessView process;
    process.pid = getpid();
    snapshot.processes.push_back(std::move(process));
    EXPECT_EQ(why_missing(snapshot, getpid()), "");
    if (geteuid() != 0) {
        EXPECT(util_test::holds(why_missing(snapshot, 1), "another user's"));
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_path_to_another_host_is_the_fabric),
        FABTEST(test_a_row_is_read),
        FABTEST(test_a_row_that_is_being_changed_or_has_ended_is_left_out),
        FABTEST(test_another_magic_version_or_size_is_no_page),
        FABTEST(test_more_rows_than_there_is_space_for_are_not_read),
        FABTEST(test_values_that_make_no_sense_are_bounded),
        FABTEST(test_a_process_cannot_write_to_the_terminal),
        FABTEST(test_random_pages_do_no_harm),
        FABTEST(test_a_page_that_always_changes_is_read_to_an_end),
        FABTEST(test_names_are_printable),
        FABTEST(test_a_segment_is_a_page_only_if_it_looks_like_one),
        FABTEST(test_the_kernels_sockets_are_read),
        FABTEST(test_a_page_belongs_to_its_process),
        FABTEST(test_own_facts_are_found),
        FABTEST(test_options),
        FABTEST(test_numbers_are_short),
        FABTEST(test_every_reason_has_a_name_a_text_and_an_advice),
        FABTEST(test_the_page_has_every_reason),
        FABTEST(test_formats_agree),
        FABTEST(test_the_program_runs),
        FABTEST(test_a_process_that_cannot_be_shown_is_named),
        FABTEST(test_a_process_of_another_version_or_user_is_said_to_be_that),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
