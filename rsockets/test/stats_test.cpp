// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The page of counters of a process on librsocket-ofi, as rsstat reads it: what is in it, and that it goes with its
// process.
#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <set>

#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/stats_writer.hpp"
#include "rsockets/test/asleep.hpp"
#include "rsockets/test/fork.hpp"
#include "rsockets/test/sockets.hpp"
#include "util/common/json.hpp"
#include "util/rsstat/segments.hpp"
#include "util/rsstat/snapshot.hpp"
#include "util/test/process.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;
using base::stats::Library;
using base::stats::Role;
using rsstat::ProcessView;
using rsstat::SocketView;

std::optional<ProcessView> page_of(pid_t pid, Library library = Library::sockets) {
    for (ProcessView& process : rsstat::take_snapshot({pid}).processes) {
        if (process.page.library == library) {
            return std::move(process);
        }
    }
    return {};
}

ProcessView own_page() {
    auto page = page_of(getpid());
    if (!page) {
        throw Failure("the process has no page");
    }
    return std::move(*page);
}

const SocketView* find(const ProcessView& process, int fd) {
    for (const SocketView& view : process.sockets) {
        if (view.counters.fd == fd) {
            return &view;
        }
    }
    return nullptr;
}

SocketView own_socket(int fd) {
    const ProcessView process = own_page();
    const SocketView* view = find(process, fd);
    if (view == nullptr) {
        throw Failure("socket " + std::to_string(fd) + " is not in the page");
    }
    return *view;
}

// Segments of the process, whatever is in them.
size_t segments_of(pid_t pid) {
    std::ifstream list("/proc/sysvipc/shm");
    size_t count = 0;
    for (std::string line; std::getline(list, line);) {
        const auto segment = rsstat::parse_segment(line);
        count += segment && segment->creator == pid ? 1 : 0;
    }
    return count;
}

Ends connected_ends(int from) {
    Number client = connected_to(port_of(from));
    return {std::move(client), Number(raccept(from, nullptr, nullptr))};
}

// A child that runs body, tells that it has, and waits to be killed.
class Child {
  public:
    explicit Child(const std::function<void()>& body) {
        int ready[2];
        EXPECT(pipe(ready) == 0);
        pid_ = fork_with_threads();
        if (pid_ == 0) {
            char good = 'y';
            try {
                body();
            } catch (const std::exception& e) {
                fprintf(stderr, "# in the child: %s\n", e.what());
                good = 'n';
            }
            (void)!write(ready[1], &good, 1);
            for (;;) {
                pause();
            }
        }
        close(ready[1]);
        char good = 0;
        const bool is_ready = read(ready[0], &good, 1) == 1 && good == 'y';
        close(ready[0]);
        if (!is_ready) {
            end();
            throw Failure("the child failed");
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() { end(); }
    void end() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
            pid_ = -1;
        }
    }
    [[nodiscard]] pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
};

// The first of all tests: others have used the library in this process.
void test_a_killed_program_is_shown_with_its_bytes_and_then_gone() {
    EXPECT(!page_of(getpid()));
    Child child([] {
        static const Number from = listener();
        static const Ends ends = connected_ends(from);
        send_all(ends.client, std::string(1000, 'x'));
        EXPECT_EQ(received(ends.server, 1000), std::string(1000, 'x'));
        send_all(ends.server, std::string(77, 'y'));
        EXPECT_EQ(received(ends.client, 77), std::string(77, 'y'));
    });
    const pid_t pid = child.pid();
    const auto shown = util_test::run_program("rsstat", {"--json", "-p", std::to_string(pid)});
    const auto process = util::Json::parse(shown.output).at("processes").at(0);
    EXPECT_EQ(process.at("library").get<std::string>(), "rsocket-ofi");
    size_t found = 0;
    for (const auto& socket : process.at("sockets")) {
        const std::string role = socket.at("role");
        EXPECT(socket.at("local").get<std::string>().starts_with(node_name() + ":"));
        if (role != "listen") {
            const bool connects = role == "connect";
            EXPECT_EQ(socket.at("sent").at("bytes").get<uint64_t>(), connects ? 1000U : 77U);
            EXPECT_EQ(socket.at("received").at("bytes").get<uint64_t>(), connects ? 77U : 1000U);
            EXPECT(socket.at("peer").get<std::string>().starts_with(node_name() + ":"));
            ++found;
        }
    }
    EXPECT_EQ(found, 2U);
    EXPECT_EQ(process.at("sockets").size(), 3U);
    EXPECT_EQ(segments_of(pid), 1U);
    child.end();
    EXPECT_EQ(segments_of(pid), 0U);
    EXPECT(!page_of(pid));
}

void test_a_connection_has_both_ends_a_role_a_device_and_buffers() {
    const Number from = listener();
    const Ends ends = connected_ends(from);
    const SocketView client = own_socket(ends.client);
    const SocketView server = own_socket(ends.server);
    EXPECT(client.counters.role == Role::connect);
    EXPECT(server.counters.role == Role::accept);
    EXPECT(own_socket(from).counters.role == Role::listen);
    EXPECT_EQ(client.addresses.local, server.addresses.peer);
    EXPECT_EQ(client.addresses.peer, server.addresses.local);
    EXPECT_EQ(client.addresses.peer, own_socket(from).addresses.local);
    EXPECT(client.counters.device.find('/') != std::string::npos);
    EXPECT(client.counters.in.buffer_bytes != 0 && client.counters.out.buffer_bytes != 0);
}

