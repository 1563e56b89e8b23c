// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The arguments of the executed program say which end it drives, and how.
#include "preload/test/torture_parts/execute.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

#include "preload/test/torture_parts/drive.hpp"
#include "preload/test/torture_parts/fork.hpp"
#include "preload/test/torture_parts/stream.hpp"

namespace torture {

void execute(End& e, int fd, uint64_t quota, uint32_t style, Random& random) {
    const std::string file = std::to_string(state_fd());
    const std::string index = std::to_string(index_of(e));
    const std::string much = std::to_string(quota);
    const std::string way = std::to_string(style);
    const std::string seed = std::to_string(random.next());
    if (path_of != nullptr && path_of(fd) >= 2) {
        ++shared->executed_moved;
    }
    const pid_t child = fork_child(e);
    if (child == 0) {
        dup2(fd, 0);
        execl("/proc/self/exe", "torture", "--resume", file.c_str(), index.c_str(), much.c_str(), way.c_str(),
              seed.c_str(), nullptr);
        fail("execl: %s", strerror(errno));
    }
    await(e, child);
}

bool is_executed(int argc, char** argv) { return argc == 7 && strcmp(argv[1], "--resume") == 0; }

int resume(char** argv) {
    if (!map_state(atoi(argv[2]))) {
        return 3;
    }
    Random random(strtoull(argv[6], nullptr, 10));
    signal(SIGPIPE, SIG_IGN);
    drive(shared->ends[atoi(argv[3])], 0, strtoull(argv[4], nullptr, 10), static_cast<uint32_t>(atoi(argv[5])), random);
    return 0;
}

} // namespace torture
