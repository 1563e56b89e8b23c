// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What rstream and riostream are made of: command lines, plans, the bytes of -T v and of the greeting, reports.
#include "fabtests/common/test.hpp"
#include "util/common/failure.hpp"
#include "util/common/json.hpp"
#include "util/streaming/greeting.hpp"
#include "util/streaming/pattern.hpp"
#include "util/streaming/report.hpp"

namespace {

using namespace streaming;
using Words = std::vector<std::string>;

Options parse(Program program, const Words& words) {
    Words all{"program"};
    all.insert(all.end(), words.begin(), words.end());
    return parse_options(program, all);
}

Options stream(const Words& words) { return parse(Program::rstream, words); }
Options mapped(const Words& words) { return parse(Program::riostream, words); }

template <class Call> std::string failure_of(Call call) {
    try {
        call();
    } catch (const util::Failure& failure) {
        return failure.what();
    }
    return "no failure";
}

void test_both_have_the_defaults_of_rdma_core() {
    for (const Program program : {Program::rstream, Program::riostream}) {
        const Options o = parse(program, {});
        EXPECT(!o.is_client() && !o.custom && !o.all && !o.kernel && !o.fork && !o.resolve && !o.verify &&
               !o.histogram);
        EXPECT_EQ(o.port, 7471);
        EXPECT_EQ(o.buffers, 524288U);
        EXPECT_EQ(o.size, 1000U);
        EXPECT_EQ(o.transfers, 1000U);
        EXPECT_EQ(o.iterations, 1U);
        EXPECT(o.mode == Mode::nonblocking && o.format == util::AddressFormat::any);
        EXPECT(!o.inline_size && !o.keepalive);
    }
}

void test_every_option_is_taken() {
    const Options o =
        stream({"-s", "host", "-b", "me", "-f", "IPv6", "-B", "64K", "-i", "16", "-I", "3", "-C",          "4",
                "-S", "2M",   "-p", "9",  "-k", "5",    "-T", "a",   "-T", "v",  "-T", "r", "--histogram", "--json"});
    EXPECT(o.is_client() && o.custom && o.verify && o.resolve && o.histogram && o.common.json);
    EXPECT(o.format == util::AddressFormat::ipv6 && o.mode == Mode::asynchronous);
    EXPECT_EQ(o.bind, std::string("me"));
    EXPECT_EQ(o.buffers, 65536U);
    EXPECT_EQ(*o.inline_size, 16);
    EXPECT_EQ(o.iterations, 3U);
    EXPECT_EQ(o.transfers, 4U);
    EXPECT_EQ(o.size, 2U << 20);
    EXPECT_EQ(o.port, 9);
    EXPECT_EQ(*o.keepalive, 5);
    const Options m = mapped({"-s", "h",  "-b", "i",  "-B", "1K",     "-I", "3",  "-C", "4",  "-S",
                              "2M", "-p", "9",  "-T", "b",  "--test", "v",  "-i", "3",  "-f", "ip"});
    EXPECT(m.is_client() && m.verify && m.mode == Mode::blocking);
    EXPECT(stream({"-S", "all"}).all && !stream({"-S", "ALL"}).custom);
}

void test_a_test_option_is_a_letter_or_a_word() {
    for (const char* word : {"s", "socket", "sockets", "Socket"}) {
        EXPECT(stream({"-T", word}).kernel);
    }
    EXPECT(stream({"-T", "async"}).mode == Mode::asynchronous);
    EXPECT(stream({"-T", "blocking"}).mode == Mode::blocking);
    EXPECT(stream({"-T", "nonblocking"}).mode == Mode::nonblocking);
    EXPECT(stream({"-T", "n", "-T", "a"}).mode == Mode::asynchronous);
    EXPECT(stream({"-T", "fork"}).fork && stream({"-T", "f"}).kernel);
    EXPECT(stream({"-T", "resolve"}).resolve && stream({"-T", "verify"}).verify);
    for (const char* other : {"s", "f", "r"}) { // of rstream only
        EXPECT(failure_of([&] { mapped({"-T", other}); }).starts_with("-T "));
    }
}

void test_what_makes_no_sense_is_refused() {
    const struct {
        Words words;
        const char* complaint;
    } cases[] = {{{"-S", "0"}, "-S 0: not a number from 1 to 1073741824"},
                 {{"-S", "2G"}, "-S 2G: not a number"},
                 {{"-S", "some"}, "-S some: not a number"},
                 {{"-C", "0"}, "-C 0: not a number"},
                 {{"-I", "1000000001"}, "-I 1000000001: not a number"},
                 {{"-S", "1G", "-C", "1000000000", "-I", "10"}, "more bytes than can be counted"},
                 {{"-C", "1000000000", "-I", "1000000000", "-S", "5"}, "more bytes than can be counted"},
                 {{"-B", "0"}, "-B 0: not a number"},
                 {{"-f", "gid"}, "-f gid: streams have IP addresses only"},
                 {{"-f", "dotted"}, "-f dotted: not one of name, ip and ipv6"},
                 {{"-T", "q"}, "-T q: not one of a (async)"},
                 {{"-T", ""}, "-T '': not one of"},
                 {{"-T", "asyn"}, "-T asyn: not one of"},
                 {{"-T", "a", "-T", "b"}, "-T b and -T a"},
                 {{"-T", "n", "-T", "b"}, "-T b and -T n"},
                 {{"-T", "s", "-i", "5"}, "-i: the kernel's sockets"},
                 {{"-T", "f", "-s", "h"}, "-T f: only a server forks"},
                 {{"-k", "0"}, "-k 0: not a number"},
                 {{"-s", ""}, "-s '': not an address"},
                 {{"-s", "h", "-p", "0"}, "-p 0: only a server"},
                 {{"-p", "65536"}, "-p 65536: not a number"},
                 {{"-z"}, "-z is not an option"},
                 {{"-S"}, "-S needs an argument"},
                 {{"-S", "1K", "--size"}, "--size needs an argument"},
                 {{"--json=yes"}, "--json takes no argument"},
                 {{"--server=h", "-zs"}, "-z is not an option"},
                 {{"word"}, "word: not an option"},
                 {{"--backend", "fabric"}, "--backend is not an option"}};
    for (const auto& [words, complaint] : cases) {
        const std::string got = failure_of([&, w = words] { stream(w); });
        if (got.find(complaint) == std::string::npos) {
            throw fabtests::Failure("instead of \"" + std::string(complaint) + "\": " + got);
        }
    }
    EXPECT(failure_of([] { mapped({"-k", "1"}); }).starts_with("-k is not an option"));
    EXPECT(stream({"-h", "-S", "all", "-C", "1"}).common.help); // nothing else is looked at
}

void test_numbers_are_shortened_as_rdma_core_does() {
    const struct {
        uint64_t bytes;
        const char* text;
    } sizes[] = {{0, "0"},        {64, "64"},        {1000, "1000"},        {1024, "1k"},
                 {1100, "1k"},    {1536, "1.5k"},    {2000, "1.9k"},        {2100, "2k"},
                 {10500, "10k"},  {81920000, "78m"}, {1048576000, "1000m"}, {3000000, "2.8m"},
                 {1 << 20, "1m"}, {12800000, "12m"}, {1572864000, "1.4g"},  {uint64_t{5} << 40, "5t"}};
    for (const auto& [bytes, text] : sizes) {
        EXPECT_EQ(short_bytes(bytes), std::string(text));
    }
    const struct {
        uint64_t count;
        const char* text;
    } counts[] = {{1, "1"},       {999, "999"},     {1000, "1k"},    {1001, "1k"},   {1500, "1k"},
                  {12345, "12k"}, {100000, "100k"}, {1048576, "1m"}, {1600000, "1m"}};
    for (const auto& [count, text] : counts) {
        EXPECT_EQ(short_count(count), std::string(text));
    }
}

void test_the_series_is_latencies_then_bandwidths() {
    const auto plan = make_plan(stream({}));
    EXPECT_EQ(plan.size(), 2U);
    EXPECT_EQ(*plan[0].inline_size, 64);
    EXPECT_EQ(*plan[1].inline_size, 0);
    const struct {
        const char* size;
        uint64_t repetitions;
    } wanted[] = {{"64", 100000}, {"4k", 10000}, {"64k", 1000}, {"1m", 100}};
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(plan[0].tests[i].name, std::string(wanted[i].size) + "_lat");
        EXPECT_EQ(plan[0].tests[i].iterations, wanted[i].repetitions);
        EXPECT_EQ(plan[0].tests[i].transfers, 1U);
        EXPECT_EQ(plan[1].tests[i].name, std::string(wanted[i].size) + "_bw");
        EXPECT_EQ(plan[1].tests[i].iterations, 1U);
        EXPECT_EQ(plan[1].tests[i].transfers, wanted[i].repetitions);
    }
    EXPECT(!make_plan(stream({"-T", "s"}))[0].inline_size);
    EXPECT_EQ(*make_plan(stream({"-i", "7"}))[1].inline_size, 7);
}

