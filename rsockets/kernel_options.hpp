// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Options unrelated to the fabric, with the kernel's semantics: a kernel TCP socket that lives for one call validates a
// value and returns the effective one. So ranges, rounding, lengths and errors are those of TCP.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "base/descriptor.hpp"

namespace rsockets {

class KernelOptions {
  public:
    explicit KernelOptions(int family) : family_(family) {}

    // 0 or an errno.
    int set(int level, int name, const void* value, socklen_t length);
    int get(int level, int name, void* value, socklen_t* length) const;

    // The kernel sets an option with some call by itself: it has this value from now on.
    void note(int level, int name, int value);

    // Copies those values set on the listener that an accepted socket inherits.
    void inherit(const KernelOptions& from);

    [[nodiscard]] bool was_set(int level, int name) const { return values_.contains({level, name}); }
    // The effective value, set or default; zeros if the kernel has none. It makes no system call, except for the first
    // read of an option that was not set, whose default is cached for the process.
    template <class T> [[nodiscard]] T value(int level, int name) const {
        T out{};
        read(level, name, &out, sizeof(out));
        return out;
    }

    // A new kernel socket with the given options set, as far as they were set here.
    [[nodiscard]] base::Descriptor socket(std::initializer_list<std::pair<int, int>> names) const;

    // In a child: drops the cache of the process.
    static void after_fork();

    // Whether the value of an option is stored here: option_table.hpp.
    static bool known(int level, int name);

  private:
    void read(int level, int name, void* out, size_t size) const;
    [[nodiscard]] std::vector<char> default_of(int level, int name) const;

    int family_;
    std::map<std::pair<int, int>, std::vector<char>> values_;
};

} // namespace rsockets
