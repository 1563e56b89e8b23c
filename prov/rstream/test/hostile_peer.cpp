// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/test/hostile_peer.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <netinet/in.h>
#include <sys/mman.h>

#include "fabtests/common/pattern.hpp"

namespace hostile {

using namespace fabtests;

namespace {

Request core_request() {
    Request request = here();
    request.type = FI_EP_MSG;
    request.provider = core_name();
    return request;
}

// How many receives the peer keeps posted: as many as a core that consumes them for data has to have.
size_t receives_of(const fi_info& info) { return std::min<size_t>(info.rx_attr->size, 384); }

} // namespace

void show_core() { setenv("FI_PROVIDER", ("rstream," + core_name()).c_str(), 1); }

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

// ---- Queues

Event Queues::next(Host& wanted, Host& other) {
    const auto start = Clock::now();
    for (;;) {
        poll(other);
        poll(wanted);
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

void Queues::poll(Host& host) {
    try {
        events_[&host].push_back(host.next_event(1));
    } catch (const Error& e) {
        if (e.code != -FI_ETIMEDOUT) {
            throw;
        }
    }
}

Event expect(Event event, uint32_t type, const fid* subject) {
    EXPECT(!event.error);
    EXPECT_EQ(event.type, type);
    EXPECT(event.subject == subject);
    return event;
}

// ---- Pages

Pages::Pages(size_t size) : size_(size) {
    void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        throw std::bad_alloc();
    }
    data_ = static_cast<std::byte*>(pages);
}

Pages::~Pages() { munmap(data_, size_); }

// ---- Raw

Raw::Raw(Scene& scene)
    : headers(!scene.immediates()), scene_(scene), receives_(receives_of(*scene.raw_host.info)), ring_(65536),
      in_(receives_ * receive_size), out_((1 + slots) * slot_size), in_contexts_(receives_), out_contexts_(slots + 1) {
    Host& host = scene.raw_host;
    const Info info(fi_dupinfo(host.info.get()));
    const std::vector<std::byte> there = scene.listener.name();
    free(info->dest_addr);
    info->dest_addr = malloc(there.size());
    info->dest_addrlen = there.size();
    memcpy(info->dest_addr, there.data(), there.size());
    fi_cq_attr attr{};
    attr.format = FI_CQ_FORMAT_DATA;
    attr.size = 4096;
    fid_cq* cq = nullptr;
    check("fi_cq_open", fi_cq_open(host.domain.get(), &attr, &cq, nullptr));
    cq_.reset(cq);
    fid_ep* ep = nullptr;
    check("fi_endpoint", fi_endpoint(host.domain.get(), info.get(), &ep, nullptr));
    ep_.reset(ep);
    check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    check("fi_ep_bind", fi_ep_bind(ep, &host.eq->fid, 0));
    add(ring_, FI_REMOTE_WRITE, ring_mr_);
    add(in_, FI_RECV, in_mr_);
    add(out_, FI_SEND | FI_WRITE | FI_READ, out_mr_);
    check("fi_enable", fi_enable(ep));
    for (size_t i = 0; i < receives_; ++i) {
        post_receive(i);
    }
}

void Raw::add(Pages& pages, uint64_t access, Owned<fid_mr>& out) const {
    static uint64_t next_key = 1000;
    fid_mr* mr = nullptr;
    check("fi_mr_reg", fi_mr_reg(scene_.raw_host.domain.get(), pages.data(), pages.size(), access, 0,
                                 scene_.provider_keys() ? 0 : ++next_key, 0, &mr, nullptr));
    out.reset(mr);
}

void Raw::post_receive(size_t slot) {
    (void)fi_recv(ep_.get(), in_.data() + slot * receive_size, receive_size, fi_mr_desc(in_mr_.get()), FI_ADDR_UNSPEC,
                  &in_contexts_[slot]);
}

wire::Hello Raw::hello() const {
    wire::Hello hello = good_hello();
    hello.features = headers ? wire::Hello::feature_headers : 0;
    hello.ring_address = scene_.virtual_addresses() ? reinterpret_cast<uint64_t>(ring_.data()) : 0;
    hello.ring_key = fi_mr_key(ring_mr_.get());
    hello.data_credits = static_cast<uint16_t>(receives_ - wire::control_credits);
    hello.maps = maps;
    return hello;
}

void Raw::connect(const std::vector<std::byte>& data) {
    check("fi_connect", fi_connect(ep_.get(), scene_.listener.name().data(), data.data(), data.size()));
}

void Raw::connected(const Event& event) {
    expect(event, FI_CONNECTED, &ep_->fid);
    EXPECT(wire::Hello::parse(event.data, peer) == wire::Hello::Error::none);
}

// A queue that stays full has a peer behind it that takes nothing.
template <class Call> ssize_t Raw::retry(Call call) {
    for (const auto start = Clock::now();;) {
        const ssize_t ret = call();
        if (ret != -FI_EAGAIN || milliseconds_since(start) > patience(250)) {
            return ret;
        }
        progress();
    }
}

std::byte* Raw::next_slot(void** context) {
    const size_t slot = 1 + operations_++ % slots;
    *context = &out_contexts_[slot];
    return out_.data() + slot * slot_size;
}

ssize_t Raw::write(uint64_t immediate, size_t length, uint64_t offset, uint64_t key_change) {
    void* context = nullptr;
    std::byte* from = next_slot(&context);
    void* desc = fi_mr_desc(out_mr_.get());
    const uint64_t address = peer.ring_address + offset;
    const uint64_t key = peer.ring_key + key_change;
    if (!headers) {
        return retry([&] {
            return fi_writedata(ep_.get(), from, length, desc, immediate, FI_ADDR_UNSPEC, address, key, context);
        });
    }
    const ssize_t ret =
        retry([&] { return fi_write(ep_.get(), from, length, desc, FI_ADDR_UNSPEC, address, key, context); });
    if (ret != 0) {
        return ret;
    }
    wire::Control header;
    header.type = wire::Control::Type::data;
    header.argument = static_cast<uint32_t>(immediate);
    return control(header);
}

ssize_t Raw::message(const void* bytes, size_t length) {
    void* context = nullptr;
    std::byte* from = next_slot(&context);
    memcpy(from, bytes, length);
    return retry([&] { return fi_send(ep_.get(), from, length, fi_mr_desc(out_mr_.get()), FI_ADDR_UNSPEC, context); });
}

ssize_t Raw::control(const wire::Control& control) {
    std::byte bytes[wire::Control::size];
    control.encode(bytes);
    return message(bytes, sizeof(bytes));
}

ssize_t Raw::map(const wire::MapMessage& map) {
    std::byte bytes[wire::MapMessage::size];
    map.encode(bytes);
    return message(bytes, sizeof(bytes));
}

ssize_t Raw::poke(uint64_t address, size_t length, uint64_t key) {
    void* context = nullptr;
    std::byte* from = next_slot(&context);
    std::fill(from, from + length, poison);
    return retry([&] {
        return fi_write(ep_.get(), from, length, fi_mr_desc(out_mr_.get()), FI_ADDR_UNSPEC, address, key, context);
    });
}

ssize_t Raw::peep(uint64_t address, size_t length, uint64_t key) {
    std::fill(out_.data(), out_.data() + slot_size, poison);
    outcome = FI_EINPROGRESS;
    return retry([&] {
        return fi_read(ep_.get(), out_.data(), length, fi_mr_desc(out_mr_.get()), FI_ADDR_UNSPEC, address, key,
                       &out_contexts_[0]);
    });
}

void Raw::take(const void* context, int error) {
    if (context == &out_contexts_[0]) {
        outcome = error;
        return;
    }
    const std::less<const void*> before;
    const fi_context2* first = in_contexts_.data();
    if (error == 0 && !before(context, first) && before(context, first + in_contexts_.size())) {
        const auto slot = static_cast<size_t>(static_cast<const fi_context2*>(context) - first);
        const auto said = wire::Control::decode({in_.data() + slot * receive_size, wire::Control::size});
        if (said && said->type == wire::Control::Type::offer) {
            offer = said;
        }
        if (const auto map = wire::MapMessage::decode({in_.data() + slot * receive_size, wire::MapMessage::size})) {
            told.push_back(*map);
        }
        // Data by immediate takes a slot too, and leaves it as it is.
        std::fill_n(in_.data() + slot * receive_size, wire::MapMessage::size, std::byte{});
        post_receive(slot);
    }
}

void Raw::progress() {
    for (;;) {
        fi_cq_data_entry entries[16];
        const ssize_t count = fi_cq_read(cq_.get(), entries, 16);
        if (count == -FI_EAVAIL) {
            fi_cq_err_entry error{};
            if (fi_cq_readerr(cq_.get(), &error, 0) != 1) {
                return;
            }
            take(error.op_context, error.err != 0 ? error.err : FI_EIO);
            continue;
        }
        if (count <= 0) {
            return;
        }
        for (ssize_t i = 0; i < count; ++i) {
            take(entries[i].op_context, 0);
        }
    }
}

// ---- Scene

Scene::Scene() : host(here()), raw_host(core_request()), listener(host) { witness = connect_honest(); }

Scene::Honest Scene::connect_honest() {
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

std::unique_ptr<Stream> Scene::accept(Raw& raw) {
    const Info info(expect(queues.next(host, raw_host), FI_CONNREQ, &listener.pep->fid).info);
    auto victim = std::make_unique<Stream>(host, info.get());
    victim->set_option(FI_OPT_RSTREAM_MAPS, maps);
    victim->accept();
    expect(queues.next(host, raw_host), FI_CONNECTED, &victim->get()->fid);
    raw.connected(queues.next(raw_host, host));
    return victim;
}

std::unique_ptr<Stream> Scene::attack(Raw& raw) {
    raw.connect(encoded(raw.hello()));
    return accept(raw);
}

void Scene::others_carry_on() {
    exchange(witness);
    exchange(connect_honest());
}

void Scene::exchange(const Honest& pair) {
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

bool Scene::until(Raw& raw, Stream& victim, const std::function<bool()>& so) {
    for (const auto start = Clock::now(); milliseconds_since(start) < patience(10000);) {
        raw.progress();
        (void)peek_recv(victim);
        queues.poll(host);
        queues.poll(raw_host);
        if (so()) {
            return true;
        }
    }
    return false;
}

bool Scene::virtual_addresses() const { return (raw_host.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0; }
bool Scene::provider_keys() const { return (raw_host.info->domain_attr->mr_mode & FI_MR_PROV_KEY) != 0; }
bool Scene::immediates() const { return raw_host.info->domain_attr->cq_data_size >= 4; }

void expect_reset(Scene& scene, Stream& victim, Raw& raw) {
    std::vector<char> bytes(65536);
    ssize_t got = 0;
    const auto start = Clock::now();
    do {
        raw.progress();
        got = recv(victim, bytes.data(), bytes.size());
    } while ((got > 0 || got == -FI_EAGAIN) && milliseconds_since(start) < patience(10000));
    EXPECT_RESULT(got, -FI_ECONNRESET);
    EXPECT_RESULT(send(victim, "x", 1), -FI_EPIPE);
    scene.ended(victim);
}

} // namespace hostile
