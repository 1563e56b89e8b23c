// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The state of one end of a TCP connection. It lives in memory that a process shares with its children, as they share
// the descriptor: each process that uses the connection reads here which path the bytes take, and publishes changes.
//
//     plain    the kernel handles every call; calls in flight are counted
//     careful  no kernel call may block or run unserialized: each runs under read_lock or write_lock, so that
//              the positions of the stream are known; bytes may be in the ring
//     pinned   for good, or until the reason is gone: the kernel handles every call; nothing is counted
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
inline constexpr uint64_t wanted = uint64_t{1} << 33; // become careful when no plain call is in flight
inline constexpr uint64_t pinned = uint64_t{1} << 34;
} // namespace gate

// Why a connection uses the kernel. stats/reasons.cpp has the texts.
enum class Reason : uint8_t {
    none,
    young,          // it ended before an upgrade was due
    no_peer,        // no process answers for the peer
    remote,         // the peer is on another host or in another network namespace
    other_user,     // the answer came from a process that does not own the peer's end
    rule,           // a rule leaves the address to the kernel
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
    no_memory,      // no memory, descriptors or thread
    self_connected, // both ends are one socket
    broken,         // the peer violated the protocol
    failed,         // the peer's offer was invalid
    spliced,        // splice from or to something that cannot be copied
    shared_set,     // several processes wait in an epoll set that has it as a member
    fabric_lost,    // the fabric has failed
    no_device,      // to another host, and no RDMA device has the local address
    port_taken,     // to another host, and another fabric socket uses the port at which both ends meet
    unread,         // a full ring was not read for long, again and again
    other_netns,    // it is not of the network namespace of the process
    unseen_wait,    // the program does not wait for it by calls of the library, see wait/seen.hpp
};

// A process with a seccomp filter moves bytes past the library, which are not counted.
enum class Uncounted : uint8_t {
    no,
    yes,
    before, // such a process existed, and is gone: only this process has the connection
};

// By shutdown(2) at this end.
enum class WriteShut : uint8_t { no, begun, done };

// After a failure of the fabric, see stream_recovery.cpp.
enum class Recovery : uint8_t { none, begun, sent };

struct alignas(64) ConnectionState {
    // These two must be first, see renew(): they outlive their connection, since a call may be in flight, or a thread
    // may be about to sleep, when another thread closes.
    std::atomic<uint64_t> gate{0};
    std::atomic<uint32_t> sleepers{0}; // threads that sleep on it
    std::atomic<uint32_t> calls{0};    // calls that moved bytes
    std::atomic<uint32_t> worth_at{0}; // number of calls at which an upgrade is tried
    std::atomic<uint64_t> received{0}; // TCP position, frames included: bytes read from the kernel
    std::atomic<uint64_t> sent{0};     // the same: bytes written to the kernel
    uint64_t received_base = 0;        // where counting began, for a descriptor from exec or SCM_RIGHTS
    uint64_t sent_base = 0;
    // For statistics: the program's bytes that the ring has moved; and what to add to `received` and `sent`, modulo
    // 2^64, for those that the kernel has moved. These count frames, what the library reads itself, and what was sent
    // twice, and not what pinned calls have moved.
    std::atomic<uint64_t> bytes_in{0};
    std::atomic<uint64_t> bytes_out{0};
    std::atomic<uint64_t> kernel_more_in{0};
    std::atomic<uint64_t> kernel_more_out{0};
    std::atomic<uint8_t> connected_out{0}; // 1: this end called connect, so its SYN counts as an acknowledged byte
    std::atomic<bool> adopted{false};      // it existed before the library tracked it
    std::atomic<Uncounted> uncounted{Uncounted::no};
    std::atomic<uint32_t> holders{1}; // processes that have it open
    // holders, less those that are about to close it: exactly one of several that close at once finds itself the last.
    std::atomic<uint32_t> open{1};
    uint64_t link = 0;                    // in the lists of the process that made it
    std::atomic<bool> nonblocking{false}; // kept up to date while careful
    // The program's TCP_NODELAY and TCP_CORK while careful. The kernel's are set so that frames are sent at once.
    std::atomic<int> nodelay{0};
    std::atomic<int> cork{0};
    // The kernel's values: TCP_INQ, and SO_TIMESTAMP or SO_TIMESTAMPNS.
    std::atomic<int> inq{0};
    std::atomic<int> timestamp{0};
    std::atomic<Reason> reason{Reason::none};
    std::atomic<uint32_t> attempts{0};
    // Of a connection that was upgraded to the fabric, see stream_recovery.cpp.
    std::atomic<uint64_t> fabric_since_ns{0}; // the last time; 0: never
    std::atomic<uint32_t> fabric_failures{0}; // soon after it, in a row
    std::atomic<uint64_t> retry_at_ns{0};     // not before, whatever worth_at is
    std::atomic<WriteShut> write_shut{WriteShut::no};
    std::atomic<bool> read_shut{false};   // by shutdown at this end
    std::atomic<bool> time_limits{false}; // SO_RCVTIMEO or SO_SNDTIMEO was set

