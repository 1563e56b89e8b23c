// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// In which order the library takes what it needs. libfabric's memhooks rewrite libc's munmap and others in place while
// the first domain of verbs is opened: the library's own thread must not be there yet.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "rsockets/test/sockets.hpp"

namespace {

using namespace fabtests;
using namespace rsocket_test;

int domains = 0;
long most_threads = 0;
fi_ops_fabric* real_ops = nullptr;

int count_and_open(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
    const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
    most_threads = std::max(most_threads, static_cast<long>(std::distance(begin(tasks), end(tasks))));
    ++domains;
    return real_ops->domain(fabric, info, domain, context);
}

void test_the_first_domain_is_opened_before_the_service_thread_starts() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    const long threads = std::distance(begin(tasks), end(tasks)); // a sanitizer has one of its own
    const Ends ends = connected();
    send_all(ends.client, "x");
    EXPECT_EQ(received(ends.server, 1), "x");
    EXPECT(domains > 0);
    EXPECT_EQ(most_threads, threads);
}

} // namespace

// What the library calls, in place of libfabric's.
extern "C" __attribute__((visibility("default"))) int fi_fabric(fi_fabric_attr* attr, fid_fabric** fabric,
                                                                void* context) {
    const auto real = reinterpret_cast<decltype(&fi_fabric)>(dlsym(RTLD_NEXT, "fi_fabric"));
    const int ret = real(attr, fabric, context);
    if (ret == 0 && std::string_view(attr->prov_name) == "rstream") {
        static fi_ops_fabric counting;
        real_ops = (*fabric)->ops;
        counting = *real_ops;
        counting.domain = count_and_open;
        (*fabric)->ops = &counting;
    }
    return ret;
}

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_the_first_domain_is_opened_before_the_service_thread_starts),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
