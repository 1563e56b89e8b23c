// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Connections that come about: events, private data, names and addresses of both ends.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include <netinet/in.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

// A listener, and a client that has asked it for a connection, on one queue.
struct Asked {
    explicit Asked(const std::string& data = {}) : host(here()), listener(host), client(host) {
        client.connect(listener.name().data(), data);
        request = listener.request();
        info.reset(request.info);
    }
    Host host;
    Listener listener;
    Stream client;
    Event request;
    Info info;
};

// FI_CONNECTED of both ends, in whatever order; what came with each.
std::map<const fid*, std::string> take_connected(Host& host, size_t count) {
    std::map<const fid*, std::string> connected;
    for (size_t i = 0; i < count; ++i) {
        const Event event = host.next_event(patience(20000));
        EXPECT(!event.error);
        EXPECT_EQ(event.type, static_cast<uint32_t>(FI_CONNECTED));
        EXPECT(connected.emplace(event.subject, event.text()).second);
    }
    return connected;
}

std::string letters(size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) {
        text += static_cast<char>('!' + i % 90);
    }
    return text;
}

void test_connect_and_accept_report_connected_at_both_ends() {
    Asked asked;
    EXPECT(asked.info != nullptr);
    EXPECT_EQ(asked.info->ep_attr->type, FI_RSTREAM_EP_STREAM);
    EXPECT_EQ(asked.info->fabric_attr->prov_name, std::string("rstream"));
    EXPECT_EQ(asked.info->domain_attr->name, std::string(asked.host.info->domain_attr->name));
    Stream server(asked.host, asked.info.get());
    server.accept();
    const auto connected = take_connected(asked.host, 2);
    EXPECT(connected.contains(&asked.client.ep->fid) && connected.contains(&server.ep->fid));
    exchange_bytes(asked.client, server, 100000);
}

void test_private_data_of_every_size_reaches_the_peer() {
    Host host(here());
    const Listener listener(host);
    const size_t most = Stream(host).get_option(FI_OPT_CM_DATA_SIZE);
    EXPECT(most >= 1 && most <= 255);
    for (const size_t size : std::set<size_t>{0, 1, 2, 7, most / 2, most - 1, most}) {
        Stream client(host);
        const std::string question = letters(size);
        client.connect(listener.name().data(), question);
        const Event request = host.expect(FI_CONNREQ, &listener.pep->fid);
        const Info info(request.info);
        EXPECT_EQ(request.text(), question);
        Stream server(host, info.get());
        const std::string answer(question.rbegin(), question.rend());
        server.accept(answer);
        const auto connected = take_connected(host, 2);
        EXPECT_EQ(connected.at(&client.ep->fid), answer);
        EXPECT_EQ(connected.at(&server.ep->fid), std::string());
        move_bytes(client, server, 1000);
    }
}

void test_too_much_private_data_is_refused_and_changes_nothing() {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    const std::string most = letters(client.get_option(FI_OPT_CM_DATA_SIZE));
    const std::string more = most + "x";
    EXPECT_RESULT(fi_connect(client.get(), listener.name().data(), more.data(), more.size()), -FI_EINVAL);
    EXPECT_RESULT(fi_connect(client.get(), listener.name().data(), nullptr, 1), -FI_EINVAL);
    client.connect(listener.name().data(), most);
    const Event request = host.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(request.info);
    EXPECT_EQ(request.text(), most);
    EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, more.data(), more.size()), -FI_EINVAL);
    Stream server(host, info.get());
    EXPECT_RESULT(fi_accept(server.get(), more.data(), more.size()), -FI_EINVAL);
    server.accept(most);
    EXPECT_EQ(take_connected(host, 2).at(&client.ep->fid), most);
    exchange_bytes(client, server, 1000);
}

