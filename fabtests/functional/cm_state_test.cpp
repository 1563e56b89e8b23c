// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Calls out of turn: refused, and nothing changed. Objects closed in every state, and those that are still in use.
#include <netinet/in.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

using namespace fabtests;

// FI_CONNECTED twice.
void take_both_connected(Host& host) {
    for (int i = 0; i < 2; ++i) {
        const Event event = host.next_event(patience(10000));
        EXPECT(!event.error);
        EXPECT_EQ(event.type, static_cast<uint32_t>(FI_CONNECTED));
    }
}

Owned<fid_pep> passive(Host& host) {
    fid_pep* pep = nullptr;
    check("fi_passive_ep", fi_passive_ep(host.fabric.get(), host.info.get(), &pep, nullptr));
    return Owned<fid_pep>(pep);
}

void test_an_endpoint_connects_once() {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    EXPECT_ERROR(fi_connect(client.get(), listener.name().data(), nullptr, 0)); // still connecting
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    server.accept();
    take_both_connected(host);
    EXPECT_ERROR(fi_connect(client.get(), listener.name().data(), nullptr, 0));
    EXPECT_ERROR(fi_connect(server.get(), listener.name().data(), nullptr, 0));
    exchange_bytes(client, server, 1000);
}

void test_an_endpoint_accepts_once() {
    Pair pair(core_name(), 0, node_name());
    EXPECT_ERROR(fi_accept(pair.server->get(), nullptr, 0));
    EXPECT_ERROR(fi_accept(pair.client->get(), nullptr, 0));
    exchange_bytes(*pair.client, *pair.server, 1000);
}

void test_only_an_endpoint_made_of_a_request_accepts() {
    Host host(here());
    Stream stream(host);
    EXPECT_RESULT(fi_accept(stream.get(), nullptr, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_enable(stream.get()), 0);
    EXPECT_RESULT(fi_accept(stream.get(), nullptr, 0), -FI_EINVAL);
    const Listener listener(host);
    stream.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    EXPECT_ERROR(fi_connect(server.get(), listener.name().data(), nullptr, 0));
    server.accept();
    take_both_connected(host);
}

void test_a_passive_endpoint_listens_once() {
    Host host(here());
    const Listener listener(host);
    EXPECT_ERROR(fi_listen(listener.pep.get()));
    Stream client(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
}

void test_a_passive_endpoint_without_a_queue_does_not_listen() {
    Host host(here());
    const auto pep = passive(host);
    EXPECT_RESULT(fi_listen(pep.get()), -FI_ENOEQ);
    EXPECT_RESULT(fi_pep_bind(pep.get(), &host.domain->fid, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_pep_bind(pep.get(), &host.eq->fid, 0), 0);
    EXPECT_RESULT(fi_pep_bind(pep.get(), &host.eq->fid, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_listen(pep.get()), 0);
}

void test_an_endpoint_without_a_queue_is_not_enabled() {
    Host host(here());
    const Listener listener(host);
    fid_ep* ep = nullptr;
    check("fi_endpoint", fi_endpoint(host.domain.get(), host.info.get(), &ep, nullptr));
    const Owned<fid_ep> owned(ep);
    EXPECT_RESULT(fi_enable(ep), -FI_ENOEQ);
    EXPECT_RESULT(fi_connect(ep, listener.name().data(), nullptr, 0), -FI_ENOEQ);
    EXPECT_RESULT(fi_ep_bind(ep, &host.domain->fid, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_ep_bind(ep, &host.eq->fid, FI_SEND), -FI_EINVAL);
    EXPECT_RESULT(fi_ep_bind(ep, &host.eq->fid, 0), 0);
    EXPECT_RESULT(fi_ep_bind(ep, &host.eq->fid, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_enable(ep), 0);
    EXPECT_RESULT(fi_enable(ep), 0);
    EXPECT_RESULT(fi_connect(ep, listener.name().data(), nullptr, 0), 0);
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
}

// What the core's first endpoint leaves in the completion queue is not taken for an error of the second one's.
void test_a_connect_that_failed_at_once_can_be_repeated() {
    need_core("tcp");
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    sockaddr_in nowhere{};
    nowhere.sin_family = AF_INET;
    nowhere.sin_port = htons(9);
    nowhere.sin_addr.s_addr = htonl(INADDR_ALLHOSTS_GROUP); // multicast: not for TCP
    EXPECT_ERROR(fi_connect(client.get(), &nowhere, nullptr, 0));
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    server.accept();
    take_both_connected(host);
    exchange_bytes(client, server, 1000);
}

void test_connect_without_any_address_gives_einval() {
    Host host(here());
    Stream client(host);
    EXPECT_RESULT(fi_connect(client.get(), nullptr, nullptr, 0), -FI_EINVAL);
    const Listener listener(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
}

void test_a_handle_is_used_once() {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    fid_ep* ep = nullptr;
    EXPECT_RESULT(fi_endpoint(host.domain.get(), info.get(), &ep, nullptr), -FI_EINVAL);
    EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, nullptr, 0), -FI_EINVAL);
    server.accept();
    take_both_connected(host);
    EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, nullptr, 0), -FI_EINVAL);
    exchange_bytes(client, server, 1000);
}

void test_a_rejected_handle_is_of_no_use() {
    Host host(here());
    const Listener listener(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, nullptr, 0), 0);
    EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, nullptr, 0), -FI_EINVAL);
    fid_ep* ep = nullptr;
    EXPECT_RESULT(fi_endpoint(host.domain.get(), info.get(), &ep, nullptr), -FI_EINVAL);
    EXPECT(host.next_event(patience(10000)).error);
}

