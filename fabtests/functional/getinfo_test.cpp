// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_getinfo: which requests the provider serves, and what it says of itself. What depends on the environment runs in a
// process of its own, since libfabric reads it once.
#include <cstring>
#include <limits>
#include <set>

#include <sys/mman.h>
#include <unistd.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"
#include "fabtests/functional/getinfo.hpp"

namespace {

// FI_ORDER_STRICT, whose name libfabric 2 warns of.
constexpr uint64_t order_strict = 0x1ff;

using namespace fabtests;

constexpr uint64_t stream_caps = FI_MSG | FI_SEND | FI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;

void test_getinfo_tells_the_attributes_of_a_stream() {
    Info list;
    EXPECT_RESULT(ask(list, stream_hints().get()), 0);
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT_EQ(info->caps & (FI_MSG | FI_SEND | FI_RECV), FI_MSG | FI_SEND | FI_RECV);
        EXPECT_EQ(info->caps & ~stream_caps, 0U);
        EXPECT_EQ(info->mode, 0U);
        EXPECT_EQ(info->domain_attr->mr_mode, 0);
        EXPECT_EQ(info->domain_attr->mode, 0U);
        EXPECT_EQ(info->domain_attr->threading, FI_THREAD_SAFE);
        EXPECT_EQ(info->domain_attr->control_progress, FI_PROGRESS_AUTO);
        EXPECT_EQ(info->domain_attr->data_progress, FI_PROGRESS_MANUAL);
        EXPECT_EQ(info->tx_attr->msg_order, FI_ORDER_SAS);
        EXPECT_EQ(info->rx_attr->msg_order, FI_ORDER_SAS);
        EXPECT_EQ(info->tx_attr->mode | info->rx_attr->mode, 0U);
        EXPECT_EQ(info->tx_attr->caps & ~info->caps, 0U);
        EXPECT_EQ(info->rx_attr->caps & ~info->caps, 0U);
        EXPECT(info->tx_attr->iov_limit >= 1 && info->tx_attr->iov_limit <= 1024);
        EXPECT(info->tx_attr->size > 0 && info->rx_attr->size > 0);
        EXPECT_EQ(static_cast<int>(info->ep_attr->type), 4);
        EXPECT_EQ(static_cast<int>(info->ep_attr->protocol), static_cast<int>(FI_PROTO_RSTREAM));
        EXPECT(info->ep_attr->max_msg_size > (size_t{1} << 30));
        EXPECT_EQ(info->ep_attr->tx_ctx_cnt, 1U);
        EXPECT_EQ(info->ep_attr->rx_ctx_cnt, 1U);
        EXPECT_EQ(info->fabric_attr->prov_name, std::string("rstream"));
        EXPECT(std::string(info->fabric_attr->name).starts_with(core_name() + "@"));
        EXPECT(info->domain_attr->name != nullptr && *info->domain_attr->name != '\0');
        EXPECT(info->handle == nullptr);
        EXPECT(info->addr_format == FI_SOCKADDR_IN || info->addr_format == FI_SOCKADDR_IN6);
    }
}

void test_getinfo_is_found_by_the_names_of_the_manual() {
    EXPECT_RESULT(ask(hints_for(FI_RSTREAM_EP_STREAM, "rstream").get()), 0);
    EXPECT_RESULT(ask(hints_for(FI_RSTREAM_EP_STREAM, core_name() + ";rstream").get()), 0);
    EXPECT_RESULT(ask(hints_for(FI_RSTREAM_EP_STREAM, "").get()), 0);
    EXPECT_RESULT(ask(hints_for(FI_RSTREAM_EP_STREAM, "nosuch;rstream").get()), -FI_ENODATA);
    EXPECT_RESULT(ask(hints_for(FI_RSTREAM_EP_STREAM, "nosuch").get()), -FI_ENODATA);
}

void test_getinfo_serves_no_other_type_of_endpoint() {
    for (const auto type : {FI_EP_MSG, FI_EP_RDM, FI_EP_DGRAM}) {
        EXPECT_RESULT(ask(hints_for(type, "rstream").get()), -FI_ENODATA);
    }
}