void test_a_passive_endpoint_tells_the_size_of_private_data_too() {
    Host host(here());
    const Listener listener(host);
    size_t size = 0;
    size_t length = sizeof(size);
    EXPECT_RESULT(fi_getopt(&listener.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length), 0);
    EXPECT_EQ(length, sizeof(size));
    EXPECT_EQ(size, Stream(host).get_option(FI_OPT_CM_DATA_SIZE));
}

void test_the_wildcard_address_of_ipv6_can_be_listened_on() {
    need_core("tcp");
    const Info wishes(fi_allocinfo());
    wishes->ep_attr->type = FI_RSTREAM_EP_STREAM;
    wishes->addr_format = FI_SOCKADDR_IN6;
    wishes->fabric_attr->prov_name = strdup("tcp;rstream");
    auto* any = static_cast<sockaddr_in6*>(calloc(1, sizeof(sockaddr_in6)));
    EXPECT(any != nullptr);
    any->sin6_family = AF_INET6;
    wishes->src_addr = any;
    wishes->src_addrlen = sizeof(*any);
    fi_info* found = nullptr;
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, wishes.get(), &found));
    Host host{Info(found)};
    const Listener listener(host);
    EXPECT(listener.port() != 0);
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(listener.port());
    to.sin6_addr = in6addr_loopback;
    Stream client(host);
    client.connect(&to);
    const Event request = host.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(request.info);
    Stream server(host, info.get());
    server.accept();
    (void)take_connected(host, 2);
    exchange_bytes(client, server, 100000);
}

void test_events_of_many_connections_name_the_right_fids() {
    constexpr size_t count = 64;
    Host host(here());
    const Listener listener(host);
    std::vector<std::unique_ptr<Stream>> clients;
    std::map<const fid*, size_t> index_of;
    for (size_t i = 0; i < count; ++i) {
        clients.push_back(std::make_unique<Stream>(host));
        index_of[&clients.back()->ep->fid] = i;
        clients.back()->connect(listener.name().data(), std::to_string(i));
    }
    std::vector<std::unique_ptr<Stream>> servers(count);
    for (size_t events = 0; events < 3 * count; ++events) {
        Event event;
        try {
            event = host.next_event(patience(20000));
        } catch (const Error& error) { // which of them are missing
            const auto requested = std::count_if(servers.begin(), servers.end(), [](const auto& s) { return !!s; });
            throw Failure(std::string(error.what()) + ": of " + std::to_string(count) + " there were " +
                          std::to_string(requested) + " requests, and " +
                          std::to_string(events - static_cast<size_t>(requested)) + " ends are connected");
        }
        EXPECT(!event.error);
        if (event.type == FI_CONNREQ) {
            EXPECT(event.subject == &listener.pep->fid);
            const Info info(event.info);
            const size_t i = std::stoul(event.text());
            EXPECT(servers.at(i) == nullptr);
            servers[i] = std::make_unique<Stream>(host, info.get());
            servers[i]->accept("to " + event.text());
            index_of[&servers[i]->ep->fid] = count + i;
            continue;
        }
        EXPECT_EQ(event.type, static_cast<uint32_t>(FI_CONNECTED));
        const auto found = index_of.find(event.subject);
        EXPECT(found != index_of.end()); // said once of each
        EXPECT_EQ(event.text(), found->second < count ? "to " + std::to_string(found->second) : std::string());
        index_of.erase(found);
    }
    EXPECT(index_of.empty());
    for (size_t i = 0; i < count; ++i) {
        exchange_bytes(*clients[i], *servers[i], 3000, 1000, i);
    }
}

void test_send_and_receive_give_enotconn_before_the_connection_is_made() {
    Host server_host(here());
    const Listener listener(server_host);
    Host host(here());
    Stream client(host);
    char byte = 0;
    EXPECT_RESULT(send(client, &byte, 1), -FI_ENOTCONN);
    EXPECT_RESULT(recv(client, &byte, 1), -FI_ENOTCONN);
    client.connect(listener.name().data());
    EXPECT_RESULT(send(client, &byte, 1), -FI_ENOTCONN);
    EXPECT_RESULT(recv(client, &byte, 1), -FI_ENOTCONN);
    await_event({&server_host, &host});
    const Event request = server_host.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(request.info);
    Stream server(server_host, info.get());
    server.accept();
    await_event({&host, &server_host});
    host.expect(FI_CONNECTED, &client.ep->fid);
    server_host.expect(FI_CONNECTED, &server.ep->fid);
    EXPECT_RESULT(send(client, &byte, 1), 1);
}

