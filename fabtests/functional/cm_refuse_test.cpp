// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections that do not come about: rejected, refused, too many, or asked for by something that speaks no rstream.
// A listener must carry on after each.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

// The next event, which must be that this endpoint's connection was refused.
Event expect_refused(Host& host, const Stream& client) {
    Event event = host.next_event(patience(20000));
    EXPECT(event.error);
    EXPECT_EQ(event.err, FI_ECONNREFUSED);
    EXPECT(event.subject == &client.ep->fid);
    EXPECT(event.context == client.ep->fid.context);
    return event;
}

// That a connection can still be made, whatever happened before. Events of other endpoints are passed over.
void expect_alive(Host& host, const Listener& listener) {
    Stream client(host);
    client.connect(listener.name().data(), "alive");
    std::unique_ptr<Stream> server;
    for (int connected = 0; connected < 2;) {
        const Event event = host.next_event(patience(20000));
        EXPECT(!event.error);
        if (event.type == FI_CONNREQ) {
            const Info info(event.info);
            EXPECT_EQ(event.text(), std::string("alive"));
            server = std::make_unique<Stream>(host, info.get());
            server->accept();
        } else {
            EXPECT_EQ(event.type, static_cast<uint32_t>(FI_CONNECTED));
            ++connected;
        }
    }
    exchange_bytes(client, *server, 1000);
}

void test_reject_reports_econnrefused_with_its_private_data() {
    Host host(here());
    const Listener listener(host);
    const size_t most = Stream(host).get_option(FI_OPT_CM_DATA_SIZE);
    for (const size_t size : {size_t{0}, size_t{1}, most / 2, most}) {
        Stream client(host);
        client.connect(listener.name().data());
        const Event request = host.expect(FI_CONNREQ, &listener.pep->fid);
        const Info info(request.info);
        const std::string why(size, 'n');
        EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, why.data(), why.size()), 0);
        EXPECT_EQ(expect_refused(host, client).text(), why);
    }
    expect_alive(host, listener);
}

void test_connect_to_a_closed_port_reports_econnrefused() {
    need_core("tcp");
    Host host(here());
    Stream client(host);
    client.connect(closed_port().data());
    EXPECT_EQ(expect_refused(host, client).text(), std::string());
}

void test_a_refused_endpoint_is_not_connected() {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Event request = host.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(request.info);
    EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, nullptr, 0), 0);
    expect_refused(host, client);
    char byte = 0;
    EXPECT_RESULT(send(client, &byte, 1), -FI_ENOTCONN);
    EXPECT_RESULT(recv(client, &byte, 1), -FI_ENOTCONN);
    // No FI_SHUTDOWN: there was no connection to end.
    EXPECT_RESULT(fi_shutdown(client.get(), 0), -FI_ENOTCONN);
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 100, 0), -FI_EAGAIN);
}

