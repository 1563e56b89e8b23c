// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The lock that processes share: what becomes of it when its owner ends without releasing it.
#include <new>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabtests/common/test.hpp"
#include "preload/connection/owner_lock.hpp"

namespace {

using preload::OwnerLock;

class SharedLock {
  public:
    SharedLock()
        : memory_(mmap(nullptr, sizeof(OwnerLock), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
        EXPECT(memory_ != MAP_FAILED);
        lock_ = new (memory_) OwnerLock;
    }
    SharedLock(const SharedLock&) = delete;
    SharedLock& operator=(const SharedLock&) = delete;
    ~SharedLock() { munmap(memory_, sizeof(OwnerLock)); }
    OwnerLock* operator->() { return lock_; }

  private:
    void* memory_;
    OwnerLock* lock_;
};

// A child that ends with the lock held; it has ended when this returns, and nobody has waited for it.
pid_t child_that_ends_with(SharedLock& lock) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        preload::forget_thread_id();
        _exit(lock->acquire() ? 0 : 1);
    }
    siginfo_t info{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(info.si_status, 0);
    return child;
}

void test_one_owner_at_a_time() {
    SharedLock lock;
    EXPECT(lock->try_acquire());
    EXPECT(!lock->try_acquire());
    lock->release();
    EXPECT(lock->acquire());
    lock->release();
}

void test_a_lock_of_a_process_that_is_gone_is_taken() {
    SharedLock lock;
    const pid_t child = child_that_ends_with(lock);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT(lock->acquire());
    lock->release();
}

// Its parent may be the one that wants the lock, and would wait for the child only afterwards.
void test_a_lock_of_a_process_that_nobody_has_waited_for_is_taken() {
    SharedLock lock;
    const pid_t child = child_that_ends_with(lock);
    EXPECT(lock->acquire());
    lock->release();
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_one_owner_at_a_time),
        FABTEST(test_a_lock_of_a_process_that_is_gone_is_taken),
        FABTEST(test_a_lock_of_a_process_that_nobody_has_waited_for_is_taken),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
