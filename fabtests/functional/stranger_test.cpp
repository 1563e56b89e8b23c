// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Strangers: clients that say half a request or nothing, and servers that never answer. Each costs a bounded time and a
// bounded number of descriptors, and nobody else waits for one. FABTESTS_CLOSES (100): how often a listener is closed
// under such a load.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true; // it opens pipes to look at memory
#else
constexpr bool sanitized = false;
#endif

constexpr size_t core_header = 32; // of a connection request of the tcp core

class Socket {
  public:
    explicit Socket(int fd) : fd_(fd) {
        if (fd < 0) {
            throw Error("socket", -errno);
        }
    }
    Socket() : Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&&) = delete;
    ~Socket() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] bool connect(const std::vector<std::byte>& to) const {
        return ::connect(fd_, reinterpret_cast<const sockaddr*>(to.data()), sizeof(sockaddr_in)) == 0;
    }
    bool say(const std::string& bytes) const {
        return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
    }
    // Whether the other side has ended the connection.
    [[nodiscard]] bool ended() const {
        char byte = 0;
        const ssize_t got = ::recv(fd_, &byte, 1, MSG_DONTWAIT);
        return got == 0 || (got < 0 && errno != EAGAIN);
    }
    // Resets it, so that no port stays in use.
    void reset_at_close() const {
        const linger none{1, 0};
        setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    }

  private:
    int fd_;
};

// A listener of the kernel's that nobody serves.
struct Deaf {
    Deaf() {
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(any);
        EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&any), length), 0);
        EXPECT_EQ(listen(socket.get(), 8), 0);
        EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&any), &length), 0);
        name.resize(sizeof(any));
        memcpy(name.data(), &any, sizeof(any));
    }
    Socket socket;
    std::vector<std::byte> name;
};

void expect_no_event(Host& host, int timeout_ms) {
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), timeout_ms, 0), -FI_EAGAIN);
}

// What a client of this core sends first: taken from one.
std::string request_bytes() {
    const Deaf server;
    Host host(here());
    Stream client(host);
    client.connect(server.name.data());
    pollfd incoming{server.socket.get(), POLLIN, 0};
    EXPECT_EQ(poll(&incoming, 1, patience(10000)), 1);
    const Socket accepted(accept4(server.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    expect_no_event(host, 50);
    std::string bytes(4096, '\0');
    const ssize_t got = ::recv(accepted.get(), bytes.data(), bytes.size(), 0);
    EXPECT(got > static_cast<ssize_t>(core_header));
    bytes.resize(static_cast<size_t>(got));
    return bytes;
}

// Connects, accepts and exchanges some bytes; how long that took.
int time_of_a_connection(Host& host, const Listener& listener) {
    const auto start = Clock::now();
    Stream client(host);
    client.connect(listener.name().data(), "alive");
    std::unique_ptr<Stream> server;
    for (int connected = 0; connected < 2;) {
        const Event event = host.next_event(patience(20000));
        EXPECT(!event.error);
        if (event.type == FI_CONNREQ) {
            const Info info(event.info);
            server = std::make_unique<Stream>(host, info.get());
            server->accept();
        } else {
            EXPECT_EQ(event.type, static_cast<uint32_t>(FI_CONNECTED));
            ++connected;
        }
    }
    exchange_bytes(client, *server, 1000);
    return milliseconds_since(start);
}

void allow_descriptors(rlim_t count) {
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = std::min(limit.rlim_max, count);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < count) {
        throw Skip("not enough descriptors");
    }
}

int cpu_milliseconds() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto milliseconds = [](const timeval& t) { return t.tv_sec * 1000 + t.tv_usec / 1000; };
    return static_cast<int>(milliseconds(used.ru_utime) + milliseconds(used.ru_stime));
}

// ---- clients

void test_half_a_request_holds_nobody_up() {
    need_core("tcp");
    const std::string request = request_bytes();
    Host host(here());
    const Listener listener(host);
    for (const size_t length : {core_header, core_header + 1, core_header - 1, request.size() - 1, size_t{1}}) {
        const Socket stranger;
        EXPECT(stranger.connect(listener.name()));
        EXPECT(stranger.say(request.substr(0, length)));
        EXPECT(time_of_a_connection(host, listener) < patience(500));
    }
}

void test_a_header_that_promises_more_than_comes_holds_nobody_up() {
    need_core("tcp");
    std::string request = request_bytes();
    const uint16_t promised = htons(255);
    memcpy(request.data() + 2, &promised, sizeof(promised));
    Host host(here());
    const Listener listener(host);
    const Socket stranger;
    EXPECT(stranger.connect(listener.name()));
    EXPECT(stranger.say(request));
    EXPECT(time_of_a_connection(host, listener) < patience(500));
}