void test_getinfo_refuses_what_a_stream_has_not() {
    using Change = void (*)(fi_info&);
    const Change changes[] = {
        [](fi_info& h) { h.caps = FI_MSG | FI_RMA; },
        [](fi_info& h) { h.caps = FI_TAGGED; },
        [](fi_info& h) { h.caps = FI_ATOMIC; },
        [](fi_info& h) { h.caps = FI_MSG | FI_MULTICAST; },
        [](fi_info& h) { h.domain_attr->data_progress = FI_PROGRESS_AUTO; },
        [](fi_info& h) { h.domain_attr->caps = FI_SHARED_AV; },
        [](fi_info& h) { h.domain_attr->caps = FI_RMA; },
        [](fi_info& h) { h.domain_attr->cq_data_size = 4; },
        [](fi_info& h) { h.domain_attr->cntr_cnt = 1; },
        [](fi_info& h) { h.domain_attr->mr_cnt = 1; },
        [](fi_info& h) { h.domain_attr->mr_iov_limit = 1; },
        [](fi_info& h) { h.domain_attr->max_err_data = 1; },
        [](fi_info& h) { h.tx_attr->comp_order = order_strict; },
        [](fi_info& h) { h.rx_attr->comp_order = order_strict; },
        [](fi_info& h) { h.tx_attr->rma_iov_limit = 1; },
        [](fi_info& h) { h.tx_attr->op_flags = FI_DELIVERY_COMPLETE; },
        [](fi_info& h) { h.rx_attr->op_flags = FI_MULTI_RECV; },
        [](fi_info& h) { h.rx_attr->total_buffered_recv = 1; },
        [](fi_info& h) { h.fabric_attr->prov_version = ~0U; },
        [](fi_info& h) { h.ep_attr->protocol = FI_PROTO_RXM; },
        [](fi_info& h) { h.tx_attr->caps = FI_RMA; },
        [](fi_info& h) { h.rx_attr->caps = FI_TAGGED; },
        [](fi_info& h) { h.tx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_RAW; },
        [](fi_info& h) { h.addr_format = FI_SOCKADDR_IB; },
        [](fi_info& h) { h.domain_attr->name = strdup("nosuch"); },
        [](fi_info& h) { h.fabric_attr->name = strdup("nosuch"); },
    };
    for (size_t i = 0; i < std::size(changes); ++i) {
        const Info hints = stream_hints();
        changes[i](*hints);
        if (const int ret = ask(hints.get()); ret != -FI_ENODATA) {
            throw Failure("request " + std::to_string(i) + " gives " + text_of_result(ret));
        }
    }
}

void test_getinfo_serves_what_a_stream_has() {
    using Change = void (*)(fi_info&);
    const Change changes[] = {
        [](fi_info& h) { h.caps = stream_caps; },
        [](fi_info& h) { h.caps = FI_MSG; },
        [](fi_info& h) { h.mode = ~0ULL; },
        [](fi_info& h) { h.domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY; },
        [](fi_info& h) { h.domain_attr->threading = FI_THREAD_DOMAIN; },
        [](fi_info& h) { h.domain_attr->control_progress = FI_PROGRESS_MANUAL; },
        [](fi_info& h) { h.domain_attr->data_progress = FI_PROGRESS_MANUAL; },
        [](fi_info& h) { h.ep_attr->protocol = FI_PROTO_RSTREAM; },
        [](fi_info& h) { h.domain_attr->caps = FI_LOCAL_COMM | FI_REMOTE_COMM; },
        [](fi_info& h) { h.domain_attr->av_type = FI_AV_MAP; },
        [](fi_info& h) { h.tx_attr->op_flags = FI_COMPLETION | FI_INJECT_COMPLETE; },
        [](fi_info& h) { h.tx_attr->msg_order = FI_ORDER_SAS; },
        [](fi_info& h) { h.tx_attr->caps = FI_MSG | FI_SEND, h.rx_attr->caps = FI_MSG | FI_RECV; },
        [](fi_info& h) { h.ep_attr->type = FI_EP_UNSPEC; },
    };
    for (size_t i = 0; i < std::size(changes); ++i) {
        const Info hints = stream_hints();
        changes[i](*hints);
        Info list;
        if (const int ret = ask(list, hints.get()); ret != 0) {
            throw Failure("request " + std::to_string(i) + " gives " + text_of_result(ret));
        }
        EXPECT(is_stream(*list));
        EXPECT_EQ(list->mode, 0U);
        EXPECT_EQ(list->domain_attr->mr_mode, 0);
    }
}

