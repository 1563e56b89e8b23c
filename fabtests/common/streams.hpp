// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Helpers of functional tests for streams: the core and node to use, a byte pattern, and transfers between two ends of
// one process.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "fabtests/common/fabric.hpp"

namespace fabtests {

// The core and the node to test with: FABTESTS_CORE (tcp) and FABTESTS_NODE (127.0.0.1).
std::string core_name();
std::string node_name();
Request here();
// Skips a test that applies to one core only.
void need_core(const std::string& core);

// An endless sequence of bytes whose period matches no buffer size.
class Pattern {
  public:
    explicit Pattern(uint64_t seed);
    void fill(void* to, size_t length);          // generates the next bytes
    void check(const void* from, size_t length); // checks the next bytes; throws at the first wrong one
    [[nodiscard]] uint64_t position() const { return position_; }

  private:
    std::vector<unsigned char> table_;
    uint64_t position_ = 0;
};

// Waits until one of them may have changed, by fi_trywait and poll on endpoints and queues of one fabric.
void wait_for_any(fid_fabric* fabric, const std::vector<fid*>& fids, int timeout_ms = 20000);

// A transfer from one end to the other, in calls of `piece` bytes.
struct Flow {
    Flow(Stream& from, Stream& to, uint64_t total, size_t piece, uint64_t seed);
    [[nodiscard]] bool done() const { return received == total; }
    bool step(); // makes progress; false if nothing was possible

    Stream& from;
    Stream& to;
    uint64_t total;
    uint64_t sent = 0;
    uint64_t received = 0;

  private:
    Pattern out_;
    Pattern in_;
    std::vector<char> sending_; // next bytes to send
    size_t sending_at_ = 0;
    std::vector<char> receiving_;
};

// Runs all flows to completion, in one thread.
void run_flows(std::span<Flow> flows);
// Transfers bytes in one direction, or in both at once.
void move_bytes(Stream& from, Stream& to, uint64_t total, size_t piece = 16384, uint64_t seed = 1);
void exchange_bytes(Stream& a, Stream& b, uint64_t total, size_t piece = 16384, uint64_t seed = 1);

// One side of a transfer, for a separate thread or process.
void send_pattern(Stream& stream, uint64_t total, size_t piece, uint64_t seed);
void recv_pattern(Stream& stream, uint64_t total, size_t piece, uint64_t seed);

// Short forms of libfabric calls.
inline ssize_t send(Stream& s, const void* data, size_t length) {
    return fi_send(s.get(), data, length, nullptr, FI_ADDR_UNSPEC, nullptr);
}
inline ssize_t recv(Stream& s, void* data, size_t length) {
    return fi_recv(s.get(), data, length, nullptr, FI_ADDR_UNSPEC, nullptr);
}
ssize_t send_message(Stream& s, std::initializer_list<iovec> segments, uint64_t flags);
ssize_t recv_message(Stream& s, std::initializer_list<iovec> segments, uint64_t flags);
inline ssize_t peek_recv(Stream& s) { return recv_message(s, {}, FI_PEEK); }
inline ssize_t peek_send(Stream& s) { return send_message(s, {}, FI_PEEK); }
// Waits until that many bytes, EOF or an error can be received; returns the result of FI_PEEK. `sender`: the other end,
// if it is in this thread and may hold back some of them for lack of space; it is called too.
ssize_t await_readable(Stream& s, size_t bytes = 1, Stream* sender = nullptr);
// Sends until there is no space; returns the number of bytes accepted.
uint64_t fill_up(Stream& s, Pattern& pattern, size_t piece = 4096);

// Receives that many bytes and checks them. Calls the sender's end too, so that data held back for lack of credit is
// sent.
void drain_checked(Stream& from, Stream& to, Pattern& expected, uint64_t total);

// Reads the event queues of all hosts until the first has an event, and leaves the event there: if the core makes
// progress on connections only while its queues are read, the other ends' queues must be read as well. Events of the
// others are not consumed.
void await_event(std::initializer_list<Host*> hosts, int timeout_ms = 20000);

// fi_trywait on one endpoint or queue.
int try_wait(Host& host, fid* one);
// The descriptor of an endpoint or queue.
int wait_fd(fid* one);
// Whether the descriptor is readable, or becomes readable in time.
bool readable(int fd, int timeout_ms = 0);

// The address of a kernel TCP port without a listener.
std::vector<std::byte> closed_port();
// Converts an address to a line of text and back, for other processes.
std::string to_text(const std::vector<std::byte>& bytes);
std::vector<std::byte> from_text(const std::string& text);

// Descriptors of a process without connections on this host, when those that the provider keeps for the next ones are
// there.
size_t fds_at_rest(Host& host);
// Entries of /proc/self/fd, and lines of /proc/self/maps.
size_t open_fds();
size_t mappings();
// Resident memory, or the size of the address space, in bytes.
size_t resident_bytes();
size_t address_space_bytes();

} // namespace fabtests
