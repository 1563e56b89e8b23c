// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsstat/segments.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "base/stats_page.hpp"
#include "util/common/failure.hpp"

namespace rsstat {

namespace {

namespace fs = std::filesystem;

// A segment that is attached for reading; this has no effect on the process that owns it.
class Attached {
  public:
    explicit Attached(int id) : at_(shmat(id, nullptr, SHM_RDONLY)) {}
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;
    ~Attached() {
        if (ok()) {
            shmdt(at_);
        }
    }
    [[nodiscard]] bool ok() const { return at_ != reinterpret_cast<void*>(-1); } // NOLINT: as in shmat(2)
    [[nodiscard]] const void* get() const { return at_; }

  private:
    void* at_;
};

unsigned for_each_here(const std::function<void(const Segment&, const void*)>& body) {
    unsigned refused = 0;
    std::ifstream list("/proc/sysvipc/shm");
    for (std::string line; std::getline(list, line);) {
        const auto segment = parse_segment(line);
        if (!segment) {
            continue;
        }
        const Attached memory(segment->id);
        if (memory.ok()) {
            body(*segment, memory.get());
        } else if (errno == EACCES) {
            ++refused;
        }
    }
    return refused;
}

// Other IPC namespaces of running processes: a descriptor for each.
std::vector<base::Descriptor> other_namespaces() {
    std::vector<base::Descriptor> others;
    std::set<ino_t> known;
    struct stat info {};
    if (stat("/proc/self/ns/ipc", &info) == 0) {
        known.insert(info.st_ino);
    }
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
        const fs::path space = entry.path() / "ns/ipc";
        if (stat(space.c_str(), &info) == 0 && known.insert(info.st_ino).second) {
            base::Descriptor fd(open(space.c_str(), O_RDONLY | O_CLOEXEC));
            if (fd.open()) {
                others.push_back(std::move(fd));
            }
        }
    }
    return others;
}

} // namespace

std::optional<Segment> parse_segment(const std::string& line) {
    std::istringstream fields(line);
    long long key = 0;
    std::string permissions;
    Segment segment;
    uint64_t attached = 0;
    std::string skipped;
    unsigned user = 0;
    if (!(fields >> key >> segment.id >> permissions >> segment.bytes >> segment.creator >> skipped >> attached >>
          skipped >> skipped >> user)) {
        return {};
    }
    segment.user = user;
    // Mode 0600, marked for removal on the last detach.
    constexpr const char* removed = "1600";
    using base::stats::Library;
    const bool is_of_a_page = segment.bytes == base::stats::page_bytes_of(Library::preload) ||
                              segment.bytes == base::stats::page_bytes_of(Library::sockets);
    return key == 0 && permissions == removed && attached != 0 && is_of_a_page ? std::optional(segment) : std::nullopt;
}

unsigned for_each_segment(const std::function<void(const Segment&, const void*)>& body) {
    unsigned refused = for_each_here(body);
    if (geteuid() == 0) {
        const base::Descriptor own(open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC));
        for (const base::Descriptor& other : other_namespaces()) {
            if (own.open() && setns(other.get(), CLONE_NEWIPC) == 0) {
                refused += for_each_here(body);
                if (setns(own.get(), CLONE_NEWIPC) != 0) { // all later reads would be of another one
                    util::fail("cannot return to the IPC namespace: {}", strerror(errno));
                }
            }
        }
    }
    return refused;
}

} // namespace rsstat
