// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_getinfo: nodes, services, and the addresses in hints.
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"
#include "fabtests/functional/getinfo.hpp"

namespace {

using namespace fabtests;

void test_getinfo_serves_ipv4() {
    const Info hints = stream_hints();
    Info list;
    EXPECT_RESULT(ask(list, hints.get(), node_name().c_str(), "7471"), 0);
    EXPECT_EQ(list->addr_format, FI_SOCKADDR_IN);
    EXPECT_EQ(list->dest_addrlen, sizeof(sockaddr_in));
    const auto* to = static_cast<const sockaddr_in*>(list->dest_addr);
    in_addr wanted{};
    inet_pton(AF_INET, node_name().c_str(), &wanted);
    EXPECT_EQ(to->sin_addr.s_addr, wanted.s_addr);
    EXPECT_EQ(port(to), 7471);
    hints->addr_format = FI_SOCKADDR_IN;
    EXPECT_RESULT(ask(list, hints.get()), 0);
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT_EQ(info->addr_format, FI_SOCKADDR_IN);
    }
}

void test_getinfo_serves_ipv6() {
    need_core("tcp");
    const Info hints = stream_hints();
    Info list;
    EXPECT_RESULT(ask(list, hints.get(), "::1", "7471"), 0);
    EXPECT_EQ(list->addr_format, FI_SOCKADDR_IN6);
    EXPECT_EQ(list->dest_addrlen, sizeof(sockaddr_in6));
    const auto* to = static_cast<const sockaddr_in6*>(list->dest_addr);
    EXPECT(IN6_IS_ADDR_LOOPBACK(&to->sin6_addr));
    EXPECT_EQ(port(to), 7471);
    hints->addr_format = FI_SOCKADDR_IN6;
    EXPECT_RESULT(ask(list, hints.get()), 0);
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT_EQ(info->addr_format, FI_SOCKADDR_IN6);
    }
}

void test_getinfo_with_fi_source_gives_our_own_address() {
    Info list;
    EXPECT_RESULT(ask(list, stream_hints().get(), node_name().c_str(), "7471", FI_SOURCE), 0);
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT(info->src_addr != nullptr);
        EXPECT_EQ(port(info->src_addr), 7471);
        EXPECT(info->dest_addr == nullptr);
    }
}

void test_getinfo_takes_addresses_from_the_hints() {
    const Info hints = stream_hints();
    Info first;
    EXPECT_RESULT(ask(first, hints.get(), node_name().c_str(), "7471"), 0);
    hints->addr_format = first->addr_format;
    hints->dest_addr = malloc(first->dest_addrlen);
    hints->dest_addrlen = first->dest_addrlen;
    memcpy(hints->dest_addr, first->dest_addr, first->dest_addrlen);
    Info second;
    EXPECT_RESULT(ask(second, hints.get()), 0);
    EXPECT_EQ(second->dest_addrlen, first->dest_addrlen);
    EXPECT(memcmp(second->dest_addr, first->dest_addr, first->dest_addrlen) == 0);
}

void set_address(void*& field, size_t& length, const void* address, size_t size) {
    free(field);
    field = malloc(size);
    EXPECT(field != nullptr);
    memcpy(field, address, size);
    length = size;
}

void test_getinfo_keeps_the_port_of_a_source_address() {
    need_core("tcp");
    const auto expect_port = [](const auto& address) {
        const Info hints = stream_hints();
        hints->src_addr = malloc(sizeof(address));
        EXPECT(hints->src_addr != nullptr);
        memcpy(hints->src_addr, &address, sizeof(address));
        hints->src_addrlen = sizeof(address);
        hints->addr_format = sizeof(address) == sizeof(sockaddr_in) ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
        Info list;
        EXPECT_RESULT(ask(list, hints.get()), 0);
        for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
            EXPECT(info->src_addr != nullptr);
            EXPECT_EQ(port(info->src_addr), 7471);
        }
    };
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(7471);
    expect_port(four); // the wildcard
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    expect_port(four);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(7471);
    expect_port(six);
}

// fi_getinfo(3): with FI_SOURCE, the address of the hints is ignored.
void test_getinfo_with_fi_source_leaves_the_source_of_the_hints() {
    const Info hints = stream_hints();
    sockaddr_in other{};
    other.sin_family = AF_INET;
    other.sin_port = htons(7471);
    other.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    set_address(hints->src_addr, hints->src_addrlen, &other, sizeof(other));
    hints->addr_format = FI_SOCKADDR_IN;
    Info list;
    EXPECT_RESULT(ask(list, hints.get(), node_name().c_str(), "0", FI_SOURCE), 0);
    EXPECT_EQ(port(list->src_addr), 0);
}

