// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The fabric as rping and ucmatose see it: connections, their queues, and registered memory. There are two of them:
// util/fabric on libfabric, util/rdmacm on librdmacm and libibverbs. One thread drives all of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>

#include "util/common/address.hpp"

namespace util {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

// Something that a program sleeps on.
class Waitable {
  public:
    virtual ~Waitable() = default;
    // False if there is something to take already. True promises that a descriptor of add_to becomes readable
    // otherwise.
    virtual bool may_sleep() = 0;
    virtual void add_to(std::vector<pollfd>& descriptors) const = 0;
};

// Memory that a connection's operations may use. Zeroed at first.
class Memory {
  public:
    virtual ~Memory() = default;
    [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
    // How the peer names it in its reads and writes.
    [[nodiscard]] virtual uint64_t remote_address() const = 0;
    [[nodiscard]] virtual uint64_t remote_key() const = 0;
};

// Whether the peer may read and write it.
enum class Access { local, remote };

// Memory of the peer.
struct RemoteBuffer {
    uint64_t address = 0;
    uint64_t key = 0;
};

enum class Operation { send, receive, read, write };

struct Completion {
    Operation operation = Operation::send;
    size_t length = 0; // of what was received
    bool failed = false;
    std::string reason; // of a failure; empty if the connection's end is all there is to it
};

// What a connection's queues must hold at once. own: the application makes them itself, see -q.
struct QueueSizes {
    size_t sends = 1; // reads and writes count too
    size_t receives = 1;
    bool own = false;
};

// What can be asked of the path, before it is known which backend can do it.
struct PathSettings {
    std::optional<uint8_t> type_of_service;
    std::optional<uint8_t> ack_timeout;
    bool ib_port_space = false;
};

// One connection, at either end. It ends with the object.
class Connection : public Waitable {
  public:
    // Makes the queues; what comes below needs them. A Failure says which size is too large for the device.
    virtual void make_queues(const QueueSizes& sizes) = 0;
    virtual std::unique_ptr<Memory> allocate(size_t size, Access access) = 0;

    virtual void receive(Memory& memory, size_t length) = 0;
    virtual void send(Memory& memory, size_t length) = 0;
    virtual void read(Memory& memory, size_t length, const RemoteBuffer& from) = 0;
    virtual void write(Memory& memory, size_t length, const RemoteBuffer& to) = 0;
    // What has completed, in order.
    virtual std::optional<Completion> completion() = 0;

    // The private data is the peer's to read. An event tells how it went.
    virtual void connect(std::span<const std::byte> data) = 0;
    virtual void accept(std::span<const std::byte> data) = 0;
    virtual void reject(std::span<const std::byte> data) = 0;
    // May be called again, and after the peer has ended the connection.
    virtual void disconnect() = 0;

    [[nodiscard]] virtual std::string peer() const = 0;
    [[nodiscard]] virtual size_t max_message() const = 0;
    [[nodiscard]] virtual size_t max_sends() const = 0;
    [[nodiscard]] virtual size_t max_receives() const = 0;
    // Whether a message waits until the peer has posted a receive; if not, the connection breaks.
    [[nodiscard]] virtual bool waits_for_receives() const = 0;
};

struct Event {
    enum class Type { request, established, disconnected, failed };
    Type type = Type::failed;
    Connection* connection = nullptr;    // all but requests: whose
    std::unique_ptr<Connection> request; // to be accepted or rejected
    Bytes data;                          // what the peer said, at a request, an establishment or a rejection
    std::string reason;                  // of a failure
};

class Listener {
  public:
    virtual ~Listener() = default;
    [[nodiscard]] virtual Address local() const = 0;
};

class EventQueue : public Waitable {
  public:
    virtual std::optional<Event> next() = 0;
    // From now on its events come here. Taken from the same backend's queues only.
    virtual void adopt(Connection& connection) = 0;
    virtual void adopt(Listener& listener) = 0;
};

class Backend {
  public:
    virtual ~Backend() = default;
    // fabric or rdmacm, and what is below it.
    [[nodiscard]] virtual std::string_view name() const = 0;
    [[nodiscard]] virtual std::string device() const = 0;
    virtual std::unique_ptr<EventQueue> open_events() = 0;
    virtual std::unique_ptr<Listener> listen(EventQueue& events, const Address& local, int backlog) = 0;
    // A connection to be: make its queues and connect it. local may be empty.
    virtual std::unique_ptr<Connection> open(EventQueue& events, const std::optional<Address>& local,
                                             const Address& remote) = 0;
};

} // namespace util
