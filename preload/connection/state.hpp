// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What is known of one end of a TCP connection. It lives in memory that a process shares with its children, as they
// share the descriptor: whoever uses the connection finds here how its bytes go, and tells the others.
//
//     plain    every call is the kernel's; calls in flight are counted
//     careful  no call of the kernel's may block or run alone any more: each goes under read_lock or write_lock, so
//     that
//              the positions of the stream are known, and bytes may be in the ring
//     pinned   for good, or until the reason is gone: the kernel's; nothing is counted
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/connection/owner_lock.hpp"
#include "preload/path/ring.hpp"

namespace preload {

// The gate of calls: flags above a count of plain calls in flight.
namespace gate {
inline constexpr uint64_t one = 1;
inline constexpr uint64_t count_mask = 0xffffffff;
inline constexpr uint64_t careful = uint64_t{1} << 32;
inline constexpr uint64_t wanted = uint64_t{1} << 33; // to become careful when no plain call is in flight
inline constexpr uint64_t pinned = uint64_t{1} << 34;
} // namespace gate

// Why a connection is with the kernel. explain.cpp has the texts.
enum class Reason : uint8_t {
    none,
    young,          // it ended before it was worth it
    no_peer,        // nobody answers for the other end
    remote,         // the other end is on another host or in another network namespace
    other_user,     // the answer came from a process that does not own the other end
    rule,           // a rule says so
    not_named,      // there are rules, and none names it
    never,          // RSPRELOAD_UPGRADE=never
    half_closed,    // one direction was shut down
    past_library,   // bytes were moved past the library
    option,         // an option that only the kernel has
    urgent,         // MSG_OOB
    stdio,          // a stream of stdio reads or writes it
    asynchronous,   // aio or signal-driven I/O
    passed,         // passed to another process
    executed,       // another program was executed on it
    several,        // several processes use it, and not all have the memory
    sandboxed,      // the process has a seccomp filter
    no_memory,      // memory, descriptors or a thread could not be had
    self_connected, // both ends are one socket
    peer_asked,     // the other end asked for it
    broken,         // the other end broke the protocol
    failed,         // what the other end sent to agree on the path was wrong
    spliced,        // splice from or to something that cannot be copied
    shared_set,     // several processes wait in an epoll set that it is a member of
    fabric_lost,    // the fabric has failed
    no_device,      // to another host, and the own address is none of an RDMA device
    port_taken,     // to another host, and another socket of the fabric has the port at which both ends meet
};

// A process with a filter of system calls moves bytes past the library, and nobody counts them.
enum class Uncounted : uint8_t {
    no,
    yes,
    before, // and it was seen to be gone: nobody but this process has the connection
};

// By shutdown at this end.
enum class WriteShut : uint8_t { no, begun, done };

// After a failure of the fabric, see stream_recovery.cpp.
enum class Recovery : uint8_t { none, begun, sent };

struct alignas(64) ConnectionState {
    // First: the only member that outlives its connection, since a call may be in flight when another thread closes.
    std::atomic<uint64_t> gate{0};
    std::atomic<uint32_t> calls{0};    // that moved bytes
    std::atomic<uint32_t> worth_at{0}; // the number of calls at which an upgrade is tried
    std::atomic<uint64_t> received{0}; // the TCP positions: bytes that calls took from the kernel
    std::atomic<uint64_t> sent{0};     // and gave to it, frames included
    uint64_t received_base = 0;        // of a descriptor that came with exec or SCM_RIGHTS: where counting began
    uint64_t sent_base = 0;
    std::atomic<uint64_t> bytes_in{0}; // by the ring, for the record
    std::atomic<uint64_t> bytes_out{0};
    std::atomic<uint8_t> connected_out{0}; // 1: this end called connect, so its SYN counts as a byte acknowledged
    std::atomic<bool> adopted{false};      // it was there before the library knew it
    std::atomic<Uncounted> uncounted{Uncounted::no};
    std::atomic<uint32_t> holders{1}; // processes that have it open
    // The same without those that are about to close it: exactly one of several that do at once finds itself the last.
    std::atomic<uint32_t> open{1};
    uint64_t link = 0;                    // of the lists of the process that made it
    std::atomic<bool> nonblocking{false}; // kept while careful
    // The program's TCP_NODELAY and TCP_CORK while careful. The kernel's are set so that frames go at once.
    std::atomic<int> nodelay{0};
    std::atomic<int> cork{0};
    // As the kernel has them: TCP_INQ, and one of SO_TIMESTAMP and SO_TIMESTAMPNS.
    std::atomic<int> inq{0};
    std::atomic<int> timestamp{0};
    std::atomic<Reason> reason{Reason::none};
    std::atomic<uint32_t> attempts{0};
    std::atomic<uint32_t> sleepers{0}; // threads asleep on it
    std::atomic<WriteShut> write_shut{WriteShut::no};
    std::atomic<bool> read_shut{false};   // by shutdown at this end
    std::atomic<bool> time_limits{false}; // SO_RCVTIMEO or SO_SNDTIMEO was set

