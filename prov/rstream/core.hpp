// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core provider below a stream: how its infos are asked for, and what was learnt of it that the data path needs.
#pragma once

#include <cstddef>
#include <string>

#include "prov/rstream/fid.hpp"

namespace rstream {

// libfabric hides a core that FI_PROVIDER does not name, except from a request with this flag, which is how one
// provider reaches another. Its name is internal to libfabric; the value is the same from 1.14 to 2.5.
constexpr uint64_t core_request = 1ULL << 60;
// Requests that carry one of these come from other providers, and are not for us.
constexpr uint64_t provider_request = (1ULL << 59) | (1ULL << 60);

// Keeps a registration out of libfabric's cache: the cache would keep the memory registered after we have closed the
// region, under the same key. Internal to libfabric too, from 1.13 to 2.5; a core without a cache need not know it.
constexpr uint64_t uncached_registration = 1ULL << 60;

// The fabric name that users see tells which core it is of: "tcp@127.0.0.0/8".
struct FabricName {
    std::string core; // empty if the name does not tell
    std::string name;

    static FabricName parse(const char* text);
    [[nodiscard]] std::string str() const { return core + "@" + name; }
};

// Hints for what a stream needs of a core. The caller adds addresses and names.
Info core_hints();

// A core's infos for a request. 0 or libfabric's error.
int core_getinfo(const std::string& core, const char* node, const char* service, uint64_t flags, Info hints, Info& out);

// Whether an info is of this fabric, domain and address format; null and 0 stand for any. Not every core looks at these
// when it is asked for them.
bool is_of(const fi_info& info, const char* fabric, const char* domain, uint32_t addr_format);

// The info of one domain of a core.
int core_domain_info(const std::string& core, const std::string& fabric, const char* domain, uint32_t addr_format,
                     Info& out);

// Makes an address the destination of an info. 0, -FI_EINVAL for one that is of another kind than the info's own, or
// -FI_ENOMEM.
int aim_at(fi_info& info, const void* address);

// Gives an address as fi_cm(3) says: as much as there is room for, its whole length, and -FI_ETOOSMALL if it was cut.
int give_address(const void* from, size_t from_length, void* to, size_t* length);

// The same of fi_getname, fi_getpeer: not every core tells when there is too little room.
template <class Call, class Fid> int core_address(Call* call, Fid* fid, void* to, size_t* length) {
    std::byte address[256];
    size_t size = sizeof(address);
    const int ret = call(fid, address, &size);
    return ret != 0 ? ret : give_address(address, size, to, length);
}

// What a core's info says of how data is to be moved. What it does not tell is in core/properties.hpp.
struct CoreTraits {
    explicit CoreTraits(const fi_info& info, bool use_immediates);

    bool immediates;      // a write can carry 32 bits to the target
    bool consumes_recv;   // and consumes one of its posted receives
    bool local_mr;        // what is sent and received must be registered
    bool virtual_address; // remote memory is named by its address, else by the offset in its region
    bool provider_keys;   // the core chooses the keys of regions
    bool endpoint_mr;     // regions are bound to the endpoint
    bool contexts;        // an operation in flight owns a struct fi_context
    size_t inject_size;
    size_t max_message;
};

} // namespace rstream
