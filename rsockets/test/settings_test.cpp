// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Settings that no option gives back: what the administrator's files and the environment make of them, and that the
// time of looking before a sleep is in force, and the provider's time to connect. And one that is only given back.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <poll.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/test.hpp"
#include "rsockets/config.hpp"
#include "rsockets/test/sockets.hpp"

using namespace fabtests;
using namespace rsocket_test;

namespace {

void stay_on_one_core() {
    cpu_set_t cores;
    EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
    int first = 0;
    while (!CPU_ISSET(first, &cores)) {
        ++first;
    }
    CPU_ZERO(&cores);
    CPU_SET(first, &cores);
    EXPECT_EQ(sched_setaffinity(0, sizeof(cores), &cores), 0);
}

// Says what the settings are, and how many lines were written about them.
void role_tells_settings(const std::vector<std::string>& arguments) {
    if (!arguments.empty() && arguments[0] == "one-core") {
        stay_on_one_core();
    }
    const int heard = memfd_create("standard error", MFD_CLOEXEC);
    const int usual = dup(STDERR_FILENO);
    EXPECT(heard >= 0 && usual >= 0 && dup2(heard, STDERR_FILENO) >= 0);
    const auto config = rsockets::Config::load();
    EXPECT(dup2(usual, STDERR_FILENO) >= 0);
    std::string text(65536, '\0');
    const ssize_t length = pread(heard, text.data(), text.size(), 0);
    text.resize(length > 0 ? static_cast<size_t>(length) : 0);
    say(std::to_string(config.polling_time) + " " + std::to_string(config.wake_up) + " " +
        std::to_string(config.iomap_size) + ", " + std::to_string(std::count(text.begin(), text.end(), '\n')) +
        " lines" + (text.find("polling_time") != std::string::npos ? " of polling_time" : ""));
}

std::string settings_with(const std::vector<std::string>& environment, const char* cores = "all-cores") {
    Child child("tells_settings", {cores}, environment);
    std::string told = child.hear();
    child.finish();
    return told;
}

class Folder {
  public:
    Folder() : path_(std::filesystem::temp_directory_path() / "rsocket-settings-XXXXXX") {
        EXPECT(mkdtemp(path_.data()) != nullptr);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { std::filesystem::remove_all(path_); }
    void write(const char* name, const char* text) const { std::ofstream(path_ + "/" + name) << text; }
    [[nodiscard]] std::string variable() const { return "RS_CONFIG_DIR=" + path_; }

  private:
    std::string path_;
};

void test_times_and_maps_come_from_files_and_the_environment() {
    const Folder folder;
    folder.write("polling_time", "250\n");
    folder.write("wake_up_interval", "40\n");
    folder.write("iomap_size", "7\n");
    EXPECT_EQ(settings_with({folder.variable()}), "250 40 7, 0 lines");
    EXPECT_EQ(settings_with({folder.variable(), "RS_POLLING_TIME=3", "RS_WAKE_UP_INTERVAL=0", "RS_IOMAP_SIZE=9"}),
              "3 0 9, 0 lines");
}

void test_a_malformed_setting_is_ignored_with_one_line_in_the_log() {
    const Folder folder;
    folder.write("polling_time", "soon\n");
    EXPECT_EQ(settings_with({folder.variable(), "RS_LOG=warn"}, "one-core"), "0 0 0, 1 lines of polling_time");
    EXPECT_EQ(settings_with({folder.variable()}, "one-core"), "0 0 0, 0 lines"); // nothing is written unasked
}

void test_nobody_spins_on_the_only_core() {
    EXPECT_EQ(settings_with({"RS_CONFIG_DIR=/nonexistent"}, "one-core"), "0 0 0, 0 lines");
}

// Milliseconds of processor time that a wait of a third of a second has taken.
void role_waits(const std::vector<std::string>&) {
    const Ends ends = connected();
    const auto used = [] {
        timespec time{};
        EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
        return 1000 * time.tv_sec + time.tv_nsec / 1000000;
    };
    const long before = used();
    pollfd fd{ends.client, POLLIN, 0};
    EXPECT_EQ(rpoll(&fd, 1, 300), 0);
    say(std::to_string(used() - before));
}

long processor_time_with(const char* setting) {
    Child child("waits", {}, {setting});
    const long told = std::stol(child.hear());
    child.finish();
    return told;
}

void test_a_thread_looks_for_the_polling_time_before_it_sleeps() {
    // On a busy machine, a thread that looks may get little of a processor.
    long most = 0;
    for (int i = 0; i < 10 && most < 25; ++i) {
        most = std::max(most, processor_time_with("RS_POLLING_TIME=250000"));
    }
    EXPECT(most >= 25);
    EXPECT(processor_time_with("RS_POLLING_TIME=0") < 25);
}

// A port of the kernel's that accepts connections and never says anything.
class Deaf {
  public:
    Deaf() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        name_ = loopback(0);
        socklen_t length = sizeof(name_);
        EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&name_), length), 0);
        EXPECT_EQ(listen(fd_, 8), 0);
        EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&name_), &length), 0);
    }
    Deaf(const Deaf&) = delete;
    Deaf& operator=(const Deaf&) = delete;
    ~Deaf() { ::close(fd_); }
    [[nodiscard]] uint16_t port() const { return ntohs(name_.sin_port); }

  private:
    int fd_;
    sockaddr_in name_{};
};

