// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Makes the pattern, writes it, and compares what is read.
#include "preload/test/torture_parts/stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace torture {

namespace {

thread_local std::vector<uint8_t> buffer(max_size);
thread_local std::vector<uint8_t> wanted(max_size + 8);

void make_pattern(uint64_t key, uint64_t position, size_t size, uint8_t* to) {
    for (size_t done = 0; done < size;) {
        const uint64_t word = Random(key ^ ((position + done) >> 3)).next();
        const size_t first = (position + done) & 7;
        const size_t n = std::min(size - done, 8 - first);
        memcpy(to + done, reinterpret_cast<const uint8_t*>(&word) + first, n);
        done += n;
    }
}

void verify(End& e, const uint8_t* data, size_t size, const char* how) {
    const uint64_t at = e.in;
    char name[96];
    if (at + size > e.total_in) {
        name_of(e, name);
        fail("%s: %zu bytes more than were sent, at %llu (%s)", name, static_cast<size_t>(at + size - e.total_in),
             static_cast<unsigned long long>(at), how);
    }
    make_pattern(e.key_in, at, size, wanted.data());
    if (memcmp(data, wanted.data(), size) != 0) {
        size_t i = 0;
        while (data[i] == wanted[i]) {
            ++i;
        }
        name_of(e, name);
        // Where is it from? Looked for nearby.
        long long from = -1;
        if (size - i >= 16) {
            std::vector<uint8_t> around(4 << 20);
            const uint64_t begin = at + i > around.size() / 2 ? at + i - around.size() / 2 : 0;
            make_pattern(e.key_in, begin, around.size(), around.data());
            if (const void* found = memmem(around.data(), around.size(), data + i, 16); found != nullptr) {
                from = static_cast<long long>(begin) + (static_cast<const uint8_t*>(found) - around.data());
            }
        }
        fail("%s: byte %llu is wrong (%zu of %zu in a %s): 0x%02x, not 0x%02x; it is that of position %lld", name,
             static_cast<unsigned long long>(at + i), i, size, how, data[i], wanted[i], from);
    }
}

void look_at_path(End& e, int fd) {
    if (path_of != nullptr) {
        const int path = path_of(fd);
        e.path = path;
        e.seen[path + 1].fetch_add(1, std::memory_order_relaxed);
    }
}

} // namespace

int (*const path_of)(int) = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "rspreload_path"));

long write_some(End& e, int fd, Random& random, uint64_t limit) {
    const size_t size = random.size(std::min<uint64_t>(limit, max_size));
    const uint64_t at = e.out;
    make_pattern(e.key_out, at, size, buffer.data());
    ssize_t n = 0;
    switch (random.below(4)) {
    case 0:
        n = write(fd, buffer.data(), size);
        break;
    case 1:
        n = send(fd, buffer.data(), size, MSG_NOSIGNAL);
        break;
    default: {
        const size_t first = random.below(size + 1);
        iovec parts[3] = {{buffer.data(), first}, {nullptr, 0}, {buffer.data() + first, size - first}};
        if (random.below(2) == 0) {
            n = writev(fd, parts, 3);
        } else {
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = 3;
            n = sendmsg(fd, &message, MSG_NOSIGNAL);
        }
    }
    }
    const int error = errno;
    look_at_path(e, fd);
    if (n < 0) {
        return -error;
    }
    if (n == 0 || static_cast<size_t>(n) > size) {
        char name[96];
        name_of(e, name);
        fail("%s: a write of %zu bytes gives %zd", name, size, n);
    }
    e.out = at + static_cast<uint64_t>(n);
    ++e.steps;
    return n;
}

long read_some(End& e, int fd, Random& random, int flags) {
    const size_t size = random.size(max_size);
    ssize_t n = 0;
    const char* how = "read";
    if (random.below(16) == 0) {
        n = recv(fd, buffer.data(), size, MSG_PEEK | flags);
        if (n > 0) {
            verify(e, buffer.data(), static_cast<size_t>(n), "peek");
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return -errno; // an error is reported once
        }
    }
    switch (random.below(4)) {
    case 0:
        n = read(fd, buffer.data(), size);
        break;
    case 1:
        how = "recv";
        n = recv(fd, buffer.data(), size, flags);
        break;
    default: {
        const size_t first = random.below(size + 1);
        iovec parts[3] = {{buffer.data(), first}, {nullptr, 0}, {buffer.data() + first, size - first}};
        if (random.below(2) == 0) {
            how = "readv";
            n = readv(fd, parts, 3);
        } else {
            how = "recvmsg";
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = 3;
            n = recvmsg(fd, &message, flags);
        }
    }
    }
    const int error = errno;
    look_at_path(e, fd);
    if (n < 0) {
        return -error;
    }
    verify(e, buffer.data(), static_cast<size_t>(n), how);
    e.in += static_cast<uint64_t>(n);
    shared->verified.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    ++e.steps;
    return n;
}

void check(End& e, long result, const char* what) {
    if (result == 0 || (result < 0 && result != -EAGAIN && result != -EINTR)) {
        if (shared->kill_side && (result == 0 || result == -ECONNRESET || result == -EPIPE)) {
            throw PeerGone{static_cast<int>(-result)};
        }
        char name[96];
        name_of(e, name);
        fail("%s: %s gives %s, read %llu of %llu, written %llu of %llu", name, what,
             result == 0 ? "the end of the stream" : strerror(static_cast<int>(-result)),
             static_cast<unsigned long long>(e.in), static_cast<unsigned long long>(e.total_in),
             static_cast<unsigned long long>(e.out), static_cast<unsigned long long>(e.total_out));
    }
}

} // namespace torture
