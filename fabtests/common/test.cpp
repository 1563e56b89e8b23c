// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/common/test.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <rdma/fi_errno.h>
#include <unistd.h>

namespace fabtests {

namespace {

constexpr int longest_test_ms = 120000;

// CMOCKA_TEST_FILTER selects tests by name: cmocka 1.1.5 has such a filter, but no environment variable for it.
__attribute__((constructor)) void take_filter() {
    if (const char* filter = getenv("CMOCKA_TEST_FILTER")) {
        cmocka_set_test_filter(filter);
    }
}

} // namespace

int patience(int milliseconds) {
    const char* factor = getenv("FABTESTS_PATIENCE");
    return milliseconds * (factor != nullptr ? std::max(1, atoi(factor)) : 1);
}

int milliseconds_since(Clock::time_point start) {
    return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count());
}

std::string text_of_result(long long result) {
    if (result >= 0) {
        return std::to_string(result);
    }
    return std::to_string(result) + " (" + fi_strerror(static_cast<int>(-result)) + ")";
}

void failed(const char* file, int line, const std::string& what) {
    throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

void failed(const char* file, int line, const char* call, const std::string& got, const std::string& wanted) {
    failed(file, line, call + got + ", not " + wanted);
}

Outcome attempt(void (*body)(), char* message, size_t capacity) {
    Outcome outcome = Outcome::passed;
    alarm(static_cast<unsigned>(patience(longest_test_ms) / 1000));
    try {
        body();
    } catch (const Skip& reason) {
        snprintf(message, capacity, "%s", reason.what());
        outcome = Outcome::skipped;
    } catch (const std::exception& error) {
        snprintf(message, capacity, "%s", error.what());
        outcome = Outcome::failed;
    }
    alarm(0);
    return outcome;
}

void tell_skip(const char* message) { fprintf(stderr, "skipped: %s\n", message); }

Threads::~Threads() {
    for (auto& thread : threads_) {
        thread.join();
    }
}

void Threads::start(std::function<void()> body) {
    threads_.emplace_back([this, body = std::move(body)] {
        try {
            body();
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!failure_) {
                failure_ = std::current_exception();
            }
        }
    });
}

void Threads::join() {
    for (auto& thread : threads_) {
        thread.join();
    }
    threads_.clear();
    if (failure_) {
        std::rethrow_exception(std::exchange(failure_, nullptr));
    }
}

} // namespace fabtests
