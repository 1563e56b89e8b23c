// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The fabric as rping and ucmatose use it: connections, their queues, and registered memory. There are two backends:
// util/fabric on libfabric, util/rdmacm on librdmacm and libibverbs. All objects are used by a single thread.
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

// An object that a program can sleep on.
class Waitable {
  public:
    virtual ~Waitable() = default;
    // False if something is already available. After true, a descriptor of add_to becomes readable when something is.
    virtual bool may_sleep() = 0;
    virtual void add_to(std::vector<pollfd>& descriptors) const = 0;
};

// Memory for the operations of a connection. Initially zero.
class Memory {
  public:
    virtual ~Memory() = default;
    [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
    // The address that the peer uses in its reads and writes.
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
    size_t length = 0; // of the received message
    bool failed = false;
    std::string reason; // of a failure; empty if it is only the end of the connection
};

// The capacities that a connection's queues must have. own: the application creates the queues itself, see -q.
struct QueueSizes {
    size_t sends = 1; // includes reads and writes
    size_t receives = 1;
    bool own = false;
};

// Settings of the path, given before it is known which backend supports them.
struct PathSettings {
    std::optional<uint8_t> type_of_service;
    std::optional<uint8_t> ack_timeout;
    bool ib_port_space = false;
};

// One connection, at either end. Destroying the object ends the connection.
class Connection : public Waitable {
  public:
    // Creates the queues, which all calls below need. Throws a Failure that says which size exceeds the device's limit.
    virtual void make_queues(const QueueSizes& sizes) = 0;
    virtual std::unique_ptr<Memory> allocate(size_t size, Access access) = 0;

    virtual void receive(Memory& memory, size_t length) = 0;
    virtual void send(Memory& memory, size_t length) = 0;
    virtual void read(Memory& memory, size_t length, const RemoteBuffer& from) = 0;
    virtual void write(Memory& memory, size_t length, const RemoteBuffer& to) = 0;
    // Returns completions in order.
    virtual std::optional<Completion> completion() = 0;

    // The peer can read the private data. An event reports the result.
    virtual void connect(std::span<const std::byte> data) = 0;
    virtual void accept(std::span<const std::byte> data) = 0;
    virtual void reject(std::span<const std::byte> data) = 0;
    // May be called repeatedly, and after the peer has ended the connection.
    virtual void disconnect() = 0;

    [[nodiscard]] virtual std::string peer() const = 0;
    [[nodiscard]] virtual size_t max_message() const = 0;
    [[nodiscard]] virtual size_t max_sends() const = 0;
    [[nodiscard]] virtual size_t max_receives() const = 0;
    // Whether a message waits until the peer has posted a receive; otherwise the connection fails.
    [[nodiscard]] virtual bool waits_for_receives() const = 0;
};

struct Event {
    enum class Type { request, established, disconnected, failed };
    Type type = Type::failed;
    Connection* connection = nullptr;    // set for all events except requests
    std::unique_ptr<Connection> request; // to be accepted or rejected
    Bytes data;                          // private data of the peer, at a request, an establishment or a rejection
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
    // Moves the connection's events to this queue. It must come from a queue of the same backend.
    virtual void adopt(Connection& connection) = 0;
    virtual void adopt(Listener& listener) = 0;
};

class Backend {
  public:
    virtual ~Backend() = default;
    // "fabric" or "rdmacm", and the underlying provider or device.
    [[nodiscard]] virtual std::string_view name() const = 0;
    [[nodiscard]] virtual std::string device() const = 0;
    virtual std::unique_ptr<EventQueue> open_events() = 0;
    virtual std::unique_ptr<Listener> listen(EventQueue& events, const Address& local, int backlog) = 0;
    // A new connection: next create its queues and connect it. local may be empty.
    virtual std::unique_ptr<Connection> open(EventQueue& events, const std::optional<Address>& local,
                                             const Address& remote) = 0;
};

} // namespace util