void test_getinfo_answers_what_was_asked_for_where_both_will_do() {
    const Info hints = stream_hints();
    hints->domain_attr->threading = FI_THREAD_COMPLETION;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->tx_attr->op_flags = FI_COMPLETION;
    Info list;
    EXPECT_RESULT(ask(list, hints.get()), 0);
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT_EQ(info->domain_attr->threading, FI_THREAD_COMPLETION);
        EXPECT_EQ(info->domain_attr->control_progress, FI_PROGRESS_MANUAL);
        EXPECT_EQ(info->domain_attr->data_progress, FI_PROGRESS_MANUAL);
        EXPECT_EQ(info->domain_attr->av_type, FI_AV_TABLE);
        EXPECT_EQ(info->tx_attr->op_flags, FI_COMPLETION);
    }
}

void test_getinfo_copies_the_handle_of_a_passive_endpoint() {
    Host host(here());
    const Listener listener(host);
    const Info hints = stream_hints();
    hints->handle = &listener.pep->fid;
    Info list;
    EXPECT_RESULT(ask(list, hints.get()), 0);
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT(info->handle == &listener.pep->fid);
    }
}

void test_getinfo_leaves_iwarp_to_cores_that_speak_it() {
    need_core("tcp");
    const Info hints = stream_hints();
    hints->ep_attr->protocol = FI_PROTO_IWARP;
    EXPECT_RESULT(ask(hints.get()), -FI_ENODATA);
}

void test_getinfo_leaves_the_hints_alone() {
    const Info hints = stream_hints();
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->protocol = FI_PROTO_RSTREAM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    const std::string before = fi_tostr(hints.get(), FI_TYPE_INFO);
    const fi_info shallow = *hints;
    const fi_ep_attr ep = *hints->ep_attr;
    const fi_domain_attr domain = *hints->domain_attr;
    const fi_fabric_attr fabric = *hints->fabric_attr;
    EXPECT_RESULT(ask(hints.get()), 0);
    EXPECT(before == fi_tostr(hints.get(), FI_TYPE_INFO));
    EXPECT(memcmp(&shallow, hints.get(), sizeof(shallow)) == 0);
    EXPECT(memcmp(&ep, hints->ep_attr, sizeof(ep)) == 0);
    EXPECT(memcmp(&domain, hints->domain_attr, sizeof(domain)) == 0);
    EXPECT(memcmp(&fabric, hints->fabric_attr, sizeof(fabric)) == 0);
}

void test_getinfo_keeps_the_name_of_the_domain() {
    Info all;
    EXPECT_RESULT(ask(all, stream_hints().get()), 0);
    for (const fi_info* info = all.get(); info != nullptr; info = info->next) {
        const Info hints = stream_hints();
        hints->domain_attr->name = strdup(info->domain_attr->name);
        Info list;
        EXPECT_RESULT(ask(list, hints.get()), 0);
        for (const fi_info* found = list.get(); found != nullptr; found = found->next) {
            EXPECT_EQ(found->domain_attr->name, std::string(info->domain_attr->name));
        }
    }
}

void test_getinfo_takes_the_name_of_the_fabric_with_or_without_its_core() {
    Info all;
    EXPECT_RESULT(ask(all, stream_hints().get()), 0);
    const std::string whole = all->fabric_attr->name;
    const std::string bare = whole.substr(whole.find('@') + 1);
    for (const auto& name : {whole, bare}) {
        const Info hints = stream_hints();
        hints->fabric_attr->name = strdup(name.c_str());
        Info list;
        const int ret = ask(list, hints.get());
        if (ret == -FI_ENODATA && name == bare && fi_version() >= FI_VERSION(1, 19)) {
            continue; // libfabric itself drops an answer whose fabric is not called as was asked (since 1.19)
        }
        EXPECT_RESULT(ret, 0);
        EXPECT_EQ(list->fabric_attr->name, whole);
    }
    const Info hints = stream_hints();
    hints->fabric_attr->name = strdup(("nosuch@" + bare).c_str());
    EXPECT_RESULT(ask(hints.get()), -FI_ENODATA);
}

std::string identity(const fi_info& info) {
    std::string text = std::string(info.fabric_attr->name) + "|" + info.domain_attr->name + "|" +
                       std::to_string(info.addr_format) + "|";
    text.append(static_cast<const char*>(info.src_addr), info.src_addr != nullptr ? info.src_addrlen : 0);
    return text;
}

