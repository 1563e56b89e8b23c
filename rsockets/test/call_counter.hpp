// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Counts the system calls of this process, without a tracer and without privileges: a program that is linked with
// call_counter.cpp has libc's wrappers of its own, and the libraries below call those. What is counted is the calls
// that have to do with descriptors, not those that allocate memory or wait for a lock. Who made one is known by the
// address that it returns to.
#pragma once

#include <string>

namespace rsocket_test {

struct CallCount {
    int ours = 0; // of librsocket-ofi and the provider
    int core = 0; // of libfabric, and so of the core below the provider, and of the libraries below verbs
};

// To be called once the provider is loaded: from then on, calls are counted.
void start_counting_calls();
CallCount counted_calls();
// All of them, by name: "close 3+1" is three of ours and one of the core's.
std::string counted_calls_by_name();
void forget_counted_calls();

} // namespace rsocket_test
