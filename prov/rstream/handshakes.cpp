// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/handshakes.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.hpp"
#include "prov/rstream/core_descriptors.hpp"
#include "prov/rstream/log.hpp"

namespace rstream {

namespace {

int socket_option(int fd, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

bool is_stream_of_internet(int fd) {
    const int domain = socket_option(fd, SO_DOMAIN);
    return (domain == AF_INET || domain == AF_INET6) && socket_option(fd, SO_TYPE) == SOCK_STREAM;
}

// The numbers behind "tfd:", one a line: proc(5).
void parse(std::string_view text, std::vector<int>& out) {
    constexpr std::string_view mark = "tfd:";
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (!line.starts_with(mark)) {
            continue;
        }
        line.remove_prefix(std::min(line.find_first_not_of(' ', mark.size()), line.size()));
        int fd = -1;
        if (std::from_chars(line.data(), line.data() + line.size(), fd).ec == std::errc()) {
            out.push_back(fd);
        }
    }
}

} // namespace

// False if there was no descriptor or memory to look with.
bool Handshakes::list(std::vector<int>& out) {
    const std::string path = "/proc/self/fdinfo/" + std::to_string(set_);
    const base::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
            return false;
        }
        RSTREAM_WARN(FI_LOG_EP_CTRL,
                     "%s cannot be read: whoever connects and says half a request holds up this process\n",
                     path.c_str());
        blind_ = true;
        return true;
    }
    std::string text;
    char piece[4096];
    for (ssize_t got = sizeof(piece); got == sizeof(piece) && (got = read(file.get(), piece, sizeof(piece))) > 0;) {
        text.append(piece, static_cast<size_t>(got)); // which the kernel makes in one piece
    }
    parse(text, out);
    return true;
}

Handshakes::Found Handshakes::look(Time now) {
    std::vector<int> members;
    if (!blind_ && !list(members)) {
        return Found::unknown;
    }
    std::vector<Handshake> present;
    present.reserve(members.size());
    std::vector<int> unknown;
    for (const int fd : members) {
        // A number may stand for another socket by now, which blocks, as the core leaves it until it has the request.
        const auto known =
            std::find_if(handshakes_.begin(), handshakes_.end(), [fd](const Handshake& one) { return one.fd == fd; });
        if (known != handshakes_.end() && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) {
            present.push_back(*known);
        } else if (std::find(lasting_.begin(), lasting_.end(), fd) == lasting_.end()) {
            unknown.push_back(fd);
        }
    }
    bool changed = present.size() != handshakes_.size();
    std::sort(present.begin(), present.end(), [](const auto& a, const auto& b) { return a.since < b.since; });
    for (const int fd : unknown) {
        const bool stream = is_stream_of_internet(fd);
        if (stream && socket_option(fd, SO_ACCEPTCONN) != 1) {
            fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
            (void)close_on_exec(fd);
            present.push_back({fd, now, false});
            changed = true;
            continue;
        }
        lasting_.push_back(fd);
        if (stream) {
            listener_ = fd;
        }
    }
    handshakes_ = std::move(present);
    size_t waiting = static_cast<size_t>(
        std::count_if(handshakes_.begin(), handshakes_.end(), [](const Handshake& one) { return !one.ended; }));
    for (Handshake& one : handshakes_) {
        if (waiting <= max_) {
            break;
        }
        if (!one.ended) {
            end(one);
            --waiting;
        }
    }
    return changed ? Found::changed : Found::same;
}

// Nothing can be read from it any more, not even what has come: a request would be served that nobody waits for.
void Handshakes::end(Handshake& handshake) {
    constexpr int max_pieces = 64; // what a receive buffer holds at most; its sender may be quicker than we
    char scratch[16384];
    (void)::shutdown(handshake.fd, SHUT_RDWR);
    for (int i = 0; i < max_pieces && recv(handshake.fd, scratch, sizeof(scratch), MSG_DONTWAIT) > 0; ++i) {
    }
    handshake.ended = true;
}

void Handshakes::end_late(Time now) {
    for (Handshake& one : handshakes_) {
        if (!one.ended && now - one.since >= limit_) {
            end(one);
        }
    }
}

void Handshakes::end_all() {
    for (Handshake& one : handshakes_) {
        if (!one.ended) {
            end(one);
        }
    }
}

void Handshakes::stop_listening() {
    if (listener_ >= 0) {
        (void)::shutdown(listener_, SHUT_RDWR);
    }
}

std::optional<Handshakes::Time> Handshakes::deadline() const {
    const auto first =
        std::find_if(handshakes_.begin(), handshakes_.end(), [](const Handshake& one) { return !one.ended; });
    return first == handshakes_.end() ? std::nullopt : std::optional(first->since + limit_);
}

} // namespace rstream
