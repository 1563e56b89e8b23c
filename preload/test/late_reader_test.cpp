// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A process that reads only after its peer has gone, and whose library could not do its part before: all that the peer
// sent is there, then the end. late_reader_test.sh runs it.
#include <array>
#include <climits>
#include <csignal>
#include <cstdio>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "preload/test/pair.hpp"
#include "preload/test/wakeup_parts/peer.hpp"
#include "preload/test/wakeup_parts/sleeper.hpp"

namespace {

using wakeup_test::Do;
using wakeup_test::Peer;

// The peer's last bytes, more than fit into the window, were given to TCP while this process was stopped: behind those
// in the ring, and the end behind them. Its request to take those from the ring comes first, and nobody can be asked
// for anything any more.
int read_what_is_left(bool closes, int when_peer_has_gone) {
    constexpr long behind_ring = 300000;
    const Peer peer;
    close(when_peer_has_gone);
    long sent = peer.ask(Do::block, LONG_MAX); // the ring is full
    const long all = sent + behind_ring;
    EXPECT(wakeup_test::eventually([&] { // once it is left
        sent += peer.ask(Do::block, all - sent);
        return sent == all;
    }));
    peer.tell(Do::wait);
    peer.tell(Do::shut);
    if (closes) {
        peer.tell(Do::close);
    }
    peer.tell(Do::die);
    raise(SIGSTOP);
    EXPECT_EQ(peer.answer(), 0); // it has waited
    EXPECT_EQ(peer.answer(), 0); // and shut down
    EXPECT_EQ(preload_test::receive(peer.fd(), static_cast<size_t>(sent), MSG_WAITALL).size(),
              static_cast<size_t>(sent));
    EXPECT_EQ(preload_test::receive(peer.fd(), 1).size(), 0U);
    return 0;
}

void expect_all_read_after_the_peer_has_gone(bool closes) {
    std::array<int, 2> gone{};
    EXPECT_EQ(pipe2(gone.data(), O_CLOEXEC), 0);
    const pid_t reader = fork();
    if (reader == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        try {
            _exit(read_what_is_left(closes, gone[1]));
        } catch (const std::exception& error) {
            printf("# %s\n", error.what());
            fflush(stdout);
            _exit(1);
        }
    }
    close(gone[1]);
    int status = 0;
    EXPECT_EQ(waitpid(reader, &status, WUNTRACED), reader);
    EXPECT(WIFSTOPPED(status));
    char none = 0;
    EXPECT_EQ(read(gone[0], &none, 1), 0); // the peer held the other end
    EXPECT_EQ(kill(reader, SIGCONT), 0);
    EXPECT_EQ(waitpid(reader, &status, 0), reader);
    EXPECT_EQ(status, 0);
    close(gone[0]);
}

void test_all_is_read_late_from_a_peer_that_has_closed() { expect_all_read_after_the_peer_has_gone(true); }
void test_all_is_read_late_from_a_peer_that_was_killed() { expect_all_read_after_the_peer_has_gone(false); }

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_all_is_read_late_from_a_peer_that_has_closed),
        FABTEST(test_all_is_read_late_from_a_peer_that_was_killed),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