void test_counts_may_be_given_for_all() {
    const auto both = make_plan(mapped({"-S", "all", "-I", "20", "-C", "30"}));
    EXPECT_EQ(both.size(), 2U);
    for (const Test& test : both[0].tests) {
        EXPECT_EQ(test.transfers, 1U);
        EXPECT_EQ(test.iterations, 20U);
    }
    for (const Test& test : both[1].tests) {
        EXPECT_EQ(test.transfers, 30U);
        EXPECT_EQ(test.iterations, 1U);
    }
    const auto one = make_plan(stream({"-I", "20", "-S", "all"}));
    EXPECT_EQ(one[0].tests.front().iterations, 20U);
    EXPECT_EQ(one[1].tests.front().transfers, 100000U);
    const auto single = make_plan(stream({"-S", "all", "-S", "3", "-I", "20"})); // the last -S counts
    EXPECT_EQ(single.size(), 1U);
    EXPECT_EQ(single[0].tests[0].iterations, 20U);
    EXPECT_EQ(single[0].tests[0].transfers, 1000U);
}

void test_all_has_33_sizes_and_counts_that_fit_them() {
    const auto plan = make_plan(mapped({"-S", "all"}));
    for (const auto& group : plan) {
        EXPECT_EQ(group.tests.size(), 33U);
        EXPECT_EQ(group.tests.front().size, 64U);
        EXPECT_EQ(group.tests.back().size, 6U << 20);
        for (const Test& test : group.tests) {
            const uint64_t wanted = test.size < 1024      ? 100000
                                    : test.size < 65536   ? 10000
                                    : test.size < 1048576 ? 1000
                                                          : 100;
            EXPECT_EQ(test.transfers * test.iterations, wanted);
        }
    }
    EXPECT_EQ(plan[0].tests[8].name, std::string("1.5k_lat"));
}

