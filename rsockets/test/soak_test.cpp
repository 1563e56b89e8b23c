// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Many connections for some time: random sizes and pauses, half closes, resets, and processes that are killed in the
// middle. Every byte is checked at both ends, and at the end no descriptor and no memory is left.
//
//     RSOCKET_SOAK_SECONDS=300 RSOCKET_SOAK_CYCLES=200000 rsockets/test/soak_test
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/pattern.hpp"
#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

constexpr size_t processes = 4;       // that connect
constexpr size_t connections = 200;   // at a time, all together
constexpr size_t most_bytes = 400000; // of a direction
constexpr size_t longest_piece = 70000;

int setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text != nullptr && atoi(text) > 0 ? atoi(text) : otherwise;
}

enum class Ending : uint32_t { half_close, reset };

// What a connection begins with: the client's plan.
struct Plan {
    uint64_t mark = 0x736f616b;
    uint32_t process = 0;
    Ending ending = Ending::half_close;
    uint64_t seed = 0;
    uint64_t up = 0; // bytes, after this
    uint64_t down = 0;
};

using Random = std::minstd_rand;

size_t between(Random& random, size_t from, size_t to) {
    return std::uniform_int_distribution<size_t>(from, to)(random);
}

// One direction: bytes that depend on their place, in pieces of random sizes.
class Sending {
  public:
    void begin(uint64_t seed, uint64_t total) {
        seed_ = seed;
        total_ = total;
    }
    [[nodiscard]] bool done() const { return sent_ == total_; }
    // Bytes that were taken, or -1 with errno.
    ssize_t step(int fd, Random& random) {
        const size_t length = std::min<uint64_t>(between(random, 1, piece_.size()), total_ - sent_);
        fill(piece_.data(), length, seed_ + sent_);
        const ssize_t n = rsend(fd, piece_.data(), length, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent_ += n > 0 ? static_cast<uint64_t>(n) : 0;
        return n;
    }

  private:
    std::vector<char> piece_ = std::vector<char>(longest_piece);
    uint64_t seed_ = 0;
    uint64_t total_ = 0;
    uint64_t sent_ = 0;
};

class Receiving {
  public:
    void begin(uint64_t seed) { seed_ = seed; }
    [[nodiscard]] uint64_t received() const { return received_; }
    ssize_t step(int fd, Random& random) {
        const ssize_t n = rrecv(fd, piece_.data(), between(random, 1, piece_.size()), MSG_DONTWAIT);
        if (n > 0) {
            if (!matches(piece_.data(), static_cast<size_t>(n), seed_ + received_)) {
                throw Failure("a wrong byte behind " + std::to_string(received_));
            }
            received_ += static_cast<uint64_t>(n);
        }
        return n;
    }

  private:
    std::vector<char> piece_ = std::vector<char>(longest_piece);
    uint64_t seed_ = 0;
    uint64_t received_ = 0;
};

uint64_t other_seed(uint64_t seed) { return seed + 977; }

bool lost(ssize_t n) { return n < 0 && (errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT); }
void expect_again(ssize_t n, const char* call) {
    if (n < 0 && errno != EAGAIN) {
        throw Failure(std::string(call) + ": " + strerror(errno));
    }
}

// ---- the side that connects, in processes of its own

class Client {
  public:
    Client(uint16_t port, uint32_t process, uint64_t seed) : random_(static_cast<uint32_t>(seed)) {
        plan_.process = process;
        plan_.seed = seed;
        plan_.up = between(random_, 0, most_bytes);
        plan_.down = between(random_, 0, most_bytes);
        plan_.ending = between(random_, 0, 7) == 0 ? Ending::reset : Ending::half_close;
        stop_after_ = plan_.ending == Ending::reset ? between(random_, 0, plan_.up) : plan_.up;
        sending_.begin(seed, stop_after_);
        receiving_.begin(other_seed(seed));
        for (const int name : {SO_SNDBUF, SO_RCVBUF}) {
            const int size = static_cast<int>(between(random_, 4096, 200000));
            EXPECT_EQ(rsetsockopt(fd_, SOL_SOCKET, name, &size, sizeof(size)), 0);
        }
        const sockaddr_in to = loopback(port);
        const int ret = rconnect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
        EXPECT(ret == 0 || errno == EINPROGRESS);
    }
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] Clock::time_point rests_until() const { return rest_; }

