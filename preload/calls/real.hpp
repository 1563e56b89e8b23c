// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// libc's functions, or those of the next interposer (a sanitizer's, for example), looked up once: at the first call or
// when the library is initialised. Constructors of other objects may call them before ours have run.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include <aio.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "preload/calls/table.hpp"

namespace preload::real {

void* look_up(const char* name);

template <class F> class Call;

// Converts an argument after the named ones of a variadic function.
template <class To, class From> To argument(From value) {
    if constexpr (std::is_pointer_v<From> && std::is_integral_v<To>) {
        return reinterpret_cast<To>(value);
    } else {
        return static_cast<To>(value);
    }
}

template <class R, class... A> class Call<R(A...)> {
  public:
    constexpr explicit Call(const char* name) : name_(name) {}

    template <class... B> R operator()(B... arguments) {
        return reinterpret_cast<R (*)(A...)>(get())(argument<A>(arguments)...);
    }
    void prepare() { get(); }

  private:
    void* get() {
        void* found = at_.load(std::memory_order_relaxed);
        if (found == nullptr) [[unlikely]] {
            found = look_up(name_);
            at_.store(found, std::memory_order_relaxed);
        }
        return found;
    }

    const char* const name_;
    std::atomic<void*> at_{nullptr};
};
template <class R, class... A> class Call<R(A...) noexcept> : public Call<R(A...)> { using Call<R(A...)>::Call; };
// Variadic functions: called with six arguments after the named ones, the maximum that any of them takes.
template <class R, class... A>
class Call<R(A..., ...)>
    : public Call<R(A..., unsigned long, unsigned long, unsigned long, unsigned long, unsigned long, unsigned long)> {
    using Base =
        Call<R(A..., unsigned long, unsigned long, unsigned long, unsigned long, unsigned long, unsigned long)>;

  public:
    using Base::Base;
    template <class... B> R operator()(B... arguments) {
        return filled(std::integral_constant<size_t, sizeof...(A) + 6 - sizeof...(B)>(), arguments...);
    }

  private:
    template <size_t N, class... B> R filled(std::integral_constant<size_t, N>, B... arguments) {
        if constexpr (N == 0) {
            return Base::operator()(arguments...);
        } else {
            return filled(std::integral_constant<size_t, N - 1>(), arguments..., 0UL);
        }
    }
};
template <class R, class... A> class Call<R(A..., ...) noexcept> : public Call<R(A..., ...)> {
    using Call<R(A..., ...)>::Call;
};

// NOLINTNEXTLINE(bugprone-macro-parentheses): it is the name of an object
#define PRELOAD_DECLARE(name) inline constinit Call<decltype(::name)> name{#name};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
PRELOAD_CALLS(PRELOAD_DECLARE)
#pragma GCC diagnostic pop
#undef PRELOAD_DECLARE

} // namespace preload::real
