// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "preload/path/segment.hpp"

#include <array>
#include <atomic>
#include <new>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "preload/calls/real.hpp"

#ifndef MADV_POPULATE_WRITE // Linux 5.14, which glibc 2.36 names in a newer header only
#define MADV_POPULATE_WRITE 23
#endif

namespace preload::path {

constinit Segment no_segment;

namespace {

constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Addresses of former segments. A waiting thread reads a segment without a lock, while another one may close the
// connection: the addresses stay mapped, to empty memory, and are reused.
struct Unused {
    std::array<std::atomic<void*>, 1023> places{};
    std::atomic<Unused*> more{nullptr};
};
constinit Unused unused;

void* take_unused() {
    for (Unused* some = &unused; some != nullptr; some = some->more.load(std::memory_order_acquire)) {
        for (auto& place : some->places) {
            if (place.load(std::memory_order_relaxed) != nullptr) {
                if (void* at = place.exchange(nullptr); at != nullptr) {
                    return at;
                }
            }
        }
    }
    return nullptr;
}

// Null: no memory.
Unused* behind(Unused& last) {
    Unused* more = last.more.load(std::memory_order_acquire);
    if (more != nullptr) {
        return more;
    }
    void* memory = mmap(nullptr, sizeof(Unused), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    auto* made = static_cast<Unused*>(memory); // zeroes are free places
    if (last.more.compare_exchange_strong(more, made, std::memory_order_acq_rel)) {
        return made;
    }
    munmap(memory, sizeof(Unused));
    return more;
}

bool put_unused(void* at) {
    for (Unused* some = &unused; some != nullptr; some = behind(*some)) {
        for (auto& place : some->places) {
            void* none = nullptr;
            if (place.load(std::memory_order_relaxed) == nullptr && place.compare_exchange_strong(none, at)) {
                return true;
            }
        }
    }
    return false;
}

Segment* map(int fd) {
    void* wanted = take_unused();
    void* at = mmap(wanted, segment_bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE | (wanted != nullptr ? MAP_FIXED : 0), fd, 0);
    if (at == MAP_FAILED) {
        return nullptr; // the old mapping there may be gone: the address is not reused
    }
    madvise(at, segment_bytes, MADV_DONTDUMP);
    return static_cast<Segment*>(at);
}

bool populate_range(void* at, size_t length) {
    // Older kernels return EINVAL: there, lack of memory shows as SIGBUS, as for any mapping.
    return madvise(at, length, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}

} // namespace

int open_memory() { return memfd_create("rspreload", MFD_CLOEXEC | MFD_ALLOW_SEALING); }

Segment* make_segment(uint64_t token, int fd) {
    Segment* segment = nullptr;
    if (fd >= 0 && ftruncate(fd, file_bytes) == 0 &&
        real::fcntl(fd, F_ADD_SEALS, static_cast<unsigned long>(wanted_seals)) == 0) {
        segment = map(fd);
    }
    if (segment == nullptr || !populate_range(segment, rings_offset)) {
        unmap_segment(segment);
        return nullptr;
    }
    new (segment) Segment;
    segment->token = token;
    return segment;
}

Segment* map_segment(int fd, const char*& why) {
    struct stat info {};
    struct statfs system {};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
        why = "it is no memory file";
    } else if (info.st_size != static_cast<off_t>(file_bytes)) {
        why = "its size is wrong";
    } else if ((real::fcntl(fd, F_GET_SEALS, 0UL) & wanted_seals) != wanted_seals) {
        why = "it can be resized";
    } else if (Segment* segment = map(fd); segment == nullptr) {
        why = "it cannot be mapped";
    } else if (!populate_range(segment, rings_offset) || segment->magic != segment_magic) {
        unmap_segment(segment);
        why = "it is not laid out as expected";
    } else {
        return segment;
    }
    return nullptr;
}

void unmap_segment(Segment* segment) {
    if (segment == nullptr) {
        return;
    }
    if (mmap(segment, segment_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) == MAP_FAILED ||
        !put_unused(segment)) {
        munmap(segment, segment_bytes);
    }
}

uint8_t* map_give_back(Segment* segment, unsigned direction) {
    // No descriptor of the file is open any more. A mapping can be made from another one, though, in which it must
    // begin: here in its last page.
    char* last = reinterpret_cast<char*>(segment) + segment_bytes - page;
    const size_t behind = page + direction * give_back_bytes;
    void* at = mremap(last, 0, behind + give_back_bytes, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) {
        return nullptr;
    }
    munmap(at, behind);
    return static_cast<uint8_t*>(at) + behind;
}

void unmap_give_back(uint8_t* area) {
    if (area != nullptr) {
        munmap(area, give_back_bytes);
    }
}

bool populate(Segment* segment, unsigned direction, uint32_t area) {
    return populate_range(ring_memory(segment, direction) + area_offset(area), area_sizes[area]);
}

} // namespace preload::path
