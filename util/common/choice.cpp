// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/common/choice.hpp"

#include "util/common/failure.hpp"
#include "util/fabric/fabric.hpp"
#if HAVE_RDMACM
#include "util/rdmacm/rdmacm.hpp"
#endif

namespace util {

std::unique_ptr<Backend> open_backend(const CommonOptions& common, const std::optional<Address>& local,
                                      const std::optional<Address>& remote, const PathSettings& path) {
    bool rdmacm = common.backend == BackendChoice::rdmacm;
#if HAVE_RDMACM
    const std::chrono::seconds timeout(common.timeout);
    if (common.backend == BackendChoice::automatic) {
        rdmacm = rdmacm_reaches(local, remote, timeout, path);
    }
    if (rdmacm) {
        return make_rdmacm_backend(timeout, path);
    }
#else
    if (rdmacm) {
        fail(
            "--backend rdmacm: not built in; install librdmacm-dev and libibverbs-dev, then configure and build again");
    }
#endif
    return make_fabric_backend(common.provider, local, remote, path);
}

} // namespace util