// As many as come, before anybody else and while he comes: no more than a share of the descriptors is theirs.
void expect_many_change_nothing(const std::string& said) {
    constexpr size_t count = 1000;
    allow_descriptors(2500);
    Host host(here());
    const Listener listener(host);
    (void)time_of_a_connection(host, listener);
    std::vector<Socket> strangers;
    const size_t before = open_fds();
    for (size_t i = 0; i < count; ++i) {
        strangers.emplace_back();
        EXPECT(strangers.back().connect(listener.name()));
        EXPECT(strangers.back().say(said));
    }
    EXPECT(time_of_a_connection(host, listener) < patience(2000)); // it has to wait for them to be taken
    for (int i = 0; i < 20; ++i) {
        EXPECT(time_of_a_connection(host, listener) < patience(200));
    }
    EXPECT(open_fds() < before + count + 300);
}

void test_a_thousand_halves_change_nothing() {
    need_core("tcp");
    expect_many_change_nothing(request_bytes().substr(0, core_header));
}

void test_a_thousand_silent_clients_change_nothing() {
    need_core("tcp");
    expect_many_change_nothing("");
}

// A server that only sleeps on its queue.
void sleeping_server(const std::vector<std::string>&) {
    Host host(here());
    const Listener listener(host);
    say(to_text(listener.name()));
    expect_no_event(host, patience(20000));
}

void test_a_stranger_is_sent_away_when_the_time_for_a_handshake_is_over() {
    need_core("tcp");
    const std::string request = request_bytes();
    for (const size_t length : {size_t{0}, core_header}) {
        Child server("sleeping_server", {}, {"FI_RSTREAM_HANDSHAKE_TIMEOUT=200"});
        const auto name = from_text(server.hear());
        const Socket stranger;
        const auto start = Clock::now();
        EXPECT(stranger.connect(name));
        EXPECT(stranger.say(request.substr(0, length)));
        pollfd end{stranger.get(), POLLIN, 0};
        EXPECT_EQ(poll(&end, 1, patience(2500)), 1);
        EXPECT(stranger.ended());
        EXPECT(milliseconds_since(start) >= 200);
        server.kill();
    }
}

// A server that has no descriptor left for a second.
void poor_server(const std::vector<std::string>&) {
    Host host(here());
    const Listener listener(host);
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlim_t usual = limit.rlim_cur;
    const int lowest = dup(0);
    close(lowest);
    limit.rlim_cur = static_cast<rlim_t>(lowest);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    say(to_text(listener.name()));
    EXPECT_EQ(listen_to_parent(), std::string("visited"));
    const int before = cpu_milliseconds();
    expect_no_event(host, 1000);
    const int used = cpu_milliseconds() - before;
    limit.rlim_cur = usual;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    (void)time_of_a_connection(host, listener);
    say(std::to_string(used));
}

void test_a_server_without_descriptors_rests_and_goes_on_when_it_has_some() {
    need_core("tcp");
    if (sanitized) {
        throw Skip("the sanitizer needs descriptors itself");
    }
    Child server("poor_server");
    const auto name = from_text(server.hear());
    std::vector<Socket> strangers(5);
    for (const Socket& stranger : strangers) {
        EXPECT(stranger.connect(name));
    }
    server.tell("visited");
    EXPECT(std::stoi(server.hear()) < 300);
    server.finish();
}

// More requests than half of what this process may open: the rest is refused.
void test_requests_that_wait_take_no_more_than_a_share_of_the_descriptors() {
    need_core("tcp");
    const std::string request = request_bytes();
    Host host(here());
    const Listener listener(host);
    allow_descriptors(400);
    std::vector<Socket> clients;
    size_t waiting = 0;
    std::vector<Info> requests;
    for (int i = 0; i < 150; ++i) {
        clients.emplace_back();
        EXPECT(clients.back().connect(listener.name()));
        EXPECT(clients.back().say(request));
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        const auto start = Clock::now();
        while (milliseconds_since(start) < patience(5000)) {
            if (fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 10, 0) > 0) {
                requests.emplace_back(entry.info);
                ++waiting;
                break;
            }
            pollfd answer{clients.back().get(), POLLIN, 0};
            if (poll(&answer, 1, 0) == 1) {
                break;
            }
        }
    }
    EXPECT(waiting >= 50);
    EXPECT(waiting <= 100);
}

// ---- a listener that goes