void test_getinfo_takes_addresses_without_their_format() {
    need_core("tcp");
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(7471);
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(7471);
    six.sin6_addr = in6addr_loopback;
    for (const bool source : {false, true}) {
        const auto expect_format = [&](const auto& address, uint32_t format) {
            const Info hints = stream_hints();
            set_address(source ? hints->src_addr : hints->dest_addr, source ? hints->src_addrlen : hints->dest_addrlen,
                        &address, sizeof(address));
            Info list;
            EXPECT_RESULT(ask(list, hints.get()), 0);
            EXPECT_EQ(list->addr_format, format);
            EXPECT_EQ(port(source ? list->src_addr : list->dest_addr), 7471);
        };
        expect_format(four, FI_SOCKADDR_IN);
        expect_format(six, FI_SOCKADDR_IN6);
    }
}

void test_getinfo_refuses_half_an_address() {
    const Info hints = stream_hints();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    set_address(hints->dest_addr, hints->dest_addrlen, &address, sizeof(address) - 1);
    EXPECT_RESULT(ask(hints.get()), -FI_ENODATA);
    hints->addr_format = FI_SOCKADDR_IN;
    EXPECT_RESULT(ask(hints.get()), -FI_ENODATA);
    static_cast<sockaddr*>(hints->dest_addr)->sa_family = AF_UNIX;
    EXPECT_RESULT(ask(hints.get()), -FI_ENODATA);
    // With a node, the destination of the hints is ignored.
    Info list;
    EXPECT_RESULT(ask(list, hints.get(), node_name().c_str(), "7471"), 0);
}

// A host may have addresses of both families, and a service without a node is that of this host.
void test_getinfo_gives_the_format_that_was_asked_for() {
    need_core("tcp");
    for (const uint32_t format : {FI_SOCKADDR_IN, FI_SOCKADDR_IN6}) {
        const Info hints = stream_hints();
        hints->addr_format = format;
        for (const uint64_t flags : {uint64_t{0}, uint64_t{FI_SOURCE}}) {
            Info list;
            EXPECT_RESULT(ask(list, hints.get(), nullptr, "7471", flags), 0);
            for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
                EXPECT_EQ(info->addr_format, format);
                EXPECT_EQ(port(flags != 0 ? info->src_addr : info->dest_addr), 7471);
            }
        }
        addrinfo wanted{};
        wanted.ai_family = format == FI_SOCKADDR_IN ? AF_INET : AF_INET6;
        addrinfo* found = nullptr;
        if (getaddrinfo("localhost", nullptr, &wanted, &found) == 0) {
            freeaddrinfo(found);
            Info list;
            EXPECT_RESULT(ask(list, hints.get(), "localhost", "7471"), 0);
            EXPECT_EQ(list->addr_format, format);
        }
    }
}

void test_getinfo_knows_names_of_services() {
    const servent* http = getservbyname("http", "tcp");
    if (http == nullptr) {
        throw Skip("no http in /etc/services");
    }
    Info list;
    EXPECT_RESULT(ask(list, stream_hints().get(), node_name().c_str(), "http"), 0);
    EXPECT_EQ(port(list->dest_addr), ntohs(static_cast<uint16_t>(http->s_port)));
    EXPECT_ERROR(ask(list, stream_hints().get(), node_name().c_str(), "no-such-service"));
}

void test_getinfo_without_a_node_gives_all_local_addresses() {
    Info list;
    EXPECT_RESULT(ask(list, stream_hints().get(), nullptr, "7471", FI_SOURCE), 0);
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT(is_stream(*info));
        EXPECT(info->src_addr == nullptr || port(info->src_addr) == 7471);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_getinfo_serves_ipv4),
        FABTEST(test_getinfo_serves_ipv6),
        FABTEST(test_getinfo_with_fi_source_gives_our_own_address),
        FABTEST(test_getinfo_takes_addresses_from_the_hints),
        FABTEST(test_getinfo_keeps_the_port_of_a_source_address),
        FABTEST(test_getinfo_with_fi_source_leaves_the_source_of_the_hints),
        FABTEST(test_getinfo_takes_addresses_without_their_format),
        FABTEST(test_getinfo_refuses_half_an_address),
        FABTEST(test_getinfo_gives_the_format_that_was_asked_for),
        FABTEST(test_getinfo_knows_names_of_services),
        FABTEST(test_getinfo_without_a_node_gives_all_local_addresses),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