    // True once it has ended, as it was planned.
    bool step() {
        if (!reported_) {
            return tell();
        }
        for (int i = 0; i < 4 && !sending_.done(); ++i) {
            const ssize_t n = sending_.step(fd_, random_);
            expect_again(n, "rsend");
            if (n < 0) {
                break;
            }
        }
        if (sending_.done() && plan_.ending == Ending::reset) {
            const linger now{1, 0};
            EXPECT_EQ(rsetsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
            return true;
        }
        if (sending_.done() && !half_closed_) {
            EXPECT_EQ(rshutdown(fd_, SHUT_WR), 0);
            half_closed_ = true;
        }
        for (int i = 0; i < 4; ++i) {
            const ssize_t n = receiving_.step(fd_, random_);
            expect_again(n, "rrecv");
            if (n == 0) {
                EXPECT_EQ(receiving_.received(), plan_.down);
                EXPECT(half_closed_);
                return true;
            }
            if (n < 0) {
                break;
            }
        }
        if (between(random_, 0, 3) == 0) {
            rest_ = Clock::now() + std::chrono::milliseconds(between(random_, 0, 20));
        }
        return false;
    }
    [[nodiscard]] uint32_t wanted() const {
        return EPOLLIN | (reported_ && (sending_.done() || half_closed_) ? 0U : static_cast<uint32_t>(EPOLLOUT));
    }

  private:
    bool tell() {
        int error = 0;
        socklen_t length = sizeof(error);
        EXPECT_EQ(rgetsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length), 0);
        EXPECT_EQ(error, 0);
        const ssize_t n = rsend(fd_, &plan_, sizeof(plan_), MSG_DONTWAIT | MSG_NOSIGNAL);
        expect_again(n, "rsend of the plan");
        EXPECT(n < 0 || n == sizeof(plan_)); // the smallest buffer has space for it
        reported_ = n > 0;
        return false;
    }

    Random random_;
    Plan plan_;
    Number fd_{rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)};
    Sending sending_;
    Receiving receiving_;
    uint64_t stop_after_ = 0;
    bool reported_ = false;
    bool half_closed_ = false;
    Clock::time_point rest_;
};

void allow_descriptors() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 16 * connections) {
        throw Skip(std::to_string(16 * connections) + " descriptors are needed, the limit is " +
                   std::to_string(limit.rlim_max));
    }
}

// Keeps its share of the connections alive for a time: where one has ended, the next begins. However slow the machine
// is, there is one share at least. arguments: port, number of the process, milliseconds.
void role_connects(const std::vector<std::string>& arguments) {
    const auto port = static_cast<uint16_t>(std::stoi(arguments.at(0)));
    const auto process = static_cast<uint32_t>(std::stoul(arguments.at(1)));
    const int time = std::stoi(arguments.at(2));
    alarm(static_cast<unsigned>(time / 1000 + patience(120000) / 1000));
    allow_descriptors();
    const Number set(repoll_create(0));
    const auto start = Clock::now();
    std::map<uint64_t, std::unique_ptr<Client>> clients;
    constexpr size_t share = connections / processes;
    const uint64_t first = uint64_t{process} * 1000003;
    uint64_t next = first;
    const auto watch = [&](int operation, uint64_t key, Client& client) {
        epoll_event event{};
        event.events = client.wanted() | EPOLLONESHOT;
        event.data.u64 = key;
        EXPECT_EQ(repoll_ctl(set, operation, client.fd(), &event), 0);
    };
    std::map<uint64_t, Clock::time_point> resting;
    do {
        while (clients.size() < share && (next - first < share || milliseconds_since(start) < time)) {
            const uint64_t key = next++;
            auto made = std::make_unique<Client>(port, process, key);
            watch(EPOLL_CTL_ADD, key, *made);
            clients[key] = std::move(made);
        }
        std::array<epoll_event, 32> events;
        const int n = repoll_wait(set, events.data(), events.size(), resting.empty() ? 1000 : 5);
        EXPECT(n >= 0);
        for (int i = 0; i < n; ++i) {
            const uint64_t key = events[static_cast<size_t>(i)].data.u64;
            Client& client = *clients.at(key);
            if (client.step()) {
                clients.erase(key);
            } else if (client.rests_until() > Clock::now()) {
                resting[key] = client.rests_until();
            } else {
                watch(EPOLL_CTL_MOD, key, client);
            }
        }
        for (auto at = resting.begin(); at != resting.end();) {
            if (at->second <= Clock::now()) {
                watch(EPOLL_CTL_MOD, at->first, *clients.at(at->first));
                at = resting.erase(at);
            } else {
                ++at;
            }
        }
    } while (!clients.empty());
    say("done");
}

