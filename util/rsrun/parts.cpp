// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/parts.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <unistd.h>

#include "util/common/failure.hpp"

#ifndef RSRUN_BINDIR // set by the build
#define RSRUN_BINDIR "/usr/bin"
#define RSRUN_LIBDIR "/usr/lib"
#define RSRUN_PRELOAD_DIR "/usr/lib/rsocket-ofi"
#define RSRUN_PROVIDER_DIR "/usr/lib/libfabric"
#endif

namespace rsrun {

namespace {

constexpr const char* shim_name = "librspreload-ofi.so";
constexpr const char* worker_name = "rspreload-fabric";
constexpr const char* plugin_name = "librstream-fi.so";

bool exists(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

// The path in front of the folder of programs if an installation is staged.
std::string stage_of(const std::string& folder) {
    const std::string bindir = RSRUN_BINDIR;
    return folder.ends_with(bindir) ? folder.substr(0, folder.size() - bindir.size()) : "";
}

// The build's folder of libraries, if rsrun is in its folder; otherwise empty.
std::string build_libs(const std::string& folder) {
    std::string built = folder + "/.libs";
    return exists(built + "/" + shim_name) || exists(built + "/" + worker_name) ? built : "";
}

std::string preload_folder(const std::string& folder) {
    const std::string built = build_libs(folder);
    return built.empty() ? stage_of(folder) + RSRUN_PRELOAD_DIR : built;
}

void check(const std::string& file) {
    if (!exists(file)) {
        util::fail("{} is missing ({}): rsrun is not completely installed", file, strerror(errno));
    }
}

std::string preloadable(std::string file) {
    check(file);
    if (file.find_first_of(" :") != std::string::npos) {
        util::fail("{}: the dynamic linker cannot preload what has a blank or a colon in its path", file);
    }
    return file;
}

std::string folder_in(const std::string& path, const char* file) {
    std::istringstream folders(path);
    for (std::string folder; std::getline(folders, folder, ':');) {
        if (!folder.empty() && exists(folder + "/" + file)) {
            return folder;
        }
    }
    return "";
}

} // namespace

std::string own_folder() {
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) {
        util::fail("/proc/self/exe cannot be read ({}), which tells where rsrun's libraries are", error.message());
    }
    return path.parent_path().string();
}

std::string find_shim(const std::string& folder) { return preloadable(preload_folder(folder) + "/" + shim_name); }

FabricParts find_fabric_parts(const std::string& folder, const std::string& provider_path) {
    FabricParts parts;
    parts.worker = preload_folder(folder) + "/" + worker_name;
    check(parts.worker);
    const std::string built = build_libs(folder);
    const std::string stage = stage_of(folder);
    parts.library = (built.empty() ? stage + RSRUN_LIBDIR : built) + "/librsocket-ofi.so.1";
    parts.provider_folder = built.empty() ? stage + RSRUN_PROVIDER_DIR : built;
    check(parts.library);
    if (!exists(parts.provider_folder + "/" + plugin_name)) {
        const std::string other = folder_in(provider_path, plugin_name);
        if (other.empty()) {
            util::fail("the plugin {} is found neither in {} nor in a folder of FI_PROVIDER_PATH{}", plugin_name,
                       parts.provider_folder,
                       provider_path.empty() ? ", which is not set" : " (" + provider_path + ")");
        }
        parts.provider_folder = other;
    }
    return parts;
}

} // namespace rsrun