void test_one_test_is_what_the_options_say() {
    const auto plan = make_plan(stream({"-C", "7", "-S", "2K", "-I", "9"}));
    EXPECT_EQ(plan.size(), 1U);
    EXPECT_EQ(plan[0].tests.size(), 1U);
    EXPECT(!plan[0].inline_size);
    const Test& test = plan[0].tests[0];
    EXPECT_EQ(test.name, std::string("custom"));
    EXPECT_EQ(test.all_transfers(), 126U);
    EXPECT_EQ(test.bytes(), 126U * 2048);
}

void test_the_pattern_counts_without_end() {
    Pattern out;
    Pattern in;
    std::vector<std::byte> data(300);
    for (int i = 0; i < 3; ++i) {
        out.fill(data);
        EXPECT(counts_up(data));
        EXPECT_EQ(static_cast<int>(data[0]), i * 300 % 256);
        EXPECT_EQ(in.compare(data), data.size());
    }
    out.advance(1000);
    in.advance(1000);
    out.fill(data);
    data[17] ^= std::byte{1};
    data[200] ^= std::byte{1};
    EXPECT(!counts_up(data));
    EXPECT_EQ(in.compare(data), 17U);
    out.fill(data);
    EXPECT_EQ(in.compare(data), data.size()); // one error is told once
}