void test_backlog_limits_the_requests_that_wait() {
    Host host(here());
    const Listener listener(host, 2);
    std::vector<std::unique_ptr<Stream>> clients;
    std::vector<Info> waiting;
    for (int i = 0; i < 2; ++i) {
        clients.push_back(std::make_unique<Stream>(host));
        clients.back()->connect(listener.name().data());
        waiting.emplace_back(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    }
    for (int i = 0; i < 3; ++i) {
        Stream late(host);
        late.connect(listener.name().data());
        expect_refused(host, late);
    }
    // Accepted or rejected, one makes space for another.
    EXPECT_RESULT(fi_reject(listener.pep.get(), waiting[0]->handle, nullptr, 0), 0);
    expect_refused(host, *clients[0]);
    Stream next(host);
    next.connect(listener.name().data());
    waiting.emplace_back(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, waiting[1].get());
    server.accept();
    EXPECT_EQ(host.next_event().type, static_cast<uint32_t>(FI_CONNECTED));
    EXPECT_EQ(host.next_event().type, static_cast<uint32_t>(FI_CONNECTED));
    Stream another(host);
    another.connect(listener.name().data());
    waiting.emplace_back(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    exchange_bytes(*clients[1], server, 1000);
}

void test_backlog_takes_only_sensible_values_and_only_before_listen() {
    Host host(here());
    fid_pep* raw = nullptr;
    check("fi_passive_ep", fi_passive_ep(host.fabric.get(), host.info.get(), &raw, nullptr));
    const Owned<fid_pep> pep(raw);
    check("fi_pep_bind", fi_pep_bind(raw, &host.eq->fid, 0));
    int backlog = -1;
    EXPECT_RESULT(fi_control(&raw->fid, FI_BACKLOG, &backlog), -FI_EINVAL);
    EXPECT_RESULT(fi_control(&raw->fid, FI_BACKLOG, nullptr), -FI_EINVAL);
    backlog = 8;
    EXPECT_RESULT(fi_control(&raw->fid, FI_BACKLOG, &backlog), 0);
    EXPECT_RESULT(fi_listen(raw), 0);
    EXPECT_ERROR(fi_control(&raw->fid, FI_BACKLOG, &backlog));
}

void test_closing_a_passive_endpoint_refuses_its_pending_requests() {
    Host host(here());
    std::vector<std::unique_ptr<Stream>> clients;
    std::vector<Info> waiting;
    {
        const Listener listener(host);
        for (int i = 0; i < 3; ++i) {
            clients.push_back(std::make_unique<Stream>(host));
            clients.back()->connect(listener.name().data());
            waiting.emplace_back(host.expect(FI_CONNREQ, &listener.pep->fid).info);
        }
    }
    for (size_t i = 0; i < clients.size(); ++i) {
        const Event event = host.next_event(patience(20000));
        EXPECT(event.error);
        EXPECT_EQ(event.err, FI_ECONNREFUSED);
    }
    // Their handles are of no use any more.
    fid_ep* ep = nullptr;
    EXPECT_RESULT(fi_endpoint(host.domain.get(), waiting[0].get(), &ep, nullptr), -FI_EINVAL);
}

void test_closing_a_passive_endpoint_refuses_requests_nobody_has_read() {
    Host server(here());
    Host host(here());
    Stream client(host);
    {
        const Listener listener(server);
        client.connect(listener.name().data());
        await_event({&server, &host});
    }
    expect_refused(host, client);
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    EXPECT_RESULT(fi_eq_read(server.eq.get(), &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
}

// The host, which has closed its listener, hears of the client's request only now; and carries on.
void expect_refused_late(Host& host, Host& elsewhere, Stream& client) {
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    const auto start = Clock::now();
    while (fi_eq_read(elsewhere.eq.get(), &type, &entry, sizeof(entry), 0) != -FI_EAVAIL) {
        EXPECT(milliseconds_since(start) < patience(20000));
        EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 10, 0), -FI_EAGAIN);
    }
    expect_refused(elsewhere, client);
    expect_alive(host, Listener(host));
}

// On tcp, the request follows once the client's event queue is looked at: here that is after nobody listens any more.
void test_closing_a_passive_endpoint_survives_a_request_that_is_late() {
    need_core("tcp");
    for (const bool wildcard : {false, true}) {
        Request request = here();
        if (wildcard) {
            request.node.clear();
            request.service = "0";
        }
        Host host(request);
        Host elsewhere(here());
        auto listener = std::make_unique<Listener>(host);
        auto to = Listener(elsewhere).name();
        reinterpret_cast<sockaddr_in*>(to.data())->sin_port = htons(listener->port());
        Stream client(elsewhere);
        client.connect(to.data());
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        // The core takes the connection meanwhile.
        EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 100, 0), -FI_EAGAIN);
        listener.reset();
        expect_refused_late(host, elsewhere, client);
    }
}

