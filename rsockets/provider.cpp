// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/provider.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <dlfcn.h>
#include <rdma/fi_ext_rstream.h>
#include <rdma/providers/fi_prov.h>

#include "rsockets/address.hpp"
#include "rsockets/log.hpp"
#include "rsockets/mutex.hpp"

#ifndef RSOCKET_PROVIDER_DIR // set by the build
#define RSOCKET_PROVIDER_DIR "/usr/lib/libfabric"
#endif

namespace rsockets::provider {

namespace {

constexpr uint32_t api_version = FI_VERSION(1, 14);

// The plugin that this library loaded itself; null if libfabric offers the provider, as it normally does.
std::atomic<fi_provider*> own_plugin{nullptr};

fi_provider* load_from(const std::string& folder) {
    const std::string path = folder + "/librstream-fi.so";
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        log(Level::info, "%s", dlerror());
        return nullptr;
    }
    using Entry = fi_provider* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(handle, "fi_prov_ini"));
    fi_provider* loaded = entry != nullptr ? entry() : nullptr;
    if (loaded != nullptr) {
        log(Level::info, "libfabric does not offer rstream: %s is used", path.c_str());
    }
    return loaded;
}

fi_provider* load_plugin() {
    static Mutex mutex;
    const Guard lock(mutex);
    if (fi_provider* loaded = own_plugin.load()) {
        return loaded;
    }
    fi_provider* loaded = nullptr;
    if (const char* named = getenv("FI_PROVIDER_PATH"); named != nullptr) {
        std::string_view folders = named;
        while (loaded == nullptr && !folders.empty()) {
            const size_t end = std::min(folders.find(':'), folders.size());
            if (end != 0) {
                loaded = load_from(std::string(folders.substr(0, end)));
            }
            folders.remove_prefix(std::min(end + 1, folders.size()));
        }
    }
    if (loaded == nullptr) {
        loaded = load_from(RSOCKET_PROVIDER_DIR);
    }
    own_plugin.store(loaded);
    return loaded;
}

int ask(fi_provider* plugin, const fi_info& hints, base::Info& out) {
    fi_info* list = nullptr;
    const int ret = plugin != nullptr ? plugin->getinfo(api_version, nullptr, nullptr, 0, &hints, &list)
                                      : fi_getinfo(api_version, nullptr, nullptr, 0, &hints, &list);
    out.reset(ret == 0 ? list : nullptr);
    return ret;
}

// Whether libfabric itself offers rstream, for any address at all.
bool libfabric_has_it() {
    static const bool has = [] {
        const base::Info wanted = hints();
        base::Info found;
        return wanted && ask(nullptr, *wanted, found) == 0;
    }();
    return has;
}

} // namespace

base::Info hints() {
    base::Info info(fi_allocinfo());
    if (info) {
        info->ep_attr->type = FI_RSTREAM_EP_STREAM;
        info->fabric_attr->prov_name = strdup("rstream");
        if (info->fabric_attr->prov_name == nullptr) {
            info.reset();
        }
    }
    return info;
}

int get_info(const fi_info& wanted, base::Info& out) {
    fi_provider* plugin = nullptr;
    if (!libfabric_has_it() && (plugin = load_plugin()) == nullptr) {
        log(Level::error, "the provider rstream is not found: FI_PROVIDER_PATH must name its folder");
        return -FI_ENODEV;
    }
    // libfabric's own providers, which are queried first, set the port of a wildcard address to 0 in the hints that are
    // passed on to the next one (1.17).
    const Address source(wanted.src_addr, static_cast<socklen_t>(wanted.src_addrlen));
    const int ret = ask(plugin, wanted, out);
    if (ret == 0 && source.set()) {
        set_source_port(*out, source.port());
    }
    return ret;
}

void set_source_port(fi_info& info, uint16_t port) {
    if (info.src_addr != nullptr) {
        Address source(info.src_addr, static_cast<socklen_t>(info.src_addrlen));
        source.set_port(port);
        memcpy(info.src_addr, source.get(), source.length);
    }
}

int open_fabric(fi_fabric_attr& attr, base::Owned<fid_fabric>& out) {
    fid_fabric* fabric = nullptr;
    fi_provider* plugin = own_plugin.load();
    const int ret = plugin != nullptr ? plugin->fabric(&attr, &fabric, nullptr) : fi_fabric(&attr, &fabric, nullptr);
    if (ret == 0) {
        out.reset(fabric);
    }
    return ret;
}

} // namespace rsockets::provider