void test_getinfo_gives_one_info_for_each_domain() {
    Info list;
    EXPECT_RESULT(ask(list, stream_hints().get()), 0);
    std::set<std::string> domains;
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT(domains.insert(info->domain_attr->name).second);
    }
    EXPECT_RESULT(ask(list, stream_hints().get(), node_name().c_str(), "7471", FI_SOURCE), 0);
    EXPECT(list->next == nullptr);
}

void test_getinfo_gives_each_address_where_the_request_is_specific() {
    need_core("tcp");
    std::set<std::string> seen;
    std::set<uint32_t> formats;
    const auto note = [&](const fi_info* hints) {
        Info list;
        seen.clear();
        formats.clear();
        EXPECT_RESULT(ask(list, hints), 0);
        for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
            EXPECT(seen.insert(identity(*info)).second);
            formats.insert(info->addr_format);
        }
    };
    const Info by_name = stream_hints();
    by_name->domain_attr->name = strdup("lo");
    note(by_name.get());
    EXPECT(formats.contains(FI_SOCKADDR_IN));
    const Info by_format = stream_hints();
    by_format->addr_format = FI_SOCKADDR_IN6;
    note(by_format.get());
    EXPECT_EQ(formats.size(), 1U);
}

void test_getinfo_answers_alike_each_time() {
    Info first;
    EXPECT_RESULT(ask(first, stream_hints().get()), 0);
    const size_t fds = open_fds();
    for (int i = 0; i < 50; ++i) {
        Info again;
        EXPECT_RESULT(ask(again, stream_hints().get()), 0);
        const fi_info* a = first.get();
        const fi_info* b = again.get();
        for (; a != nullptr && b != nullptr; a = a->next, b = b->next) {
            EXPECT(identity(*a) == identity(*b));
        }
        EXPECT(a == b); // both are null
    }
    EXPECT_EQ(open_fds(), fds);
}

void test_getinfo_can_be_called_by_many_threads() {
    Threads threads;
    for (int i = 0; i < 4; ++i) {
        threads.start([] {
            for (int round = 0; round < 25; ++round) {
                Info list;
                EXPECT_RESULT(ask(list, stream_hints().get()), 0);
                EXPECT(is_stream(*list));
                EXPECT_RESULT(ask(hints_for(FI_EP_RDM, "rstream").get()), -FI_ENODATA);
            }
        });
    }
    threads.join();
}

// ---- In another environment

void without_choice(const std::vector<std::string>& /*arguments*/) {
    Info list;
    const Info plain = hints_for(FI_EP_UNSPEC, "");
    if (ask(list, plain.get()) == 0) {
        for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
            EXPECT(!is_stream(*info));
        }
    }
    const Info by_protocol = hints_for(FI_EP_UNSPEC, "");
    by_protocol->ep_attr->protocol = FI_PROTO_RSTREAM;
    EXPECT_RESULT(ask(list, by_protocol.get()), 0);
    EXPECT(is_stream(*list));
    EXPECT_RESULT(ask(list, hints_for(FI_EP_UNSPEC, "rstream").get()), 0);
    EXPECT(is_stream(*list));
    EXPECT_RESULT(ask(list, hints_for(FI_RSTREAM_EP_STREAM, "").get()), 0);
    EXPECT(is_stream(*list));
}

void with_choice(const std::vector<std::string>& /*arguments*/) {
    Info list;
    EXPECT_RESULT(ask(list, hints_for(FI_EP_UNSPEC, "").get()), 0);
    EXPECT(is_stream(*list));
    EXPECT_RESULT(ask(list, nullptr), 0);
    EXPECT(is_stream(*list));
}

void plain_stream(const std::vector<std::string>& wanted) {
    Info list;
    const int ret = ask(list, hints_for(FI_RSTREAM_EP_STREAM, "rstream").get());
    EXPECT_RESULT(ret, std::stoi(wanted.at(0)));
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
        EXPECT(std::string(info->fabric_attr->name).starts_with(core_name() + "@"));
    }
}

void test_getinfo_without_a_type_needs_the_protocol_or_the_name() { run_in_child("without_choice", {"FI_PROVIDER"}); }

void test_getinfo_without_a_type_is_served_if_the_environment_says_so() {
    run_in_child("with_choice", {"FI_PROVIDER=rstream"});
    run_in_child("with_choice", {"FI_PROVIDER=rstream", "FI_RSTREAM_CORE=" + core_name()});
}

