// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A thread that is in one call, and what the kernel says of it: /proc tells whether it is asleep, in which system call
// and on which descriptor, so that no test has to guess how long a thread needs to fall asleep.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include <pthread.h>
#include <sys/types.h>

namespace wakeup_test {

// How long a test waits for what must happen; nothing passes because of it.
int patience_ms();
// Asks again and again until it holds. False: it did not in time.
bool eventually(const std::function<bool()>& holds);

class Sleeper {
  public:
    explicit Sleeper(std::function<ssize_t()> call);
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper();

    // In a system call that waits for descriptors, and not on a lock.
    [[nodiscard]] bool is_asleep() const;
    // In read() on an eventfd.
    [[nodiscard]] bool is_on_eventfd() const;
    // Throws if it does not fall asleep.
    void await_asleep() const;
    [[nodiscard]] bool is_over() const { return done_.load(); }
    // What the call returned; throws, and leaves the thread alone, if it does not return.
    ssize_t result();
    [[nodiscard]] int error() const { return error_; }
    void signal(int number) const;
    // Throws if the thread does not end by it.
    void cancel();

  private:
    static void* run(void* self);
    void join(const char* how);

    std::function<ssize_t()> call_;
    pthread_t thread_{};
    std::atomic<pid_t> tid_{0};
    std::atomic<bool> done_{false};
    ssize_t result_ = 0;
    int error_ = 0;
    bool joined_ = false;
};

// As /proc has it: 'S', asleep, 'T', stopped …
char state_of(pid_t process_or_thread);
// The library's thread, for example, may still be in a call when the main thread has stopped.
bool are_all_threads_stopped(pid_t process);
// Whether the thread of this process is asleep in one of the calls that wait for descriptors.
bool is_thread_asleep(pid_t tid);
// Whether all threads of this process but the calling one are, or in a timed sleep, as a sanitizer's.
bool are_other_threads_asleep();
// The name of a descriptor of this process, as /proc has it.
std::string name_of(int fd);
// Eventfds that this process has open, the program's and the library's.
int count_eventfds();

} // namespace wakeup_test