void test_a_handle_of_something_else_is_refused() {
    Host host(here());
    const Listener listener(host);
    const Listener other(host);
    Stream client(host);
    client.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    EXPECT_RESULT(fi_reject(other.pep.get(), info->handle, nullptr, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_reject(listener.pep.get(), &client.ep->fid, nullptr, 0), -FI_EINVAL);
    EXPECT_RESULT(fi_reject(listener.pep.get(), nullptr, nullptr, 0), -FI_EINVAL);
    const Info wrong(fi_dupinfo(host.info.get()));
    wrong->handle = &client.ep->fid;
    fid_ep* ep = nullptr;
    EXPECT_RESULT(fi_endpoint(host.domain.get(), wrong.get(), &ep, nullptr), -FI_EINVAL);
    wrong->handle = nullptr;
    Stream server(host, info.get()); // the request is still there
    server.accept();
    take_both_connected(host);
}

void test_calls_that_an_object_has_not_are_refused() {
    Host host(here());
    const Listener listener(host);
    Stream stream(host);
    char buffer[64];
    size_t length = sizeof(buffer);
    EXPECT_RESULT(fi_getname(&stream.ep->fid, nullptr, nullptr), -FI_EINVAL);
    EXPECT_RESULT(fi_setname(&stream.ep->fid, nullptr, 0), -FI_EINVAL);
    EXPECT_ERROR(fi_control(&stream.ep->fid, 12345, nullptr));
    EXPECT_ERROR(fi_control(&listener.pep->fid, 12345, nullptr));
    EXPECT_ERROR(fi_setopt(&listener.pep->fid, FI_OPT_ENDPOINT, FI_OPT_SEND_BUF_SIZE, &length, sizeof(length)));
    EXPECT_ERROR(fi_read(stream.get(), buffer, 1, nullptr, FI_ADDR_UNSPEC, 0, 0, nullptr));
    EXPECT_ERROR(fi_tsend(stream.get(), buffer, 1, nullptr, FI_ADDR_UNSPEC, 0, nullptr));
    EXPECT_ERROR(fi_barrier(stream.get(), FI_ADDR_UNSPEC, nullptr));
    EXPECT_ERROR(fi_barrier2(stream.get(), FI_ADDR_UNSPEC, 0, nullptr));
    EXPECT_ERROR(fi_broadcast(stream.get(), buffer, 1, nullptr, FI_ADDR_UNSPEC, FI_ADDR_UNSPEC, FI_INT8, 0, nullptr));
    fid_cq* cq = nullptr;
    fi_cq_attr attr{};
    EXPECT_ERROR(fi_cq_open(host.domain.get(), &attr, &cq, nullptr));
    fid_mr* mr = nullptr;
    EXPECT_ERROR(fi_mr_reg(host.domain.get(), buffer, sizeof(buffer), FI_SEND, 0, 0, 0, &mr, nullptr));
}

void test_an_endpoint_of_another_type_is_not_made() {
    Host host(here());
    const Info info(fi_dupinfo(host.info.get()));
    fid_ep* ep = nullptr;
    for (const auto type : {FI_EP_MSG, FI_EP_RDM, FI_EP_DGRAM}) {
        info->ep_attr->type = type;
        EXPECT_RESULT(fi_endpoint(host.domain.get(), info.get(), &ep, nullptr), -FI_EINVAL);
    }
    info->ep_attr->type = FI_EP_UNSPEC;
    EXPECT_RESULT(fi_endpoint(host.domain.get(), info.get(), &ep, nullptr), 0);
    const Owned<fid_ep> owned(ep);
}

// ---- Closing

void test_what_is_in_use_is_not_closed() {
    Host host(here());
    EXPECT_RESULT(fi_close(&host.fabric->fid), -FI_EBUSY);
    {
        Stream stream(host);
        EXPECT_RESULT(fi_close(&host.domain->fid), -FI_EBUSY);
        EXPECT_RESULT(fi_close(&host.eq->fid), -FI_EBUSY);
        EXPECT_RESULT(fi_close(&host.fabric->fid), -FI_EBUSY);
    }
    {
        const Listener listener(host);
        EXPECT_RESULT(fi_close(&host.eq->fid), -FI_EBUSY);
        Stream client(host); // all is still as it was
        client.connect(listener.name().data());
        const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    }
    EXPECT_RESULT(fi_close(&host.domain.release()->fid), 0);
    EXPECT_RESULT(fi_close(&host.fabric->fid), -FI_EBUSY); // of the queue
    EXPECT_RESULT(fi_close(&host.eq.release()->fid), 0);
    {
        const auto pep = passive(host);
        EXPECT_RESULT(fi_close(&host.fabric->fid), -FI_EBUSY);
    }
    EXPECT_RESULT(fi_close(&host.fabric.release()->fid), 0);
}

void test_an_endpoint_can_be_closed_in_every_state() {
    Host host(here());
    const Listener listener(host);
    const size_t before = fds_at_rest(host);
    { Stream fresh(host); }
    {
        Stream enabled(host);
        EXPECT_RESULT(fi_enable(enabled.get()), 0);
    }
    {
        Stream connecting(host);
        connecting.connect(listener.name().data());
    }
    {
        Stream asked(host);
        asked.connect(listener.name().data(), "second");
        // The request of the one above may come, or not.
        Event event = host.next_event(patience(10000));
        Info info(event.info);
        if (event.text() != "second") {
            EXPECT_RESULT(fi_reject(listener.pep.get(), info->handle, nullptr, 0), 0);
            info.reset((event = host.next_event(patience(10000))).info);
        }
        EXPECT_EQ(event.text(), std::string("second"));
        Stream server(host, info.get());
        server.accept();
    }
    {
        Pair pair(host, 0);
        pair.client.reset();
    }
    {
        Pair pair(host, 0);
        EXPECT_RESULT(fi_shutdown(pair.client->get(), 0), 0);
        EXPECT_RESULT(fi_shutdown(pair.server->get(), FI_RSTREAM_ABORT), 0);
    }
    // What was left of them goes as the queue is read.
    const auto start = Clock::now();
    while (open_fds() > before && milliseconds_since(start) < patience(10000)) {
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        if (fi_eq_sread(host.eq.get(), &type, &entry, sizeof(entry), 20, 0) >= 0 && type == FI_CONNREQ) {
            fi_reject(listener.pep.get(), entry.info->handle, nullptr, 0);
            fi_freeinfo(entry.info);
        }
    }
    EXPECT_EQ(open_fds(), before);
    Pair pair(host, 0);
    exchange_bytes(*pair.client, *pair.server, 1000);
}

void test_closing_an_endpoint_takes_its_events_with_it() {
    Host host(here());
    const Listener listener(host);
    for (int i = 0; i < 10; ++i) {
        auto client = std::make_unique<Stream>(host);
        client->connect(listener.name().data());
        const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
        auto server = std::make_unique<Stream>(host, info.get());
        server->accept();
        await_event({&host});
        client.reset();
        server.reset();
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        EXPECT_RESULT(fi_eq_read(host.eq.get(), &type, &entry, sizeof(entry), 0), -FI_EAGAIN);
    }
}

void test_objects_can_be_opened_and_closed_many_times() {
    const Info info = get_info(here());
    { Host warm(Info(fi_dupinfo(info.get()))); }
    const size_t before = open_fds();
    for (int i = 0; i < 100; ++i) {
        Host host(Info(fi_dupinfo(info.get())));
        const Listener listener(host);
        const Stream stream(host);
    }
    EXPECT_EQ(open_fds(), before);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_endpoint_connects_once),
        FABTEST(test_an_endpoint_accepts_once),
        FABTEST(test_only_an_endpoint_made_of_a_request_accepts),
        FABTEST(test_a_passive_endpoint_listens_once),
        FABTEST(test_a_passive_endpoint_without_a_queue_does_not_listen),
        FABTEST(test_an_endpoint_without_a_queue_is_not_enabled),
        FABTEST(test_a_connect_that_failed_at_once_can_be_repeated),
        FABTEST(test_connect_without_any_address_gives_einval),
        FABTEST(test_a_handle_is_used_once),
        FABTEST(test_a_rejected_handle_is_of_no_use),
        FABTEST(test_a_handle_of_something_else_is_refused),
        FABTEST(test_calls_that_an_object_has_not_are_refused),
        FABTEST(test_an_endpoint_of_another_type_is_not_made),
        FABTEST(test_what_is_in_use_is_not_closed),
        FABTEST(test_an_endpoint_can_be_closed_in_every_state),
        FABTEST(test_closing_an_endpoint_takes_its_events_with_it),
        FABTEST(test_objects_can_be_opened_and_closed_many_times),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