// As before, where an event has come and was read without a sleep: the core's descriptor still tells of it.
void test_closing_a_passive_endpoint_survives_a_late_request() {
    need_core("tcp");
    Host host(here());
    Host first(here());
    Host elsewhere(here());
    auto listener = std::make_unique<Listener>(host);
    const auto to = listener->name();
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    Stream early(first);
    early.connect(to.data());
    for (const auto start = Clock::now(); fi_eq_read(host.eq.get(), &type, &entry, sizeof(entry), 0) < 0;) {
        EXPECT(milliseconds_since(start) < patience(20000));
        EXPECT_RESULT(fi_eq_read(first.eq.get(), &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
    }
    EXPECT_EQ(type, FI_CONNREQ);
    const Info request(entry.info);
    Stream client(elsewhere);
    client.connect(to.data());
    // The core takes the connection meanwhile.
    for (const auto start = Clock::now(); milliseconds_since(start) < 100;) {
        EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
    }
    listener.reset();
    expect_refused_late(host, elsewhere, client);
    expect_refused(first, early);
}

void test_closing_an_endpoint_that_was_not_accepted_refuses_the_peer() {
    for (const bool enabled : {false, true}) {
        Host server(here());
        const Listener listener(server);
        Host host(here());
        Stream client(host);
        client.connect(listener.name().data());
        await_event({&server, &host});
        const Event request = server.expect(FI_CONNREQ, &listener.pep->fid);
        const Info info(request.info);
        {
            const Stream dropped(server, info.get());
            if (enabled) {
                EXPECT_RESULT(fi_enable(dropped.get()), 0);
            }
        }
        expect_refused(host, client);
        expect_alive(server, listener);
    }
}

// ---- Visitors that speak something else

// A kernel socket connected to the listener.
class Visitor {
  public:
    explicit Visitor(const Listener& listener) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
        const auto name = listener.name();
        connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(name.data()), sizeof(sockaddr_in)) == 0;
    }
    Visitor(const Visitor&) = delete;
    Visitor& operator=(const Visitor&) = delete;
    ~Visitor() { close(fd_); }

    void say(const std::string& bytes) const {
        EXPECT(connected_);
        EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    // Whether the other side has ended the connection; the listener's queue is read meanwhile.
    bool turned_away(Host& host) const {
        const auto start = Clock::now();
        while (milliseconds_since(start) < patience(10000)) {
            uint32_t type = 0;
            fi_eq_cm_entry entry{};
            EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 10, 0), -FI_EAGAIN);
            char bytes[256];
            if (const ssize_t got = ::recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
                got == 0 || (got < 0 && errno != EAGAIN)) {
                return true;
            }
        }
        return false;
    }

  private:
    int fd_;
    bool connected_ = false;
};

void test_a_listener_turns_away_garbage_and_carries_on() {
    need_core("tcp");
    Host host(here());
    const Listener listener(host);
    {
        const Visitor browser(listener);
        browser.say("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: something much longer than any header\r\n\r\n" +
                    std::string(2000, 'x'));
        EXPECT(browser.turned_away(host));
    }
    expect_alive(host, listener);
    {
        const Visitor zeros(listener);
        zeros.say(std::string(4000, '\0'));
        EXPECT(zeros.turned_away(host));
    }
    expect_alive(host, listener);
    {
        const Visitor ones(listener);
        ones.say(std::string(4000, '\xff'));
        EXPECT(ones.turned_away(host));
    }
    expect_alive(host, listener);
}

void test_a_listener_is_not_held_up_by_visitors_that_say_little() {
    need_core("tcp");
    Host host(here());
    const Listener listener(host);
    const Visitor silent(listener);
    const Visitor short_spoken(listener);
    short_spoken.say("a");
    expect_alive(host, listener);
    { const Visitor gone_at_once(listener); }
    {
        const Visitor gone_early(listener);
        gone_early.say("ab");
    }
    expect_alive(host, listener);
}

// An end of the bare core in a process of its own, which hides it from nobody.
struct CoreEnd {
    static Info core_info() {
        Request request = here();
        request.type = FI_EP_MSG;
        request.provider = core_name();
        return get_info(request);
    }
    static Info core_info_to(const std::vector<std::byte>& address) {
        Info info = core_info();
        info->dest_addr = malloc(address.size());
        memcpy(info->dest_addr, address.data(), address.size());
        info->dest_addrlen = address.size();
        return info;
    }
    explicit CoreEnd(Info info = core_info()) : host(std::move(info)) {}
    void open(fi_info* info) {
        fi_cq_attr attr{};
        attr.format = FI_CQ_FORMAT_DATA;
        fid_cq* c = nullptr;
        check("fi_cq_open", fi_cq_open(host.domain.get(), &attr, &c, nullptr));
        cq.reset(c);
        fid_ep* e = nullptr;
        check("fi_endpoint", fi_endpoint(host.domain.get(), info, &e, nullptr));
        ep.reset(e);
        check("fi_ep_bind", fi_ep_bind(e, &host.eq->fid, 0));
        check("fi_ep_bind", fi_ep_bind(e, &c->fid, FI_TRANSMIT | FI_RECV));
        check("fi_enable", fi_enable(e));
    }
    Host host;
    Owned<fid_cq> cq;
    Owned<fid_ep> ep;
};

