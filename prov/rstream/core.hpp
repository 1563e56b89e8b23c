// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The core provider below a stream: how its infos are requested, and its attributes that the data path needs.
#pragma once

#include <cstddef>
#include <string>

#include "prov/rstream/fid.hpp"

namespace rstream {

// libfabric hides a core that FI_PROVIDER does not name, except from a request with this flag, by which one provider
// reaches another. The flag's name is internal to libfabric; the value is the same from 1.14 to 2.5.
constexpr uint64_t core_request = 1ULL << 60;
// Requests that carry one of these flags come from other providers; this provider does not serve them.
constexpr uint64_t provider_request = (1ULL << 59) | (1ULL << 60);

// Keeps a registration out of libfabric's cache, which would keep the memory registered under the same key after the
// region is closed. Internal to libfabric too, from 1.13 to 2.5; a core without a cache need not support it.
constexpr uint64_t uncached_registration = 1ULL << 60;

// The fabric name that users see contains the name of its core: "tcp@127.0.0.0/8".
struct FabricName {
    std::string core; // empty if the name has none
    std::string name;

    static FabricName parse(const char* text);
    [[nodiscard]] std::string str() const { return core + "@" + name; }
};

// Hints with the attributes that a stream requires of a core. The caller adds addresses and names.
Info core_hints();

// A core's infos for a request. 0 or libfabric's error.
int core_getinfo(const std::string& core, const char* node, const char* service, uint64_t flags, Info hints, Info& out);

// Whether libfabric has a provider of this name, whatever it can do here.
bool has_core(const std::string& core);

// Whether an info has this fabric, domain and address format; null and 0 match any. Not every core respects such hints.
bool is_of(const fi_info& info, const char* fabric, const char* domain, uint32_t addr_format);

// The info of one domain of a core.
int core_domain_info(const std::string& core, const std::string& fabric, const char* domain, uint32_t addr_format,
                     Info& out);

// Whether these bytes are a whole address of IPv4 or IPv6: cores trust the length that a program gives.
bool is_internet_address(const void* address, size_t length);

// Sets the destination address of an info. 0; -FI_EINVAL if the length of the address is unknown, for a family other
// than AF_INET and AF_INET6 and an info without addresses; or -FI_ENOMEM.
int aim_at(fi_info& info, const void* address);

// Returns an address as fi_cm(3) specifies: as much as fits, its full length, and -FI_ETOOSMALL if it was truncated.
int give_address(const void* from, size_t from_length, void* to, size_t* length);

// The same for fi_getname and fi_getpeer: not every core reports a buffer that is too small.
template <class Call, class Fid> int core_address(Call* call, Fid* fid, void* to, size_t* length) {
    std::byte address[256];
    size_t size = sizeof(address);
    const int ret = call(fid, address, &size);
    return ret != 0 ? ret : give_address(address, size, to, length);
}

// The attributes of data transfer in a core's info. Properties that are not in the info are in core/properties.hpp.
struct CoreTraits {
    explicit CoreTraits(const fi_info& info, bool use_immediates);

    bool immediates;      // a write can carry 32 bits to the target
    bool consumes_recv;   // and consumes a posted receive of the target
    bool local_mr;        // send and receive buffers must be registered
    bool virtual_address; // remote memory is addressed by its virtual address, else by the offset in its region
    bool provider_keys;   // the core chooses the keys of regions
    bool endpoint_mr;     // regions are bound to the endpoint
    bool contexts;        // an operation in flight owns a struct fi_context
    size_t inject_size;
    size_t max_message;
};

} // namespace rstream