std::vector<std::byte> peer_of(const Stream& stream) {
    std::vector<std::byte> address(64);
    size_t length = address.size();
    check("fi_getpeer", fi_getpeer(stream.get(), address.data(), &length));
    address.resize(length);
    return address;
}

void test_each_end_knows_its_own_name_and_that_of_its_peer() {
    Asked asked;
    const auto where = asked.listener.name();
    Stream server(asked.host, asked.info.get());
    server.accept();
    take_connected(asked.host, 2);
    EXPECT(asked.client.name() == peer_of(server));
    EXPECT(server.name() == peer_of(asked.client));
    EXPECT_EQ(port_of(peer_of(asked.client)), port_of(where));
    EXPECT(port_of(asked.client.name()) != 0);
}

void test_getname_with_too_little_room_tells_how_much_it_needs() {
    Asked asked;
    Stream server(asked.host, asked.info.get());
    server.accept();
    take_connected(asked.host, 2);
    fid* fids[] = {&asked.client.ep->fid, &server.ep->fid, &asked.listener.pep->fid};
    for (fid* one : fids) {
        std::array<unsigned char, 64> address{};
        size_t length = 4;
        address[4] = 0xaa;
        EXPECT_RESULT(fi_getname(one, address.data(), &length), -FI_ETOOSMALL);
        EXPECT_EQ(length, sizeof(sockaddr_in));
        EXPECT_EQ(address[4], 0xaa);
        EXPECT_RESULT(fi_getname(one, address.data(), &length), 0);
    }
    char buffer[64];
    size_t length = 4;
    EXPECT_RESULT(fi_getpeer(asked.client.get(), buffer, &length), -FI_ETOOSMALL);
    EXPECT_EQ(length, sizeof(sockaddr_in));
}

void test_getpeer_of_an_endpoint_without_a_peer_gives_enotconn() {
    Host host(here());
    const Stream stream(host);
    char buffer[64];
    size_t length = sizeof(buffer);
    EXPECT_RESULT(fi_getpeer(stream.get(), buffer, &length), -FI_ENOTCONN);
}

Owned<fid_pep> passive(Host& host, fi_info* info) {
    fid_pep* pep = nullptr;
    check("fi_passive_ep", fi_passive_ep(host.fabric.get(), info, &pep, nullptr));
    Owned<fid_pep> owned(pep);
    check("fi_pep_bind", fi_pep_bind(pep, &host.eq->fid, 0));
    return owned;
}

// That a client reaches what listens at this address.
void reach(Host& host, const fid_pep* pep, const void* address) {
    Stream client(host);
    client.connect(address);
    const Event request = host.expect(FI_CONNREQ, &pep->fid);
    const Info info(request.info);
    Stream server(host, info.get());
    server.accept();
    take_connected(host, 2);
    exchange_bytes(client, server, 10000);
}

void test_setname_before_listen_chooses_where_to_listen() {
    need_core("tcp");
    Host host(here());
    const Info info(fi_dupinfo(host.info.get()));
    free(info->src_addr);
    info->src_addr = nullptr;
    info->src_addrlen = 0;
    const auto pep = passive(host, info.get());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_RESULT(fi_setname(&pep->fid, &address, sizeof(address)), 0);
    EXPECT_RESULT(fi_listen(pep.get()), 0);
    size_t length = sizeof(address);
    EXPECT_RESULT(fi_getname(&pep->fid, &address, &length), 0);
    EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
    EXPECT(address.sin_port != 0);
    reach(host, pep.get(), &address);
    EXPECT_ERROR(fi_setname(&pep->fid, &address, sizeof(address)));
    reach(host, pep.get(), &address);
}

