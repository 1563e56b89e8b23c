// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Which sockets other processes have open, see holders.hpp.
#include "preload/rendezvous/holders.hpp"

#include <array>
#include <csignal>
#include <optional>
#include <set>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "fabtests/common/test.hpp"

namespace {

using base::Descriptor;

uint64_t inode_of(const Descriptor& socket) {
    struct stat one {};
    EXPECT_EQ(fstat(socket.get(), &one), 0);
    return one.st_ino;
}

std::set<uint64_t> elsewhere() {
    std::set<uint64_t> found;
    EXPECT(preload::rendezvous::for_each_socket_elsewhere(
        &found, [](void* context, uint64_t inode) { static_cast<std::set<uint64_t>*>(context)->insert(inode); }));
    return found;
}

// Has what its parent has by then, until it is ended.
class Child {
  public:
    Child() : process_(fork()) {
        if (process_ == 0) {
            for (;;) {
                pause();
            }
        }
        EXPECT(process_ > 0);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() {
        (void)kill(process_, SIGKILL);
        (void)waitpid(process_, nullptr, 0);
    }

    [[nodiscard]] pid_t process() const { return process_; }

  private:
    pid_t process_;
};

void test_a_socket_is_elsewhere_as_long_as_another_process_has_it() {
    const Descriptor shared(socket(AF_INET, SOCK_STREAM, 0));
    {
        const Child child;
        const Descriptor own(socket(AF_INET, SOCK_STREAM, 0));
        const auto found = elsewhere();
        EXPECT(found.count(inode_of(shared)) == 1);
        EXPECT(found.count(inode_of(own)) == 0);
        EXPECT(!preload::rendezvous::is_sole_holder(shared.get()));
        EXPECT(preload::rendezvous::is_sole_holder(own.get()));
    }
    EXPECT(elsewhere().count(inode_of(shared)) == 0);
    EXPECT(preload::rendezvous::is_sole_holder(shared.get()));
}

void test_a_process_has_a_socket_until_it_ends() {
    const Descriptor shared(socket(AF_INET, SOCK_STREAM, 0));
    const Child child;
    const Descriptor own(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT(preload::rendezvous::has_socket(child.process(), shared.get()) == true);
    EXPECT(preload::rendezvous::has_socket(child.process(), own.get()) == false);
    EXPECT_EQ(kill(child.process(), SIGKILL), 0);
    siginfo_t ended{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child.process()), &ended, WEXITED | WNOWAIT), 0);
    EXPECT(preload::rendezvous::has_socket(child.process(), shared.get()) == false);
}

void test_a_process_that_is_gone_has_no_socket() {
    const Descriptor shared(socket(AF_INET, SOCK_STREAM, 0));
    pid_t process = 0;
    {
        const Child child;
        process = child.process();
    }
    EXPECT(preload::rendezvous::has_socket(process, shared.get()) == false);
}

// As a user who sees less: neither that of a zombie.
template <class Test> void as_nobody(Test&& test) {
    const pid_t tester = fork();
    if (tester == 0) {
        constexpr uid_t nobody = 65534;
        if (geteuid() == 0 && (setresgid(nobody, nobody, nobody) != 0 || setresuid(nobody, nobody, nobody) != 0)) {
            _exit(1);
        }
        _exit(test() ? 0 : 2);
    }
    int status = -1;
    EXPECT_EQ(waitpid(tester, &status, 0), tester);
    EXPECT_EQ(status, 0);
}

void test_what_an_ordinary_user_sees_of_a_process() {
    as_nobody([] {
        const Descriptor shared(socket(AF_INET, SOCK_STREAM, 0));
        const pid_t ends = fork();
        if (ends == 0) {
            _exit(0);
        }
        siginfo_t ended{};
        const bool is_zombie = waitid(P_PID, static_cast<id_t>(ends), &ended, WEXITED | WNOWAIT) == 0;
        return is_zombie && preload::rendezvous::has_socket(ends, shared.get()) == false &&
               preload::rendezvous::has_socket(1, shared.get()) == std::nullopt; // root's
    });
}

// More than one read of a folder returns.
void test_many_sockets_of_many_processes_are_found() {
    constexpr int many = 600;
    std::array<Descriptor, many> shared;
    for (Descriptor& one : shared) {
        one = Descriptor(socket(AF_INET, SOCK_STREAM, 0));
        EXPECT(one.open());
    }
    const std::array<Child, 3> children;
    const auto found = elsewhere();
    for (const Descriptor& one : shared) {
        EXPECT(found.count(inode_of(one)) == 1);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_socket_is_elsewhere_as_long_as_another_process_has_it),
        FABTEST(test_a_process_has_a_socket_until_it_ends),
        FABTEST(test_a_process_that_is_gone_has_no_socket),
        FABTEST(test_what_an_ordinary_user_sees_of_a_process),
        FABTEST(test_many_sockets_of_many_processes_are_found),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