// Asks for a connection with private data that is no hello.
void core_client(const std::vector<std::string>& arguments) {
    const std::vector<std::byte> listener = from_text(arguments.at(0));
    CoreEnd end(CoreEnd::core_info_to(listener));
    end.open(end.host.info.get());
    size_t capacity = 0;
    size_t length = sizeof(capacity);
    check("fi_getopt", fi_getopt(&end.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &capacity, &length));
    const std::string data(std::min(std::stoul(arguments.at(1)), capacity), '\x5a');
    check("fi_connect", fi_connect(end.ep.get(), listener.data(), data.data(), data.size()));
    const Event event = end.host.next_event(patience(20000));
    EXPECT(event.error);
    EXPECT_EQ(event.err, FI_ECONNREFUSED);
}

void test_a_core_endpoint_without_a_hello_is_refused() {
    Host host(here());
    const Listener listener(host);
    for (const char* size : {"0", "4", "40", "200"}) {
        Child child("core_client", {to_text(listener.name()), size}, {"FI_PROVIDER=" + core_name()});
        std::atomic<bool> ended{false};
        Threads threads;
        threads.start([&] {
            const auto at_end = std::unique_ptr<void, std::function<void(void*)>>(&ended, [&](void*) { ended = true; });
            child.finish();
        });
        while (!ended) { // nothing must come of it; it is our reading that turns it away
            uint32_t type = 0;
            fi_eq_cm_entry entry{};
            EXPECT_RESULT(fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 20, 0), -FI_EAGAIN);
        }
        threads.join();
        expect_alive(host, listener);
    }
}

// A listener of the bare core that accepts whoever comes, with an answer that is no hello.
void core_listener(const std::vector<std::string>& arguments) {
    CoreEnd end;
    const Listener listener(end.host);
    say(to_text(listener.name()));
    const Info info(end.host.expect(FI_CONNREQ, &listener.pep->fid).info);
    end.open(info.get());
    const std::string data(std::stoul(arguments.at(0)), '\x5a');
    check("fi_accept", fi_accept(end.ep.get(), data.data(), data.size()));
    end.host.expect(FI_CONNECTED, &end.ep->fid);
    (void)listen_to_parent();
}

void test_a_core_listener_without_a_hello_refuses_us() {
    for (const char* size : {"0", "40"}) {
        Child child("core_listener", {size}, {"FI_PROVIDER=" + core_name()});
        Host host(here());
        Stream client(host);
        client.connect(from_text(child.hear()).data());
        expect_refused(host, client);
        child.tell("done");
        child.finish();
    }
}

// The next event of one host's queue, while another reads its own, which says nothing.
Event next_event_beside(Host& host, Host& silent) {
    const auto start = Clock::now();
    for (uint32_t event = 0;;) {
        EXPECT_RESULT(fi_eq_read(silent.eq.get(), &event, nullptr, 0, FI_PEEK), -FI_EAGAIN);
        if (fi_eq_read(host.eq.get(), &event, nullptr, 0, FI_PEEK) != -FI_EAGAIN) {
            return host.next_event(0);
        }
        EXPECT(milliseconds_since(start) < patience(20000));
    }
}

void test_a_connect_that_was_given_up_is_reset_if_the_peer_accepts() {
    for (const bool accepted_before : {false, true}) {
        Host server_host(here());
        const Listener listener(server_host);
        Host host(here());
        Stream client(host);
        client.connect(listener.name().data());
        await_event({&server_host, &host});
        const Event request = server_host.expect(FI_CONNREQ, &listener.pep->fid);
        const Info info(request.info);
        Stream server(server_host, info.get());
        if (accepted_before) { // the answer may be on its way
            server.accept();
        }
        EXPECT_RESULT(fi_shutdown(client.get(), FI_RSTREAM_ABORT), 0);
        EXPECT_RESULT(fi_shutdown(client.get(), FI_RSTREAM_ABORT), 0);
        EXPECT_RESULT(send(client, "x", 1), -FI_ENOTCONN);
        EXPECT_RESULT(fi_connect(client.get(), listener.name().data(), nullptr, 0), -FI_EOPBADSTATE);
        if (!accepted_before) {
            server.accept();
        }
        for (const uint32_t type : {FI_CONNECTED, FI_SHUTDOWN}) {
            const Event event = next_event_beside(server_host, host);
            EXPECT(!event.error);
            EXPECT_EQ(event.type, type);
            EXPECT(event.subject == &server.ep->fid);
        }
        char byte = 0;
        EXPECT_RESULT(recv(server, &byte, 1), -FI_ECONNRESET);
        expect_alive(server_host, listener);
    }
}