void test_closing_a_listener_while_strangers_come() {
    need_core("tcp");
    const std::string request = request_bytes();
    const char* wished = getenv("FABTESTS_CLOSES");
    const int closes = wished != nullptr ? std::stoi(wished) : 100;
    Host host(here());
    { const Listener first(host); }
    const size_t before = open_fds();
    std::atomic<uint16_t> port{0};
    std::atomic<bool> over{false};
    std::atomic<size_t> visits{0};
    Threads attackers;
    auto to = Listener(host).name();
    const auto at_end = std::unique_ptr<void, std::function<void(void*)>>(&over, [&](void*) { over = true; });
    for (unsigned kind = 0; kind < 3; ++kind) {
        attackers.start([&, kind, to]() mutable {
            const size_t lengths[] = {0, core_header, request.size(), 7};
            for (size_t i = kind; !over; ++i) {
                reinterpret_cast<sockaddr_in*>(to.data())->sin_port = port;
                const Socket stranger;
                stranger.reset_at_close();
                if (port != 0 && stranger.connect(to)) {
                    stranger.say(request.substr(0, lengths[i % 4]));
                    ++visits;
                }
            }
        });
    }
    for (int i = 0; i < closes; ++i) {
        Listener listener(host);
        port = reinterpret_cast<const sockaddr_in*>(listener.name().data())->sin_port;
        const size_t enough = visits + 3;
        const auto start = Clock::now();
        while (visits < enough && milliseconds_since(start) < patience(5000)) {
            uint32_t type = 0;
            fi_eq_cm_entry entry{};
            if (fi_eq_read(host.eq.get(), &type, &entry, sizeof(entry), 0) > 0) {
                const Info info(entry.info); // and nobody answers it
            }
        }
    }
    over = true;
    attackers.join();
    EXPECT_EQ(open_fds(), before);
}

// ---- servers

void patient_client(const std::vector<std::string>& arguments) {
    Host host(here());
    Stream client(host);
    const auto start = Clock::now();
    client.connect(from_text(arguments.at(0)).data());
    const Event event = host.next_event(patience(10000));
    EXPECT(event.error);
    EXPECT_EQ(event.err, FI_ETIMEDOUT);
    EXPECT(event.subject == &client.ep->fid);
    EXPECT(milliseconds_since(start) >= 300);
    char byte = 0;
    EXPECT_RESULT(send(client, &byte, 1), -FI_ENOTCONN);
    expect_no_event(host, 100); // nothing more comes of it
}

void test_connecting_to_a_server_that_never_answers_times_out() {
    need_core("tcp"); // elsewhere, a socket of the kernel's is no server at all
    const Deaf server;
    run_in_child("patient_client", {"FI_RSTREAM_CONNECT_TIMEOUT=300"}, {to_text(server.name)});
}

// ---- what cannot be bounded

// Says how often the log warns of a listener on an address.
void logging_server(const std::vector<std::string>& arguments) {
    const int log = memfd_create("log", MFD_CLOEXEC);
    EXPECT(log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    Request request = here();
    request.node = arguments.at(0) == "wildcard" ? "" : arguments.at(0);
    request.service = "0";
    request.source = true;
    Host host(request);
    const Listener listener(host);
    std::string text(65536, '\0');
    const ssize_t length = pread(log, text.data(), text.size(), 0);
    text.resize(length > 0 ? static_cast<size_t>(length) : 0);
    say(text.find("see SECURITY in fi_rstream(7)") != std::string::npos ? "warned" : "silent");
}

void test_the_log_warns_of_a_listener_beyond_loopback() {
    need_core("tcp");
    const auto expect = [](const char* node, const char* wanted) {
        Child child("logging_server", {node}, {"FI_LOG_LEVEL=warn", "FI_LOG_PROV=rstream"});
        EXPECT_EQ(child.hear(), std::string(wanted));
        child.finish();
    };
    expect("wildcard", "warned");
    expect("127.0.0.1", "silent");
    expect("::1", "silent");
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"sleeping_server", sleeping_server},
                          {"poor_server", poor_server},
                          {"patient_client", patient_client},
                          {"logging_server", logging_server}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_half_a_request_holds_nobody_up),
        FABTEST(test_a_header_that_promises_more_than_comes_holds_nobody_up),
        FABTEST(test_a_thousand_halves_change_nothing),
        FABTEST(test_a_thousand_silent_clients_change_nothing),
        FABTEST(test_a_stranger_is_sent_away_when_the_time_for_a_handshake_is_over),
        FABTEST(test_a_server_without_descriptors_rests_and_goes_on_when_it_has_some),
        FABTEST(test_requests_that_wait_take_no_more_than_a_share_of_the_descriptors),
        FABTEST(test_closing_a_listener_while_strangers_come),
        FABTEST(test_connecting_to_a_server_that_never_answers_times_out),
        FABTEST(test_the_log_warns_of_a_listener_beyond_loopback),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