    // Valid only while careful, from here on.
    std::atomic<uint64_t> bytes_sent_to{0}; // TCP position behind the program's last byte, frames excluded
    alignas(64) OwnerLock read_lock;
    path::Cursor in;
    std::atomic<uint32_t> in_epoch{0}; // as ReaderFields::epoch, but the peer cannot change it
    std::atomic<uint32_t> frames_seen{0};
    // A waiter has found the kernel's socket readable, in an odd epoch: by a frame, or by a byte that has come past the
    // peer's library, see stream::note_kernel_readable().
    std::atomic<bool> kernel_readable{false};
    uint64_t asked_kernel_ns = 0;           // when the kernel was last polled for frames or EOF
    uint32_t empty_reads = 0;               // consecutive, since then
    bool resume_seen = false;               // Frame::resume was consumed; the ring must be drained first
    std::atomic<bool> awaits_resume{false}; // the ring is not read any more: a resend was requested
    std::atomic<bool> giving_back{false};   // reads are suspended, see stream_give_back.cpp
    uint64_t giving_began_ns = 0;
    std::atomic<uint64_t> giving_since_ns{0}; // the same, or when the program last read, or was told of, these bytes
    std::atomic<bool> handed_over{false};     // to a holder that does not use the ring: no reads until it is done
    std::atomic<uint64_t> given_back_to{0};   // TCP position behind what the peer has sent again then
    uint64_t taken_read = 0;                  // bytes of `taken` that were read here after all
    std::atomic<uint64_t> taken{0};           // bytes in the give-back area that the peer has not resent