void test_a_connect_that_was_given_up_says_nothing_when_it_is_refused() {
    Host server_host(here());
    const Listener listener(server_host);
    Host host(here());
    Stream given_up(host);
    Stream other(host);
    for (Stream* client : {&given_up, &other}) {
        client->connect(listener.name().data());
        await_event({&server_host, &host});
        const Event request = server_host.expect(FI_CONNREQ, &listener.pep->fid);
        const Info info(request.info);
        if (client == &given_up) {
            EXPECT_RESULT(fi_shutdown(given_up.get(), FI_RSTREAM_ABORT), 0);
        }
        check("fi_reject", fi_reject(listener.pep.get(), info->handle, nullptr, 0));
    }
    expect_refused(host, other);
}

// Another thread may give the connect up, or read the event of its refusal.
void test_a_connect_that_comes_to_nothing_wakes_who_sleeps_on_the_endpoint() {
    for (const auto& [refused, by_send] :
         {std::pair(false, false), std::pair(false, true), std::pair(true, false), std::pair(true, true)}) {
        Host server_host(here());
        const Listener listener(server_host);
        Host host(here());
        Stream client(host);
        client.connect(listener.name().data());
        await_event({&server_host, &host});
        const Event request = server_host.expect(FI_CONNREQ, &listener.pep->fid);
        const Info info(request.info);
        EXPECT_RESULT(try_wait(host, &client.ep->fid), 0);
        const int fd = wait_fd(&client.ep->fid);
        EXPECT(!readable(fd, 0));
        if (refused) {
            check("fi_reject", fi_reject(listener.pep.get(), info->handle, nullptr, 0));
            expect_refused(host, client);
        } else {
            EXPECT_RESULT(fi_shutdown(client.get(), FI_RSTREAM_ABORT), 0);
        }
        EXPECT(readable(fd, 0));
        EXPECT_RESULT(try_wait(host, &client.ep->fid), -FI_EAGAIN); // until it was told
        char byte = 0;
        EXPECT_RESULT(by_send ? send(client, &byte, 1) : recv(client, &byte, 1), -FI_ENOTCONN);
        EXPECT_RESULT(try_wait(host, &client.ep->fid), 0);
        EXPECT(!readable(fd, 0));
    }
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"core_client", core_client}, {"core_listener", core_listener}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_reject_reports_econnrefused_with_its_private_data),
        FABTEST(test_connect_to_a_closed_port_reports_econnrefused),
        FABTEST(test_a_refused_endpoint_is_not_connected),
        FABTEST(test_backlog_limits_the_requests_that_wait),
        FABTEST(test_backlog_takes_only_sensible_values_and_only_before_listen),
        FABTEST(test_closing_a_passive_endpoint_refuses_its_pending_requests),
        FABTEST(test_closing_a_passive_endpoint_refuses_requests_nobody_has_read),
        FABTEST(test_closing_a_passive_endpoint_survives_a_request_that_is_late),
        FABTEST(test_closing_a_passive_endpoint_survives_a_late_request),
        FABTEST(test_closing_an_endpoint_that_was_not_accepted_refuses_the_peer),
        FABTEST(test_a_connect_that_was_given_up_is_reset_if_the_peer_accepts),
        FABTEST(test_a_connect_that_was_given_up_says_nothing_when_it_is_refused),
        FABTEST(test_a_connect_that_comes_to_nothing_wakes_who_sleeps_on_the_endpoint),
        FABTEST(test_a_listener_turns_away_garbage_and_carries_on),
        FABTEST(test_a_listener_is_not_held_up_by_visitors_that_say_little),
        FABTEST(test_a_core_endpoint_without_a_hello_is_refused),
        FABTEST(test_a_core_listener_without_a_hello_refuses_us),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
