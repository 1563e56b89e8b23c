// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The lock that processes share: what becomes of it when its owner ends, or is interrupted, without releasing it.
#include <atomic>
#include <climits>
#include <csetjmp>
#include <csignal>
#include <new>

#include <pthread.h>
#include <sched.h>
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

// A signal handler that has interrupted the owner makes a child and waits for it.
void test_a_child_does_not_wait_for_an_owner_that_waits_for_it() {
    SharedLock lock;
    EXPECT(!lock->note_fork());
    EXPECT(lock->acquire());
    EXPECT(lock->note_fork());
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        preload::forget_thread_id();
        preload::note_interrupted_parent();
        _exit(lock->acquire() ? 1 : 0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT(!lock->try_acquire());
    lock->release();
    EXPECT(!lock->note_fork());
}

// One that was made by another thread, or elsewhere, waits.
void test_a_child_waits_for_an_owner_that_goes_on() {
    SharedLock lock;
    EXPECT(lock->acquire());
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        preload::forget_thread_id();
        preload::note_interrupted_parent();
        _exit(lock->acquire() ? 0 : 1);
    }
    usleep(20000); // it gives up after a tenth of that, if it does
    lock->release();
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

constexpr int no_namespace = 77;

// In a child; its status.
template <class Body> int in_child(Body&& body) {
    const pid_t child = fork();
    if (child == 0) {
        preload::forget_thread_id();
        _exit(body());
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// From now on, children of this process are in a PID namespace of their own.
bool make_namespace() { return unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0; }

// Whether a child in another namespace acquires a lock only when this process has released it.
int await_release_in_namespace(SharedLock& lock) {
    auto* released = static_cast<std::atomic<bool>*>(
        mmap(nullptr, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (!make_namespace()) {
        return no_namespace;
    }
    if (released == MAP_FAILED || !lock->acquire()) {
        return 1;
    }
    const pid_t child = fork();
    if (child == 0) {
        preload::forget_thread_id();
        const bool acquired = lock->acquire();
        _exit(!acquired ? 2 : *released ? 0 : 3);
    }
    usleep(50000); // it would take the lock of a process that has ended
    *released = true;
    lock->release();
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}

void test_a_lock_of_a_process_in_another_pid_namespace_is_not_taken() {
    SharedLock lock;
    const int result = in_child([&] { return await_release_in_namespace(lock); });
    if (result == no_namespace) {
        throw fabtests::Skip("no PID namespace can be made");
    }
    EXPECT_EQ(result, 0);
}

// The first process of a namespace and that of a namespace within it have the same ids.
void test_a_lock_of_a_process_with_the_same_ids_is_not_taken() {
    SharedLock lock;
    const int result = in_child(
        [&] { return make_namespace() ? in_child([&] { return await_release_in_namespace(lock); }) : no_namespace; });
    if (result == no_namespace) {
        throw fabtests::Skip("no PID namespace can be made");
    }
    EXPECT_EQ(result, 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A thread whose alternate signal stack lies directly above its own stack, or directly below.
class TwoStacks {
  public:
    TwoStacks()
        : memory_(static_cast<char*>(
              mmap(nullptr, 3 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0))) {
        EXPECT(memory_ != MAP_FAILED);
    }
    TwoStacks(const TwoStacks&) = delete;
    TwoStacks& operator=(const TwoStacks&) = delete;
    ~TwoStacks() { munmap(memory_, 3 * size); }

    // Runs it on the middle third.
    void run(void* (*body)(void*), bool above, int flags) {
        alternate_.ss_sp = memory_ + (above ? 2 * size : 0);
        alternate_.ss_size = size;
        alternate_.ss_flags = flags;
        body_ = body;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        EXPECT_EQ(pthread_attr_setstack(&attributes, memory_ + size, size), 0);
        pthread_t thread{};
        const auto begin = [](void* of) -> void* {
            auto* own = static_cast<TwoStacks*>(of);
            return sigaltstack(&own->alternate_, nullptr) == 0 ? own->body_(nullptr) : nullptr;
        };
        EXPECT_EQ(pthread_create(&thread, &attributes, begin, this), 0);
        EXPECT_EQ(pthread_join(thread, nullptr), 0);
        pthread_attr_destroy(&attributes);
    }

  private:
    static constexpr size_t size = size_t{256} << 10;
    char* memory_;
    stack_t alternate_{};
    void* (*body_)(void*) = nullptr;
};

// For the functions below, which are handlers or left by longjmp.
OwnerLock* under_test = nullptr;
volatile sig_atomic_t got = -1;
sigjmp_buf out;

constexpr int autodisarm = INT_MIN; // SS_AUTODISARM of <linux/signal.h>, which conflicts with <csignal>

void handle(void (*handler)(int), int flags) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    EXPECT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
}

void acquire_in_handler(int /*signal*/) {
    got = under_test->acquire() ? 1 : 0;
    if (got == 1) {
        under_test->release();
    }
}

void* interrupted_section(void* /*unused*/) {
    if (under_test->acquire()) {
        raise(SIGUSR1);
        under_test->release();
    }
    return nullptr;
}

void test_a_handler_does_not_take_the_interrupted_lock() {
    SharedLock lock;
    under_test = lock.operator->();
    TwoStacks stacks;
    for (const bool above : {true, false}) {
        for (const int flags : {0, autodisarm}) {
            for (const int handled_on : {0, SA_ONSTACK}) {
                handle(acquire_in_handler, handled_on);
                got = -1;
                stacks.run(interrupted_section, above, flags);
                EXPECT_EQ(static_cast<int>(got), 0);
            }
        }
    }
    signal(SIGUSR1, SIG_DFL);
    EXPECT(lock->acquire());
    lock->release();
}

// Two calls of it have the same frame.
__attribute__((noinline)) bool enter(bool leaves) {
    const bool entered = under_test->acquire();
    if (entered && leaves) {
        siglongjmp(out, 1);
    }
    return entered;
}

void enter_in_handler(int /*signal*/) { (void)enter(true); }

void* left_section(void* in_handler) {
    if (sigsetjmp(out, 1) == 0) {
        in_handler != nullptr ? static_cast<void>(raise(SIGUSR1)) : static_cast<void>(enter(true));
    }
    got = enter(false) ? 1 : 0;
    if (got == 1) {
        under_test->release();
    }
    return nullptr;
}

void test_a_lock_of_a_section_that_was_left_by_longjmp_is_taken() {
    SharedLock lock;
    under_test = lock.operator->();
    TwoStacks stacks;
    got = -1;
    stacks.run(left_section, true, 0);
    EXPECT_EQ(static_cast<int>(got), 1);
}

void test_a_lock_of_a_handler_that_was_left_by_longjmp_is_taken() {
    SharedLock lock;
    under_test = lock.operator->();
    TwoStacks stacks;
    for (const bool above : {true, false}) {
        for (const int handled_on : {0, SA_ONSTACK}) {
            handle(enter_in_handler, handled_on);
            got = -1;
            stacks.run([](void*) { return left_section(&out); }, above, 0);
            EXPECT_EQ(static_cast<int>(got), 1);
        }
    }
    signal(SIGUSR1, SIG_DFL);
}
#endif

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_one_owner_at_a_time),
        FABTEST(test_a_lock_of_a_process_that_is_gone_is_taken),
        FABTEST(test_a_lock_of_a_process_that_nobody_has_waited_for_is_taken),
        FABTEST(test_a_child_does_not_wait_for_an_owner_that_waits_for_it),
        FABTEST(test_a_child_waits_for_an_owner_that_goes_on),
        FABTEST(test_a_lock_of_a_process_in_another_pid_namespace_is_not_taken),
        FABTEST(test_a_lock_of_a_process_with_the_same_ids_is_not_taken),
// A sanitizer defers signals, and has its own view of stacks.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        FABTEST(test_a_handler_does_not_take_the_interrupted_lock),
        FABTEST(test_a_lock_of_a_section_that_was_left_by_longjmp_is_taken),
        FABTEST(test_a_lock_of_a_handler_that_was_left_by_longjmp_is_taken),
#endif
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