void test_bytes_and_calls_are_exact() {
    const Number from = listener();
    const Ends ends = connected_ends(from);
    constexpr uint64_t calls = 100;
    for (uint64_t i = 0; i < calls; ++i) {
        send_all(ends.client, std::string(10, 'x'));
        EXPECT_EQ(received(ends.server, 10).size(), 10U);
    }
    EXPECT_EQ(own_socket(ends.client).counters.out.bytes, calls * 10);
    EXPECT_EQ(own_socket(ends.client).counters.out.calls, calls);
    EXPECT_EQ(own_socket(ends.client).counters.in.bytes, 0U);
    const SocketView server = own_socket(ends.server);
    EXPECT_EQ(server.counters.in.bytes, calls * 10);
    EXPECT(server.counters.in.calls >= calls);
    char byte = 0;
    send_all(ends.client, "x");
    EXPECT_EQ(rrecv(ends.server, &byte, 1, MSG_PEEK), 1);
    EXPECT_EQ(own_socket(ends.server).counters.in.bytes, calls * 10);
}

void test_a_sleep_and_what_woke_it_are_counted() {
    const Number from = listener();
    const Ends ends = connected_ends(from);
    const uint64_t before = own_page().page.sleeps;
    std::promise<long> id;
    auto reader = std::async(std::launch::async, [&] {
        id.set_value(gettid());
        return received(ends.server, 1);
    });
    await_thread_asleep(id.get_future().get());
    send_all(ends.client, "x");
    EXPECT_EQ(reader.get(), "x");
    EXPECT(own_socket(ends.server).counters.sleeps >= 1);
    EXPECT(own_socket(ends.server).counters.in.wakeups >= 1);
    EXPECT(own_page().page.sleeps > before);
}

void test_closed_sockets_are_added_up_and_their_rows_used_again() {
    const Number from = listener();
    const rsstat::Ended before = own_page().page.ended;
    std::set<uint32_t> rows; // of sockets that are closed
    const auto note_rows = [&rows](const Ends& ends) {
        bool known = false;
        for (const int fd : {int{ends.client}, int{ends.server}}) {
            known |= !rows.insert(own_socket(fd).counters.row).second;
        }
        return known;
    };
    int fd = -1;
    {
        const Ends ends = connected_ends(from);
        send_all(ends.client, std::string(500, 'x'));
        EXPECT_EQ(received(ends.server, 500).size(), 500U);
        fd = ends.client;
        EXPECT(!note_rows(ends));
    }
    const ProcessView after = own_page();
    EXPECT_EQ(after.page.ended.sockets, before.sockets + 2);
    EXPECT_EQ(after.page.ended.bytes[0], before.bytes[0] + 500);
    EXPECT_EQ(after.page.ended.bytes[1], before.bytes[1] + 500);
    EXPECT(find(after, fd) == nullptr);
    // A socket goes when the last of the library's threads is done with it, and either end may get its row.
    constexpr int most = 200;
    bool used_again = false;
    for (int i = 0; i < most && !used_again; ++i) {
        const Ends again = connected_ends(from);
        used_again = note_rows(again);
        EXPECT_EQ(own_socket(again.client).counters.out.bytes, 0U);
        EXPECT_EQ(own_socket(again.server).counters.in.bytes, 0U);
    }
    EXPECT(used_again);
}

void test_a_child_has_a_page_of_its_own() {
#ifdef __SANITIZE_THREAD__
    throw Skip("ThreadSanitizer lets no child of a process with threads start one");
#endif
    const Number from = listener();
    const Ends ends = connected_ends(from);
    const Child child([] {
        EXPECT(!page_of(getpid()));
        static const Number own = listener();
        EXPECT_EQ(own_page().sockets.size(), 1U);
    });
    EXPECT_EQ(segments_of(child.pid()), 1U);
    EXPECT_EQ(segments_of(getpid()), 1U);
    send_all(ends.client, "x");
    EXPECT_EQ(own_socket(ends.client).counters.out.bytes, 1U);
}

// A process that has the preload library too: a page of each.
void test_pages_of_both_libraries_are_read() {
#ifdef __SANITIZE_THREAD__
    throw Skip("ThreadSanitizer lets no child of a process with threads start one");
#endif
    const Number from = listener();
    const Child child([] {
        static const Number own = listener();
        const auto call = [](long number, auto... arguments) { return syscall(number, arguments...); };
        auto* other = base::stats::make_page(Library::preload, nullptr, call);
        EXPECT(other != nullptr);
        base::stats::note_used(*other, 0);
        auto* row = base::stats::place_of<base::stats::Row>(other, 0);
        const base::stats::Change change(*row);
        row->fd.store(9);
        row->role.store(static_cast<uint32_t>(Role::connect));
        row->live.store(1);
    });
    const auto snapshot = rsstat::take_snapshot({child.pid()});
    EXPECT_EQ(snapshot.processes.size(), 2U);
    EXPECT(page_of(child.pid(), Library::sockets)->sockets.at(0).counters.role == Role::listen);
    EXPECT_EQ(page_of(child.pid(), Library::preload)->sockets.at(0).counters.fd, 9);
    for (const ProcessView& process : snapshot.processes) {
        EXPECT(rsstat::same_process(snapshot, process) == &process);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_killed_program_is_shown_with_its_bytes_and_then_gone),
        FABTEST(test_a_connection_has_both_ends_a_role_a_device_and_buffers),
        FABTEST(test_bytes_and_calls_are_exact),
        FABTEST(test_a_sleep_and_what_woke_it_are_counted),
        FABTEST(test_closed_sockets_are_added_up_and_their_rows_used_again),
        FABTEST(test_a_child_has_a_page_of_its_own),
        FABTEST(test_pages_of_both_libraries_are_read),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
