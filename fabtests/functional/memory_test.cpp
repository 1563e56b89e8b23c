// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Memory that the system refuses: -FI_ENOMEM, nothing lost, and the same endpoint works with less.
#include <cstdlib>
#include <new>

#include <sys/resource.h>

#include "fabtests/common/child.hpp"
#include "fabtests/common/streams.hpp"
#include "fabtests/common/test.hpp"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true; // needs far more address space than any limit would leave, and operators of its own
#else
constexpr bool sanitized = false;
#endif

thread_local int allocations_left = -1; // then this thread gets no memory; -1: it always does
thread_local bool was_refused = false;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// By pointers: compilers and analyzers would take malloc and free for the wrong partners of new and delete.
void* (*volatile take)(size_t) = malloc;
void (*volatile give)(void*) = free;
#endif

} // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The provider's, too.
void* operator new(size_t size) {
    if (allocations_left == 0) {
        was_refused = true;
        throw std::bad_alloc();
    }
    allocations_left -= allocations_left > 0 ? 1 : 0;
    if (void* memory = take(size)) {
        return memory;
    }
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { give(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { give(memory); }
#endif

namespace {

using namespace fabtests;

void limit_address_space(size_t more) {
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = address_space_bytes() + more;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

void little_memory(const std::vector<std::string>& /*arguments*/) {
    Host host(here());
    {
        Pair warm(host, 0);
        exchange_bytes(*warm.client, *warm.server, 100003);
    }
    limit_address_space(size_t{400} << 20);
    constexpr size_t gigabyte = size_t{1} << 30;
    size_t fds = 0;
    size_t maps = 0;
    for (int i = 0; i < 50; ++i) {
        Stream stream(host);
        stream.set_option(i % 2 == 0 ? FI_OPT_SEND_BUF_SIZE : FI_OPT_RECV_BUF_SIZE, gigabyte);
        EXPECT_RESULT(fi_enable(stream.get()), -FI_ENOMEM);
        EXPECT_RESULT(fi_enable(stream.get()), -FI_ENOMEM);
        EXPECT_RESULT(fi_connect(stream.get(), closed_port().data(), nullptr, 0), -FI_ENOMEM);
        if (i == 5) {
            fds = open_fds();
            maps = mappings();
        }
    }
    Stream last(host);
    EXPECT_EQ(open_fds(), fds);
    EXPECT(mappings() <= maps + 3); // the heap's own
    // The endpoint that was refused works with smaller buffers.
    const Listener listener(host);
    last.set_buffers(gigabyte);
    EXPECT_RESULT(fi_enable(last.get()), -FI_ENOMEM);
    last.set_buffers(65536);
    last.connect(listener.name().data());
    const Info info(host.expect(FI_CONNREQ, &listener.pep->fid).info);
    Stream server(host, info.get());
    server.set_buffers(gigabyte);
    EXPECT_RESULT(fi_accept(server.get(), nullptr, 0), -FI_ENOMEM);
    server.set_buffers(65536);
    server.accept();
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(host.next_event().type, static_cast<uint32_t>(FI_CONNECTED));
    }
    exchange_bytes(last, server, 3000017);
}

void test_refused_memory_gives_enomem_and_loses_nothing() {
    if (sanitized) {
        throw Skip("a sanitizer does not run within a limit of address space");
    }
    run_in_child("little_memory", {});
}

// With few descriptors left, opening fails with an error and all is given back.
void few_descriptors(const std::vector<std::string>& /*arguments*/) {
    Host host(here());
    {
        Pair warm(host, 0);
        exchange_bytes(*warm.client, *warm.server, 1000);
    }
    const size_t before = open_fds();
    for (size_t more = 0; more < 12; ++more) {
        rlimit limit{};
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
        const auto usual = limit.rlim_cur;
        limit.rlim_cur = before + more;
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        {
            Stream stream(host);
            const int ret = fi_enable(stream.get());
            EXPECT(ret <= 0);
        }
        limit.rlim_cur = usual;
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        EXPECT_EQ(open_fds(), before);
    }
    Pair pair(host, 0);
    exchange_bytes(*pair.client, *pair.server, 1000);
}

void test_refused_descriptors_give_an_error_and_lose_nothing() { run_in_child("few_descriptors", {}); }

// No descriptor is left, until the object goes.
class NoDescriptors {
  public:
    NoDescriptors() {
        EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &usual_), 0);
        const int lowest = dup(0);
        close(lowest);
        const rlimit few{static_cast<rlim_t>(lowest), usual_.rlim_max};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        EXPECT_EQ(dup(0), -1);
    }
    ~NoDescriptors() { (void)setrlimit(RLIMIT_NOFILE, &usual_); }
    NoDescriptors(const NoDescriptors&) = delete;
    NoDescriptors& operator=(const NoDescriptors&) = delete;

  private:
    rlimit usual_{};
};

// Passive endpoints whose first check of their queues fails pause, and go on when there are descriptors.
void first_wait_without_descriptors(const std::vector<std::string>& arguments) {
    const bool listens = arguments.at(0) == "listens";
    Host host(here());
    std::vector<Owned<fid_pep>> peps;
    for (int i = 0; i < 3; ++i) {
        fid_pep* pep = nullptr;
        check("fi_passive_ep", fi_passive_ep(host.fabric.get(), host.info.get(), &pep, nullptr));
        peps.emplace_back(pep);
        check("fi_pep_bind", fi_pep_bind(pep, &host.eq->fid, 0));
    }
    {
        const NoDescriptors none;
        for (const auto& pep : peps) {
            if (listens) {
                check("fi_listen", fi_listen(pep.get()));
            }
        }
        EXPECT_RESULT(try_wait(host, &host.eq->fid), 0);
        EXPECT(!readable(wait_fd(&host.eq->fid)));
        EXPECT(readable(wait_fd(&host.eq->fid), patience(10000))); // the end of the pause
    }
    for (const auto& pep : peps) {
        if (!listens) {
            check("fi_listen", fi_listen(pep.get()));
        }
        std::byte name[64];
        size_t length = sizeof(name);
        check("fi_getname", fi_getname(&pep->fid, name, &length));
        Stream client(host);
        client.connect(name);
        const Info info(host.expect(FI_CONNREQ, &pep->fid).info);
    }
}

void test_a_first_wait_without_descriptors_is_a_pause() {
    need_core("tcp");
    if (sanitized) {
        throw Skip("the sanitizer needs descriptors itself"); // its check of an object's type makes a pipe
    }
    for (const char* state : {"bound", "listens"}) {
        run_in_child("first_wait_without_descriptors", {}, {state});
    }
}

// The listener rejects it when asked to. True: before that, some memory was refused.
bool connect_with_allocations(Host& server, const Listener& listener, Host& host, int allocations) {
    Stream client(host);
    client.connect(listener.name().data());
    bool refused = false;
    for (const auto end = Clock::now() + std::chrono::milliseconds(patience(10000));;) {
        EXPECT(Clock::now() < end);
        uint32_t type = 0;
        fi_eq_cm_entry entry{};
        was_refused = false;
        allocations_left = refused ? -1 : allocations;
        const ssize_t got = fi_eq_read(server.eq.get(), &type, &entry, sizeof(entry), 0);
        allocations_left = -1;
        refused = refused || was_refused;
        if (got > 0) {
            EXPECT_EQ(type, static_cast<uint32_t>(FI_CONNREQ));
            const Info request(entry.info);
            check("fi_reject", fi_reject(listener.pep.get(), request->handle, nullptr, 0));
        }
        if (fi_eq_read(host.eq.get(), &type, &entry, sizeof(entry), 0) == -FI_EAVAIL) {
            const Event event = host.next_event();
            EXPECT(event.error);
            EXPECT_EQ(event.err, FI_ECONNREFUSED);
            return refused;
        }
    }
}

// Whichever allocation fails, and all that follow it within the call.
void test_a_client_is_rejected_by_a_listener_without_memory() {
    if (sanitized) {
        throw Skip("a sanitizer has its own operators for memory");
    }
    Host server(here());
    Host host(here());
    const Listener listener(server);
    int allocations = 0;
    while (connect_with_allocations(server, listener, host, allocations)) {
        ++allocations;
    }
    EXPECT(allocations > 0);
}

} // namespace

int main(int argc, char** argv) {
    const Role roles[] = {{"little_memory", little_memory},
                          {"few_descriptors", few_descriptors},
                          {"first_wait_without_descriptors", first_wait_without_descriptors}};
    if (const auto status = play_role(argc, argv, roles)) {
        return *status;
    }
    const CMUnitTest tests[] = {
        FABTEST(test_refused_memory_gives_enomem_and_loses_nothing),
        FABTEST(test_a_client_is_rejected_by_a_listener_without_memory),
        FABTEST(test_refused_descriptors_give_an_error_and_lose_nothing),
        FABTEST(test_a_first_wait_without_descriptors_is_a_pause),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