void test_an_endpoint_of_another_type_is_refused() {
    Host host(here());
    const Info info(fi_dupinfo(host.info.get()));
    info->ep_attr->type = FI_EP_MSG;
    fid_pep* pep = nullptr;
    EXPECT_RESULT(fi_passive_ep(host.fabric.get(), info.get(), &pep, nullptr), -FI_EINVAL);
    fid_ep* ep = nullptr;
    EXPECT_RESULT(fi_endpoint(host.domain.get(), info.get(), &ep, nullptr), -FI_EINVAL);
}

// A core would read past the end of half an address.
void test_only_whole_addresses_are_taken() {
    Host host(here());
    Stream stream(host);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    EXPECT_RESULT(fi_setname(&stream.ep->fid, &address, 1), -FI_EINVAL);
    EXPECT_RESULT(fi_setname(&stream.ep->fid, &address, sizeof(address) - 1), -FI_EINVAL);
    address.sin6_family = AF_INET;
    EXPECT_RESULT(fi_setname(&stream.ep->fid, &address, sizeof(sockaddr_in) - 1), -FI_EINVAL);
    EXPECT_RESULT(fi_setname(&stream.ep->fid, &address, sizeof(sockaddr_in)), 0);
    address.sin6_family = AF_UNIX;
    EXPECT_RESULT(fi_setname(&stream.ep->fid, &address, sizeof(address)), -FI_EINVAL);
    const Info info(fi_dupinfo(host.info.get()));
    free(info->src_addr);
    info->src_addr = calloc(1, sizeof(sockaddr_in));
    EXPECT(info->src_addr != nullptr);
    static_cast<sockaddr*>(info->src_addr)->sa_family = AF_INET;
    info->src_addrlen = 4;
    fid_pep* pep = nullptr;
    EXPECT_RESULT(fi_passive_ep(host.fabric.get(), info.get(), &pep, nullptr), -FI_EINVAL);
    fid_ep* ep = nullptr;
    EXPECT_RESULT(fi_endpoint(host.domain.get(), info.get(), &ep, nullptr), -FI_EINVAL);
}

void test_a_listener_without_a_node_is_reached_at_every_address() {
    need_core("tcp");
    Request request = here();
    request.node.clear();
    request.service = "0";
    Host host(request);
    const auto pep = passive(host, host.info.get());
    EXPECT_RESULT(fi_listen(pep.get()), 0);
    sockaddr_storage name{};
    size_t length = sizeof(name);
    EXPECT_RESULT(fi_getname(&pep->fid, &name, &length), 0);
    const auto* any = reinterpret_cast<const sockaddr_in*>(&name);
    EXPECT(any->sin_port != 0); // at the same place in both families
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = any->sin_port;
    reach(host, pep.get(), &to);
}

void test_connections_over_ipv6() {
    need_core("tcp");
    Request request = here();
    request.node = "::1";
    Host host(request);
    const Listener listener(host);
    const auto name = listener.name();
    EXPECT_EQ(name.size(), sizeof(sockaddr_in6));
    EXPECT_EQ(reinterpret_cast<const sockaddr*>(name.data())->sa_family, AF_INET6);
    reach(host, listener.pep.get(), name.data());
}

void test_connect_without_an_address_uses_that_of_the_info() {
    Host server(here());
    const Listener listener(server);
    Request request = here();
    request.source = false;
    request.service = std::to_string(listener.port());
    Host host(request);
    Stream client(host);
    EXPECT_RESULT(fi_connect(client.get(), nullptr, nullptr, 0), 0);
    await_event({&server, &host});
    const Event asked = server.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(asked.info);
    Stream accepted(server, info.get());
    accepted.accept();
    await_event({&host, &server});
    host.expect(FI_CONNECTED, &client.ep->fid);
    server.expect(FI_CONNECTED, &accepted.ep->fid);
    char byte = 'x';
    client.send_all(&byte, 1);
    EXPECT_EQ(accepted.recv_all(&byte, 1), 1U);
}