// ---- the side that is connected to: this process, in two threads on one set

struct Tally {
    std::atomic<uint64_t> finished{0}; // all of it, as it was planned
    std::atomic<uint64_t> reset{0};    // likewise
    std::atomic<uint64_t> killed{0};   // by the end of the peer's process
    std::atomic<uint64_t> bytes{0};
};

class Server {
  public:
    Server() {
        EXPECT_EQ(rfcntl(from_, F_SETFL, O_NONBLOCK), 0);
        epoll_event event{};
        event.events = EPOLLIN;
        EXPECT_EQ(repoll_ctl(set_, EPOLL_CTL_ADD, from_, &event), 0);
    }
    [[nodiscard]] uint16_t port() const { return port_of(from_); }
    [[nodiscard]] size_t open() {
        const std::lock_guard lock(mutex_);
        return flows_.size();
    }
    void will_be_killed(uint32_t process) {
        const std::lock_guard lock(mutex_);
        killed_.insert(process);
    }
    // Until a connection of that process is there: one that is killed before it connects proves nothing.
    void await(uint32_t process) {
        std::unique_lock lock(mutex_);
        heard_changed_.wait_for(lock, std::chrono::milliseconds(patience(20000)),
                                [&] { return heard_.contains(process); });
    }
    void stop() { stopping_.store(true); }

    void serve() {
        while (!stopping_.load()) {
            std::array<epoll_event, 16> events;
            const int n = repoll_wait(set_, events.data(), events.size(), 50);
            EXPECT(n >= 0);
            for (int i = 0; i < n; ++i) {
                const int fd = events[static_cast<size_t>(i)].data.fd;
                fd == 0 ? accept_all() : serve(fd);
            }
        }
    }

    Tally tally;

  private:
    struct Flow {
        explicit Flow(int number) : fd(number), random(static_cast<uint32_t>(number) + 1) {}
        Number fd;
        Random random;
        Plan plan;
        size_t told = 0; // of the plan
        Sending sending;
        Receiving receiving;
        bool ended = false; // the peer's sending
    };

    void accept_all() {
        for (;;) {
            const int fd = raccept4(from_, nullptr, nullptr, SOCK_NONBLOCK);
            if (fd < 0) {
                expect_again(fd, "raccept4");
                return;
            }
            auto flow = std::make_shared<Flow>(fd);
            {
                const std::lock_guard lock(mutex_);
                flows_[fd] = std::move(flow);
            }
            watch(EPOLL_CTL_ADD, fd, EPOLLIN);
        }
    }

    void watch(int operation, int fd, uint32_t wanted) {
        epoll_event event{};
        event.events = wanted | EPOLLONESHOT;
        event.data.fd = fd;
        EXPECT_EQ(repoll_ctl(set_, operation, fd, &event), 0);
    }

    // No other thread is told of it meanwhile.
    void serve(int fd) {
        std::shared_ptr<Flow> flow;
        {
            const std::lock_guard lock(mutex_);
            flow = flows_.at(fd);
        }
        const bool over = step(*flow);
        if (over) {
            const std::lock_guard lock(mutex_);
            tally.bytes.fetch_add(flow->receiving.received());
            flows_.erase(fd); // and with `flow` it is closed, after that
            return;
        }
        const bool sends = flow->told == sizeof(Plan) && !flow->sending.done();
        watch(EPOLL_CTL_MOD, fd, (flow->ended ? 0U : static_cast<uint32_t>(EPOLLIN)) | (sends ? EPOLLOUT : 0U));
    }

