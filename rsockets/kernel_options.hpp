// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Options that have nothing to do with the fabric, as the kernel has them: a TCP socket of the kernel's that lives for
// one call says whether a value is valid and what becomes of it. So ranges, rounding, lengths and errors are TCP's.
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

    // What was set there, of those that an accepted socket has from its listener.
    void inherit(const KernelOptions& from);

    [[nodiscard]] bool was_set(int level, int name) const { return values_.contains({level, name}); }
    // As the kernel has it, whether it was set or not; zeros if it has none. It takes no system call, but for the first
    // one of an option that was not set, whose default is kept for the process.
    template <class T> [[nodiscard]] T value(int level, int name) const {
        T out{};
        read(level, name, &out, sizeof(out));
        return out;
    }

    // A fresh socket of the kernel's on which the given ones of them are set.
    [[nodiscard]] base::Descriptor socket(std::initializer_list<std::pair<int, int>> names) const;

    // In a child: what this process has been told is forgotten.
    static void after_fork();

    // Whether the value of an option is kept here: option_table.hpp.
    static bool known(int level, int name);

  private:
    void read(int level, int name, void* out, size_t size) const;
    [[nodiscard]] std::vector<char> default_of(int level, int name) const;

    int family_;
    std::map<std::pair<int, int>, std::vector<char>> values_;
};

} // namespace rsockets