void test_the_ends_of_a_connection_may_have_queues_and_domains_of_their_own() {
    Host a(here());
    Host b(here());
    const Listener listener(a);
    Stream client(b);
    client.connect(listener.name().data());
    await_event({&a, &b});
    const Event request = a.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(request.info);
    Stream server(a, info.get());
    server.accept();
    await_event({&b, &a});
    a.expect(FI_CONNECTED, &server.ep->fid);
    b.expect(FI_CONNECTED, &client.ep->fid);
    char text[3] = {};
    client.send_all("abc", 3);
    EXPECT_EQ(server.recv_all(text, 3), 3U);
    EXPECT(memcmp(text, "abc", 3) == 0);
}

void test_an_endpoint_may_be_bound_to_another_queue_than_the_listener() {
    Host host(here());
    const Listener listener(host);
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_eq* eq = nullptr;
    check("fi_eq_open", fi_eq_open(host.fabric.get(), &attr, &eq, nullptr));
    const Owned<fid_eq> second(eq);
    Stream client(host);
    client.connect(listener.name().data());
    const Event request = host.expect(FI_CONNREQ, &listener.pep->fid);
    const Info info(request.info);
    fid_ep* ep = nullptr;
    check("fi_endpoint", fi_endpoint(host.domain.get(), info.get(), &ep, nullptr));
    const Owned<fid_ep> server(ep);
    EXPECT_RESULT(fi_ep_bind(ep, &eq->fid, 0), 0);
    EXPECT_RESULT(fi_accept(ep, nullptr, 0), 0);
    // Some cores have the client confirm what was accepted, so both queues are read until each has its event.
    bool client_connected = false;
    bool server_connected = false;
    const auto start = Clock::now();
    while (!client_connected || !server_connected) {
        EXPECT(milliseconds_since(start) < patience(10000));
        for (fid_eq* queue : {eq, host.eq.get()}) {
            uint32_t event = 0;
            fi_eq_cm_entry entry{};
            const ssize_t got = fi_eq_sread(queue, &event, &entry, sizeof(entry), 10, 0);
            if (got == -FI_EAGAIN) {
                continue;
            }
            EXPECT_RESULT(got, sizeof(entry));
            EXPECT_EQ(event, static_cast<uint32_t>(FI_CONNECTED));
            EXPECT(entry.fid == (queue == eq ? &ep->fid : &client.ep->fid));
            (queue == eq ? server_connected : client_connected) = true;
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_connect_and_accept_report_connected_at_both_ends),
        FABTEST(test_private_data_of_every_size_reaches_the_peer),
        FABTEST(test_too_much_private_data_is_refused_and_changes_nothing),
        FABTEST(test_a_passive_endpoint_tells_the_size_of_private_data_too),
        FABTEST(test_the_wildcard_address_of_ipv6_can_be_listened_on),
        FABTEST(test_events_of_many_connections_name_the_right_fids),
        FABTEST(test_send_and_receive_give_enotconn_before_the_connection_is_made),
        FABTEST(test_each_end_knows_its_own_name_and_that_of_its_peer),
        FABTEST(test_getname_with_too_little_room_tells_how_much_it_needs),
        FABTEST(test_getpeer_of_an_endpoint_without_a_peer_gives_enotconn),
        FABTEST(test_setname_before_listen_chooses_where_to_listen),
        FABTEST(test_an_endpoint_of_another_type_is_refused),
        FABTEST(test_only_whole_addresses_are_taken),
        FABTEST(test_a_listener_without_a_node_is_reached_at_every_address),
        FABTEST(test_connections_over_ipv6),
        FABTEST(test_connect_without_an_address_uses_that_of_the_info),
        FABTEST(test_the_ends_of_a_connection_may_have_queues_and_domains_of_their_own),
        FABTEST(test_an_endpoint_may_be_bound_to_another_queue_than_the_listener),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
