// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Descriptors whose close waits, sent to the library by others: a TCP socket with SO_LINGER and a full send queue, of
// which the receiver closes the last reference. Neither the program's calls nor its upgrades may wait for that.
// lingering_test.sh runs it, with processes of the same user taken for those of another one.
//
//     lingering_test                           the tests, under the preload library
//     lingering_test inbox COUNT NAME          a process without it that sends to an inbox
//     lingering_test owner|stranger COUNT ...  one that is the peer of a connection, and sends, or lets another user
//                                              send, to the name where the library meets it
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"

namespace {

using preload_test::Connected;
using preload_test::Pair;
using Clock = std::chrono::steady_clock;

// The attackers.

sockaddr_in loopback(uint8_t last) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0x7f000000U | last);
    return address;
}

bool send_files(int to, const std::vector<int>& fds) {
    char byte = 'x';
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(64 * sizeof(int))> control{};
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
    return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

// Sends one byte with `count` descriptors, of which the last ones are a lingering socket. The victim is stopped
// meanwhile, so that it closes the last reference.
bool attack(int type, const std::string& name, int count, bool other_user) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const Connected& lingering = *new Connected; // its other end stays open
    std::array<char, 65536> bytes{};
    while (send(lingering.a, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    constexpr int seconds = 60;
    const linger wait{1, seconds};
    setsockopt(lingering.a, SOL_SOCKET, SO_LINGER, &wait, sizeof(wait));
    std::vector<int> files(static_cast<size_t>(count), lingering.a);
    if (count > 2) {
        files[0] = files[1] = STDOUT_FILENO; // as many as a message of the library's has
    }
    const pid_t victim = getppid();
    kill(victim, SIGSTOP);
    std::array<int, 2> go_on{};
    EXPECT_EQ(pipe(go_on.data()), 0);
    const pid_t sender = fork();
    if (sender == 0) {
        char byte = 0;
        (void)!read(go_on[0], &byte, 1); // the parent has closed its copy
        constexpr uid_t nobody = 65534;
        const int to = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
        const bool sent = (!other_user || setuid(nobody) == 0) &&
                          connect(to, reinterpret_cast<sockaddr*>(&address), length) == 0 && send_files(to, files);
        _exit(sent ? 0 : 1); // an exiting process does not linger
    }
    close(lingering.a);
    (void)!write(go_on[1], "", 1);
    int status = 0;
    waitpid(sender, &status, 0);
    kill(victim, SIGCONT);
    return status == 0;
}

// Echoes what the victim sends on a connection, until it waits at the meeting.
bool attack_meeting(int count, bool other_user) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own = loopback(2); // behind the victim's address, which listens at the meeting
    socklen_t length = sizeof(own);
    bind(listener, reinterpret_cast<sockaddr*>(&own), length);
    listen(listener, 1);
    getsockname(listener, reinterpret_cast<sockaddr*>(&own), &length);
    (void)!write(STDOUT_FILENO, &own.sin_port, sizeof(own.sin_port));
    sockaddr_in victim{};
    const int connection = accept(listener, reinterpret_cast<sockaddr*>(&victim), &length);
    const std::string name = "rspreload/::ffff:127.0.0.1." + std::to_string(ntohs(victim.sin_port)) +
                             "-::ffff:127.0.0.2." + std::to_string(ntohs(own.sin_port));
    for (;;) {
        char byte = 0;
        if (recv(connection, &byte, 1, 0) != 1 || send(connection, &byte, 1, 0) != 1) {
            return false;
        }
        if (attack(SOCK_SEQPACKET, name, count, other_user)) {
            return true;
        }
    }
}

int attacker(const std::string& kind, int count, const std::string& name) {
    const bool sent =
        kind == "inbox" ? attack(SOCK_DGRAM, name, count, geteuid() == 0) : attack_meeting(count, kind == "stranger");
    const char result = sent ? 's' : 'f';
    (void)!write(STDOUT_FILENO, &result, 1);
    for (;;) {
        pause();
    }
}

// A process without the library; the test's child.
class Attacker {
  public:
    Attacker(const std::string& kind, int count, const std::string& name = "") {
        std::array<int, 2> ends{};
        EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
        out_ = ends[0];
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        std::string number = std::to_string(count);
        std::string program = "lingering_test";
        char* const arguments[] = {program.data(), const_cast<char*>(kind.c_str()), number.data(),
                                   const_cast<char*>(name.c_str()), nullptr};
        char* const environment[] = {nullptr};
        EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environment), 0);
        posix_spawn_file_actions_destroy(&actions);
        close(ends[1]);
    }
    Attacker(const Attacker&) = delete;
    Attacker& operator=(const Attacker&) = delete;
    ~Attacker() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        close(out_);
    }
    template <class Value> Value read_value() const {
        Value value{};
        EXPECT_EQ(read(out_, &value, sizeof(value)), static_cast<ssize_t>(sizeof(value)));
        return value;
    }

  private:
    pid_t pid_ = -1;
    int out_ = -1;
};