    // Careful only, from here on.
    std::atomic<uint64_t> bytes_sent_to{0}; // the TCP position behind the program's last byte, frames left out
    alignas(64) OwnerLock read_lock;
    path::Cursor in;
    std::atomic<uint32_t> in_epoch{0}; // as ReaderFields::epoch; here the peer cannot change it
    std::atomic<uint32_t> frames_seen{0};
    uint64_t asked_kernel_ns = 0;           // for frames, or the end
    uint32_t empty_reads = 0;               // in a row, since then
    bool resume_seen = false;               // Frame::resume was taken; the ring has to be emptied first
    std::atomic<bool> awaits_resume{false}; // what is in the ring is not read any more: it was asked for again
    std::atomic<bool> giving_back{false};   // nothing is read any more, see stream_hand_over.cpp
    std::atomic<uint64_t> giving_since_ns{0};
    std::atomic<bool> handed_over{false}; // to somebody who knows nothing of the ring: no reading in between
    uint64_t taken_read = 0;              // of them, if the peer has ended
    std::atomic<uint64_t> taken{0};       // bytes in the give-back area that the peer has not sent again

    alignas(64) OwnerLock write_lock;
    path::Cursor out;
    path::Cursor out_before; // the area before this one, for what is sent again
    std::atomic<uint32_t> out_epoch{0};
    std::atomic<bool> resume_due{false}; // before any more bytes, the kernel's connection takes Frame::resume
    std::atomic<uint64_t> give_from{0};  // then these bytes of the give-back area
    std::atomic<uint64_t> give_to{0};
    std::atomic<uint64_t> backlog_from{0}; // and then these positions of the ring again
    std::atomic<uint64_t> backlog_to{0};
    std::atomic<uint32_t> halted_epoch{0}; // by Request::halt
    std::atomic<uint64_t> halted_ns{0};
    std::atomic<uint64_t> switched_ns{0}; // when the own epoch of now began
    uint64_t ask_ns = 0;                  // when the peer is asked again to switch, too; with the write lock
    uint64_t ask_pause_ns = 0;
    std::atomic<bool> wake_due{false}; // a frame for the peer's writer
    std::atomic<uint32_t> blocked{0};  // how many times a write found no space
    std::atomic<uint32_t> upgrades{0};
    std::atomic<uint32_t> returns{0};
    std::atomic<bool> hold{false};        // do not switch to the ring any more
    std::atomic<int> pending_error{0};    // the kernel has told it, and bytes of the ring came first
    std::atomic<bool> ended{false};       // the peer's FIN or RST was seen: ask the kernel
    std::atomic<bool> broken{false};      // the protocol was broken: ECONNRESET
    std::atomic<uint64_t> upgraded_ns{0}; // monotonic time of the first switch
    uint64_t began_ns = 0;
    uint64_t token = 0;
    // Of a connection to another host; under both locks, but where one says that it is enough.
    std::atomic<Recovery> recovery{Recovery::none};
    std::atomic<bool> recovered{false};       // what it was recovered from is over
    std::atomic<bool> far_record_seen{false}; // with the read lock, and these
    uint64_t far_tail = 0;
    uint64_t skip_to = 0;
    uint32_t far_epoch = 0;
    uint32_t heard_number = 0;               // of urgent bytes, with the read lock
    uint32_t heard_byte = 0;                 // one that was taken, and 256: the bytes in front of it are not read yet
    bool says_nothing = false;               // this end has shut down its direction: its end says that it has all
    uint64_t record_since_ns = 0;            // when the far end's record was seen first
    std::atomic<uint64_t> step_asked_ns{0};  // when the far end was last asked for its next step
    std::atomic<uint64_t> holder_service{0}; // of the process that has the memory
    std::atomic<uint32_t> out_direction{0};  // which of the segment's this end writes
};

// Makes a state that children share. Null for want of memory.
ConnectionState* new_state();
// This process has no number for it any more.
void release_state(ConnectionState* state);
void states_after_fork(); // in the child: those that there are belong to the parent

} // namespace preload