void test_a_greeting_tells_what_differs() {
    const Test ours{"custom", 100, 10, 1};
    EXPECT_EQ(disagreement(greet(ours), ours), std::string());
    for (const Test& theirs : {Test{"", 101, 10, 1}, Test{"", 100, 11, 1}, Test{"", 100, 10, 2}}) {
        const std::string text = disagreement(greet(theirs), ours);
        EXPECT(text.find("they must be the same") != std::string::npos);
        EXPECT(text.starts_with(
            fmt::format("the peer runs with -S {} -C {} -I {}", theirs.size, theirs.transfers, theirs.iterations)));
    }
    EXPECT_EQ(disagreement(Greeting{}, ours), std::string()); // a program of rdma-core says anything
    EXPECT(!counts_up(Greeting{}) && !counts_up(greet(ours)));
    EXPECT_EQ(disagreement(greet({"", max_size, max_count, max_count}), {"", max_size, max_count, max_count}),
              std::string());
}

Result example() {
    Result result{{"64_lat", 64, 1, 100000}, std::chrono::milliseconds(3360), {}};
    for (uint64_t i = 1; i <= 1000; ++i) {
        result.latency.record(i * 1000);
    }
    return result;
}

void test_a_row_has_the_columns_of_rdma_core() {
    EXPECT_EQ(header_row(stream({})),
              std::string("name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer"));
    EXPECT_EQ(result_row(stream({}), example()),
              std::string("64_lat    64      1       100k    12m         3.36s      0.03      16.80"));
}

void test_a_histogram_is_three_more_columns() {
    const Options o = stream({"--histogram"});
    const std::string header = header_row(o);
    const std::string row = result_row(o, example());
    EXPECT(header.ends_with("        p50        p99      p99.9"));
    EXPECT_EQ(header.size(), row.size());
    EXPECT(row.starts_with(result_row(stream({}), example())));
    double p50 = 0, p99 = 0, p999 = 0;
    EXPECT_EQ(sscanf(row.c_str() + result_row(stream({}), example()).size(), "%lf %lf %lf", &p50, &p99, &p999), 3);
    EXPECT(p50 >= 500 && p50 < 516 && p99 >= 990 && p99 <= 1000 && p999 >= 999 && p999 <= 1000);
}

void test_json_has_all_of_it() {
    const auto line = util::Json::parse(result_json(mapped({"-s", "h", "--histogram", "--json"}), example()));
    auto rest = line;
    for (const char* name : {"gbits_per_second", "us_per_transfer", "latency_us"}) {
        rest.erase(name);
    }
    EXPECT_EQ(util::json_text(rest), R"({"program":"riostream","role":"client","transport":"rsocket","test":"64_lat",)"
                                     R"("size":64,"transfers":1,"iterations":100000,"bytes":12800000,"seconds":3.36})");
    EXPECT(std::abs(line.at("gbits_per_second").get<double>() - 0.0304762) < 1e-7);
    EXPECT(std::abs(line.at("us_per_transfer").get<double>() - 16.8) < 1e-9);
    const auto& times = line.at("latency_us");
    EXPECT(times.at("min") == 1.0 && times.at("p50") >= 500 && times.at("p99.9") >= 999 && times.at("max") == 1000);
    const auto plain = util::Json::parse(result_json(stream({"-T", "s"}), example()));
    EXPECT(!plain.contains("latency_us"));
    EXPECT(plain.at("role") == "server" && plain.at("transport") == "kernel");
}

void test_no_time_is_no_division() {
    const Result none{{"custom", 1, 1, 1}, {}, {}};
    EXPECT(result_row(stream({}), none).ends_with("    0.00s      0.00       0.00"));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_both_have_the_defaults_of_rdma_core),
        FABTEST(test_every_option_is_taken),
        FABTEST(test_a_test_option_is_a_letter_or_a_word),
        FABTEST(test_what_makes_no_sense_is_refused),
        FABTEST(test_numbers_are_shortened_as_rdma_core_does),
        FABTEST(test_the_series_is_latencies_then_bandwidths),
        FABTEST(test_counts_may_be_given_for_all),
        FABTEST(test_all_has_33_sizes_and_counts_that_fit_them),
        FABTEST(test_one_test_is_what_the_options_say),
        FABTEST(test_the_pattern_counts_without_end),
        FABTEST(test_a_greeting_tells_what_differs),
        FABTEST(test_a_row_has_the_columns_of_rdma_core),
        FABTEST(test_a_histogram_is_three_more_columns),
        FABTEST(test_json_has_all_of_it),
        FABTEST(test_no_time_is_no_division),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("streaming", tests, nullptr, nullptr);
}