// The victim.

// The abstract names of this process's service, from /proc/net/unix.
std::vector<std::string> own_inboxes() {
    std::vector<std::string> inodes;
    for (int fd = 0; fd < 70000; ++fd) {
        std::array<char, 64> target{};
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        if (readlink(path.c_str(), target.data(), target.size() - 1) > 0 &&
            strncmp(target.data(), "socket:[", 8) == 0) {
            inodes.emplace_back(target.data() + 8, strcspn(target.data() + 8, "]"));
        }
    }
    std::vector<std::string> names;
    std::ifstream all("/proc/net/unix");
    for (std::string line; std::getline(all, line);) {
        std::istringstream words(line);
        const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
        if (word.size() == 8 && word[7].rfind("@rspreload/", 0) == 0 && word[7].find(':') == std::string::npos &&
            std::find(inodes.begin(), inodes.end(), word[6]) != inodes.end()) {
            names.push_back(word[7].substr(1));
        }
    }
    return names;
}

// For half a second, and then a new connection is upgraded as quickly as ever.
void expect_no_delay() {
    const auto end = Clock::now() + std::chrono::milliseconds(500);
    int slow = 0;
    while (Clock::now() < end) {
        const auto begin = Clock::now();
        close(open("/dev/null", O_RDONLY | O_CLOEXEC));
        slow += Clock::now() - begin > std::chrono::milliseconds(90) ? 1 : 0;
        usleep(1000);
    }
    EXPECT_EQ(slow, 0);
    const auto begin = Clock::now();
    const Pair another;
    EXPECT(Clock::now() - begin < std::chrono::milliseconds(fabtests::patience(2000)));
}

void expect_no_delay_by_inbox(int count) {
    const Pair pair;
    const std::vector<std::string> names = own_inboxes();
    EXPECT_EQ(names.size(), 1U);
    const Attacker attacker("inbox", count, names[0]);
    EXPECT_EQ(attacker.read_value<char>(), 's');
    expect_no_delay();
}

void test_few_descriptors_in_the_inbox_delay_nothing() { expect_no_delay_by_inbox(1); }
void test_more_descriptors_in_the_inbox_than_a_message_has_delay_nothing() { expect_no_delay_by_inbox(3); }
void test_many_descriptors_in_the_inbox_delay_nothing() { expect_no_delay_by_inbox(16); }

void expect_no_delay_by_meeting(const char* kind, int count) {
    const Pair pair;
    const Attacker attacker(kind, count);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own = loopback(1);
    sockaddr_in peer = loopback(2);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    peer.sin_port = attacker.read_value<in_port_t>();
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
    for (;;) {
        char byte = 'x';
        pollfd one{fd, POLLIN, 0};
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 || poll(&one, 1, 300) != 1) {
            break; // it attacks
        }
        EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
        usleep(1000);
    }
    EXPECT_EQ(attacker.read_value<char>(), 's');
    expect_no_delay();
    close(fd);
}

void test_descriptors_from_the_owner_of_the_other_end_delay_nothing() { expect_no_delay_by_meeting("owner", 1); }
void test_many_descriptors_from_the_owner_of_the_other_end_delay_nothing() { expect_no_delay_by_meeting("owner", 16); }

void test_descriptors_from_a_stranger_at_the_meeting_delay_nothing() {
    if (geteuid() != 0) {
        throw fabtests::Skip("only root has another user at hand");
    }
    expect_no_delay_by_meeting("stranger", 1);
}

} // namespace

int main(int argc, char** argv) {
    if (argc >= 3) {
        return attacker(argv[1], atoi(argv[2]), argc > 3 ? argv[3] : "");
    }
    const CMUnitTest tests[] = {
        FABTEST(test_few_descriptors_in_the_inbox_delay_nothing),
        FABTEST(test_more_descriptors_in_the_inbox_than_a_message_has_delay_nothing),
        FABTEST(test_many_descriptors_in_the_inbox_delay_nothing),
        FABTEST(test_descriptors_from_the_owner_of_the_other_end_delay_nothing),
        FABTEST(test_many_descriptors_from_the_owner_of_the_other_end_delay_nothing),
        FABTEST(test_descriptors_from_a_stranger_at_the_meeting_delay_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