    // True once it has come to its end.
    bool step(Flow& flow) {
        while (flow.told < sizeof(Plan)) {
            const ssize_t n =
                rrecv(flow.fd, reinterpret_cast<char*>(&flow.plan) + flow.told, sizeof(Plan) - flow.told, 0);
            if (n == 0 || lost(n)) { // its process was killed before it could say more
                const std::lock_guard lock(mutex_);
                EXPECT(!killed_.empty());
                ++tally.killed;
                return true;
            }
            expect_again(n, "rrecv of the plan");
            if (n < 0) {
                return false;
            }
            if ((flow.told += static_cast<size_t>(n)) == sizeof(Plan)) {
                EXPECT_EQ(flow.plan.mark, Plan().mark);
                {
                    const std::lock_guard lock(mutex_);
                    heard_.insert(flow.plan.process);
                }
                heard_changed_.notify_all();
                flow.receiving.begin(flow.plan.seed);
                flow.sending.begin(other_seed(flow.plan.seed), flow.plan.down);
            }
        }
        for (int i = 0; i < 4 && !flow.ended; ++i) {
            const ssize_t n = flow.receiving.step(flow.fd, flow.random);
            if (lost(n)) {
                return ended_early(flow);
            }
            expect_again(n, "rrecv");
            if (n == 0) {
                flow.ended = true;
                if (flow.receiving.received() != flow.plan.up) {
                    return ended_early(flow);
                }
            }
            if (n <= 0) {
                break;
            }
        }
        for (int i = 0; i < 4 && !flow.sending.done(); ++i) {
            const ssize_t n = flow.sending.step(flow.fd, flow.random);
            if (lost(n)) {
                return ended_early(flow);
            }
            expect_again(n, "rsend");
            if (n < 0) {
                break;
            }
        }
        if (flow.ended && flow.sending.done()) {
            ++tally.finished;
            return true;
        }
        return false;
    }

    // Only what resets by plan, or was killed, may.
    bool ended_early(const Flow& flow) {
        const int error = errno;
        const std::lock_guard lock(mutex_);
        if (flow.plan.ending == Ending::reset) {
            ++tally.reset;
        } else if (killed_.contains(flow.plan.process)) {
            ++tally.killed;
        } else {
            throw Failure("a connection ended after " + std::to_string(flow.receiving.received()) + " bytes of " +
                          std::to_string(flow.plan.up) + ": " + strerror(error));
        }
        return true;
    }

    Number from_ = listener();
    Number set_{repoll_create(0)};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::map<int, std::shared_ptr<Flow>> flows_;
    std::set<uint32_t> killed_;
    std::set<uint32_t> heard_; // processes that have connected
    std::condition_variable heard_changed_;
};

// Runs all for a time; one process after another is killed and started anew.
void soak(Server& server, uint32_t& process, int milliseconds) {
    const auto start = Clock::now();
    const auto left = [&] { return milliseconds - milliseconds_since(start); };
    const auto begin = [&](int time) {
        ++process;
        return std::make_unique<Child>(
            "connects",
            std::vector<std::string>{std::to_string(server.port()), std::to_string(process), std::to_string(time)});
    };
    std::vector<std::unique_ptr<Child>> children;
    std::vector<uint32_t> numbers;
    for (size_t i = 0; i < processes; ++i) {
        children.push_back(begin(std::max(1, left())));
        numbers.push_back(process);
    }
    const int pause = std::max(milliseconds / 8, 300);
    bool any = false;
    for (size_t victim = 0; !any || left() > 2 * pause; victim = (victim + 1) % processes) {
        usleep(static_cast<useconds_t>(1000 * pause));
        server.await(numbers[victim]);
        any = true;
        server.will_be_killed(numbers[victim]);
        children[victim]->kill();
        children[victim] = begin(std::max(1, left()));
        numbers[victim] = process;
    }
    try {
        for (const auto& child : children) {
            EXPECT_EQ(child->hear(milliseconds + 60000), "done");
            child->finish();
        }
    } catch (...) { // whatever it was: the reason may be in what another of them says
        for (const auto& child : children) {
            try {
                printf("# a process that connects: %s\n", child->hear(100).c_str());
            } catch (const std::exception& error) {
                printf("# a process that connects: %s\n", error.what());
            }
        }
        throw;
    }
    const auto end = Clock::now();
    while (server.open() != 0) {
        EXPECT(milliseconds_since(end) < patience(20000));
        usleep(10000);
    }
}

