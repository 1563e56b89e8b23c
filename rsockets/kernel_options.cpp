// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/kernel_options.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>

#include <sys/time.h>

#include "rsockets/mutex.hpp"
#include "rsockets/option_table.hpp"

namespace rsockets {

namespace {

constexpr size_t largest_value = 256;

constexpr size_t largest_kept = sizeof(timeval);
constexpr size_t most_kept = 256;

// Cache key: an option with a value that was set, or alone.
using Question = std::tuple<int, int, int, std::vector<char>>; // family, level, name

// Results of the kernel, cached for the process: a server sets the same values on each connection.
struct Memory {
    Mutex mutex;
    std::map<Question, std::vector<char>> effective RSOCKET_GUARDED_BY(mutex);
    std::map<Question, std::vector<char>> defaults RSOCKET_GUARDED_BY(mutex);
};

// Never destroyed: sockets may be used until the process ends.
constinit std::atomic<Memory*> made{nullptr};
constinit std::atomic<Memory*> left_behind{nullptr}; // reachable for leak checkers

Memory& memory() {
    Memory* present = made.load(std::memory_order_acquire);
    if (present == nullptr) {
        auto fresh = std::make_unique<Memory>();
        if (made.compare_exchange_strong(present, fresh.get(), std::memory_order_acq_rel)) {
            present = fresh.release();
        }
    }
    return *present;
}

} // namespace

bool KernelOptions::known(int level, int name) {
    const Option* option = find_option(level, name);
    return option != nullptr && option->place == Option::Place::kernel;
}

void KernelOptions::inherit(const KernelOptions& from) {
    for (const auto& [which, value] : from.values_) {
        if (const Option* option = find_option(which.first, which.second); option != nullptr && option->inherited) {
            values_[which] = value;
        }
    }
}

int KernelOptions::set(int level, int name, const void* value, socklen_t length) {
    const bool kept = value != nullptr && length <= largest_kept && known(level, name);
    Question question{family_, level, name, {}};
    if (kept) {
        const auto* bytes = static_cast<const char*>(value);
        std::get<std::vector<char>>(question).assign(bytes, bytes + length);
        Memory& all = memory();
        const Guard lock(all.mutex);
        if (const auto found = all.effective.find(question); found != all.effective.end()) {
            values_[{level, name}] = found->second;
            return 0;
        }
    }
    const base::Descriptor scratch(::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!scratch.open()) {
        return errno;
    }
    if (::setsockopt(scratch.get(), level, name, value, length) != 0) {
        return errno;
    }
    if (!known(level, name)) {
        return ENOPROTOOPT;
    }
    std::vector<char> effective(largest_value);
    socklen_t size = largest_value;
    if (::getsockopt(scratch.get(), level, name, effective.data(), &size) != 0) {
        return 0; // the option cannot be read back
    }
    effective.resize(size);
    if (kept) {
        Memory& all = memory();
        const Guard lock(all.mutex);
        if (all.effective.size() < most_kept) {
            all.effective.emplace(std::move(question), effective);
        }
    }
    values_[{level, name}] = std::move(effective);
    return 0;
}

void KernelOptions::note(int level, int name, int value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    values_[{level, name}].assign(bytes, bytes + sizeof(value));
}

int KernelOptions::get(int level, int name, void* value, socklen_t* length) const {
    const base::Descriptor scratch = socket({{level, name}});
    if (!scratch.open()) {
        return errno;
    }
    if (::getsockopt(scratch.get(), level, name, value, length) != 0) {
        return errno;
    }
    return known(level, name) ? 0 : ENOPROTOOPT;
}

void KernelOptions::read(int level, int name, void* out, size_t size) const {
    const auto copy = [&](const std::vector<char>& value) {
        if (value.size() >= size) {
            memcpy(out, value.data(), size);
        }
    };
    const auto found = values_.find({level, name});
    found != values_.end() ? copy(found->second) : copy(default_of(level, name));
}

std::vector<char> KernelOptions::default_of(int level, int name) const {
    Memory& all = memory();
    const Guard lock(all.mutex);
    Question question{family_, level, name, {}};
    if (const auto known = all.defaults.find(question); known != all.defaults.end()) {
        return known->second;
    }
    const base::Descriptor fresh(::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0));
    std::vector<char> value(largest_value);
    socklen_t size = largest_value;
    if (!fresh.open() || ::getsockopt(fresh.get(), level, name, value.data(), &size) != 0) {
        return {};
    }
    value.resize(size);
    return all.defaults.emplace(std::move(question), std::move(value)).first->second;
}

// Another thread may have held the mutex in the parent.
void KernelOptions::after_fork() {
    if (Memory* parents = made.exchange(nullptr); parents != nullptr) {
        left_behind = parents;
    }
}

base::Descriptor KernelOptions::socket(std::initializer_list<std::pair<int, int>> names) const {
    base::Descriptor made(::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (const auto& name : names) {
        if (const auto found = values_.find(name); made.open() && found != values_.end()) {
            // The kernel has accepted the value before, from set().
            ::setsockopt(made.get(), name.first, name.second, found->second.data(),
                         static_cast<socklen_t>(found->second.size()));
        }
    }
    return made;
}

} // namespace rsockets