void role_connects_in_vain(const std::vector<std::string>& arguments) {
    const sockaddr_in to = loopback(static_cast<uint16_t>(std::stoul(arguments.at(0))));
    const auto* address = reinterpret_cast<const sockaddr*>(&to);
    const Number blocking(rsocket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(rconnect(blocking, address, sizeof(to)), -1);
    EXPECT_EQ(errno, ETIMEDOUT);

    const Number fd(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    EXPECT_EQ(rconnect(fd, address, sizeof(to)), -1);
    EXPECT_EQ(errno, EINPROGRESS);
    pollfd one{fd, POLLOUT, 0};
    EXPECT_EQ(rpoll(&one, 1, patience(10000)), 1);
    EXPECT((one.revents & POLLERR) != 0);
    int error = 0;
    socklen_t length = sizeof(error);
    EXPECT_EQ(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    EXPECT_EQ(error, ETIMEDOUT);
}

void test_connecting_to_a_server_that_never_answers_times_out() {
    need_core("tcp");
    const Deaf server;
    run_in_child("connects_in_vain", {"FI_RSTREAM_CONNECT_TIMEOUT=300"}, {std::to_string(server.port())});
}

// Path records of rdma-core's, which mean nothing here.
void test_a_route_is_kept_and_given_back() {
    const Number fd(rsocket(AF_INET, SOCK_STREAM, 0));
    std::string buffer(100, '?');
    socklen_t length = 100;
    EXPECT_EQ(rgetsockopt(fd, SOL_RDMA, RDMA_ROUTE, buffer.data(), &length), 0);
    EXPECT_EQ(length, 0U);
    const std::string route(72, 'r');
    EXPECT_EQ(rsetsockopt(fd, SOL_RDMA, RDMA_ROUTE, route.data(), static_cast<socklen_t>(route.size())), 0);
    length = 100;
    EXPECT_EQ(rgetsockopt(fd, SOL_RDMA, RDMA_ROUTE, buffer.data(), &length), 0);
    EXPECT_EQ(buffer.substr(0, length), route);
    const std::string endless(5000, 'r');
    EXPECT_EQ(rsetsockopt(fd, SOL_RDMA, RDMA_ROUTE, endless.data(), static_cast<socklen_t>(endless.size())), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(rsetsockopt(fd, SOL_RDMA, RDMA_ROUTE, nullptr, 72), -1);
    EXPECT_EQ(errno, EFAULT);
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {
        {"tells_settings", role_tells_settings}, {"waits", role_waits}, {"connects_in_vain", role_connects_in_vain}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_times_and_maps_come_from_files_and_the_environment),
        FABTEST(test_a_malformed_setting_is_ignored_with_one_line_in_the_log),
        FABTEST(test_nobody_spins_on_the_only_core),
        FABTEST(test_a_thread_looks_for_the_polling_time_before_it_sleeps),
        FABTEST(test_connecting_to_a_server_that_never_answers_times_out),
        FABTEST(test_a_route_is_kept_and_given_back),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
