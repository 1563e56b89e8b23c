// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// RLIMIT_NOFILE, as the program has set it: not as the library raises it for moments (rendezvous/raised_limit.hpp).
#include <optional>

#include "preload/calls/export.hpp"
#include "preload/calls/real.hpp"
#include "preload/rendezvous/raised_limit.hpp"

using namespace preload;

namespace {

class ProgramLimit {
  public:
    explicit ProgramLimit(bool numbers) {
        if (numbers) {
            awaited_.emplace();
        }
    }

  private:
    std::optional<raised_limit::Awaited> awaited_;
};

bool numbers(int resource) { return resource == static_cast<int>(RLIMIT_NOFILE); }

} // namespace

PRELOAD_EXPORT int getrlimit(__rlimit_resource_t resource, rlimit* limit) noexcept {
    const ProgramLimit program_limit(numbers(resource));
    return real::getrlimit(resource, limit);
}

PRELOAD_EXPORT int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
    const ProgramLimit program_limit(numbers(resource));
    return real::setrlimit(resource, limit);
}

PRELOAD_EXPORT int prlimit(pid_t process, __rlimit_resource resource, const rlimit* limit, rlimit* before) noexcept {
    const ProgramLimit program_limit(numbers(resource));
    return real::prlimit(process, resource, limit, before);
}

// With 64 bits, the structures are the same.
static_assert(sizeof(rlimit) == sizeof(rlimit64));
PRELOAD_EXPORT int getrlimit64(__rlimit_resource_t resource, rlimit64* limit) noexcept {
    return getrlimit(resource, reinterpret_cast<rlimit*>(limit));
}
PRELOAD_EXPORT int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
    return setrlimit(resource, reinterpret_cast<const rlimit*>(limit));
}
PRELOAD_EXPORT int prlimit64(pid_t process, __rlimit_resource resource, const rlimit64* limit,
                             rlimit64* before) noexcept {
    return prlimit(process, resource, reinterpret_cast<const rlimit*>(limit), reinterpret_cast<rlimit*>(before));
}
