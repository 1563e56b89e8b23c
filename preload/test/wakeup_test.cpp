// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Sleepers on upgraded connections, and what wakes them. wakeup_test.sh runs it under the preload library without
// spinning, so that threads that wait are asleep. wakeup_parts/ has the cases.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <sys/socket.h>

#include "preload/test/wakeup_parts/cases.hpp"

int main(int argc, char** argv) {
    if (argc == 3 && strcmp(argv[1], "look-at-set") == 0) { // executed by a case, without the library
        return wakeup_test::look_at_inherited_set(atoi(argv[2]));
    }
    if (dlsym(RTLD_DEFAULT, "rspreload_path") == nullptr) {
        fprintf(stderr, "wakeup_test: run it by wakeup_test.sh, under the preload library\n");
        return 1;
    }
#ifdef __SANITIZE_THREAD__
    printf("1..0 # SKIP wakeup_test: ThreadSanitizer does not survive that a process with threads forks\n");
    return 0;
#endif
    const bool strangers = argc == 2 && strcmp(argv[1], "strangers") == 0;
    const int no = 0;
    if (const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        strangers && setsockopt(fd, SOL_SOCKET, 83, &no, sizeof(no)) != 0) { // SO_PASSRIGHTS
        printf("1..0 # SKIP wakeup_test: this kernel has no SO_PASSRIGHTS (Linux 6.16)\n");
        return 0;
    }
    std::vector<CMUnitTest> tests;
    const auto add = [&](const std::vector<CMUnitTest>& cases) {
        tests.insert(tests.end(), cases.begin(), cases.end());
    };
    add(wakeup_test::steady_cases());
    if (!strangers) { // who wake each other in blocking calls by frames
        add(wakeup_test::recv_cases());
        add(wakeup_test::ended_cases());
    }
    add(wakeup_test::set_cases());
    add(wakeup_test::processes_cases());
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return _cmocka_run_group_tests("tests", tests.data(), tests.size(), nullptr, nullptr);
}
