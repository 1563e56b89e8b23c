// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A peer that speaks the protocol wrongly. It is a bare endpoint of the core, so that it can say anything: false
// hellos, immediates and messages of no known form, lengths beyond the ring, credit for what was not sent, floods.
// Whatever it does, its own connection is reset at once, an honest one beside it carries on, the listener takes the
// next, and nothing is read or written out of bounds (run it under ASan or valgrind).
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>

#include <rdma/fi_rma.h>

#include "fabtests/common/fabric.hpp"
#include "fabtests/common/pattern.hpp"
#include "fabtests/common/test.hpp"
#include "prov/rstream/wire/control.hpp"
#include "prov/rstream/wire/hello.hpp"
#include "prov/rstream/wire/immediate.hpp"
#include "prov/rstream/wire/limits.hpp"

using namespace fabtests;
namespace wire = rstream::wire;

namespace {

std::string core() {
    const char* name = getenv("FABTESTS_CORE");
    return name != nullptr ? name : "tcp";
}

std::string node() {
    const char* name = getenv("FABTESTS_NODE");
    return name != nullptr ? name : "127.0.0.1";
}

Request stream_request() {
    Request request;
    request.core = core();
    request.node = node();
    request.source = true;
    return request;
}

Request core_request() {
    Request request;
    request.type = FI_EP_MSG;
    request.provider = core();
    request.node = node();
    request.source = true;
    return request;
}

wire::Hello good_hello() {
    wire::Hello hello;
    hello.session = 1;
    hello.ring_size = 65536;
    hello.ring_key = 77;
    hello.data_credits = 384;
    hello.control_credits = wire::control_credits;
    return hello;
}

std::vector<std::byte> encoded(const wire::Hello& hello) {
    std::vector<std::byte> bytes(wire::Hello::size);
    hello.encode(std::span<std::byte, wire::Hello::size>(bytes.data(), wire::Hello::size));
    return bytes;
}

// Two event queues of one thread: while one is waited for, the other is looked at too, since a core may move its
// handshakes only then. What comes up is kept for whoever asks.
class Queues {
  public:
    Event next(Host& wanted, Host& other) {
        const auto start = Clock::now();
        for (;;) {
            look(other);
            look(wanted);
            auto& events = events_[&wanted];
            if (!events.empty()) {
                Event event = std::move(events.front());
                events.pop_front();
                return event;
            }
            if (milliseconds_since(start) > patience(10000)) {
                throw Failure("no event in time");
            }
        }
    }
    [[nodiscard]] bool has_events(Host& host) { return look(host), !events_[&host].empty(); }

  private:
    void look(Host& host) {
        try {
            events_[&host].push_back(host.next_event(1));
        } catch (const Error& e) {
            if (e.code != -FI_ETIMEDOUT) {
                throw;
            }
        }
    }
    std::map<Host*, std::deque<Event>> events_;
};

Event expect(Event event, uint32_t type, const fid* subject) {
    EXPECT(!event.error);
    EXPECT_EQ(event.type, type);
    EXPECT(event.subject == subject);
    return event;
}

// The hostile end.
class Raw {
  public:
    explicit Raw(Host& host) : host_(host), ring_(65536), messages_(64 * 128) {
        fi_cq_attr attr{};
        attr.format = FI_CQ_FORMAT_DATA;
        attr.size = 4096;
        fid_cq* cq = nullptr;
        check("fi_cq_open", fi_cq_open(host.domain.get(), &attr, &cq, nullptr));
        cq_.reset(cq);
        fid_ep* ep = nullptr;
        check("fi_endpoint", fi_endpoint(host.domain.get(), host.info.get(), &ep, nullptr));
        ep_.reset(ep);
        check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
        check("fi_ep_bind", fi_ep_bind(ep, &host.eq->fid, 0));
        fid_mr* mr = nullptr;
        check("fi_mr_reg", fi_mr_reg(host.domain.get(), ring_.data(), ring_.size(),
                                     FI_REMOTE_WRITE | FI_WRITE | FI_SEND, 0, ++next_key, 0, &mr, nullptr));
        ring_mr_.reset(mr);
        check("fi_mr_reg", fi_mr_reg(host.domain.get(), messages_.data(), messages_.size(), FI_SEND | FI_RECV, 0,
                                     ++next_key, 0, &mr, nullptr));
        messages_mr_.reset(mr);
        check("fi_enable", fi_enable(ep));
        for (size_t i = 0; i < 64; ++i) {
            check("fi_recv", fi_recv(ep, messages_.data() + i * 128, 128, fi_mr_desc(messages_mr_.get()),
                                     FI_ADDR_UNSPEC, nullptr));
        }
    }

