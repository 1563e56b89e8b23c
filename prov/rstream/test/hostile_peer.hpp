// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that is a bare endpoint of the core, so that it can say and do anything that the core lets it, and the scene
// that it attacks: a listener, an honest connection beside it. It announces data as the core allows: by the immediate
// of a write, or by a message behind it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <rdma/fi_rma.h>

#include "fabtests/common/fabric.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"
#include "prov/rstream/wire/control.hpp"
#include "prov/rstream/wire/hello.hpp"
#include "prov/rstream/wire/immediate.hpp"
#include "prov/rstream/wire/limits.hpp"
#include "prov/rstream/wire/map_message.hpp"

namespace hostile {

namespace wire = rstream::wire;
using fabtests::Event;
using fabtests::Host;
using fabtests::Listener;
using fabtests::Owned;
using fabtests::Stream;

// Both providers have to be visible: the stream, and the core that the peer uses. Before the first call of libfabric.
void show_core();

wire::Hello good_hello();
std::vector<std::byte> encoded(const wire::Hello& hello);

// Two event queues of one thread: while one is waited for, the other is looked at too, since a core may move its
// handshakes only then. What comes up is kept for whoever asks.
class Queues {
  public:
    Event next(Host& wanted, Host& other);
    [[nodiscard]] bool has_events(Host& host) { return poll(host), !events_[&host].empty(); }
    void poll(Host& host);

  private:
    std::map<Host*, std::deque<Event>> events_;
};

Event expect(Event event, uint32_t type, const fid* subject);

// Whole pages from the kernel: nothing that is given to the core shares a page with anything else.
class Pages {
  public:
    explicit Pages(size_t size);
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    ~Pages();
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] size_t size() const { return size_; }

  private:
    std::byte* data_;
    size_t size_;
};

struct Scene;

// The hostile end, made for this listener: some cores choose the device by where an endpoint is to connect.
class Raw {
  public:
    explicit Raw(Scene& scene);

    [[nodiscard]] wire::Hello hello() const;
    void connect(const std::vector<std::byte>& data);
    void connected(const Event& event);

    // Writes `length` bytes to the peer's ring and announces them by `immediate`, whatever it says. The result is the
    // core's; a connection that is gone already is no matter.
    ssize_t write(uint64_t immediate, size_t length = 1, uint64_t offset = 0, uint64_t key_change = 0);
    ssize_t data(uint32_t length, uint32_t acks = 0) { return write(wire::Immediate{length, acks, false}.encode()); }
    ssize_t message(const void* bytes, size_t length);
    ssize_t control(const wire::Control& control);
    ssize_t map(const wire::MapMessage& map);

    // Bytes of this value, to any address and unannounced.
    static constexpr std::byte poison{0xe1};
    ssize_t poke(uint64_t address, size_t length, uint64_t key);
    // Asks for the bytes at an address. `outcome` says what came of it once it is not FI_EINPROGRESS; what was read is
    // in `booty`.
    ssize_t peep(uint64_t address, size_t length, uint64_t key);
    int outcome = 0;
    [[nodiscard]] const std::byte* booty() const { return out_.data(); }

    void progress();
    void close() { ep_.reset(); }
    [[nodiscard]] fid* id() const { return &ep_->fid; }

    wire::Hello peer;
    bool headers;                       // data is announced by messages
    uint16_t maps = 0;                  // of the peer's that our hello asks for
    std::deque<wire::MapMessage> told;  // what it said of maps
    std::optional<wire::Control> offer; // of a larger ring, if one came

  private:
    template <class Call> ssize_t retry(Call call);
    void post_receive(size_t slot);
    std::byte* next_slot(void** context);
    void take(const void* context, int error);
    void add(Pages& pages, uint64_t access, Owned<fid_mr>& out) const;

    static constexpr size_t slot_size = 4096;
    static constexpr size_t slots = 512; // more than any core's queue is long
    static constexpr size_t receive_size = 128;

    Scene& scene_;
    size_t receives_;
    Pages ring_;
    Pages in_;
    Pages out_; // a place for what is read, then one for each operation under way
    std::vector<fi_context2> in_contexts_;
    std::vector<fi_context2> out_contexts_;
    size_t operations_ = 0;
    Owned<fid_mr> ring_mr_;
    Owned<fid_mr> in_mr_;
    Owned<fid_mr> out_mr_;
    Owned<fid_cq> cq_;
    Owned<fid_ep> ep_;
};

// A listener, an honest connection through it, and the hostile host.
struct Scene {
    Scene();

    struct Honest {
        std::unique_ptr<Stream> client;
        std::unique_ptr<Stream> server;
    };

    Honest connect_honest();
    // The end that a hostile peer reaches: one that has asked already, or one that asks as an honest one would.
    std::unique_ptr<Stream> accept(Raw& raw);
    std::unique_ptr<Stream> attack(Raw& raw);
    // How many maps of its peer's such an end wants to be told of.
    size_t maps = 0;
    // The program hears of the end of that connection.
    void ended(Stream& victim) { expect(queues.next(host, raw_host), FI_SHUTDOWN, &victim.get()->fid); }
    // Everyone else is as well as before.
    void others_carry_on();
    static void exchange(const Honest& pair);
    // Lets both ends work until that is so; false if it does not become so in time.
    bool until(Raw& raw, Stream& victim, const std::function<bool()>& so);

    [[nodiscard]] bool virtual_addresses() const;
    [[nodiscard]] bool provider_keys() const;
    [[nodiscard]] bool immediates() const;

    Host host;
    Host raw_host;
    Queues queues;
    Listener listener;
    Honest witness;
};

// The victim learns of it: what had come rightly is received, then the reset, then nothing can be sent.
void expect_reset(Scene& scene, Stream& victim, Raw& raw);

} // namespace hostile
