// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The last bytes of a peer that has gone, for splice(2): nobody can send them again by the kernel's connection, so they
// go from memory into the pipe.
#include "preload/connection/stream_internal.hpp"

#include <algorithm>

#include <fcntl.h>
#include <sys/mman.h>

#include "preload/base/system.hpp"
#include "preload/stats/page.hpp"

namespace preload::stream {

namespace {

// Pages that the pipe keeps, whatever becomes of this mapping.
class Pages {
  public:
    explicit Pages(size_t size) : size_(size) {
        const long made =
            sys::call(SYS_mmap, nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        data_ = made < 0 && made > -4096 ? nullptr : reinterpret_cast<void*>(made); // NOLINT(performance-no-int-to-ptr)
    }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    ~Pages() {
        if (data_ != nullptr) {
            sys::call(SYS_munmap, data_, size_);
        }
    }
    [[nodiscard]] void* data() const { return data_; }

  private:
    size_t size_;
    void* data_ = nullptr;
};

} // namespace

ssize_t splice_last_bytes(Connection& c, int fd, int pipe, size_t count) {
    constexpr size_t at_once = 64 << 10; // as many as a pipe holds
    const Pages pages(at_once);
    const ReadSection section(c, fd);
    if (!section) {
        return section.error();
    }
    if (pages.data() == nullptr) {
        return -ENOMEM;
    }
    ConnectionState& s = *c.state.load();
    if (s.giving_back) { // begun for the peer, before it ended
        const ssize_t step = give_back_step(c, fd);
        if (step == -EAGAIN) {
            return not_yet;
        }
        give_back_ended(c, fd, step);
        s.handed_over = false;
    }
    if (s.broken || !has_bytes_in_memory(c)) {
        return 0;
    }
    iovec part{pages.data(), std::min(count, at_once)};
    Parts peeked(&part, 1);
    const ssize_t there = read_locked(c, fd, peeked, MSG_PEEK, false);
    if (there <= 0) {
        return there == -EAGAIN ? not_yet : there;
    }
    part.iov_len = static_cast<size_t>(there);
    const long moved = sys::call(SYS_vmsplice, pipe, &part, 1, SPLICE_F_NONBLOCK);
    if (moved > 0) {
        part.iov_len = static_cast<size_t>(moved);
        Parts read(&part, 1);
        const uint64_t before = s.bytes_in.load();
        read_locked(c, fd, read, MSG_TRUNC, false); // what was peeked at, and is in the pipe now
        stats::moved_locked(c, s, true, static_cast<uint64_t>(moved), s.bytes_in.load() - before, s.in.capacity());
    }
    return moved;
}

} // namespace preload::stream