// What the library keeps for a moment behind the program is gone, or the time is over.
size_t settled_fds(size_t wanted) {
    const auto start = Clock::now();
    while (open_fds() > wanted && milliseconds_since(start) < patience(10000)) {
        usleep(10000);
    }
    return open_fds();
}

// What rounds of the same kind leave in memory. Pools and the heap grow with the most that was ever alive at once; what
// is lost with each connection grows in every round.
class Growth {
  public:
    void round_ends() {
        malloc_trim(0);
        const size_t now = resident_bytes();
        if (last_ != 0) {
            least_ = std::min(least_, now - std::min(now, last_));
        }
        last_ = now;
    }
    void expect_none() const {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which keep what was freed
        if (least_ > size_t{1} << 20) {
            throw Failure("memory grows by " + std::to_string(least_ >> 10) + " KiB in every round");
        }
#endif
    }

  private:
    size_t last_ = 0;
    size_t least_ = SIZE_MAX;
};
#ifdef __SANITIZE_THREAD__
constexpr int rounds = 2; // a process takes a while to be killed in the middle of something
#else
constexpr int rounds = 5;
#endif

void test_many_connections_for_some_time() {
#ifdef __SANITIZE_THREAD__
    const int seconds = setting("RSOCKET_SOAK_SECONDS", 6);
#else
    const int seconds = setting("RSOCKET_SOAK_SECONDS", 8);
#endif
    alarm(static_cast<unsigned>(seconds + patience(120000) / 1000));
    allow_descriptors();
    Server server;
    Threads threads;
    uint32_t process = 0;
    try {
        threads.start([&] { server.serve(); });
        threads.start([&] { server.serve(); });
        size_t with_one = 0;
        {
            const Ends ends = connected();
            send_all(ends.client, "x");
            EXPECT_EQ(received(ends.server, 1), "x");
            with_one = open_fds();
        }
        Growth growth;
        for (int i = 0; i < rounds; ++i) {
            soak(server, process, 1000 * seconds / rounds);
            EXPECT(settled_fds(with_one) <= with_one);
            growth.round_ends();
        }
        growth.expect_none();
    } catch (...) {
        server.stop();
        threads.join(); // what a thread says of it is the reason
        throw;
    }
    server.stop();
    threads.join();
    const Tally& tally = server.tally;
    printf("# %d s: %llu connections to their end, %llu reset, %llu of killed processes, %llu MB received\n", seconds,
           static_cast<unsigned long long>(tally.finished), static_cast<unsigned long long>(tally.reset),
           static_cast<unsigned long long>(tally.killed), static_cast<unsigned long long>(tally.bytes / 1000000));
    EXPECT(tally.finished >= connections);
    EXPECT(tally.reset > 0 && tally.killed > 0);
}

void test_connecting_and_closing_leaves_nothing_behind() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const int cycles = setting("RSOCKET_SOAK_CYCLES", 500);
#else
    const int cycles = setting("RSOCKET_SOAK_CYCLES", 5000);
#endif
    alarm(static_cast<unsigned>(cycles / 20 + patience(120000) / 1000));
    const Number from = listener();
    const uint16_t port = port_of(from);
    const auto cycle = [&] {
        const Number client = connected_to(port);
        const Number server(raccept(from, nullptr, nullptr));
        send_all(client, "x");
        EXPECT_EQ(received(server, 1), "x");
    };
    for (int i = 0; i < 100; ++i) {
        cycle();
    }
    size_t with_one = 0;
    {
        const Number client = connected_to(port);
        const Number server(raccept(from, nullptr, nullptr));
        with_one = open_fds();
    }
    Growth growth;
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < cycles / rounds; ++i) {
            cycle();
        }
        EXPECT(settled_fds(with_one) <= with_one);
        growth.round_ends();
    }
    growth.expect_none();
}

} // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    // On a machine that is slow, a connection is not refused because its handshake was.
    setenv("FI_RSTREAM_HANDSHAKE_TIMEOUT", std::to_string(patience(15000)).c_str(), 0);
    const Role roles[] = {{"connects", role_connects}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_many_connections_for_some_time),
        FABTEST(test_connecting_and_closing_leaves_nothing_behind),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
