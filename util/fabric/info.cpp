// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/fabric/info.hpp"

#include <cstring>
#include <initializer_list>
#include <new>

namespace util {

namespace {

char* copy_text(const std::string& text) {
    char* copy = strdup(text.c_str());
    return copy != nullptr ? copy : throw std::bad_alloc();
}

uint32_t format_of(int family) {
    return family == AF_INET6 ? FI_SOCKADDR_IN6 : family == AF_INET ? FI_SOCKADDR_IN : FI_FORMAT_UNSPEC;
}

} // namespace

Info make_hints(const std::string& provider, int family) {
    Info hints(fi_allocinfo());
    if (!hints) {
        throw std::bad_alloc();
    }
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
    hints->ep_attr->type = FI_EP_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->addr_format = format_of(family);
    hints->fabric_attr->prov_name = copy_text(provider);
    return hints;
}

Address resolve_on_fabric(const std::string& option, const std::string& node, uint16_t port, AddressFormat format,
                          int family, bool passive) {
    if (format == AddressFormat::ip || format == AddressFormat::ipv6) {
        family = resolve_address(option, node, port, format).family(); // providers do not check the address format
    }
    // Providers resolve a name to an address of the first family that it has, whatever the hints say.
    const std::string number = family == AF_UNSPEC ? node : resolve_address(option, node, port, format, family).host();
    int ret = 0;
    for (const char* provider : {"verbs", "tcp"}) {
        const Info hints = make_hints(provider, family);
        fi_info* list = nullptr;
        ret = fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), number.c_str(), std::to_string(port).c_str(),
                         cores_only | (passive ? FI_SOURCE : 0), hints.get(), &list);
        const Info info(ret == 0 ? list : nullptr);
        const void* found = !info ? nullptr : passive ? info->src_addr : info->dest_addr;
        if (found != nullptr) {
            return {static_cast<const sockaddr*>(found),
                    static_cast<socklen_t>(passive ? info->src_addrlen : info->dest_addrlen)};
        }
    }
    fail("{} {}: no provider of libfabric knows this address ({})", option, node.empty() ? "''" : node,
         fabric_error(ret));
}

} // namespace util
