// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/preload/caller.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <string_view>

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

#include "rsockets/preload/lock.hpp"

namespace preload::caller {

constinit thread_local int Inside::depth = 0;
constinit thread_local bool SharingPort::now = false;

namespace {

enum class Owner : uint8_t { library, between };

struct Range {
    uintptr_t begin;
    uintptr_t end;
    Owner owner;
};

constexpr size_t most_ranges = 256;
struct Map {
    size_t count = 0;
    unsigned long long loaded = 0;         // objects, when it was made
    std::array<uintptr_t, 2> sanitizers{}; // a function of each that there is
    std::array<Range, most_ranges> ranges{};
};

constinit std::atomic<const Map*> current{nullptr};
constinit SpinLock making;

// By the file names that these libraries have had for many years. Providers are told by how theirs end.
constexpr std::string_view of_libraries[] = {
    "librspreload-", "librsocket-ofi", "libfabric", "librdmacm", "libibverbs", "libmlx", "libefa",
    "libpsm",        "libinfinipath",  "libnl-",    "libucp",    "libucs",     "libuct", "libcxi",
    "libhfi",        "libbnxt",        "libirdma",  "librxe",    "libsiw",     "libhns",
};
constexpr std::string_view of_those_between[] = {
    "libasan", "libtsan", "libubsan", "liblsan", "libstdc++", "libc.so", "ld-linux", "libclang_rt",
};

// As the members of these names, which can throw, for which they need the C++ library where nothing is inlined.
bool starts_with(std::string_view name, std::string_view part) {
    return name.size() >= part.size() && memcmp(name.data(), part.data(), part.size()) == 0;
}
bool ends_with(std::string_view name, std::string_view part) {
    return name.size() >= part.size() && memcmp(name.data() + name.size() - part.size(), part.data(), part.size()) == 0;
}

template <size_t n> bool begins_with_one(std::string_view name, const std::string_view (&list)[n]) {
    for (const std::string_view one : list) {
        if (starts_with(name, one)) {
            return true;
        }
    }
    return false;
}

constexpr const char* of_sanitizers[] = {"__asan_init", "__tsan_init"};

// A sanitizer that is part of the program itself.
bool holds_sanitizer(const dl_phdr_info& info, const Map& map) {
    for (const uintptr_t at : map.sanitizers) {
        for (int i = 0; at != 0 && i < info.dlpi_phnum; ++i) {
            const auto begin = info.dlpi_addr + info.dlpi_phdr[i].p_vaddr;
            if (info.dlpi_phdr[i].p_type == PT_LOAD && at - begin < info.dlpi_phdr[i].p_memsz) {
                return true;
            }
        }
    }
    return false;
}

int add(dl_phdr_info* info, size_t, void* data) {
    auto& map = *static_cast<Map*>(data);
    map.loaded = info->dlpi_adds;
    const char* slash = strrchr(info->dlpi_name, '/');
    const std::string_view name = slash != nullptr ? slash + 1 : info->dlpi_name;
    const bool program = name.empty();
    const bool library =
        begins_with_one(name, of_libraries) || ends_with(name, "-fi.so") || name.find("-rdmav") != name.npos;
    if (!library && !begins_with_one(name, of_those_between) && !(program && holds_sanitizer(*info, map))) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum && map.count < map.ranges.size(); ++i) {
        const ElfW(Phdr)& part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) {
            const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
            map.ranges[map.count++] = {begin, begin + part.p_memsz, library ? Owner::library : Owner::between};
        }
    }
    return 0;
}

const Range* find(const Map& map, const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (size_t i = 0; i < map.count; ++i) {
        const Range& range = map.ranges[i];
        if (at - range.begin < range.end - range.begin) {
            return &range;
        }
    }
    return nullptr;
}

__attribute__((constructor)) void prepare() { look_again(); }

int count_loaded(dl_phdr_info* info, size_t, void* data) {
    *static_cast<unsigned long long*>(data) = info->dlpi_adds;
    return 1;
}

} // namespace

// Before it is known who is who, nobody calls but the linker, allocators and constructors: asking the linker then is
// not safe, and those libraries are not there yet.
bool is_internal(const void* address) {
    const Map* map = current.load(std::memory_order_acquire);
    if (map == nullptr) {
        return false;
    }
    const Range* range = find(*map, address);
    if (range == nullptr && Inside::depth > 0) { // libfabric loads providers when it is first asked for one
        look_again();
        const Map* later = current.load(std::memory_order_acquire);
        range = later != map ? find(*later, address) : nullptr;
    }
    return range != nullptr && (range->owner == Owner::library || Inside::depth > 0);
}

void after_fork() { making.forget(); }

void look_again() {
    unsigned long long loaded = 0;
    dl_iterate_phdr(count_loaded, &loaded);
    const Map* known = current.load(std::memory_order_acquire);
    if (known != nullptr && known->loaded == loaded) {
        return;
    }
    void* room = mmap(nullptr, sizeof(Map), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        return;
    }
    auto* made = new (room) Map;
    for (size_t i = 0; i < made->sanitizers.size(); ++i) { // the linker must not be asked from within the iteration
        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): both arrays have two
        made->sanitizers[i] = reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, of_sanitizers[i]));
    }
    dl_iterate_phdr(add, made);
    // The old one stays: another thread may be reading it. There are as many as there are times that libraries are
    // loaded between connects, and that is few.
    const SpinLock::Hold hold(making);
    current.store(made, std::memory_order_release);
}

} // namespace preload::caller