    alignas(64) OwnerLock write_lock;
    path::Cursor out;
    path::Cursor out_before; // the previous area, for resends
    std::atomic<uint32_t> out_epoch{0};
    std::atomic<bool> resume_due{false}; // Frame::resume must be sent by TCP before further bytes
    std::atomic<uint64_t> give_from{0};  // then these bytes of the give-back area
    std::atomic<uint64_t> give_to{0};
    std::atomic<uint64_t> backlog_from{0}; // and then these positions of the ring, once more
    std::atomic<uint64_t> backlog_to{0};
    std::atomic<uint32_t> halted_epoch{0}; // the epoch entered by Request::halt
    std::atomic<uint64_t> halted_ns{0};
    std::atomic<uint64_t> switched_ns{0}; // when the own direction last switched to the ring
    uint64_t ask_ns = 0;                  // when the peer is next asked to switch, too; under the write lock
    uint64_t ask_pause_ns = 0;
    std::atomic<uint64_t> full_since_ns{0}; // the ring was seen full, and the service watches; 0: it does not
    uint64_t full_tail = 0;                 // the reader's position by then
    uint64_t stalled_ns = 0;                // when the ring was last left for that reason
    uint32_t stalls = 0;                    // consecutive
    // See stream_unread.cpp. When the service looks next, 0: nobody watches; and which one that is.
    std::atomic<uint64_t> unread_due_ns{0};
    std::atomic<uint64_t> unread_watcher{0};
    uint64_t unread_head = 0; // the positions of both ends, when the service looked last
    uint64_t unread_tail = 0;
    uint64_t nudged_ns = 0; // when a frame was sent to it; 0: not since the last step
    bool was_late = false;  // the last step came late
    uint32_t unread_doublings = 0;
    std::atomic<uint32_t> unread_busy{0}; // consecutive steps that found the write lock held
    uint32_t woken_readers = 0;           // by such frames, consecutive
    std::atomic<bool> wake_due{false};    // a frame for the peer's writer is due
    std::atomic<bool> refused{false};     // a write found that the far end does not know the epoch yet
    // Since when the last bytes that were written are held back, in the ring or by the kernel; 0: they are not. See
    // stream_cork.cpp.
    std::atomic<uint64_t> held_since_ns{0};
    std::atomic<uint32_t> blocked{0}; // writes that found no space, or too little
    std::atomic<uint32_t> upgrades{0};
    std::atomic<uint32_t> returns{0};
    std::atomic<bool> hold{false}; // do not switch to the ring any more
    // What a call has begun and the service goes on with: see stream::on_time().
    std::atomic<bool> end_due{false};     // the kernel's shutdown for writing,
    std::atomic<int> end_process{0};      // the process that has begun it,
    std::atomic<uint64_t> end_service{0}; // and its service, which goes on with it; 0: the call does
    std::atomic<bool> late{false};        // a hand-over that no call waits for
    std::atomic<uint64_t> steps_since_ns{0};
    std::atomic<uint64_t> next_step_ns{0};
    std::atomic<int> pending_error{0}; // taken from the kernel, still to be reported, after the bytes in front of it
    std::atomic<bool> ended{false};    // the peer's FIN or RST was seen: poll the kernel
    std::atomic<bool> broken{false};   // the protocol was violated: ECONNRESET
    uint64_t sound_to = 0;             // position of the ring behind what was written before; under the read lock
    // See stream_peer.cpp.
    std::atomic<bool> peer_gone{false};      // its end is closed, whether FIN has arrived or not
    std::atomic<uint64_t> peer_closed_ns{0}; // when the peer was first seen to close its end
    std::atomic<uint64_t> peer_asked_ns{0};  // when the kernel is next asked for it; 0: after a pause
    std::atomic<uint64_t> upgraded_ns{0};    // monotonic time of the first switch
    uint64_t began_ns = 0;
    std::atomic<uint64_t> cookie{0}; // SO_COOKIE; 0: unknown
    uint64_t token = 0;
    // For a connection to another host. Under both locks, unless a comment names one.
    std::atomic<Recovery> recovery{Recovery::none};
    std::atomic<bool> recovered{false};       // recovery is complete
    std::atomic<bool> far_record_seen{false}; // under the read lock, as the next four
    uint64_t far_tail = 0;
    uint64_t skip_to = 0;
    std::atomic<uint64_t> resent_to{0}; // TCP position behind what the far end sends again; read without a lock, too
    uint32_t far_epoch = 0;
    uint32_t urgent_number = 0;   // urgent bytes received; under the read lock
    uint32_t urgent_byte = 0;     // an urgent byte received, plus 256; the bytes in front of it are still unread
    bool sends_no_record = false; // no record is sent after a shutdown: the FIN implies that it has all
    uint64_t record_since_ns = 0; // when the far end's record was first seen
    std::atomic<uint64_t> step_asked_ns{0};  // when the far end was last asked for its next step
    std::atomic<uint64_t> holder_service{0}; // of the process that has the memory
    std::atomic<uint32_t> out_direction{0};  // index of the direction that this end writes
};

// The first reason stays. A wait that was not seen yet gives way to any other.
inline bool give_reason(ConnectionState& s, Reason reason) {
    Reason before = Reason::none;
    while (before == Reason::none || before == Reason::unseen_wait) {
        if (s.reason.compare_exchange_strong(before, reason)) {
            return true;
        }
    }
    return false;
}

// Makes a state that children share. Null: no memory, or a signal handler has interrupted this function.
ConnectionState* new_state();
// This process has closed its last fd of it.
void release_state(ConnectionState* state);
// The service thread uses this state, or none: one that it uses is not recycled. See connection/kept_state.hpp.
void keep_state(const ConnectionState* state);
void states_after_fork(); // in the child: existing states belong to the parent

} // namespace preload
