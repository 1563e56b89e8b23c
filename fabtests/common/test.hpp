// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The framework of a functional test. cmocka's asserts leave by longjmp and skip destructors. Here, a test is a plain
// function that throws instead: all its objects are destroyed before the failure is reported to cmocka. A test that
// hangs ends the program.
//
//     void test_connect_reaches_a_listener() { ... EXPECT_EQ(got, wanted); ... }
//     const CMUnitTest tests[] = {FABTEST(test_connect_reaches_a_listener)};
#pragma once

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
extern "C" {
#include <cmocka.h>
}
#undef fail // a macro of that name breaks the standard headers

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace fabtests {

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A requirement of the test is missing; the text is the reason.
struct Skip : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using Clock = std::chrono::steady_clock;

// Every time limit is multiplied by FABTESTS_PATIENCE (1): emulated hardware is slow.
int patience(int milliseconds);
int milliseconds_since(Clock::time_point start);

template <class T> std::string text_of(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
        return value ? "true" : "false";
    } else if constexpr (std::is_enum_v<T>) {
        return std::to_string(static_cast<long long>(value));
    } else if constexpr (std::is_arithmetic_v<T>) {
        return std::to_string(value);
    } else if constexpr (std::is_convertible_v<T, std::string>) {
        return "\"" + std::string(value) + "\"";
    } else if constexpr (std::is_pointer_v<T>) {
        return value == nullptr ? "null" : "a pointer";
    } else {
        return "(a value)";
    }
}

// A libfabric result as text: a count, or the name of an error.
std::string text_of_result(long long result);

[[noreturn]] void failed(const char* file, int line, const std::string& what);
// Reports the actual and the expected result of a call.
[[noreturn]] void failed(const char* file, int line, const char* call, const std::string& got,
                         const std::string& wanted);

template <class A, class B> bool same(const A& a, const B& b) {
    if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && !std::is_same_v<A, B>) {
        return std::cmp_equal(a, b);
    } else {
        return a == b;
    }
}

template <class A, class B>
void expect_equal(const char* file, int line, const char* call, const A& got, const B& wanted) {
    if (!same(got, wanted)) {
        failed(file, line, call, " is " + text_of(got), text_of(wanted));
    }
}

template <class A> void expect_result(const char* file, int line, const char* call, A got, long long wanted) {
    if (!std::cmp_equal(got, wanted)) {
        failed(file, line, call, " gives " + text_of_result(static_cast<long long>(got)), text_of_result(wanted));
    }
}

template <class A> void expect_error(const char* file, int line, const char* call, A got) {
    if (got >= 0) {
        failed(file, line, call, " gives " + std::to_string(got), "an error");
    }
}

// Runs one test and stores its message. An alarm limits calls that have no time limit of their own.
enum class Outcome { passed, failed, skipped };
Outcome attempt(void (*body)(), char* message, size_t capacity);
// Prints the reason on stderr. For TAP the test passes: cmocka 1.1.5 writes "not ok # SKIP", which Automake takes for a
// failure.
void tell_skip(const char* message);

template <void (*Body)()> void run_body(void** /*state*/) {
    static char message[1024];
    switch (attempt(Body, message, sizeof(message))) {
    case Outcome::passed:
        break;
    case Outcome::skipped:
        tell_skip(message);
        break;
    case Outcome::failed:
        _assert_true(0, message, __FILE__, __LINE__);
        break;
    }
}

// Threads of a test: joined before the test ends; an exception in a thread fails the test.
class Threads {
  public:
    Threads() = default;
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;
    ~Threads();
    void start(std::function<void()> body);
    void join(); // throws the exception of the first thread that failed

  private:
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::exception_ptr failure_;
};

} // namespace fabtests

#define FABTEST(body)                                                                                                  \
    CMUnitTest { #body, fabtests::run_body < body>, nullptr, nullptr, nullptr }

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fabtests::failed(__FILE__, __LINE__, #condition " is false");                                              \
        }                                                                                                              \
    } while (0)
#define EXPECT_EQ(got, wanted) fabtests::expect_equal(__FILE__, __LINE__, #got, got, wanted)
// For the result of a libfabric call: -FI_E*, or a number.
#define EXPECT_RESULT(call, wanted) fabtests::expect_result(__FILE__, __LINE__, #call, call, wanted)
#define EXPECT_ERROR(call) fabtests::expect_error(__FILE__, __LINE__, #call, call)