void test_getinfo_asks_the_cores_of_fi_rstream_core() {
    run_in_child("plain_stream", {"FI_RSTREAM_CORE=" + core_name()}, {"0"});
    run_in_child("plain_stream", {"FI_RSTREAM_CORE=nosuch," + core_name()}, {"0"});
    run_in_child("plain_stream", {"FI_RSTREAM_CORE=nosuch"}, {std::to_string(-FI_ENODATA)});
}

// Says what the log has about FI_RSTREAM_CORE after two requests.
void logging_stream(const std::vector<std::string>& provider) {
    const int log = memfd_create("log", MFD_CLOEXEC);
    const int before = dup(STDERR_FILENO);
    EXPECT(log >= 0 && before >= 0 && dup2(log, STDERR_FILENO) >= 0);
    for (int i = 0; i < 2; ++i) {
        (void)ask(hints_for(FI_RSTREAM_EP_STREAM, provider.at(0)).get());
    }
    EXPECT(dup2(before, STDERR_FILENO) >= 0);
    std::string text(65536, '\0');
    const ssize_t length = pread(log, text.data(), text.size(), 0);
    text.resize(length > 0 ? static_cast<size_t>(length) : 0);
    std::string found;
    for (size_t at = text.find("FI_RSTREAM_CORE="); at != std::string::npos;
         at = text.find("FI_RSTREAM_CORE=", at + 1)) {
        found += text.substr(at, text.find('\n', at) - at) + ";";
    }
    say(found);
}

void test_the_log_names_a_core_that_does_not_exist() {
    const auto log_of = [](const std::string& cores, const std::string& provider) {
        Child child("logging_stream", {provider},
                    {"FI_LOG_LEVEL=warn", "FI_LOG_PROV=rstream", "FI_RSTREAM_CORE=" + cores});
        const std::string said = child.hear();
        child.finish();
        return said;
    };
    for (const std::string& others : {std::string(), "," + core_name()}) {
        const std::string beginning =
            "FI_RSTREAM_CORE=nosuch" + others + ": there is no core provider nosuch; known are ";
        const std::string said = log_of("nosuch" + others, "rstream");
        EXPECT_EQ(said.substr(0, beginning.size()), beginning);
        EXPECT(said.find(core_name(), beginning.size()) != std::string::npos);
        EXPECT_EQ(said.find(';', beginning.size()), said.size() - 1); // once
    }
    EXPECT_EQ(log_of("ofi_rxm," + core_name(), "rstream"), ""); // libfabric has it, though it is of no use here
    EXPECT_EQ(log_of("nosuch", "nosuch;rstream"), "");          // the program's own choice
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"without_choice", without_choice},
                          {"with_choice", with_choice},
                          {"plain_stream", plain_stream},
                          {"logging_stream", logging_stream}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_getinfo_tells_the_attributes_of_a_stream),
        FABTEST(test_getinfo_is_found_by_the_names_of_the_manual),
        FABTEST(test_getinfo_serves_no_other_type_of_endpoint),
        FABTEST(test_getinfo_refuses_what_a_stream_has_not),
        FABTEST(test_getinfo_serves_what_a_stream_has),
        FABTEST(test_getinfo_answers_what_was_asked_for_where_both_will_do),
        FABTEST(test_getinfo_copies_the_handle_of_a_passive_endpoint),
        FABTEST(test_getinfo_leaves_iwarp_to_cores_that_speak_it),
        FABTEST(test_getinfo_leaves_the_hints_alone),
        FABTEST(test_getinfo_keeps_the_name_of_the_domain),
        FABTEST(test_getinfo_takes_the_name_of_the_fabric_with_or_without_its_core),
        FABTEST(test_getinfo_gives_one_info_for_each_domain),
        FABTEST(test_getinfo_gives_each_address_where_the_request_is_specific),
        FABTEST(test_getinfo_answers_alike_each_time),
        FABTEST(test_getinfo_can_be_called_by_many_threads),
        FABTEST(test_getinfo_without_a_type_needs_the_protocol_or_the_name),
        FABTEST(test_getinfo_without_a_type_is_served_if_the_environment_says_so),
        FABTEST(test_getinfo_asks_the_cores_of_fi_rstream_core),
        FABTEST(test_the_log_names_a_core_that_does_not_exist),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
