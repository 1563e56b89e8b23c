// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One connection in the worker: the librsocket-ofi stream to the far end's worker, the proof that it belongs to the far
// end, and from then on the mirror's messages on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "preload/fabric/closed_recovery.hpp"
#include "preload/fabric/control.hpp"
#include "preload/fabric/fabric_socket.hpp"
#include "preload/fabric/mirror.hpp"
#include "preload/fabric/other_devices.hpp"

namespace preload::fabric {

// The worker's functions that a link uses.
class LinkOwner {
  public:
    virtual ~LinkOwner() = default;
    // Delivers events of the socket to the link; out: also when it is writable.
    virtual bool watch(int fd, uint64_t token, bool out) = 0;
    virtual void unwatch(int fd) = 0;                                    // needed for the kernel's sockets only
    virtual void attend(const path::Segment& segment, unsigned end) = 0; // requests it of the program's service
    virtual void wake(path::Segment& segment, unsigned end, uint64_t id) = 0;
    virtual void send_control(Control::Kind kind, uint64_t token, Reason why) = 0;
    virtual OtherDevices& other_devices() = 0;
};

class Link {
  public:
    // Takes ownership of segment and of tcp, a descriptor of the connection.
    Link(LinkOwner& owner, const Control& task, path::Segment* segment, int tcp);
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    ~Link();

    void on_event(uint32_t events, uint64_t now);
    void on_time(uint64_t now);
    // Sends pending messages. True: there was progress.
    bool progress();
    // Takes what has arrived, without an event. True: there was something.
    bool poll();
    // True: there is work already.
    bool arm(uint64_t id);
    void attended();
    // Whether the program has requested attention; it also sends a message, if the inbox has space.
    bool take_asked() { return segment_->asked[1 - task_.direction].exchange(0) != 0; }
    void drop(); // by the program's service
    // No process of the program's has the connection any more.
    void abandon() { segment_->mirror.closed.store(path::MirrorFields::closed_by_last); }

    [[nodiscard]] uint64_t deadline() const { return deadline_; }
    // Only an event of its socket or of its program is waited for, and arm() is enough for the latter.
    [[nodiscard]] bool may_be_idle() const {
        return phase_ == Phase::moving && deadline_ == UINT64_MAX && out_.empty();
    }
    [[nodiscard]] bool is_over() const { return phase_ == Phase::over; }
    [[nodiscard]] bool is_shared() const { return segment_->mirror.shared.load() != 0; }
    // The process that was the last to have it, and is about to end or to execute another program. 0: none.
    [[nodiscard]] pid_t leaving_process() const {
        return has_closed() ? 0 : path::MirrorFields::last_leaving(segment_->mirror.shared.load());
    }
    void forget_leaving_process() { segment_->mirror.shared.store(path::MirrorFields::several); }
    [[nodiscard]] bool has_closed() const { return segment_->mirror.closed.load() != path::MirrorFields::open; }
    [[nodiscard]] int tcp() const { return tcp_; }
    [[nodiscard]] uint64_t token() const { return task_.token; }

  private:
    enum class Phase : uint8_t {
        waiting, // until the next attempt to connect
        listening,
        connecting,
        greeting,  // Hello was sent
        attaching, // until the program's connection is careful
        proving,
        moving,
        closing,       // the program has closed, or stays with TCP; urgent bytes may still arrive
        guarding,      // the program stays with TCP, with unread bytes in front of an urgent one
        handing_over,  // the fabric has failed, and the program may end before it continues by TCP
        recovering,    // the fabric has failed behind the program's close
        acknowledging, // the far end has all of the stream, but not yet what TCP carries
        over,
    };

    void begin(uint64_t now);
    void listen();
    void connect(uint64_t now);
    void not_connected(uint64_t now, int error);
    void next_target(uint64_t now, Reason why);
    void on_accept(uint64_t now);
    void on_connected(uint64_t now);
    void greet(uint64_t now);
    bool receive();
    bool take_all();
    bool take(const Header& header, std::span<const uint8_t> body);
    bool take_hello(std::span<const uint8_t> body);
    bool take_echo(std::span<const uint8_t> body);
    bool take_closed(std::span<const uint8_t> body);
    void prove();
    void send_next_urgent();
    void begin_to_move();
    void notify_program();
    void take_frames() const;
    void send(Kind kind, const void* body, size_t bytes);
    bool flush();
    void fail(Reason why);
    [[nodiscard]] bool continues_without_stream() const {
        return phase_ == Phase::guarding || phase_ == Phase::handing_over || phase_ == Phase::recovering ||
               phase_ == Phase::acknowledging;
    }
    [[nodiscard]] bool is_unacknowledged() const;
    void begin_to_acknowledge();
    void await_acknowledgement(uint64_t now);
    void begin_to_hand_over();
    bool hand_over();
    bool begin_recovery();
    void recover();
    void reset();
    void leave();
    void go_on_leaving(uint64_t now);
    [[nodiscard]] bool has_last_urgent(uint64_t now) const;
    [[nodiscard]] bool has_unread_in_front() const;
    void guard(uint64_t now);
    void end_of_stream();
    [[nodiscard]] bool program_has_lost_it() const;
    void close_all();

    // In phase closing.
    struct Leaving {
        uint32_t stage = path::MirrorFields::failed; // that the program is told then
        bool told = false;                           // the far end
        std::optional<uint32_t> far_sent;            // urgent bytes, as it has told
        uint64_t without_stream_ns = 0;              // since when, if it has ended
        uint64_t guards_since_ns = 0;
        bool is_alone = false; // no process had it any more when guard() last looked
    };

    LinkOwner& owner_;
    const Control task_;
    path::Segment* segment_;
    int tcp_;
    Phase phase_ = Phase::waiting;
    uint64_t deadline_ = 0;
    uint64_t give_up_ = 0;
    uint64_t pause_ = 0;
    std::vector<FabricSocket> listening_;
    FabricSocket socket_;
    std::vector<rendezvous::Address> targets_; // where to connect to, one after the other
    size_t target_ = 0;
    Reason first_failure_{};
    OtherAddresses others_{}; // of the far end's host, as it has told
    bool wants_space_ = false;
    Bytes in_;
    size_t parsed_ = 0;     // of in_
    uint64_t received_ = 0; // bytes
    Bytes out_;
    size_t flushed_ = 0;
    bool attach_asked_ = false;
    bool careful_ = false; // this end
    bool far_careful_ = false;
    bool proved_ = false;
    bool far_proved_ = false;
    uint32_t urgent_sent_ = 0;   // MirrorFields::urgent_of()
    uint32_t urgent_echoed_ = 0; // the last one that was echoed
    std::unique_ptr<Mirror> mirror_;
    std::unique_ptr<ClosedRecovery> recovery_;
    std::unique_ptr<Leaving> leaving_;
};

} // namespace preload::fabric
