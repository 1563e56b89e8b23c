// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Messages between two services, as values: fixed sizes, host byte order, since both are on one host. Messages of
// another size, magic or version are ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "preload/rendezvous/ends.hpp"

namespace preload::rendezvous {

inline constexpr uint32_t protocol_version = 7;

// From the second end to the first, carrying the memory file.
struct Hello {
    static constexpr uint64_t expected_magic = 0x6f6c6c65'48737372; // "rssHello"
    uint64_t magic = expected_magic;
    uint32_t version = protocol_version;
    uint32_t bytes = 0;   // of the memory file
    uint64_t token = 0;   // as in the memory file
    uint64_t service = 0; // the sender's, not 0
};

// The first end has mapped it.
struct Answer {
    static constexpr uint64_t expected_magic = 0x72657773'6e417372; // "rsAnswer"
    uint64_t magic = expected_magic;
    uint32_t version = protocol_version;
    uint32_t reserved = 0;
    uint64_t token = 0;
    uint64_t service = 0;
};

// On a channel, about the connection with these ends, as the sender sees them. An offer carries the memory file.
struct Proposal {
    static constexpr uint64_t expected_magic = 0x706f7250'68437372; // "rsChProp"
    enum Kind : uint32_t {
        ready = 1, // the sender's end is due for an upgrade; the receiver replies likewise, or offers, once its own is
        offer = 2, // from the second end to the first
        taken = 3, // the first end has mapped it
        declined = 4 // the first end has not
    };
    uint64_t magic = expected_magic;
    uint32_t version = protocol_version;
    uint32_t kind = 0;
    uint64_t token = 0; // of an offer and its answers, as in the memory file
    Ends ends;
    uint32_t bytes = 0; // of an offer: size of the memory file
};

// To a service at any time, as are the following ones, behind the service's number (rendezvous/inbox.hpp): attend to
// the connection of this token. 0: to all pending work.
struct Attend {
    static constexpr uint64_t expected_magic = 0x646e6574'74417372; // "rsAttend"
    uint64_t magic = expected_magic;
    uint64_t token = 0;
};

// To a service: wake the waiter of this id, and send its descriptor, so that no further request is needed. See
// wait/wakeup.hpp.
struct WakeupWanted {
    static constexpr uint64_t expected_magic = 0x65746e61'57747372; // "rstWante"
    uint64_t magic = expected_magic;
    uint64_t token = 0; // of a connection that both have
    uint64_t id = 0;
    uint64_t service = 0; // the sender's, for the answer
};

// The answer, carrying the descriptor and its page's (see wait/wakeup_page.hpp), or, to another user's process, the
// write end of a pipe, see wait/wakeup_pipe.hpp. With neither, frames must wake the waiter.
struct WakeupGiven {
    static constexpr uint64_t expected_magic = 0x6e657669'47747372; // "rstGiven"
    uint64_t magic = expected_magic;
    uint64_t token = 0;
    uint64_t id = 0;
};

// To a process that has waited in an epoll set, from another one that inherited it by fork and waits in it, too.
struct SetsShared {
    static constexpr uint64_t expected_magic = 0x64657261'68537372; // "rsShared"
    uint64_t magic = expected_magic;
    uint64_t reserved = 0;
};

template <class Message> std::optional<Message> parse(std::span<const uint8_t> bytes) {
    Message message;
    if (bytes.size() != sizeof(message)) {
        return std::nullopt;
    }
    memcpy(static_cast<void*>(&message), bytes.data(), sizeof(message));
    if (message.magic != Message::expected_magic) {
        return std::nullopt;
    }
    if constexpr (requires { message.version; }) {
        if (message.version != protocol_version) {
            return std::nullopt;
        }
    }
    if constexpr (requires { message.service; }) {
        if (message.service == 0 || message.token == 0) {
            return std::nullopt;
        }
    }
    if constexpr (requires { message.kind; }) {
        if (message.kind < Message::ready || message.kind > Message::declined ||
            (message.token == 0) != (message.kind == Message::ready)) {
            return std::nullopt;
        }
    }
    return message;
}

} // namespace preload::rendezvous
