// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_stream_cp: copies a file. The client sends its size, its bytes, and their CRC-32; the server answers with what it
// has computed from what it wrote. Both must agree.
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "fabtests/common/transport.hpp"
#include "util/common/json.hpp"

using namespace fabtests;

namespace {

struct Head {
    uint64_t magic = 0x7270632d6d727473; // two programs of different kinds must not mistake each other
    uint64_t size = 0;
};

struct Tail {
    uint64_t size = 0;
    uint64_t crc = 0;
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + strerror(errno)); }

class File {
  public:
    File(const std::string& name, int flags) : name_(name), fd_(open(name.c_str(), flags | O_CLOEXEC, 0644)) {
        if (fd_ < 0) {
            fail(name);
        }
    }
    ~File() { ::close(fd_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    [[nodiscard]] uint64_t size() const {
        struct stat status {};
        if (fstat(fd_, &status) != 0) {
            fail(name_);
        }
        return static_cast<uint64_t>(status.st_size);
    }
    void read_all(char* data, size_t length) {
        for (size_t done = 0; done < length;) {
            const ssize_t got = read(fd_, data + done, length - done);
            if (got < 0 && errno != EINTR) {
                fail(name_);
            }
            if (got == 0) {
                throw std::runtime_error(name_ + " became shorter while it was sent");
            }
            done += static_cast<size_t>(std::max<ssize_t>(got, 0));
        }
    }
    void write_all(const char* data, size_t length) {
        for (size_t done = 0; done < length;) {
            const ssize_t put = write(fd_, data + done, length - done);
            if (put < 0 && errno != EINTR) {
                fail(name_);
            }
            done += static_cast<size_t>(std::max<ssize_t>(put, 0));
        }
    }

  private:
    std::string name_;
    int fd_;
};

uLong checksum(uLong crc, const char* data, size_t length) {
    return crc32_z(crc, reinterpret_cast<const Bytef*>(data), length);
}

int send_file(const Options& o) {
    File file(o.file, O_RDONLY);
    const auto t = open_stream(o);
    const auto start = std::chrono::steady_clock::now();
    Head head;
    head.size = file.size();
    t->send(&head, sizeof(head));
    std::vector<char> buffer(o.size);
    Tail tail;
    tail.crc = crc32_z(0, nullptr, 0);
    while (tail.size < head.size) {
        const size_t length = std::min<uint64_t>(buffer.size(), head.size - tail.size);
        file.read_all(buffer.data(), length);
        t->send(buffer.data(), length);
        tail.crc = checksum(tail.crc, buffer.data(), length);
        tail.size += length;
    }
    t->send(&tail, sizeof(tail));
    Tail theirs;
    t->recv(&theirs, sizeof(theirs));
    if (theirs.size != tail.size || theirs.crc != tail.crc) {
        throw std::runtime_error("the copy differs from " + o.file);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (o.json) {
        std::array<char, 17> crc{};
        snprintf(crc.data(), crc.size(), "%08llx", static_cast<unsigned long long>(tail.crc));
        const util::Json json = {{"test", "cp"},
                                 {"bytes", tail.size},
                                 {"seconds", seconds},
                                 {"mb_per_s", static_cast<double>(tail.size) / seconds / 1e6},
                                 {"crc32", crc.data()}};
        printf("%s\n", util::json_text(json).c_str());
    } else {
        printf("%llu bytes in %.3f s, %.1f MB/s, crc32 %08llx on both ends\n",
               static_cast<unsigned long long>(tail.size), seconds, static_cast<double>(tail.size) / seconds / 1e6,
               static_cast<unsigned long long>(tail.crc));
    }
    t->close();
    return 0;
}

int receive_file(const Options& o) {
    File file(o.file, O_WRONLY | O_CREAT | O_TRUNC);
    const auto t = open_stream(o);
    Head head;
    const Head expected;
    t->recv(&head, sizeof(head));
    if (head.magic != expected.magic) {
        throw std::runtime_error("the peer is not fi_stream_cp");
    }
    std::vector<char> buffer(o.size);
    Tail mine;
    mine.crc = crc32_z(0, nullptr, 0);
    while (mine.size < head.size) {
        const size_t length = std::min<uint64_t>(buffer.size(), head.size - mine.size);
        t->recv(buffer.data(), length);
        file.write_all(buffer.data(), length);
        mine.crc = checksum(mine.crc, buffer.data(), length);
        mine.size += length;
    }
    Tail theirs;
    t->recv(&theirs, sizeof(theirs));
    t->send(&mine, sizeof(mine));
    t->close();
    if (theirs.size != mine.size || theirs.crc != mine.crc) {
        throw std::runtime_error("the copy in " + o.file + " differs from what was sent");
    }
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    const Options o = parse_options(argc, argv, "fi_stream_cp: copies a file from the client to the server, verified",
                                    {}, "the client's file to send; the server's file to write");
    return run(o, [&] {
        if (o.file.empty() || o.kind() != Kind::stream) {
            throw std::runtime_error(o.file.empty() ? "the file is missing: give it with --file"
                                                    : "only rstream copies files");
        }
        return o.is_client() ? send_file(o) : receive_file(o);
    });
}