    [[nodiscard]] wire::Hello hello() const {
        wire::Hello hello = good_hello();
        const bool virt = (host_.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
        hello.ring_address = virt ? reinterpret_cast<uint64_t>(ring_.data()) : 0;
        hello.ring_key = fi_mr_key(ring_mr_.get());
        return hello;
    }

    void connect(const Listener& listener, const std::vector<std::byte>& data) {
        check("fi_connect", fi_connect(ep_.get(), listener.name().data(), data.data(), data.size()));
    }
    void connected(const Event& event) {
        expect(event, FI_CONNECTED, &ep_->fid);
        EXPECT(wire::Hello::parse(event.data, peer) == wire::Hello::Error::none);
    }

    // Writes `length` bytes to the peer's ring and announces them by `immediate`, whatever it says. The result is the
    // core's; a connection that is gone already is no matter.
    ssize_t write(uint64_t immediate, size_t length = 1, uint64_t offset = 0, uint64_t key_change = 0) {
        return retry([&] {
            return fi_writedata(ep_.get(), ring_.data(), length, fi_mr_desc(ring_mr_.get()), immediate, FI_ADDR_UNSPEC,
                                peer.ring_address + offset, peer.ring_key + key_change, nullptr);
        });
    }
    ssize_t data(uint32_t length, uint32_t acks = 0) { return write(wire::Immediate{length, acks, false}.encode()); }
    ssize_t message(const void* bytes, size_t length) {
        memcpy(ring_.data(), bytes, length);
        return retry([&] {
            return fi_send(ep_.get(), ring_.data(), length, fi_mr_desc(ring_mr_.get()), FI_ADDR_UNSPEC, nullptr);
        });
    }
    ssize_t control(const wire::Control& control) {
        std::byte bytes[wire::Control::size];
        control.encode(bytes);
        return message(bytes, sizeof(bytes));
    }
    void progress() {
        fi_cq_data_entry entries[16];
        if (fi_cq_read(cq_.get(), entries, 16) == -FI_EAVAIL) {
            fi_cq_err_entry error{};
            fi_cq_readerr(cq_.get(), &error, 0);
        }
    }
    void close() { ep_.reset(); }

    wire::Hello peer;

  private:
    template <class Call> ssize_t retry(Call call) {
        for (int tries = 0;; ++tries) {
            const ssize_t ret = call();
            if (ret != -FI_EAGAIN || tries == 100000) {
                return ret;
            }
            progress();
        }
    }

    static inline uint64_t next_key = 1000;
    Host& host_;
    std::vector<std::byte> ring_;
    std::vector<std::byte> messages_;
    Owned<fid_mr> ring_mr_;
    Owned<fid_mr> messages_mr_;
    Owned<fid_cq> cq_;
    Owned<fid_ep> ep_;
};

// A listener, an honest connection through it, and the hostile host.
struct Scene {
    Scene() : host(stream_request()), raw_host(core_request()), listener(host) { witness = connect_honest(); }

    struct Honest {
        std::unique_ptr<Stream> client;
        std::unique_ptr<Stream> server;
    };

    Honest connect_honest() {
        Honest pair;
        pair.client = std::make_unique<Stream>(host);
        pair.client->connect(listener.name().data());
        const Info info(expect(queues.next(host, raw_host), FI_CONNREQ, &listener.pep->fid).info);
        pair.server = std::make_unique<Stream>(host, info.get());
        pair.server->accept();
        for (int i = 0; i < 2; ++i) {
            const Event event = queues.next(host, raw_host);
            EXPECT(!event.error && event.type == FI_CONNECTED);
        }
        return pair;
    }

    // The end that a hostile peer reaches.
    std::unique_ptr<Stream> accept(Raw& raw) {
        const Info info(expect(queues.next(host, raw_host), FI_CONNREQ, &listener.pep->fid).info);
        auto victim = std::make_unique<Stream>(host, info.get());
        victim->accept();
        expect(queues.next(host, raw_host), FI_CONNECTED, &victim->get()->fid);
        raw.connected(queues.next(raw_host, host));
        return victim;
    }

    // The program hears of the end of that connection.
    void ended(Stream& victim) { expect(queues.next(host, raw_host), FI_SHUTDOWN, &victim.get()->fid); }

    // Everyone else is as well as before.
    void others_carry_on() {
        exchange(witness);
        exchange(connect_honest());
    }

    static void exchange(const Honest& pair) {
        std::vector<char> out(10000);
        std::vector<char> in(out.size());
        fill(out.data(), out.size(), 0);
        for (const auto& [from, to] :
             {std::pair{pair.client.get(), pair.server.get()}, std::pair{pair.server.get(), pair.client.get()}}) {
            from->send_all(out.data(), out.size());
            EXPECT_EQ(to->recv_all(in.data(), in.size()), in.size());
            EXPECT(in == out);
        }
    }

    Host host;
    Host raw_host;
    Queues queues;
    Listener listener;
    Honest witness;
};

// The victim learns of it: what had come rightly is received, then the reset, then nothing can be sent.
void expect_reset(Scene& scene, Stream& victim, Raw& raw) {
    std::vector<char> bytes(65536);
    ssize_t got = 0;
    const auto start = Clock::now();
    do {
        raw.progress();
        got = fi_recv(victim.get(), bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
    } while ((got > 0 || got == -FI_EAGAIN) && milliseconds_since(start) < patience(10000));
    EXPECT_RESULT(got, -FI_ECONNRESET);
    EXPECT_RESULT(fi_send(victim.get(), "x", 1, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EPIPE);
    scene.ended(victim);
}

using Attack = std::function<void(Raw&)>;

void expect_attack_fails(const Attack& attack) {
    Scene scene;
    Raw raw(scene.raw_host);
    raw.connect(scene.listener, encoded(raw.hello()));
    const auto victim = scene.accept(raw);
    attack(raw);
    expect_reset(scene, *victim, raw);
    scene.others_carry_on();
}

void expect_hello_refused(const std::vector<std::byte>& data) {
    Scene scene;
    Raw raw(scene.raw_host);
    raw.connect(scene.listener, data);
    const Event answer = scene.queues.next(scene.raw_host, scene.host);
    EXPECT(!scene.queues.has_events(scene.host)); // the program sees nothing of it
    EXPECT(answer.error);
    EXPECT_EQ(answer.err, FI_ECONNREFUSED);
    scene.others_carry_on();
}

void patch(std::vector<std::byte>& bytes, size_t at, std::initializer_list<int> values) {
    for (const int value : values) {
        bytes[at++] = static_cast<std::byte>(value);
    }
}

// ---- false hellos; the offsets are those of wire/hello.cpp

void test_a_hello_that_is_missing_is_refused() { expect_hello_refused({}); }

void test_a_hello_that_is_cut_short_is_refused() {
    auto data = encoded(good_hello());
    data.pop_back();
    expect_hello_refused(data);
}

void test_a_hello_with_another_magic_is_refused() {
    auto data = encoded(good_hello());
    patch(data, 0, {'G', 'E', 'T', ' '});
    expect_hello_refused(data);
}

void test_a_hello_of_another_version_is_refused() {
    auto data = encoded(good_hello());
    patch(data, 4, {wire::protocol_version + 1});
    expect_hello_refused(data);
}

void test_a_hello_with_no_ring_is_refused() {
    auto hello = good_hello();
    hello.ring_size = 0;
    expect_hello_refused(encoded(hello));
}

void test_a_hello_with_a_giant_ring_is_refused() {
    auto hello = good_hello();
    hello.ring_size = UINT32_MAX;
    expect_hello_refused(encoded(hello));
}

void test_a_hello_with_no_credits_is_refused() {
    auto hello = good_hello();
    hello.data_credits = 0;
    expect_hello_refused(encoded(hello));
    hello = good_hello();
    hello.control_credits = 0;
    expect_hello_refused(encoded(hello));
}

void test_a_hello_that_promises_more_user_data_than_it_has_is_refused() {
    auto hello = good_hello();
    hello.user_length = 200;
    expect_hello_refused(encoded(hello));
}

// ---- false data

void test_an_immediate_of_no_known_form_resets() {
    for (const uint64_t immediate : {uint64_t{0}, uint64_t{UINT32_MAX}, uint64_t{0x60000001}, uint64_t{0xa0000000}}) {
        expect_attack_fails([&](Raw& raw) { raw.write(immediate); });
    }
}

void test_a_length_beyond_the_ring_resets() {
    expect_attack_fails([](Raw& raw) { raw.data(raw.peer.ring_size + 1); });
    expect_attack_fails([](Raw& raw) { raw.data(wire::Immediate::max_length); });
}

void test_bytes_beyond_the_credit_reset() {
    expect_attack_fails([](Raw& raw) {
        raw.data(raw.peer.ring_size);
        raw.data(1);
    });
}

// The victim may have returned credit for the first of them before it looks at the last: it resets, or takes all that
// is there and no byte more.
void test_more_messages_than_credits_do_no_harm() {
    Scene scene;
    Raw raw(scene.raw_host);
    raw.connect(scene.listener, encoded(raw.hello()));
    const auto victim = scene.accept(raw);
    const uint32_t flood = raw.peer.data_credits + 1000U;
    for (uint32_t i = 0; i < flood; ++i) {
        if (raw.data(1) != 0) {
            break;
        }
    }
    std::vector<char> bytes(65536);
    size_t total = 0;
    ssize_t got = 0;
    const auto start = Clock::now();
    do {
        raw.progress();
        got = fi_recv(victim->get(), bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        total += static_cast<size_t>(std::max<ssize_t>(got, 0));
    } while (got != -FI_ECONNRESET && total < flood && milliseconds_since(start) < patience(10000));
    EXPECT(got == -FI_ECONNRESET || total == flood);
    if (got == -FI_ECONNRESET) {
        scene.ended(*victim);
    }
    scene.others_carry_on();
}

void test_acknowledgement_of_control_messages_that_were_not_sent_resets() {
    expect_attack_fails([](Raw& raw) { raw.data(1, 15); });
}

void test_data_behind_the_end_resets() {
    Scene scene;
    Raw raw(scene.raw_host);
    raw.connect(scene.listener, encoded(raw.hello()));
    const auto victim = scene.accept(raw);
    wire::Control fin;
    fin.type = wire::Control::Type::fin;
    raw.control(fin);
    raw.data(1);
    // The stream had ended before; the end stands, and nothing that came behind it is delivered.
    char byte = 0;
    EXPECT_RESULT(victim->recv_some(&byte, 1), 0);
    scene.ended(*victim);
    scene.others_carry_on();
}

// ---- false control messages

void test_a_message_of_unknown_type_resets() {
    for (const uint8_t type : {0, 5, 255}) {
        expect_attack_fails([&](Raw& raw) {
            unsigned char bytes[wire::Control::size] = {type};
            raw.message(bytes, sizeof(bytes));
        });
    }
}

void test_a_message_with_unknown_flags_resets() {
    expect_attack_fails([](Raw& raw) {
        unsigned char bytes[wire::Control::size] = {1, 0x80};
        raw.message(bytes, sizeof(bytes));
    });
}

void test_a_message_of_another_size_resets() {
    for (const size_t length : {size_t{1}, wire::Control::size - 1, wire::Control::size + 1, size_t{4096}}) {
        expect_attack_fails([&](Raw& raw) {
            std::vector<unsigned char> bytes(length, 1);
            raw.message(bytes.data(), bytes.size());
        });
    }
}

void test_credit_for_what_was_not_sent_resets() {
    expect_attack_fails([](Raw& raw) {
        wire::Control lie;
        lie.consumed = 1;
        raw.control(lie);
    });
    expect_attack_fails([](Raw& raw) {
        wire::Control lie;
        lie.data_arrived = 1;
        raw.control(lie);
    });
    expect_attack_fails([](Raw& raw) {
        wire::Control lie;
        lie.control_arrived = UINT64_MAX;
        raw.control(lie);
    });
}

void test_a_data_header_where_immediates_were_agreed_on_resets() {
    expect_attack_fails([](Raw& raw) {
        wire::Control header;
        header.type = wire::Control::Type::data;
        header.argument = wire::Immediate{1, 0, false}.encode();
        raw.control(header);
    });
}

void test_a_flood_of_messages_resets() {
    // All are in order; that there are so many more than were granted is not.
    expect_attack_fails([](Raw& raw) {
        for (int i = 0; i < 5000; ++i) {
            if (raw.control({}) != 0) {
                break;
            }
        }
    });
}

void test_two_ends_reset() {
    Scene scene;
    Raw raw(scene.raw_host);
    raw.connect(scene.listener, encoded(raw.hello()));
    const auto victim = scene.accept(raw);
    wire::Control fin;
    fin.type = wire::Control::Type::fin;
    raw.control(fin);
    raw.control(fin);
    char byte = 0;
    EXPECT_RESULT(victim->recv_some(&byte, 1), 0);
    scene.ended(*victim);
    scene.others_carry_on();
}

// ---- what the peer gets hold of

void test_a_write_outside_the_ring_touches_nothing() {
    expect_attack_fails([](Raw& raw) { raw.write(wire::Immediate{1, 0, false}.encode(), 1, raw.peer.ring_size); });
    expect_attack_fails([](Raw& raw) {
        raw.write(wire::Immediate{64, 0, false}.encode(), 64, raw.peer.ring_size - 1);
    });
}

void test_a_write_with_another_key_touches_nothing() {
    expect_attack_fails([](Raw& raw) { raw.write(wire::Immediate{1, 0, false}.encode(), 1, 0, 1); });
}

void test_the_keys_of_two_connections_tell_nothing_of_each_other() {
    Scene scene;
    uint64_t last = 0;
    for (int i = 0; i < 8; ++i) {
        Raw raw(scene.raw_host);
        raw.connect(scene.listener, encoded(raw.hello()));
        const auto victim = scene.accept(raw);
        const uint64_t distance = raw.peer.ring_key > last ? raw.peer.ring_key - last : last - raw.peer.ring_key;
        EXPECT(distance > 1024);
        last = raw.peer.ring_key;
    }
}

void test_a_peer_whose_own_ring_does_not_exist_only_harms_itself() {
    Scene scene;
    Raw raw(scene.raw_host);
    auto hello = raw.hello();
    hello.ring_key ^= 0x5555;
    raw.connect(scene.listener, encoded(hello));
    const auto victim = scene.accept(raw);
    const auto start = Clock::now();
    ssize_t sent = 0;
    do { // the core of the peer refuses the write and ends the connection
        sent = fi_send(victim->get(), "hello", 5, nullptr, FI_ADDR_UNSPEC, nullptr);
        raw.progress();
    } while ((sent > 0 || sent == -FI_EAGAIN) && milliseconds_since(start) < patience(10000));
    EXPECT_ERROR(sent);
    scene.ended(*victim);
    scene.others_carry_on();
}

void test_credits_that_are_never_granted_stop_the_sender_and_nothing_else() {
    setenv("FI_RSTREAM_LINGER", "100", 1);
    Scene scene;
    Raw raw(scene.raw_host);
    raw.connect(scene.listener, encoded(raw.hello()));
    auto victim = scene.accept(raw);
    std::vector<char> bytes(1 << 20);
    ssize_t sent = 0;
    size_t total = 0;
    const auto start = Clock::now();
    while (milliseconds_since(start) < patience(300)) {
        sent = fi_send(victim->get(), bytes.data(), bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        total += static_cast<size_t>(std::max<ssize_t>(sent, 0));
        raw.progress();
    }
    EXPECT_RESULT(sent, -FI_EAGAIN);
    EXPECT(total <= 65536 + victim->get_option(FI_OPT_SEND_BUF_SIZE)); // its ring and our buffer
    scene.others_carry_on();
    victim.reset(); // gives up when FI_RSTREAM_LINGER is over
    scene.others_carry_on();
    unsetenv("FI_RSTREAM_LINGER");
}

// ---- anything at all

void test_random_messages_are_survived() {
    std::mt19937 dice(20261121);
    for (int round = 0; round < 60; ++round) {
        Scene scene;
        Raw raw(scene.raw_host);
        raw.connect(scene.listener, encoded(raw.hello()));
        const auto victim = scene.accept(raw);
        std::vector<char> bytes(4096);
        for (int i = 0; i < 40; ++i) {
            unsigned char noise[wire::Control::size];
            std::generate(std::begin(noise), std::end(noise), [&] { return static_cast<unsigned char>(dice()); });
            switch (dice() % 4) {
            case 0: // near to what is right, so that some of it gets through
                memset(noise, 0, sizeof(noise));
                noise[0] = static_cast<unsigned char>(1 + dice() % 4);
                noise[8 + dice() % 24] = static_cast<unsigned char>(dice() % 3);
                raw.message(noise, sizeof(noise));
                break;
            case 1:
                raw.message(noise, 1 + dice() % sizeof(noise));
                break;
            case 2:
                raw.data(1 + dice() % 70000, dice() % 16);
                break;
            default:
                raw.data(1 + dice() % 100);
                break;
            }
            (void)fi_recv(victim->get(), bytes.data(), dice() % bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
            (void)fi_send(victim->get(), bytes.data(), dice() % bytes.size(), nullptr, FI_ADDR_UNSPEC, nullptr);
        }
        if (dice() % 2 == 0) {
            raw.close();
        }
        Scene::exchange(scene.witness);
    }
}

} // namespace

int main() {
    // The core must be visible beside the stream.
    setenv("FI_PROVIDER", ("rstream," + core()).c_str(), 1);
    const CMUnitTest tests[] = {
        FABTEST(test_a_hello_that_is_missing_is_refused),
        FABTEST(test_a_hello_that_is_cut_short_is_refused),
        FABTEST(test_a_hello_with_another_magic_is_refused),
        FABTEST(test_a_hello_of_another_version_is_refused),
        FABTEST(test_a_hello_with_no_ring_is_refused),
        FABTEST(test_a_hello_with_a_giant_ring_is_refused),
        FABTEST(test_a_hello_with_no_credits_is_refused),
        FABTEST(test_a_hello_that_promises_more_user_data_than_it_has_is_refused),
        FABTEST(test_an_immediate_of_no_known_form_resets),
        FABTEST(test_a_length_beyond_the_ring_resets),
        FABTEST(test_bytes_beyond_the_credit_reset),
        FABTEST(test_more_messages_than_credits_do_no_harm),
        FABTEST(test_acknowledgement_of_control_messages_that_were_not_sent_resets),
        FABTEST(test_data_behind_the_end_resets),
        FABTEST(test_a_message_of_unknown_type_resets),
        FABTEST(test_a_message_with_unknown_flags_resets),
        FABTEST(test_a_message_of_another_size_resets),
        FABTEST(test_credit_for_what_was_not_sent_resets),
        FABTEST(test_a_data_header_where_immediates_were_agreed_on_resets),
        FABTEST(test_a_flood_of_messages_resets),
        FABTEST(test_two_ends_reset),
        FABTEST(test_a_write_outside_the_ring_touches_nothing),
        FABTEST(test_a_write_with_another_key_touches_nothing),
        FABTEST(test_the_keys_of_two_connections_tell_nothing_of_each_other),
        FABTEST(test_a_peer_whose_own_ring_does_not_exist_only_harms_itself),
        FABTEST(test_credits_that_are_never_granted_stop_the_sender_and_nothing_else),
        FABTEST(test_random_messages_are_survived),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
